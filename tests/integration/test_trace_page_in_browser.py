"""The page of `analyze`, and that of `report`, in a real browser, from a file."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select
from selenium.webdriver.support.wait import WebDriverWait

from rankscope.collector.reports.run_page import render_page as render_run_page
from rankscope.collector.reports.run_report import read_report
from rankscope.collector.reports.trace_page import render_page
from rankscope.collector.reports.trace_tables import build_sections
from rankscope.collector.traces.analysis import analyze
from rankscope.collector.traces.report import TraceReport
from tests.integration.chromium import DEADLINE_S, find, prefer, read_log, read_requests, starting_chromium
from tests.pipelines import Job, write_traces
from tests.unit.collector.detect.findings import slow
from tests.unit.collector.reports.test_run_report import keep
from tests.unit.collector.reports.test_trace_page import hostile_report

TRACES = Path(__file__).parents[1] / "traces"
TWO_RANKS = TRACES / "gloo-2.13" / "ddp_2r_slow1_forward"
ONE_GPU = TRACES / "a100_nccl_2ranks_r0.json.gz"
PIXELS = """
const canvas = arguments[0];
const bytes = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
return new Set(new Uint32Array(bytes.buffer)).size;
"""
COLUMN = """
return Array.from(document.querySelectorAll("#kernels tbody tr"), row => row.cells[arguments[0]].dataset.sort);
"""
BROKEN_WORDS = """
const broken = [];
for (const details of document.querySelectorAll("details")) details.open = true;
const range = document.createRange();
for (const cell of document.querySelectorAll("th, td, summary")) {
  const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    for (const word of texts.currentNode.data.matchAll(/[A-Za-z0-9]+/g)) {
      range.setStart(texts.currentNode, word.index);
      range.setEnd(texts.currentNode, word.index + word[0].length);
      if (new Set(Array.from(range.getClientRects(), (box) => box.top)).size > 1) broken.push(word[0]);
    }
  }
}
return broken;
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    with starting_chromium() as chromium:
        yield chromium


