"""What the live page shows of runs, in a real browser: pictures are compared by what is drawn where."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from rankscope.collector.detect.suggestions import suggest
from rankscope.collector.runs.live_settings import RunSettings, SettingChange
from rankscope.collector.runs.ratio_basis import RatioBasis
from rankscope.collector.runs.run_end import FirstToFail, RunEnd
from rankscope.collector.runs.snapshot import RunSnapshot
from rankscope.measure.records import AgentCost, HostCopies, Synchronization, WindowBreakdown, WindowSynchronizations
from rankscope.measure.units import NS_PER_MS
from tests.integration.chromium import find, prefer, read_log, read_requests, starting_chromium, wait_until
from tests.integration.live_pages import BELOW, CHART_BELOW, LivePage, heat_of, is_near
from tests.integration.live_worlds import LiveWorld, finding_of, huge_run, slow_story, totals_of
from tests.unit.collector.runs.kept_runs import keep_run
from tests.unit.collector.runs.run_snapshots import rank_of
from tests.unit.collector.runs.run_stories import Story

RANKS = 16_384
PATIENCE = """
const done = arguments[1];
const { Refresher } = await import(new URL("live/refresher.js", document.baseURI));
const one = new Refresher(() => 300, () => new Promise((resolve) => setTimeout(resolve, arguments[0])));
await one.run();
done(one.readyAt - performance.now());
"""
SLOW_RANK = 5_000
HOT = 60
"""Red beyond blue of a cell of twice the time; it is 95 in light and 150 in dark."""
WINDOW = (1300, 2200)


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    with starting_chromium() as chromium:
        chromium.set_window_size(*WINDOW)
        yield chromium


@pytest.fixture(scope="module")
def story() -> Story:
    """Four ranks, the third of which takes 65 ms instead of 35 from step 64 to the last one, 111."""
    return slow_story()


@pytest.fixture
def world(story: Story) -> LiveWorld:
    world = LiveWorld()
    world.tell(story)
    return world


@pytest.fixture
def page(browser: webdriver.Chrome, world: LiveWorld) -> Iterator[LivePage]:
    prefer(browser, color_scheme="light")
    for kind in ("browser", "performance"):
        read_log(browser, kind)
    with world.serve() as server:
        yield LivePage(browser, server).open()
        browser.get("about:blank")


def test_page_opens_with_no_console_message_or_foreign_request(page: LivePage) -> None:
    page.wait_for_map(109, 4)
    assert read_log(page.browser, "browser") == []
    asked = [url for url in read_requests(page.browser) if not url.startswith("about:")]
    assert len(asked) > 5
    assert {url for url in asked if not url.startswith(f"{page.server.url}/")} == set()


def test_first_run_is_shown_without_being_asked_for(page: LivePage) -> None:
    page.wait_for_text("#run-name", "story")
    assert [row[:6] for row in page.rows("#runs")] == [["story", "4 of 4", "112", "-", "1", "running"]]
    figures = dict(zip(*[iter(page.text("#figures").split("\n"))] * 2, strict=True))
    assert (figures["ranks up"], figures["latest step"]) == ("4 of 4", "111")
    assert figures["run slowdown"] == "1.86x"


def test_every_figure_says_what_it_is_when_it_is_pointed_at(page: LivePage) -> None:
    page.wait_for_text("#figures", "run slowdown")
    figures = "[...document.querySelectorAll('#figures > div')]"
    said = page.run(f"return {figures}.map((one) => [one.textContent, one.title])")
    assert len(said) >= 4
    assert [text for text, title in said if not title] == []


def test_scale_ends_where_the_colors_of_the_map_do(page: LivePage) -> None:
    page.wait_for_map(109, 4)
    assert (page.text("#heat-least"), page.text("#heat-most")) == ("0.5x or less", "8x its peers or more")
    width, _ = page.size("#heat-scale")
    # From half to 8 times as long are four octaves: equal is a quarter of the way.
    for share, name in ((0.004, "fast"), (0.25, "equal"), (0.996, "hottest")):
        assert is_near(page.pixels("#heat-scale", share * width)[2], page.color(name), 25)


def test_row_of_the_slow_rank_is_hot_from_the_step_it_was_slow(page: LivePage) -> None:
    # Compared are the steps 3 to 111; the rank is slow from step 64 on, the 62nd of them.
    page.wait_for_map(109, 4)
    heat = [[heat_of(page.cell(rank, 4, column, 109)) for column in (0, 60, 61, 90, 108)] for rank in range(4)]
    assert all(abs(one) < 15 for rank in (0, 1, 3) for one in heat[rank])
    assert all(abs(one) < 15 for one in heat[2][:2])
    assert all(one > HOT for one in heat[2][2:])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_slow_rank_is_hot_in_either_scheme_unlike_the_others(page: LivePage, scheme: str) -> None:
    page.wait_for_map(109, 4)
    prefer(page.browser, color_scheme=scheme)
    neutral = page.color("equal")
    wait_until(page.browser, lambda: is_near(page.cell(0, 4, 108, 109), neutral))
    assert heat_of(page.cell(2, 4, 108, 109)) > HOT
    brightness = sum(page.color("paper"))
    assert (brightness > 600) == (scheme == "light")


def test_slow_rank_is_seen_among_16384(page: LivePage, world: LiveWorld) -> None:
    run, picture = huge_run("huge", RANKS, SLOW_RANK)
    world.show(run, steps={"huge": picture})
    page.open("#run=huge")
    page.wait_for_map(64, RANKS)
    width, height = page.size("#heat")
    lines = round(height - BELOW)
    # A line of the picture stands for 41 ranks: only the one in which the slow rank is can be hot.
    hot = [line for line, color in enumerate(page.pixels("#heat", width / 2)[:lines]) if heat_of(color) > HOT]
    assert hot == [SLOW_RANK * lines // RANKS]
    assert page.wait_for_rows("#ranks", 10)[0][0] == str(SLOW_RANK)


def test_ranks_that_are_asked_for_fill_the_picture(page: LivePage, world: LiveWorld) -> None:
    run, picture = huge_run("huge", RANKS, SLOW_RANK)
    world.show(run, steps={"huge": picture})
    page.open("#run=huge")
    page.wait_for_map(64, RANKS)
    for field, rank in (("#first-rank", SLOW_RANK - 1), ("#last-rank", SLOW_RANK + 2)):
        find(page.browser, field).clear()
        find(page.browser, field).send_keys(str(rank))
    page.click("#ranks-shown button[type=submit]")
    assert [heat_of(page.cell(row, 4, 10, 64)) > HOT for row in range(4)] == [False, True, False, False]
    page.click("#all-ranks")
    assert heat_of(page.cell(1, 4, 10, 64)) < HOT


def test_step_that_is_not_known_looks_unlike_one_that_is_equal(page: LivePage, world: LiveWorld) -> None:
    run, picture = huge_run("gaps", 8, 3)
    picture.excess[10:20, 5] = float("nan")
    world.show(run, steps={"gaps": picture})
    page.open("#run=gaps")
    page.wait_for_map(64, 8)
    assert is_near(page.cell(5, 8, 15, 64), page.color("unknown"))
    assert is_near(page.cell(5, 8, 25, 64), page.color("equal"))


def test_finding_is_shown_with_its_sentence_and_its_numbers(page: LivePage) -> None:
    page.wait_for_text("#open-findings", "Rank 2 (node-a): 1.86x slower than its 3 peers since step 64")
    find(page.browser, "#open-findings summary").click()
    evidence = dict(page.rows("#open-findings table"))
    assert (evidence["own_ns"], evidence["peers_own_ns"]) == ("65.0 ms", "35.0 ms")
    assert page.text("#announcement") == ""


def test_first_screen_says_who_since_when_cost_and_what_to_do(page: LivePage) -> None:
    page.wait_for_text("#health", "1 warning")
    card = page.wait_for_text("#open-findings > li", "Rank 2 (node-a): 1.86x slower than its 3 peers")
    assert "run 1.86x slower, 1.8 of 4 ranks wasted" in card  # 4 * (1 - 1 / 1.86)
    terms = "return [...document.querySelectorAll('#open-findings .facts dt')].map((one) => one.textContent)"
    assert page.run(terms) == ["Cost", "Why", "Also", "Times"]
    assert page.text("#open-findings .do").startswith("What to do: ")
    assert page.run("return document.querySelector('#open-findings > li').getBoundingClientRect().bottom") < 800


def test_healthy_run_says_so_and_one_without_a_verdict_why(page: LivePage, world: LiveWorld) -> None:
    healthy = RunSnapshot(run="story", world_size=1, restart_count=0, ranks=())
    world.show(healthy)
    page.wait_for_text("#health", "healthy: no rank is slow")
    world.show(msgspec.structs.replace(healthy, abstained="too few steps"))
    page.wait_for_text("#health", "no verdict yet")
    page.wait_for_text("#no-findings", "No verdict yet: too few steps.")


def test_ranks_are_sorted_by_the_head_that_is_pressed(page: LivePage) -> None:
    def order() -> list[str]:
        return [row[0] for row in page.rows("#ranks")]

    page.wait_for_rows("#ranks", 4)
    assert order()[0] == "2", "the slowest first"
    head = "#ranks th[data-order=rank] button"
    page.click(head)
    wait_until(page.browser, lambda: order() == ["0", "1", "2", "3"])
    page.click(head)
    wait_until(page.browser, lambda: order() == ["3", "2", "1", "0"])
    assert find(page.browser, "#ranks th[data-order=rank]").get_attribute("aria-sort") == "descending"
    page.click("#ranks th[data-order=own] button")
    wait_until(page.browser, lambda: order()[0] == "2")
    assert page.count("#ranks th[aria-sort]") == 1


def test_silent_rank_shows_age_of_last_report_without_new_steps(page: LivePage, world: LiveWorld) -> None:
    last_wall_s = world.snapshot.wall_s
    silent = rank_of(0, world_size=1, up=False, ended="silent", last_report_wall_s=last_wall_s)
    run = RunSnapshot(run="story", world_size=1, restart_count=0, ranks=(silent,))
    for _ in range(3):
        world.show(run)
        said = f"silent, last report {world.snapshot.wall_s - last_wall_s:.0f} s ago"
        page.wait_for_text("#ranks", said)
    never = msgspec.structs.replace(silent, last_report_wall_s=None)
    world.show(msgspec.structs.replace(run, ranks=(never,)))
    wait_until(page.browser, lambda: page.rows("#ranks")[0][2] == "silent")


def test_heads_of_the_table_of_ranks_say_what_they_are(page: LivePage) -> None:
    titles = page.run("return [...document.querySelectorAll('#ranks th')].map((one) => one.title)")
    assert titles
    assert all(titles)


def test_new_finding_is_announced_and_one_that_has_ended_is_kept(page: LivePage, world: LiveWorld) -> None:
    def show(*open_findings: int) -> None:
        findings = tuple(finding_of(number, f"Finding number {number}.") for number in (1, 2))
        is_open = tuple(one for one in findings if one.number in open_findings)
        world.show(
            RunSnapshot(run="story", world_size=1, restart_count=0, ranks=(), findings=findings, open_findings=is_open)
        )

    page.wait_for_text("#open-findings", "Rank 2")
    show(2)
    page.wait_for_text("#announcement", "New finding. Finding number 2.")
    assert page.count("#open-findings > li") == 1
    page.wait_for_text("#past-count", "1")
    show()
    page.wait_for_text("#past-count", "2")
    page.wait_for_text("#past-findings", "Finding number 2.")
    assert page.shown("#no-findings")


def test_changed_settings_stand_in_the_head_of_the_run(page: LivePage, world: LiveWorld) -> None:
    page.wait_for_text("#figures", "ranks up")
    assert not page.shown("#run-settings")
    change = SettingChange(
        name="slowdown_ratio_min", value=1.05, before=1.1, own=1.1, by="anna", wall_s=50_520.0, until_wall_s=54_120.0
    )
    settings = RunSettings(changed=(change,), past=(change,))
    world.show(RunSnapshot(run="story", world_size=1, restart_count=0, ranks=(), settings=settings))
    said = page.wait_for_text("#run-settings", "slowdown_ratio_min")
    assert said == (
        "Changed settings: slowdown_ratio_min 1.05 instead of 1.1, set by anna, 1970-01-01 14:02 UTC, "
        "until 1970-01-01 15:02 UTC"
    )
    assert page.shown("#run-settings")


def test_run_that_is_over_says_how_it_ended_and_shows_no_speed(page: LivePage, world: LiveWorld) -> None:
    first = FirstToFail(rank=1, node="n0", reason="crashed", detail="SIGSEGV", line="a.py:24 (run)", last_step=7)
    end = RunEnd(reason="crashed", ended_wall_s=59.0, ranks={"crashed": 1}, first=first)
    page.wait_for_text("#figures", "steps a second")
    assert not page.shown("#run-end")
    world.show(RunSnapshot(run="story", world_size=1, restart_count=0, ranks=(), end=end))
    said = page.wait_for_text("#run-end", "The run crashed at 1970-01-01 00:00:59 UTC.")
    assert "First to fail: rank 1 (n0), crashed (SIGSEGV) at a.py:24 (run)" in said
    assert page.shown("#run-end")
    assert page.text("#run-end-do") == f"What to do: {suggest('run_failure', 'crashed').replace('`', '')}"
    assert page.text("#no-findings") == "No open findings: the run is over. Incidents are listed below."
    assert page.rows("#runs") == [["story", "0 of 1", "-", "-", "0", "crashed at 1970-01-01 00:00:59 UTC", "-", "-"]]
    assert "steps a second" not in page.text("#figures")


def test_ended_run_with_a_verdict_gives_no_reason_for_none(page: LivePage, world: LiveWorld) -> None:
    end, why = RunEnd(reason="crashed", ended_wall_s=59.0), "too few steps are known"
    over = RunSnapshot(run="story", world_size=1, restart_count=0, ranks=(), end=end, abstained=why)
    world.show(over)
    page.wait_for_text("#notes", why)
    world.show(msgspec.structs.replace(over, findings=(finding_of(1, "Rank 2 is slow."),)))
    wait_until(page.browser, lambda: why not in page.run("return document.getElementById('notes').textContent"))


def test_windows_that_ended_are_named_with_their_cost(page: LivePage, world: LiveWorld) -> None:
    assert not page.shown("#notes-shown")
    why = "full windows ended after step 9 because steps took 29 % longer than before the first window"
    cost = AgentCost(attached_ratio=0.29, detached_ratio=0.004, window_effect="ended")
    rank = rank_of(0, run="story", world_size=1, cost=cost, ratio_basis=RatioBasis(absent=why))
    world.show(RunSnapshot(run="story", world_size=1, restart_count=0, ranks=(rank,)))
    said = page.wait_for_text("#notes", "cost of full windows")
    assert f"no ratios: {why}" in said
    assert (
        "full windows ended on 1 of 1 ranks: between windows, steps took 29 % longer than before the first window"
        in said
    )


def test_open_evidence_stays_open_while_its_finding_changes(page: LivePage, world: LiveWorld) -> None:
    def show(sentence: str) -> None:
        finding = finding_of(1, sentence, evidence={"own_ms": 65.0})
        run = RunSnapshot(run="story", world_size=1, restart_count=0, ranks=(), open_findings=(finding,))
        world.show(run)

    show("It is slow.")
    page.wait_for_text("#open-findings", "It is slow.")
    page.click("#open-findings summary")
    show("It is slower.")
    page.wait_for_text("#open-findings", "It is slower.")
    assert page.shown("#open-findings table")


def test_shares_are_stacked_as_the_time_was_spent(page: LivePage, world: LiveWorld) -> None:
    def show(steps: int) -> None:
        ranks = tuple(rank_of(rank, run="story", reports_admitted=1, totals=totals_of(steps)) for rank in range(2))
        world.show(RunSnapshot(run="story", world_size=2, restart_count=0, ranks=ranks))

    for steps in ("10", "20", "30", "40"):  # a picture a second, a stretch of two seconds at least
        show(int(steps))
        page.wait_for_text("#runs tbody td:nth-child(3)", steps)
    rows = {row[0]: row[2] for row in page.wait_for_rows("#phases-now", 5)}
    assert rows == {
        "data": "50.0 %",
        "forward": "10.0 %",
        "backward": "20.0 %",
        "optimizer": "10.0 %",
        "other": "10.0 %",
    }
    rows = {row[0]: row[2] for row in page.wait_for_rows("#device-now", 5)}
    assert rows["overlap"] == rows["compute only"] == rows["exposed communication"] == rows["idle"] == "25.0 %"

    def drawn(chart: str, share: float) -> list[int]:
        width, height = page.size(chart)
        return page.pixel(chart, width / 2, (1 - share) * (height - CHART_BELOW))

    phases = [(0.25, "data"), (0.55, "forward"), (0.7, "backward"), (0.85, "optimizer"), (0.95, "other")]
    assert [name for share, name in phases if is_near(drawn("#phases", share), page.color(name))] == [
        name for _, name in phases
    ]
    parts = [(0.12, "compute"), (0.37, "overlap"), (0.62, "communication"), (0.87, "idle")]
    assert [name for share, name in parts if is_near(drawn("#device", share), page.color(name))] == [
        name for _, name in parts
    ]


def test_rank_is_shown_beside_its_peers_in_table_and_chart(page: LivePage) -> None:
    page.open("#run=story&rank=2")
    rows = {row[0]: row[1:] for row in page.wait_for_rows("#beside", 3)}
    assert rows["own time, ms"] == ["65.0", "35.0", "1.86"]
    assert rows["phase data, ms"] == ["32.0", "2.0", "16.0"]
    assert "compared with 3 peer ranks" in page.text("#rank-said")
    width, height = page.size("#peers")
    found = {name: find_highest(page, name, width * 0.9) for name in ("mine", "peers")}
    # The axis ends at 1.05 * 65 ms: its peers' line is at 35 / 68.25 of the height, its own at 65 / 68.25.
    assert found["mine"] == pytest.approx((1 - 65 / 68.25) * (height - CHART_BELOW), abs=4)
    assert found["peers"] == pytest.approx((1 - 35 / 68.25) * (height - CHART_BELOW), abs=4)


def test_blocking_lines_and_copies_of_a_host_are_shown_as_text(page: LivePage, world: LiveWorld) -> None:
    kinds = (
        Synchronization(
            call="cudaStreamSynchronize", operator="aten::item", line="<b>train.py:24 (main)", count=4,
            waits_ns=80 * NS_PER_MS, idle_ns=20 * NS_PER_MS,
        ),
        Synchronization(call="cudaMemcpyAsync", count=2, waits_ns=2 * NS_PER_MS),
    )  # fmt: skip
    waits = WindowSynchronizations(first_step=4, step_count=4, kinds=kinds)
    present = RatioBasis(steps=4, of_steps=4, share=1.0, age_steps=0, age_s=0.0, absent=None)
    copies = HostCopies(count=4, duration_ns=8 * NS_PER_MS, exposed_ns=4 * NS_PER_MS, bytes=40 * 2**20)
    window = WindowBreakdown(
        first_step=4, step_count=4, window_ns=80 * NS_PER_MS, compute_ns=70 * NS_PER_MS, communication_ns=0,
        overlap_ns=0, exposed_communication_ns=0, copy_ns=4 * NS_PER_MS, idle_ns=6 * NS_PER_MS, host_copies=copies,
    )  # fmt: skip
    told = rank_of(0, run="story", synchronizations=waits, ratio_basis=present, breakdown=window)
    ranks = (told, rank_of(1, run="story"))
    world.show(RunSnapshot(run="story", world_size=2, restart_count=0, ranks=ranks))
    page.open("#run=story&rank=0")
    assert page.wait_for_rows("#waits", 2) == [
        ["<b>train.py:24 (main)", "aten::item", "cudaStreamSynchronize", "1.0", "20.0", "5.0"],
        ["line not known", "not recorded", "cudaMemcpyAsync", "0.5", "0.5", "0.0"],
    ]
    assert (
        "Copies from the host: 10.0 MiB per step in 2.0 ms (5.2 GB/s), 1.0 ms of it exposed (5.0 % of the time); "
        "none from pageable memory." in page.text("#rank-said")
    )
    page.open("#run=story&rank=1")
    page.wait_for_text("#rank-said", "Rank 1 on")
    assert not page.shown("#waits-shown")


def find_highest(page: LivePage, name: str, x: float) -> int:
    """The first pixel from above that has this color."""
    color = page.color(name)
    return next(y for y, pixel in enumerate(page.pixels("#peers", x)) if is_near(pixel, color, 40))


def test_rank_that_is_not_there_is_said_to_be(page: LivePage) -> None:
    page.wait_for_map(109, 4)
    find(page.browser, "#rank").send_keys("7", Keys.ENTER)
    page.wait_for_text("#rank-problem", "run 'story' has no rank 7 yet; its world size is 4")
    assert not page.shown("#rank-shown")


def test_page_follows_the_run_and_stands_still_when_it_is_paused(page: LivePage, world: LiveWorld) -> None:
    story = slow_story()
    page.wait_for_map(109, 4)
    world.tell(story.train(8, data={2: 40.0}))
    page.wait_for_text("#figures", "119")
    page.click("#pause")
    world.tell(story.train(8, data={2: 40.0}))
    page.wait_for_text("#connection", "Paused; 1 snapshot skipped.")
    assert "119" in page.text("#figures")
    page.click("#pause")
    world.tell(story.train(8, data={2: 40.0}))
    page.wait_for_text("#figures", "135")


@pytest.mark.parametrize(("lasted_ms", "least_ms"), [(0, 250), (100, 950)])
def test_page_waits_ten_times_as_long_as_an_answer_took(page: LivePage, lasted_ms: int, least_ms: int) -> None:
    # At least 300 ms are asked for; 50 ms are what may have passed before this is read.
    waits_ms = page.browser.execute_async_script(
        f"(async function () {{ {PATIENCE} }}).apply(null, arguments)", lasted_ms
    )
    assert waits_ms >= least_ms


def test_past_by_the_minute_comes_from_the_store(browser: webdriver.Chrome, story: Story, tmp_path: Path) -> None:
    # Two intervals of two ranks: of rank 0 nothing is known, rank 1 took 1.5 times as long.
    world = LiveWorld()
    world.tell(story, "kept")
    prefer(browser, color_scheme="light")
    with world.serve(store=keep_run(tmp_path, "kept", steps=20)) as server:
        page = LivePage(browser, server).open("#run=kept")
        page.wait_for_map(109, 4)
        find(browser, "#source option[value=intervals]").click()
        page.wait_for_label("#heat", "2 ranks by 2 intervals")
        assert is_near(page.cell(0, 2, 1, 2), page.color("unknown"))
        assert heat_of(page.cell(1, 2, 1, 2)) > HOT / 2
        browser.get("about:blank")


def test_run_without_a_step_says_that_nothing_is_known_yet(page: LivePage, world: LiveWorld) -> None:
    world.show(RunSnapshot(run="new", world_size=2, restart_count=0, ranks=(), abstained="no rank has reported yet"))
    page.open("#run=new")
    page.wait_for_text("#notes", "no rank has reported yet")
    page.wait_for_label("#heat", "no data yet")
    page.wait_for_text("#heat-readout", "no step of run 'new' has been compared yet")


def test_collector_without_a_run_says_so_until_there_is_one(page: LivePage, world: LiveWorld, story: Story) -> None:
    world.show()
    page.open()
    page.wait_for_text("#connection", "Live")
    assert page.shown("#no-runs")
    world.tell(story)
    page.wait_for_text("#run-name", "story")
    assert not page.shown("#no-runs")


def test_collector_that_ends_is_said_to_be_silent(page: LivePage) -> None:
    page.wait_for_map(109, 4)
    page.server.close()
    page.wait_for_text("#connection", "The collector does not answer; trying again. What is shown is of ")
    assert page.browser.find_elements(By.CSS_SELECTOR, "#runs tbody tr"), "what was known stays"
