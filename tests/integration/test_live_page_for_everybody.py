"""The live page for everybody: by keyboard, read aloud, in either scheme, small, with a token, with hostile names."""

import re
from collections.abc import Iterator

import pytest
from selenium import webdriver
from selenium.common.exceptions import JavascriptException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from rankscope.collector.publish.http_auth import HttpAuth
from rankscope.collector.publish.page_files import POLICY
from rankscope.collector.runs.snapshot import RunSnapshot
from tests.integration.chromium import find, prefer, read_log, read_requests, wait_until
from tests.integration.live_pages import LivePage
from tests.integration.live_worlds import LiveWorld, finding_of, huge_run, incident_of, slow_story
from tests.unit.collector.runs.run_stories import Story

TOKEN = "0123456789abcdef0123456789abcdef"  # noqa: S105 - of this test only
HOSTILE = "</script><script>window.hacked='run'</script><img src=x onerror=\"window.hacked='img'\">&amp;\u202e'\""
TEXT_CONTRAST_MIN = 4.5
"""WCAG 2.2, 1.4.3."""
EDGE_CONTRAST_MIN = 3.0
"""WCAG 2.2, 1.4.11: edges of what is operated, and graphics that are needed."""
NARROW_PX = 320
"""WCAG 2.2, 1.4.10: no scrolling in two directions at this width."""
FOCUSED = """
const at = document.activeElement;
return at.id || at.className || `${at.tagName} ${at.textContent.trim().slice(0, 20)}`;
"""
CONTRASTS = """
const parse = (text) => text.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => [r, g, b].map((one) => one / 255)
  .map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4))
  .reduce((sum, one, place) => sum + one * [0.2126, 0.7152, 0.0722][place], 0);
const groundOf = (node) => {
  for (let one = node; one; one = one.parentElement) {
    const found = parse(getComputedStyle(one).backgroundColor);
    if (found.length === 3 || found[3] > 0) return found;
  }
  return [255, 255, 255];
};
const contrast = (one, other) => {
  const [dim, bright] = [light(one), light(other)].sort((a, b) => a - b);
  return (bright + 0.05) / (dim + 0.05);
};
const isText = (node) => [...node.childNodes].some((one) => one.nodeType === 3 && one.textContent.trim());
const texts = [...document.querySelectorAll("body *")].filter((node) => isText(node) && node.checkVisibility());
const edged = [...document.querySelectorAll("button, input, select")].filter((node) => node.checkVisibility());
const name = (node) => `${node.tagName} ${node.id} ${node.textContent.trim().slice(0, 30)}`;
return [
  texts.map((node) => [contrast(parse(getComputedStyle(node).color), groundOf(node)), name(node)]),
  edged.map((node) => [contrast(parse(getComputedStyle(node).borderTopColor), groundOf(node.parentElement)),
    name(node)]),
];
"""


@pytest.fixture(scope="module")
def story() -> Story:
    """Four ranks, the third of which is slow."""
    return slow_story()


@pytest.fixture
def world(story: Story) -> LiveWorld:
    world = LiveWorld()
    world.incidents = (incident_of(1, "story", finding_of(1, "Rank 2 is slow.")),)
    world.tell(story)
    return world


@pytest.fixture
def page(browser: webdriver.Chrome, world: LiveWorld) -> Iterator[LivePage]:
    prefer(browser, color_scheme="light")
    read_log(browser, "browser")
    with world.serve() as server:
        page = LivePage(browser, server).open("#run=story&rank=2")
        page.wait_for_map(109, 4)
        page.wait_for_rows("#beside", 3)
        yield page
        browser.get("about:blank")


def press(page: LivePage, *keys: str) -> None:
    """Keys, one after the other, to whatever has the focus."""
    for key in keys:
        ActionChains(page.browser).send_keys(key).perform()


def tab_to(page: LivePage, identity: str) -> list[str]:
    """Press Tab until that has the focus; what had it on the way."""
    passed: list[str] = []
    while not passed or passed[-1] != identity:
        press(page, Keys.TAB)
        passed.append(str(page.run(FOCUSED)))
        assert len(passed) < 60, f"{identity} is not to be reached: {passed}"
    return passed


