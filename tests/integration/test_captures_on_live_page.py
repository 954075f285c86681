"""Captures on the live page, in a real browser: ordered by a click, followed, and handed to Perfetto.

`test_pressed_button...` are against a whole collector; the others against a server whose captures the test makes.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from msgspec.structs import replace
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from rankscope.collector.captures.capture import (
    Around,
    Capture,
    CaptureFile,
    CaptureRefusal,
    CaptureRequest,
    RankCapture,
)
from rankscope.collector.incidents.incident import begin
from rankscope.collector.publish.http_auth import HttpAuth
from rankscope.collector.publish.http_server import HttpServer
from rankscope.collector.runs.run_end import RunEnd
from rankscope.collector.runs.snapshot import RunSnapshot
from rankscope.measure.messages import CaptureOrder, Message, Report
from rankscope.measure.records import StepRecord, Totals, steps_to_table
from tests.integration.chromium import find, prefer, read_log, read_requests, wait_until
from tests.integration.live_pages import LivePage, Serving
from tests.integration.live_worlds import LiveWorld, finding_of, slow_story
from tests.integration.serving import Served, serving
from tests.integration.test_live_page_for_everybody import (
    CONTRASTS,
    EDGE_CONTRAST_MIN,
    NARROW_PX,
    TEXT_CONTRAST_MIN,
)
from tests.integration.test_ordered_captures import make_trace
from tests.integration.test_view import serving_perfetto
from tests.integration.torchrun import AGENT, OFTEN, forked_ranks, started
from tests.integration.wire_peer import Peer, connected
from tests.unit.collector.captures.answering_ranks import AnsweringRank

CONTROL: Final = "control-0123456789abcdef"
READ: Final = "read-0123456789abcdef"
BUTTON: Final = "#open-findings button.capture"
TRACE: Final = b"\x1f\x8b a timeline"
HOSTILE: Final = "<img src=x onerror=\"window.hacked='img'\">"
ORDERED: Final = Capture(
    id="c1", run="story", run_id="story", state="ordered", asked_wall_s=5.0, changed_wall_s=5.0, asked_by="127.0.0.1",
    first_step=120, last_step=122, ranks=(RankCapture(rank=0), RankCapture(rank=1), RankCapture(rank=2)),
)  # fmt: skip
COMPLETE: Final = replace(
    ORDERED,
    state="complete",
    ranks=(RankCapture(rank=0, pause_s=0.5), RankCapture(rank=1), RankCapture(rank=2)),
    verdict="rank 2 is slow\nby 12 %",
    files=(CaptureFile("merged.json.gz", len(TRACE)), CaptureFile("report.html", 2_400_000)),
)


@pytest.fixture
def world() -> LiveWorld:
    """Four ranks, of which rank 2 is slow; an order begins ORDERED."""
    world = LiveWorld()
    world.tell(slow_story())
    world.answer = ORDERED
    return world


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "c1").mkdir()
    (tmp_path / "c1" / "merged.json.gz").write_bytes(TRACE)
    (tmp_path / "c1" / "report.html").write_text("<!doctype html><title>the report</title>")
    return tmp_path


@pytest.fixture
def server(world: LiveWorld, folder: Path) -> Iterator[HttpServer]:
    with world.serve(HttpAuth(control_token=CONTROL), captures_folder=folder) as server:
        yield server


def open_page(browser: webdriver.Chrome, server: Serving, address: str = "#run=story") -> LivePage:
    """The page of a run, without any token of a test before."""
    read_log(browser, "browser")
    page = LivePage(browser, server).open(address)
    page.run("sessionStorage.clear()")
    return page


@pytest.fixture
def page(browser: webdriver.Chrome, server: HttpServer) -> Iterator[LivePage]:
    page = open_page(browser, server)
    page.wait_for_text("#open-findings", "Rank 2")
    yield page
    browser.get("about:blank")


def order_by(page: LivePage, token: str) -> None:
    """Press the button of the finding, and order with this token."""
    page.click(BUTTON)
    find(page.browser, "#order-token").send_keys(token, Keys.ENTER)


def change(world: LiveWorld, **fields: object) -> None:
    """The newest capture is as it was but for these fields."""
    world.captures = (replace(world.captures[0], **fields), *world.captures[1:])


# -- the order --------------------------------------------------------------------------------------------------------


def test_finding_is_captured_by_button_with_the_token_asked_once(page: LivePage, world: LiveWorld) -> None:
    assert page.text(BUTTON) == "Capture rank 2 and two for comparison"
    order_by(page, CONTROL)
    page.wait_for_text("#capture-list", "ordered: the ranks are being told the steps; capture c1, ordered by 127.0.0.1")
    assert world.orders == [CaptureRequest(run="story", ranks=Around(2), steps=3, asked_by="127.0.0.1")]
    assert not page.shown("#order")
    assert page.run("return document.activeElement.id") == "captures-title"
    world.answer = replace(ORDERED, id="c2")
    page.click(BUTTON)
    assert not page.shown("#order-token-asked")
    page.click("#order-send")
    page.wait_for_text("#capture-list", "capture c2")
    assert len(world.orders) == 2


def test_token_is_kept_for_the_tab_and_sent_with_orders_only(page: LivePage) -> None:
    read_requests(page.browser)
    order_by(page, CONTROL)
    page.wait_for_text("#capture-list", "capture c1")
    kept = page.run("return [Object.keys(localStorage), document.cookie, Object.values(sessionStorage)]")
    assert kept == [[], "", [CONTROL]]
    assert find(page.browser, "#order-token").get_attribute("value") == ""
    messages = [str(entry["message"]) for entry in read_log(page.browser, "performance")]
    sent = [one for one in messages if CONTROL in one and '"Network.requestWillBeSent"' in one]
    assert len(sent) == 1
    assert f'"url":"{page.server.url}/api/v1/runs/story/captures"' in sent[0]


def test_rank_is_captured_from_its_section_by_keyboard(page: LivePage, world: LiveWorld) -> None:
    page.open("#run=story&rank=3")
    page.wait_for_text("#rank-said", "Rank 3")
    page.run("document.getElementById('capture-rank').focus()")
    ActionChains(page.browser).send_keys(Keys.ENTER).perform()
    assert page.run("return document.activeElement.id") == "order-token"
    assert "on rank 3 and, for comparison, its healthiest peer and a neighbor on its node" in page.text("#order-what")
    ActionChains(page.browser).send_keys(Keys.ESCAPE).perform()
    assert page.run("return [document.activeElement.id, document.getElementById('order').open]") == [
        "capture-rank", False,
    ]  # fmt: skip
    assert world.orders == []
    ActionChains(page.browser).send_keys(Keys.ENTER).send_keys(CONTROL).send_keys(Keys.ENTER).perform()
    page.wait_for_text("#capture-list", "capture c1")
    assert [one.ranks for one in world.orders] == [Around(3)]


def test_nothing_is_ordered_without_a_token(page: LivePage, server: HttpServer, world: LiveWorld) -> None:
    page.click(BUTTON)
    page.click("#order-send")  # the browser says that the field is empty
    assert page.run("return document.querySelector('#order-token:invalid') !== null")
    page.click("#order-cancel")
    assert not page.shown("#order")
    assert world.orders == []
    assert server.refused == {}


def test_what_can_be_no_token_is_not_sent(page: LivePage, server: HttpServer) -> None:
    order_by(page, "two words")
    assert page.run("return document.querySelector('#order-token:invalid') !== null")
    find(page.browser, "#order-token").clear()
    find(page.browser, "#order-token").send_keys("0123456789-caf\u00e9", Keys.ENTER)
    assert page.run("return document.querySelector('#order-token:invalid') !== null")
    page.click("#order-cancel")
    assert server.refused == {}


def test_wrong_token_is_said_and_forgotten(page: LivePage, world: LiveWorld) -> None:
    order_by(page, "wrong-0123456789abcdef")
    said = page.wait_for_text("#order-problem", "The collector answers: ")
    assert "this is not the token of http_control_token_file" in said
    assert page.run("return Object.values(sessionStorage)") == []
    assert page.run("return document.activeElement.id") == "order-token"
    assert world.orders == []
    find(page.browser, "#order-token").send_keys(CONTROL, Keys.ENTER)
    page.wait_for_text("#capture-list", "capture c1")
    assert page.text("#order-problem") == ""


def test_refusal_is_said_and_a_right_token_is_kept(page: LivePage, world: LiveWorld) -> None:
    world.answer = CaptureRefusal(409, f"capture c0 of this run is on: {HOSTILE}")
    order_by(page, CONTROL)
    page.wait_for_text("#order-problem", f"The collector answers: capture c0 of this run is on: {HOSTILE}")
    assert page.run("return [Object.values(sessionStorage), window.hacked ?? null]") == [[CONTROL], None]
    assert not page.shown("#order-token-asked")


def test_collector_without_a_control_token_says_the_cure(browser: webdriver.Chrome, world: LiveWorld) -> None:
    with world.serve() as server:
        page = open_page(browser, server)
        page.wait_for_text("#open-findings", "Rank 2")
        assert not page.shown("#captures")
        page.click(BUTTON)
        page.wait_for_text("#order-problem", "to allow them start it with `http_control_token_file`")
        assert (page.shown("#order-token-asked"), page.shown("#order-send")) == (False, False)
        browser.get("about:blank")
    assert world.orders == []


def test_price_of_the_last_capture_is_told_before_the_next(page: LivePage, world: LiveWorld) -> None:
    world.captures = (ORDERED, replace(COMPLETE, id="c0"))
    page.wait_for_text("#capture-list", "capture c0")
    page.click(BUTTON)
    assert page.text("#order-last") == "The last one of this run stopped training for 0.50 s."


def test_what_cannot_be_captured_has_no_button(page: LivePage, world: LiveWorld) -> None:
    hang = finding_of(1, "It hangs.", kind="hang")
    nobody = finding_of(2, "It is slower.", ranks=())
    world.show(RunSnapshot(run="story", world_size=1, restart_count=0, ranks=(), open_findings=(hang, nobody)))
    page.wait_for_text("#open-findings", "It is slower.")
    assert [one.is_displayed() for one in page.browser.find_elements("css selector", BUTTON)] == [False, False]
    end = RunEnd(reason="crashed", ended_wall_s=59.0, ranks={"crashed": 1})
    world.show(RunSnapshot(run="story", world_size=1, restart_count=0, ranks=(), end=end))
    page.wait_for_text("#run-end", "crashed")
    assert page.run("return document.getElementById('capture-rank').hidden")
    assert not page.shown("#captures")


# -- how far it is ----------------------------------------------------------------------------------------------------


def test_capture_is_followed_to_its_end(page: LivePage, world: LiveWorld) -> None:
    order_by(page, CONTROL)
    page.wait_for_text("#capture-list", "ranks 0, 1, 2, steps 120 to 122")
    asked = (RankCapture(rank=0, expected_pause_s=0.25), RankCapture(rank=1, expected_pause_s=1.5))
    change(world, state="recording", ranks=asked)
    page.wait_for_text("#capture-list", "It is expected to stop training for 1.50 s.")
    page.wait_for_text("#capture-said", "Capture c1: recording: the ranks wait for these steps")
    change(world, state="fetching", ranks=(RankCapture(rank=0, size_bytes=2_000_000, fetched_bytes=500_000),))
    page.wait_for_text("#capture-list", "fetching: the files are on their way to the collector, 500.0 kB of 2.0 MB")
    change(world, state="analyzing")
    page.wait_for_text("#capture-list", "analyzing: the collector analyses the files")
    world.captures = (COMPLETE,)
    page.wait_for_text("#capture-list", "It has stopped training for 0.50 s.")
    page.wait_for_text("#capture-list", "rank 2 is slow")
    links = page.run("return [...document.querySelectorAll('.files a')].map((one) => [one.textContent, one.href])")
    files = f"{page.server.url}/api/v1/captures/c1/files"
    assert links == [
        ["timeline of all ranks (0.0 kB)", f"{files}/merged.json.gz"],
        ["report (2.4 MB)", f"{files}/report.html"],
    ]
    assert read_log(page.browser, "browser") == []


def test_finding_names_the_captures_about_it(page: LivePage, world: LiveWorld) -> None:
    (finding,) = world.snapshot.runs[0].open_findings
    world.incidents = (begin(7, "story", finding, ORDERED.asked_wall_s - 1.0),)
    world.captures = (replace(ORDERED, id="c9", ranks=(RankCapture(rank=1),)), COMPLETE)
    page.wait_for_text("#open-findings", "Capture c1")
    assert "c9" not in page.text("#open-findings")


def test_reason_of_a_failed_capture_is_shown_as_text(page: LivePage, world: LiveWorld) -> None:
    order_by(page, CONTROL)
    page.wait_for_text("#capture-list", "capture c1")
    change(world, state="failed", problem=f"rank 2: a profiler of the script is on {HOSTILE}")
    page.wait_for_text("#capture-list .problem", f"rank 2: a profiler of the script is on {HOSTILE}")
    page.wait_for_text("#capture-said", "Capture c1: failed. rank 2: a profiler of the script is on")
    assert page.count("#capture-list li.failed") == 1
    assert page.run("return window.hacked ?? null") is None


def test_capture_that_was_too_expensive_has_a_cure(page: LivePage, world: LiveWorld) -> None:
    problem = "rank 2: it is expected to stop training for 3 s, capture_pause_s_max is 2 s"
    world.captures = (replace(ORDERED, state="failed", problem=problem, options=("shapes",)),)
    said = page.wait_for_text("#capture-list .problem", "rank 2")
    command = "rankscope capture story --ranks 0,1,2 --steps 3 --shapes --force"
    assert said == f"{problem}. To take it all the same: {command}"


def test_list_is_bounded_and_the_others_are_counted(page: LivePage, world: LiveWorld) -> None:
    world.captures = tuple(replace(COMPLETE, id=f"c{number}") for number in range(12))
    page.wait_for_text("#captures-kept", "The newest 10 of 12.")
    assert page.count("#capture-list li") == 10


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_captures_and_dialogue_can_be_seen(page: LivePage, world: LiveWorld, scheme: str) -> None:
    prefer(page.browser, color_scheme=scheme)
    world.captures = (COMPLETE, replace(ORDERED, id="c0", state="failed", problem="rank 2: its disk is full"))
    page.wait_for_text("#capture-list", "capture c0")
    page.click(BUTTON)
    assert page.shown("#order-token")
    texts, edges = page.run(CONTRASTS)
    assert {"H2 order-title Order a capture", "P  rank 2: its disk is full"} <= {name for _, name in texts}
    assert [one for one in texts if one[0] < TEXT_CONTRAST_MIN] == []
    assert [one for one in edges if one[0] < EDGE_CONTRAST_MIN] == []


def test_captures_fit_a_narrow_window(page: LivePage, world: LiveWorld) -> None:
    trace = CaptureFile("rank-1000.pt.trace.json.gz", 12_345_678)
    world.captures = (replace(COMPLETE, files=(*COMPLETE.files, trace)),)
    page.wait_for_text("#capture-list", "rank-1000")
    metrics = {"width": NARROW_PX, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        page.click(BUTTON)
        assert page.run("return document.scrollingElement.scrollWidth") <= NARROW_PX
        assert page.run("return document.getElementById('order').getBoundingClientRect().right") <= NARROW_PX
    finally:
        page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


# -- its files --------------------------------------------------------------------------------------------------------


def open_link(page: LivePage) -> str:
    """Follow the link to the report into its new tab; return the title there, and come back."""
    own = page.browser.current_window_handle
    page.browser.find_elements("css selector", ".files a")[1].click()
    wait_until(page.browser, lambda: len(page.browser.window_handles) > 1)
    page.browser.switch_to.window(next(one for one in page.browser.window_handles if one != own))
    title = wait_until(page.browser, lambda: page.browser.title)
    page.browser.close()
    page.browser.switch_to.window(own)
    return title


def test_report_opens_in_a_tab_of_its_own(page: LivePage, world: LiveWorld) -> None:
    world.captures = (COMPLETE,)
    page.wait_for_text("#capture-list", "report (2.4 MB)")
    assert open_link(page) == "the report"


def test_file_behind_a_token_is_saved_with_it(
    browser: webdriver.Chrome, world: LiveWorld, folder: Path, tmp_path: Path
) -> None:
    world.captures = (COMPLETE,)
    saved = tmp_path / "saved"
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(saved)})
    with world.serve(HttpAuth(READ), captures_folder=folder) as server:
        page = LivePage(browser, server).open("#run=story")
        page.wait_for_text("#connection", "Not signed in.")
        find(browser, "#token").send_keys(READ, Keys.ENTER)
        page.wait_for_text("#capture-list", "timeline of all ranks")
        page.click(".files a")
        file = saved / "merged.json.gz"
        wait_until(browser, lambda: file.exists() and file.read_bytes() == TRACE)
        assert not any(READ in url for url in read_requests(browser))
        page.run("sessionStorage.clear()")
        browser.get("about:blank")


def test_timeline_is_handed_to_perfetto(page: LivePage, world: LiveWorld) -> None:
    world.captures = (COMPLETE,)
    page.wait_for_text("#capture-list", "Open in Perfetto")
    own = page.browser.current_window_handle
    with serving_perfetto() as perfetto:
        page.run("document.getElementById('captures').dataset.perfetto = arguments[0]", perfetto)
        assert "it is not uploaded" in (find(page.browser, ".files button").get_attribute("title") or "")
        page.click(".files button")
        page.wait_for_text("#capture-list [role=status]", f"Handed over to the window of {perfetto.rstrip('/')}.")
        page.browser.switch_to.window(next(one for one in page.browser.window_handles if one != own))
        expected = f"capture c1 capture c1 {len(TRACE)} {hashlib.sha256(TRACE).hexdigest()}"
        wait_until(page.browser, lambda: page.browser.title == expected)
        page.browser.close()
        page.browser.switch_to.window(own)


def test_silent_perfetto_is_told_with_what_else_to_do(page: LivePage, world: LiveWorld) -> None:
    world.captures = (COMPLETE,)
    page.wait_for_text("#capture-list", "Open in Perfetto")
    page.run("const real = setTimeout; window.setTimeout = (work, ms) => real(work, Math.min(ms, 100));")
    own = page.browser.current_window_handle
    elsewhere = page.server.url.replace("127.0.0.1", "localhost")  # another origin, which knows nothing of Perfetto
    page.run("document.getElementById('captures').dataset.perfetto = arguments[0]", f"{elsewhere}/healthz")
    page.click(".files button")
    said = page.wait_for_text("#capture-list [role=status]", "does not answer")
    assert said == (
        f"{elsewhere} does not answer. If this browser cannot reach it, save the timeline and open it by "
        "`rankscope view merged.json.gz --perfetto URL` in a Perfetto of your own."
    )
    page.browser.switch_to.window(next(one for one in page.browser.window_handles if one != own))
    page.browser.close()
    page.browser.switch_to.window(own)
    page.wait_for_text("#capture-list [role=status]", "the window of Perfetto was closed before it answered. Or save")


# -- of a whole collector ---------------------------------------------------------------------------------------------


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Served]:
    token = tmp_path / "control-token"
    token.write_text(CONTROL)
    token.chmod(0o600)
    # A peer that reports once is lost after 15 s otherwise, which a busy machine needs to open a page: then no order
    # is taken, and the dialogue has no field for the token.
    lasting = ("--rank-silent-s", "3600")
    with serving("--store", str(tmp_path / "store.db"), "--http-control-token-file", str(token), *lasting) as served:
        yield served


def train(collector: Served, peer: Peer) -> None:
    """Join, report one step, and wait until the collector has it."""
    peer.join()
    step = StepRecord(step=0, start_host_ns=0, duration_ns=100_000_000, phases_ns={"forward": 100_000_000})
    peer.sequence += 1
    totals = Totals(steps=1, step_ns=100_000_000)
    peer.send(Report(sequence=peer.sequence, host_ns=100_000_000, steps=steps_to_table([step]), totals=totals))
    collector.wait_for_rank("good", 0, lambda rank: rank.last_step == 0)


def press(browser: webdriver.Chrome, collector: Served, run: str, rank: int) -> LivePage:
    """Order a capture of the rank by its button."""
    page = open_page(browser, collector, f"#run={run}&rank={rank}")
    page.wait_for_text("#rank-said", f"Rank {rank}")
    page.run("document.getElementById('capture-rank').focus()")  # a click may miss it while charts above it appear
    ActionChains(browser).send_keys(Keys.ENTER).perform()
    find(browser, "#order-token").send_keys(CONTROL, Keys.ENTER)
    return page


def answer(peer: Peer, rank: AnsweringRank) -> None:
    """Answer orders until the capture is over."""
    while True:
        message = peer.await_answer(Message)
        said = rank.answer(message)
        if said is not None:
            peer.send(said)
        if isinstance(message, CaptureOrder) and message.is_over:
            return


def test_pressed_button_brings_an_analyzed_capture(browser: webdriver.Chrome, collector: Served) -> None:
    with connected(collector.endpoint, "boot-one") as peer:
        train(collector, peer)
        page = press(browser, collector, "good", 0)
        answer(peer, AnsweringRank(make_trace(), next_step=1))
        page.wait_for_text("#capture-list", "complete")
        # One second (the reports have no interval) is 10 steps of 100 ms, and 2 more after step 0.
        assert page.text("#capture-list .severity") == "rank 0, steps 12 to 14"
        assert "It has stopped training for 0.25 s." in page.text("#capture-list")
        links = page.run(
            "return [...document.querySelectorAll('.files a')].map((one) => one.textContent.split(' (')[0])"
        )
        assert links == ["rank-0.pt.trace.json.gz", "report", "report.json", "report.txt"]
        assert page.text(".files button") == "Open in Perfetto"
        browser.get("about:blank")


def test_pressed_button_shows_why_a_rank_refused(browser: webdriver.Chrome, collector: Served) -> None:
    with connected(collector.endpoint, "boot-one") as peer:
        train(collector, peer)
        page = press(browser, collector, "good", 0)
        answer(peer, AnsweringRank(refusal="a profiler of the script is on", next_step=1))
        assert page.wait_for_text("#capture-list .problem", "rank 0: a profiler of the script is on")
        page.wait_for_text("#capture-list", "failed")
        browser.get("about:blank")


def test_pressed_button_captures_a_training(browser: webdriver.Chrome, collector: Served) -> None:
    training = ("small_ddp.py", "--epochs", "4000", "--steps", "20", "--pause-s", "0.02")  # until it is ended
    environment = {**OFTEN, "RANKSCOPE_COLLECTOR": collector.endpoint, "RANKSCOPE_RUN": "job"}
    with started(forked_ranks(2, *AGENT, *training), environment):
        collector.wait_for_steps("job", 3)
        page = press(browser, collector, "job", 1)
        page.wait_for_text("#capture-list", "complete")
        assert page.run("return document.querySelector('#capture-list .problem').textContent") == ""
        assert page.text("#capture-list .severity").startswith("ranks 0, 1, steps ")
        page.wait_for_text(".files", "timeline of all ranks")
        assert "It has stopped training for " in page.text("#capture-list")
        browser.get("about:blank")
