"""Two runs side by side on the live page: a real browser, a store with runs whose difference is known."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from rankscope.collector.runs.goodput import GoodputSnapshot
from rankscope.collector.runs.snapshot import RunSnapshot
from tests.integration.chromium import find, wait_until
from tests.integration.live_pages import LivePage
from tests.integration.live_worlds import LiveWorld
from tests.unit.collector.comparison.compared_runs import keep_steps, vary

NAMES = ("last", "now", "wide")


@pytest.fixture
def page(browser: webdriver.Chrome, tmp_path: Path) -> Iterator[LivePage]:
    """The page of the run `now`, a tenth slower than `last`; `wide` has twice the ranks."""
    store, world = tmp_path / "store.db", LiveWorld()
    keep_steps(store, "last", vary(100.0, seed=1))
    keep_steps(store, "now", vary(110.0, seed=2))
    keep_steps(store, "wide", vary(110.0, seed=3), world_size=4)
    world.show(
        *[RunSnapshot(run=name, world_size=2, restart_count=0, ranks=(), goodput=GoodputSnapshot()) for name in NAMES]
    )
    with world.serve(store=store) as server:
        page = LivePage(browser, server).open("#run=now")
        page.wait_for_text("#run-name", "now")
        yield page
        browser.get("about:blank")


def compare_with(page: LivePage, run: str) -> None:
    """Type the name, and compare by the keyboard."""
    field = find(page.browser, "#compare-with")
    field.clear()
    field.send_keys(run, Keys.ENTER)


def test_difference_is_that_of_the_command(page: LivePage) -> None:
    compare_with(page, "last")
    page.wait_for_text("#compare-said", "1.10")
    rows = {row[0]: row[1:] for row in page.rows("#compared")}
    assert page.text("#compared-a") == "last"
    assert page.text("#compared-b") == "now"
    assert [round(float(cell)) for cell in rows["step time, mean, usual steps, ms"][:2]] == [100, 110]
    assert rows["step time, mean, usual steps, ms"][2].startswith("1.10 times (1.")
    assert rows["part of the step: data, ms"][2].startswith("+1.0")
    assert rows["part of the step: between phases, ms"][:2] == ["0.0", "0.0"]
    assert rows["ranks"][:2] == ["2", "2"]


def test_unequal_work_is_refused_with_its_reason_unless_forced(page: LivePage) -> None:
    compare_with(page, "wide")
    page.wait_for_text("#compare-said", "A has 4 ranks and B 2")
    assert not page.shown("#compared-shown")
    page.click("#compare-force")
    page.click("#compare button")
    page.wait_for_text("#compare-notes", "Unequal work: A has 4 ranks and B 2.")


def test_other_runs_are_offered_and_an_unknown_one_is_said(page: LivePage) -> None:
    offered = "return [...document.querySelectorAll('#compare-runs option')].map((one) => one.value)"
    assert wait_until(page.browser, lambda: page.run(offered) == ["last", "wide"])
    compare_with(page, "nobody")
    page.wait_for_text("#compare-said", "no run 'nobody'")


def test_another_run_has_no_comparison_of_the_one_before(page: LivePage) -> None:
    compare_with(page, "last")
    page.wait_for_text("#compare-said", "1.10")
    page.browser.execute_script("location.hash = '#run=wide'")
    page.wait_for_text("#run-name", "wide")
    assert not page.shown("#compared-shown")
    assert page.text("#compare-said") == ""