def read_aloud(page: LivePage) -> str:
    """What is said of the cell under the cursor, without its time."""
    return re.sub(r" at (\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d", "", page.text("#heat-readout"))


# -- by keyboard ------------------------------------------------------------------------------------------------------


def test_focus_goes_through_the_page_as_it_is_read(page: LivePage) -> None:
    passed = tab_to(page, "rank")
    assert passed[:3] == ["skip", "pause", "SUMMARY Runs"]
    wanted = ["source", "first-rank", "last-rank", "all-ranks", "heat", "rank"]
    assert [one for one in passed if one in wanted] == wanted


def test_skip_link_leads_past_the_runs(page: LivePage) -> None:
    press(page, Keys.TAB, Keys.ENTER)
    assert page.run(FOCUSED) == "run"
    press(page, Keys.TAB)
    assert page.run("return document.getElementById('run').contains(document.activeElement)")
    assert page.text("#run-name") == "story", "the address says the run, and is not the link's"


def test_heat_map_is_walked_and_read_by_arrow_keys(page: LivePage) -> None:
    tab_to(page, "heat")
    press(page, Keys.ARROW_DOWN)
    assert read_aloud(page) == "rank 0, step 111: 1.00x its peers'"
    press(page, Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    # The nearest cell to 65 / 35 is 157: 2 ** (29 / 32) = 1.87.
    assert read_aloud(page) == "rank 2, step 111: 1.87x its peers'"
    press(page, Keys.HOME, Keys.ARROW_RIGHT)
    assert read_aloud(page) == "rank 2, step 4: 1.00x its peers'"
    press(page, Keys.ARROW_UP, Keys.ENTER)
    page.wait_for_text("#rank-said", "Rank 1 on node-a")


def test_slowest_of_16384_cells_is_one_key_away_and_near_in_zoom(page: LivePage, world: LiveWorld) -> None:
    run, picture = huge_run("huge", 16_384, 5_000)
    world.show(run, steps={"huge": picture})
    page.open("#run=huge")
    page.wait_for_map(64, 16_384)
    tab_to(page, "heat")
    press(page, "s")
    assert page.text("#heat-readout").startswith("rank 5000, step ")
    press(page, *["+"] * 11)
    first, last = (int(find(page.browser, f"#{name}-rank").get_attribute("value") or "") for name in ("first", "last"))
    assert (last - first + 1, first <= 5_000 <= last) == (8, True)
    press(page, "0")
    assert find(page.browser, "#last-rank").get_attribute("value") == "16383"


def test_slow_rank_opens_from_the_table_and_the_focus_follows(page: LivePage) -> None:
    page.open("#run=story")
    page.wait_for_rows("#ranks", 4)
    tab_to(page, "BUTTON 2")
    press(page, Keys.ENTER)
    page.wait_for_text("#rank-said", "Rank 2 on node-a")
    assert page.run(FOCUSED) == "rank-title"
    assert "rank=2" in page.browser.current_url


def test_table_does_not_move_under_whoever_stands_in_it(page: LivePage, world: LiveWorld) -> None:
    story = slow_story()
    tab_to(page, "BUTTON 2")
    world.tell(story.train(60, data={1: 400.0}))  # now rank 1 is the slowest
    page.wait_for_text("#figures", "171")
    page.wait_for_label("#heat", "rank 1")
    assert page.run(FOCUSED) == "BUTTON 2"
    page.run("document.activeElement.blur()")
    world.tell(story.train(4, data={1: 400.0}))
    wait_until(page.browser, lambda: page.rows("#ranks")[0][0] == "1")


# -- read aloud -------------------------------------------------------------------------------------------------------


def test_everything_that_takes_the_focus_has_a_name(page: LivePage) -> None:
    tree = page.browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    focusable = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in tree
        if not node["ignored"] and {"name": "focusable", "value": {"type": "booleanOrUndefined", "value": True}}
        in node.get("properties", [])
    ]  # fmt: skip
    assert {"button", "link", "spinbutton", "combobox"} <= {role for role, _ in focusable}
    assert [role for role, name in focusable if not name.strip() and role not in {"main", "generic"}] == []