@contextmanager
def of_width(browser: webdriver.Chrome, width: int) -> Iterator[None]:
    """Give the page a window of this width, in CSS pixels."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.fixture(scope="module", params=[TWO_RANKS, ONE_GPU], ids=["two_ranks_gloo", "one_rank_a100"])
def report(request: pytest.FixtureRequest) -> TraceReport:
    # In this process: two small traces are not worth two workers.
    path: Path = request.param
    files = sorted(path.glob("rank*.json.gz")) if path.is_dir() else [path]
    return analyze([str(file) for file in files])


@pytest.fixture
def page(browser: webdriver.Chrome, report: TraceReport, tmp_path: Path) -> webdriver.Chrome:
    file = tmp_path / "page.html"
    file.write_text(render_page(report), encoding="utf-8")
    for kind in ("browser", "performance"):
        read_log(browser, kind)
    browser.get(file.as_uri())
    find(browser, "canvas")
    return browser


def test_page_opens_without_console_messages(page: webdriver.Chrome) -> None:
    assert read_log(page, "browser") == []


def test_page_asks_for_nothing_but_itself(page: webdriver.Chrome) -> None:
    assert page.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert read_requests(page) == [page.current_url]


def test_every_section_has_rows_or_a_reason(page: webdriver.Chrome, report: TraceReport) -> None:
    found = {
        section.key: len(page.find_elements(By.CSS_SELECTOR, f"#{section.key} tbody tr, #{section.key} .reason"))
        for section in build_sections(report, top=20)
    }
    assert min(found.values()) > 0
    assert {found[section.key] for section in build_sections(report, top=20) if not section.rows} <= {1}


@pytest.mark.parametrize("width", [1280, 390])
def test_no_word_is_broken_inside(page: webdriver.Chrome, width: int) -> None:
    with of_width(page, width):
        assert page.execute_script(BROKEN_WORDS) == []


@pytest.mark.parametrize("width", [1280, 390])
def test_page_is_no_wider_than_the_window(page: webdriver.Chrome, width: int) -> None:
    with of_width(page, width):
        assert page.execute_script("return document.documentElement.scrollWidth") <= width


def test_sentences_need_no_scrolling_in_a_narrow_window(page: webdriver.Chrome) -> None:
    with of_width(page, 390):
        widths = "const box = document.querySelector('#verdict .scroll'); return [box.scrollWidth, box.clientWidth]"
        needed, given = page.execute_script(widths)
        assert needed <= given


@pytest.mark.parametrize("width", [1280, 390])
def test_picture_of_a_pipeline_fits_the_window(browser: webdriver.Chrome, tmp_path: Path, width: int) -> None:
    write_traces(tmp_path / "traces", Job("1F1B", 4, 8))
    file = tmp_path / "page.html"
    file.write_text(render_page(analyze(sorted(map(str, (tmp_path / "traces").glob("*.json"))))), encoding="utf-8")
    read_log(browser, "browser")
    with of_width(browser, width):
        browser.get(file.as_uri())
        boxes = browser.execute_script(
            "return Array.from(document.querySelectorAll('#stages svg'), one => one.getBoundingClientRect().right)"
        )
        assert len(boxes) == 4
        assert max(boxes) < width
        assert browser.execute_script(BROKEN_WORDS) == []
    assert read_log(browser, "browser") == []


def test_abstentions_fold_and_can_be_opened(page: webdriver.Chrome) -> None:
    table = find(page, "#not_judged table")
    assert not table.is_displayed()
    find(page, "#not_judged summary").click()
    assert table.is_displayed()


def test_timeline_of_each_rank_is_drawn_in_several_colors(page: webdriver.Chrome, report: TraceReport) -> None:
    canvases = page.find_elements(By.CSS_SELECTOR, "canvas[role=slider]")
    assert len(canvases) == len(report.ranks)
    assert all(page.execute_script(PIXELS, canvas) >= 3 for canvas in canvases)


def test_arrow_keys_read_the_timeline_out(page: webdriver.Chrome, report: TraceReport) -> None:
    find(page, "canvas[role=slider]").send_keys(Keys.ARROW_RIGHT)
    slowest = max((one for rank in report.ranks for one in rank.step_timelines), key=lambda one: one.window_ns)
    timeline = next(one for one in report.ranks[0].step_timelines if one.step == slowest.step)
    readout = find(page, "#readout").text
    assert readout.startswith("rank 0,")
    assert f"compute alone {100 * timeline.compute[0] / timeline.bin_ns:.1f} %" in readout


def test_field_for_ranks_chooses_what_is_drawn(page: webdriver.Chrome, report: TraceReport) -> None:
    last = max(rank.rank or 0 for rank in report.ranks)
    field = find(page, "#picked")
    field.clear()
    field.send_keys(str(last), Keys.ENTER)
    WebDriverWait(page, DEADLINE_S).until(
        lambda there: [one.text for one in there.find_elements(By.CSS_SELECTOR, ".lane span")] == [f"rank {last}", ""]
    )
    assert find(page, "#note").text.startswith(f"1 of {len(report.ranks)} ranks")


def test_waits_are_arrows_with_their_figures(page: webdriver.Chrome, report: TraceReport) -> None:
    waits = report.cross_rank.waits if report.cross_rank is not None else []
    titles = [one.get_attribute("textContent") for one in page.find_elements(By.CSS_SELECTOR, ".arrows line title")]
    slowest = max((one for rank in report.ranks for one in rank.step_timelines), key=lambda one: one.window_ns).step
    longest = [one for one in waits if one.step == slowest][:1]
    expected = [f"rank {one.rank} waited {round(one.wait_ns / 1e6, 3)} ms for rank {one.late_rank}" for one in longest]
    assert [str(title).partition(":")[0] for title in titles[:1]] == expected
    assert len(titles) <= 20


def test_whole_trace_can_be_chosen(page: webdriver.Chrome, report: TraceReport) -> None:
    Select(find(page, "#view")).select_by_visible_text("the whole trace")
    find(page, "canvas[role=slider]").send_keys(Keys.ARROW_RIGHT)
    timeline = report.ranks[0].timeline
    assert timeline is not None
    assert f"compute alone {100 * timeline.compute[0] / timeline.bin_ns:.1f} %" in find(page, "#readout").text


def test_bars_of_a_chosen_step_have_its_figures(page: webdriver.Chrome, report: TraceReport) -> None:
    first = report.ranks[0].steps[0]
    Select(find(page, "#bars-step")).select_by_visible_text(f"step {first.step}")
    found = first.on_device or first
    label = find(page, "#bars svg").get_attribute("aria-label")
    assert f"idle {found.idle_ns / 1e6:,.3f} ms" in str(label)
    # All bars are measured by the longest one.
    width = "return Array.from(document.querySelectorAll('#bars svg'), one => one.getBBox().width)"
    assert max(page.execute_script(width)) == pytest.approx(1_000, abs=0.1)


def test_numbers_are_sorted_as_numbers_by_a_click_on_their_head(page: webdriver.Chrome, report: TraceReport) -> None:
    key, place = ("kernels", 1) if report.ranks[0].kernels else ("operators", 1)
    column = COLUMN.replace("#kernels", f"#{key}")
    head = find(page, f"#{key} th:nth-child({place + 1}) button")
    head.click()
    largest_first = [float(text) for text in page.execute_script(column, place)]
    head.click()
    smallest_first = [float(text) for text in page.execute_script(column, place)]
    assert largest_first == sorted(largest_first, reverse=True)
    assert smallest_first == sorted(largest_first)
    assert len(set(map(len, map(str, smallest_first)))) > 1, "numbers of one length would be sorted alike as text"


def test_sorted_column_is_announced(page: webdriver.Chrome) -> None:
    find(page, "#ranks th button").send_keys(Keys.ENTER)
    assert find(page, "#ranks th").get_attribute("aria-sort") == "descending"


def test_page_is_dark_where_the_user_wants_it_dark(page: webdriver.Chrome) -> None:
    def paper(scheme: str) -> str:
        prefer(page, color_scheme=scheme)
        return str(page.execute_script("return getComputedStyle(document.body).backgroundColor"))

    assert (paper("dark"), paper("light")) == ("rgb(20, 24, 29)", "rgb(255, 255, 255)")


HOSTILE = "<script>window.wasRun = 1</script><img src=x onerror='window.wasRun = 1'>"
"""A name that runs where it is not escaped."""


def write_page_of_run(folder: Path) -> Path:
    """What `rankscope report --html` makes of a run whose every name is hostile."""
    store, page = folder / "hostile.db", folder / "run.html"
    finding = slow(1, cause=HOSTILE, sentence=HOSTILE, suggestion=HOSTILE, nodes=(HOSTILE,))
    keep(store, HOSTILE, node=HOSTILE, finding=finding)
    page.write_text(render_run_page(read_report(store, HOSTILE)), encoding="utf-8")
    return page


def write_page_of_traces(folder: Path) -> Path:
    """What `rankscope analyze --html` makes of traces whose every name is hostile."""
    page = folder / "traces.html"
    page.write_text(render_page(hostile_report(HOSTILE)), encoding="utf-8")
    return page


@pytest.mark.parametrize("write_page", [write_page_of_run, write_page_of_traces])
def test_names_that_are_scripts_are_shown_and_not_run(
    browser: webdriver.Chrome, tmp_path: Path, write_page: Callable[[Path], Path]
) -> None:
    read_log(browser, "browser")
    browser.get(write_page(tmp_path).as_uri())
    assert HOSTILE in (find(browser, "main").get_attribute("textContent") or "")
    assert browser.execute_script("return window.wasRun") is None
    assert browser.find_elements(By.CSS_SELECTOR, "img") == []
    assert read_log(browser, "browser") == []
