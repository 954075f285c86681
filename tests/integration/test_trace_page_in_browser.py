"""The page in a real browser, from a file. Needs Debian's chromium and chromium-driver, and pip's selenium."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from rankscope.collector.reports.trace_page import render_page
from rankscope.collector.reports.trace_tables import build_sections
from rankscope.collector.traces.analysis import analyze
from rankscope.collector.traces.report import TraceReport

TRACES = Path(__file__).parents[1] / "traces"
DEADLINE_S = 20
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


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.fail("no chromium or no chromedriver here: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    # Root has no sandbox, and a container's /dev/shm is small.
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = webdriver.Chrome(options=options, service=Service(driver))
    chrome.set_page_load_timeout(DEADLINE_S)
    yield chrome
    chrome.quit()


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
        log_of(browser, kind)
    browser.get(file.as_uri())
    wait_for(browser, "canvas")
    return browser


def wait_for(browser: webdriver.Chrome, selector: str) -> WebElement:
    return WebDriverWait(browser, DEADLINE_S).until(lambda there: there.find_element(By.CSS_SELECTOR, selector))


def log_of(browser: webdriver.Chrome, kind: str) -> list[dict[str, Any]]:
    """What came since it was last asked for."""
    entries: list[dict[str, Any]] = browser.get_log(kind)  # type: ignore[no-untyped-call]
    return entries


def requests_of(browser: webdriver.Chrome) -> list[str]:
    messages: list[dict[str, Any]] = [
        json.loads(entry["message"])["message"] for entry in log_of(browser, "performance")
    ]
    sent = [message["params"] for message in messages if message["method"] == "Network.requestWillBeSent"]
    return [request["request"]["url"] for request in sent]


def test_page_opens_without_a_word_on_the_console(page: webdriver.Chrome) -> None:
    assert log_of(page, "browser") == []


def test_page_asks_for_nothing_but_itself(page: webdriver.Chrome) -> None:
    assert page.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert requests_of(page) == [page.current_url]


def test_every_section_has_its_rows_or_says_why_not(page: webdriver.Chrome, report: TraceReport) -> None:
    found = {
        section.key: len(page.find_elements(By.CSS_SELECTOR, f"#{section.key} tbody tr, #{section.key} .reason"))
        for section in build_sections(report, top=20)
    }
    assert min(found.values()) > 0
    assert {found[section.key] for section in build_sections(report, top=20) if not section.rows} <= {1}


def test_timeline_of_each_rank_is_drawn_in_several_colours(page: webdriver.Chrome, report: TraceReport) -> None:
    canvases = page.find_elements(By.CSS_SELECTOR, "canvas[role=slider]")
    assert len(canvases) == len(report.ranks)
    assert all(page.execute_script(PIXELS, canvas) >= 3 for canvas in canvases)


def test_arrow_keys_read_the_timeline_out(page: webdriver.Chrome, report: TraceReport) -> None:
    wait_for(page, "canvas[role=slider]").send_keys(Keys.ARROW_RIGHT)
    timeline = report.ranks[0].timeline
    assert timeline is not None
    readout = wait_for(page, "#readout").text
    assert readout.startswith("rank 0,")
    assert f"compute alone {100 * timeline.compute[0] / timeline.bin_ns:.1f} %" in readout


def test_field_for_ranks_chooses_what_is_drawn(page: webdriver.Chrome, report: TraceReport) -> None:
    last = max(rank.rank or 0 for rank in report.ranks)
    field = wait_for(page, "#picked")
    field.clear()
    field.send_keys(str(last), Keys.ENTER)
    WebDriverWait(page, DEADLINE_S).until(
        lambda there: [one.text for one in there.find_elements(By.CSS_SELECTOR, ".lane span")] == [f"rank {last}", ""]
    )
    assert wait_for(page, "#said").text.startswith(f"1 of {len(report.ranks)} ranks")


def test_numbers_are_sorted_as_numbers_by_a_click_on_their_head(page: webdriver.Chrome, report: TraceReport) -> None:
    key, place = ("kernels", 1) if report.ranks[0].kernels else ("operators", 1)
    column = COLUMN.replace("#kernels", f"#{key}")
    head = wait_for(page, f"#{key} th:nth-child({place + 1}) button")
    head.click()
    largest_first = [float(text) for text in page.execute_script(column, place)]
    head.click()
    smallest_first = [float(text) for text in page.execute_script(column, place)]
    assert largest_first == sorted(largest_first, reverse=True)
    assert smallest_first == sorted(largest_first)
    assert len(set(map(len, map(str, smallest_first)))) > 1, "numbers of one length would be sorted alike as text"


def test_sorted_column_is_announced(page: webdriver.Chrome) -> None:
    wait_for(page, "#ranks th button").send_keys(Keys.ENTER)
    assert wait_for(page, "#ranks th").get_attribute("aria-sort") == "descending"


def test_page_is_dark_where_the_user_wants_it_dark(page: webdriver.Chrome) -> None:
    def paper(scheme: str) -> str:
        page.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        )
        return str(page.execute_script("return getComputedStyle(document.body).backgroundColor"))

    assert (paper("dark"), paper("light")) == ("rgb(20, 24, 29)", "rgb(255, 255, 255)")