def test_tables_have_names_and_no_two_controls_the_same_one(page: LivePage) -> None:
    tree = page.browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    named = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in tree if not node["ignored"]]
    tables = [name for role, name in named if role == "table"]
    assert len(tables) >= 4
    assert "" not in tables
    controls = [one for one in named if one[0] in {"combobox", "spinbutton", "checkbox"}]
    assert len(controls) >= 6
    assert len(set(controls)) == len(controls)


def test_page_has_one_title_in_each_level_and_names_its_language(page: LivePage) -> None:
    levels = page.run("return [...document.querySelectorAll('h1, h2, h3')].map(head => Number(head.tagName[1]))")
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in zip([1, *levels], levels, strict=False))
    assert page.run("return document.documentElement.lang") == "en"
    assert page.browser.title == "(1) story - rankscope"


def test_heat_map_says_its_worst_and_stands_beside_a_table(page: LivePage) -> None:
    label = find(page.browser, "#heat").get_attribute("aria-label") or ""
    assert label.startswith("Heat map: 4 ranks by 109 steps. The slowest cell: rank 2, step ")
    assert page.rows("#ranks")[0][:5] == ["2", "node-a", "up", "1.86", "65.0"]
    assert page.count("#ranks thead th[scope=col]") == 14
    assert page.count("#ranks tbody th[scope=row]") == 4


def test_what_is_new_is_told_politely_and_only_then(page: LivePage, world: LiveWorld) -> None:
    assert find(page.browser, "#announcement").get_attribute("aria-live") == "polite"
    page.run(
        "window.changes = 0; new MutationObserver((all) => (window.changes += all.length))"
        ".observe(document.getElementById('announcement'), { childList: true, characterData: true, subtree: true })"
    )
    for step in range(3):
        world.tell(slow_story().train(step + 1, data={2: 40.0}))
        page.wait_for_text("#figures", str(112 + step))
    assert page.run("return window.changes") == 0


# -- in either scheme, small, and calm --------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_edges_can_be_seen(page: LivePage, scheme: str) -> None:
    prefer(page.browser, color_scheme=scheme)
    find(page.browser, "#incident-1 .links a")
    page.click("#open-findings summary")
    texts, edges = page.run(CONTRASTS)
    assert len(texts) > 60
    assert [one for one in texts if one[0] < TEXT_CONTRAST_MIN] == []
    assert [one for one in edges if one[0] < EDGE_CONTRAST_MIN] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_twice_as_slow_stands_out_from_equal(page: LivePage, scheme: str) -> None:
    prefer(page.browser, color_scheme=scheme)
    colors = [page.color(name) for name in ("equal", "hot", "unknown")]

    def light(color: list[int]) -> float:
        parts = [one / 255 for one in color]
        linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts]
        return sum(part * weight for part, weight in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))

    equal, hot, unknown = (light(color) + 0.05 for color in colors)
    assert max(equal, hot) / min(equal, hot) >= EDGE_CONTRAST_MIN
    assert max(equal, unknown) / min(equal, unknown) > 1.4


