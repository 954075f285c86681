"""What the live page shows about findings and what leads from one to everything about it, in a real browser."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
from selenium import webdriver

from rankscope.collector.detect.finding import Finding
from tests.integration.chromium import find, prefer, starting_chromium, wait_until
from tests.integration.live_pages import BELOW, LEFT, LivePage, is_near
from tests.integration.live_worlds import STEPS, LiveWorld, finding_of, huge_run

RANKS, SLOW_RANK, SINCE_STEP = 256, 77, 32
PHONE_PX = 390
LETTERS_IN_COLUMNS = """
const found = [];
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (texts.nextNode()) {
  const node = texts.currentNode;
  const range = document.createRange();
  range.selectNodeContents(node);
  const lines = new Set([...range.getClientRects()].map(({ bottom }) => Math.round(bottom)));
  const isSeen = node.parentElement.closest("table")?.checkVisibility();
  if (isSeen && lines.size > node.textContent.trim().split(/[\\s-]+/).length) found.push(node.textContent);
}
return found;
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    with starting_chromium() as chromium:
        chromium.set_window_size(1300, 2200)
        yield chromium


@pytest.fixture
def world() -> LiveWorld:
    return LiveWorld()


@pytest.fixture
def page(browser: webdriver.Chrome, world: LiveWorld) -> Iterator[LivePage]:
    prefer(browser, color_scheme="light")
    with world.serve() as server:
        yield LivePage(browser, server)
        browser.get("about:blank")


@contextmanager
def as_wide_as(browser: webdriver.Chrome, width: int) -> Iterator[None]:
    """A window of this width."""
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def straggler(number: int, *ranks: int, since_step: int = SINCE_STEP) -> Finding:
    """A finding about these ranks."""
    said = f"Ranks {ranks} are slow."
    return finding_of(number, said, ranks=ranks, since_step=since_step, slowdown_ratio=1.31)


def show(page: LivePage, world: LiveWorld, *findings: Finding, ranks: int = RANKS) -> None:
    """A run with these open findings, and its page."""
    run, picture = huge_run("gpt", ranks, SLOW_RANK)
    run = msgspec.structs.replace(run, open_findings=findings, findings=findings)
    world.show(run, steps={"gpt": picture})
    page.open("#run=gpt")
    page.wait_for_map(STEPS, ranks)
    page.wait_for_label("#heat", "Outlined")


def find_marked(page: LivePage, column: int, columns: int = STEPS) -> list[int]:
    """The rows of pixels in the middle of a column that have the colour of outlines."""
    width, height = page.size("#heat")
    mark, x = page.colour("mark"), LEFT + (column + 0.5) / columns * (width - LEFT)
    pixels = page.pixels("#heat", x)[: round(height - BELOW)]
    return [y for y, colour in enumerate(pixels) if is_near(colour, mark, 40)]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_found_rank_is_outlined_from_its_first_step(page: LivePage, world: LiveWorld, scheme: str) -> None:
    prefer(page.browser, color_scheme=scheme)
    show(page, world, straggler(1, SLOW_RANK))
    middle = (SLOW_RANK + 0.5) / RANKS * (page.size("#heat")[1] - BELOW)
    upper, lower = find_marked(page, SINCE_STEP + 4)[0], find_marked(page, SINCE_STEP + 4)[-1]
    assert middle - 9 < upper < middle < lower < middle + 9
    assert find_marked(page, SINCE_STEP - 2) == [], "before the step with which it began there is no outline"


def test_found_rank_is_named_beside_its_row_and_leads_to_it(page: LivePage, world: LiveWorld) -> None:
    show(page, world, straggler(1, SLOW_RANK))
    link = find(page.browser, "#heat-found a")
    assert link.text == "rank 77 1.31x"
    top = page.run("return arguments[0].offsetTop", find(page.browser, "#heat-found li"))
    middle = (SLOW_RANK + 0.5) / RANKS * (page.size("#heat")[1] - BELOW)
    assert abs(top + 11 - middle) < 2
    link.click()
    page.wait_for_text("#rank-said", "Rank 77 on node-9")


def test_ranks_of_a_node_share_an_outline_and_a_name(page: LivePage, world: LiveWorld) -> None:
    show(page, world, straggler(1, *range(64, 72)))
    assert page.text("#heat-found") == "ranks 64-71 1.31x"
    height = page.size("#heat")[1] - BELOW
    marked = find_marked(page, STEPS - 8)
    assert (marked[0], marked[-1]) == pytest.approx((64 / RANKS * height, 72 / RANKS * height), abs=4)


def test_names_of_found_ranks_do_not_cover_each_other(page: LivePage, world: LiveWorld) -> None:
    show(page, world, *[straggler(number, 200 + number) for number in range(1, 6)])
    tops = page.run("return [...document.querySelectorAll('#heat-found li')].map(({ offsetTop }) => offsetTop)")
    assert len(tops) == 5
    assert all(after - before >= 22 for before, after in itertools.pairwise(tops))


def test_finding_about_all_ranks_outlines_none_of_them(page: LivePage, world: LiveWorld) -> None:
    run, picture = huge_run("gpt", 8, 3)
    world.show(msgspec.structs.replace(run, open_findings=(straggler(1, *range(8)),)), steps={"gpt": picture})
    page.open("#run=gpt")
    page.wait_for_text("#open-findings", "are slow")
    page.wait_for_map(STEPS, 8)
    assert not page.shown("#heat-found")
    assert find_marked(page, STEPS - 8) == []


def test_outline_leaves_with_its_finding(page: LivePage, world: LiveWorld) -> None:
    show(page, world, straggler(1, SLOW_RANK))
    run, picture = huge_run("gpt", RANKS, SLOW_RANK)
    world.show(run, steps={"gpt": picture})
    wait_until(page.browser, lambda: not page.shown("#heat-found"))
    assert find_marked(page, STEPS - 8) == []


def test_columns_have_a_time_of_day_and_so_has_what_is_read(page: LivePage, world: LiveWorld) -> None:
    # The steps end 0.2 s after each other: the last of 64 is 12.6 s after the first.
    show(page, world, straggler(1, SLOW_RANK))
    clocks = [
        page.run("return new Date(1000 * arguments[0]).toLocaleTimeString('en-GB')", 1_773_500_000 + after)
        for after in (0.0, 12.6)
    ]
    assert clocks[0] != clocks[1]
    find(page.browser, "#heat").send_keys("\ue014\ue010")  # right, End
    assert page.text("#heat-readout").startswith(f"rank 0, step 63 at {clocks[1]}: ")


def test_no_table_of_a_phone_has_letters_below_each_other(page: LivePage, world: LiveWorld) -> None:
    show(page, world, straggler(1, SLOW_RANK))
    with as_wide_as(page.browser, PHONE_PX):
        page.open(f"#run=gpt&rank={SLOW_RANK}")
        page.wait_for_rows("#beside", 3)
        page.wait_for_rows("#slowest", 10)
        assert page.run(LETTERS_IN_COLUMNS) == []
        assert page.run("return document.scrollingElement.scrollWidth") <= PHONE_PX
        assert page.size("#heat")[0] > PHONE_PX - 40, "the names of found ranks are below it, not beside it"