def test_narrow_window_scrolls_in_one_direction_only(page: LivePage) -> None:
    metrics = {"width": NARROW_PX, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        assert page.run("return document.scrollingElement.scrollWidth") <= NARROW_PX
        assert page.size("#heat")[0] <= NARROW_PX
    finally:
        page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_nothing_moves_by_itself(page: LivePage) -> None:
    assert page.run("return document.getAnimations().length") == 0
    moving = page.run(
        "return [...document.querySelectorAll('*')].filter((node) => "
        "getComputedStyle(node).transitionDuration !== '0s' || getComputedStyle(node).animationName !== 'none').length"
    )
    assert moving == 0


# -- with a token -----------------------------------------------------------------------------------------------------


def test_token_is_asked_for_in_the_page_and_kept_for_the_tab(browser: webdriver.Chrome, world: LiveWorld) -> None:
    with world.serve(HttpAuth(TOKEN)) as server:
        page = LivePage(browser, server).open()
        page.wait_for_text("#connection", "Not signed in.")
        assert page.run(FOCUSED) == "token"
        assert page.text("#sign-in-problem") == ""
        assert "story" not in browser.page_source
        press(page, "wrong-wrong-wrong-wrong", Keys.ENTER)
        page.wait_for_text("#sign-in-problem", "Wrong token.")
        find(browser, "#token").send_keys(TOKEN, Keys.ENTER)
        page.wait_for_map(109, 4)
        assert not page.shown("#sign-in")
        browser.refresh()
        page.wait_for_map(109, 4)
        assert page.run("return [localStorage.length, document.cookie]") == [0, ""]
        assert not any(TOKEN in url for url in read_requests(browser))
        page.run("sessionStorage.clear()")
        browser.get("about:blank")


def test_token_in_the_address_signs_in_and_leaves_the_address(browser: webdriver.Chrome, world: LiveWorld) -> None:
    with world.serve(HttpAuth(TOKEN, is_in_address=True)) as server:
        page = LivePage(browser, server)
        browser.get(f"{server.url}/?token={TOKEN}#run=story")
        page.wait_for_map(109, 4)
        assert browser.current_url == f"{server.url}/#run=story"
        browser.refresh()
        page.wait_for_map(109, 4)
        assert page.run("return [localStorage.length, document.cookie]") == [0, ""]
        page.run("sessionStorage.clear()")
        browser.get("about:blank")


# -- with hostile names -----------------------------------------------------------------------------------------------


def test_hostile_names_are_shown_and_nothing_in_them_runs(page: LivePage, world: LiveWorld) -> None:
    run, picture = huge_run(HOSTILE, 8, 3)
    finding = finding_of(
        1, f"Sentence {HOSTILE}", suggestion=HOSTILE, evidence={HOSTILE: 1.5}, details={HOSTILE: HOSTILE},
        cause=HOSTILE, severity="x onmouseover=alert(1)",
    )  # fmt: skip
    fields = {name: getattr(run, name) for name in RunSnapshot.__struct_fields__}
    fields |= {"open_findings": (finding,), "abstained": HOSTILE}
    world.show(RunSnapshot(**fields), steps={HOSTILE: picture})
    wait_until(page.browser, lambda: [row[0] for row in page.rows("#runs")] == [HOSTILE])
    page.click("#runs-shown > summary")
    page.click("#runs a")
    page.wait_for_text("#run-name", HOSTILE)
    page.wait_for_text("#notes", HOSTILE)
    page.wait_for_map(64, 8)
    page.wait_for_text("#open-findings", f"Sentence {HOSTILE}")
    assert page.rows("#open-findings table") == [[HOSTILE, "1.50"]]
    assert page.run("return window.hacked ?? null") is None
    assert (page.count("script"), page.count("img")) == (1, 0)
    assert read_log(page.browser, "browser") == []


@pytest.mark.parametrize("hash_", [HOSTILE, "run=%00%ff", "rank=1e99&run=", "run=story&rank=-1", "run=story&rank=<b>"])
def test_hostile_address_is_an_address_of_nothing(page: LivePage, hash_: str) -> None:
    page.open(f"#{hash_}")
    page.wait_for_text("#connection", "")
    wait_until(page.browser, lambda: page.rows("#runs"))
    assert page.run("return window.hacked ?? null") is None
    errors = [one for one in read_log(page.browser, "browser") if "javascript" in one["source"]]
    assert errors == []


def test_browser_makes_no_markup_of_text_whatever_a_script_asks(page: LivePage) -> None:
    with pytest.raises(JavascriptException, match="TrustedHTML"):
        page.run("document.body.innerHTML = '<b>bold</b>'")
    with pytest.raises(JavascriptException, match="TrustedScript"):
        page.run("document.head.appendChild(document.createElement('script')).text = 'window.hacked = 1'")
    assert page.run("return window.hacked ?? null") is None
    read_log(page.browser, "browser")


def test_policy_allows_nothing_inline_and_nothing_from_elsewhere() -> None:
    assert "default-src 'none'" in POLICY
    assert {
        word for word in POLICY.replace(";", "").split() if "unsafe" in word or "http" in word or "*" in word
    } == set()
