"""What the charts of the live page draw and read aloud, in a real browser."""

import itertools
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from selenium import webdriver
from selenium.common.exceptions import TimeoutException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from rankscope.collector.captures.capture import Capture
from rankscope.collector.runs.checkpoints import Checkpoint, Checkpoints
from rankscope.collector.runs.live_settings import RunSettings, SettingChange
from rankscope.collector.runs.snapshot import RunSnapshot
from rankscope.collector.storage.database import Database
from rankscope.collector.storage.run_store import HistoryStore
from rankscope.collector.storage.write_batch import WriteBatch
from tests.integration.chromium import find, prefer, read_requests, wait_until
from tests.integration.live_pages import CHART_BELOW, LEFT, LivePage, is_near
from tests.integration.live_worlds import BEGIN_WALL_S, LiveWorld, finding_of, incident_of, slow_story, totals_of
from tests.unit.collector.runs.kept_runs import MS, WALL_S, S, run_of, step_of
from tests.unit.collector.runs.run_snapshots import rank_of
from tests.unit.collector.runs.run_stories import Story

CLOCK = "return new Date(1000 * arguments[0]).toISOString().slice(0, 19).replace('T', ' ')"
PAINTED = """
window.painted = {};
window.paintedAt = {};
window.widthNow = (name) => document.getElementById(name).getBoundingClientRect().width;
window.readPainted = () => {
  const texts = Object.entries(window.painted).filter(([name, found]) => found.length && window.widthNow(name));
  if (!texts.every(([name]) => window.widthNow(name) === window.paintedAt[name])) return null;
  return Object.fromEntries(texts.map(([name, found]) => [name, { width: window.paintedAt[name], texts: found }]));
};
const { clearRect, fillText } = CanvasRenderingContext2D.prototype;
CanvasRenderingContext2D.prototype.clearRect = function (...where) {
  window.painted[this.canvas.id] = [];
  window.paintedAt[this.canvas.id] = this.canvas.getBoundingClientRect().width;
  clearRect.apply(this, where);
};
CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
  const wide = this.measureText(text).width;
  const left = this.textAlign === "right" ? x - wide : x;
  window.painted[this.canvas.id].push([text, left, left + wide, y]);
  fillText.call(this, text, x, y);
};
"""
"""Notes what each canvas of the page shows: texts, from where to where in CSS pixels, and their line; and how wide it
was then. `readPainted` returns null until every canvas was painted at its present width: that changes when a scroll bar
appears, which the page sees in the frame that follows.
"""
PAINTED_S = 60.0
CHART_RIGHT, CHART_TOP = 6, 14
"""What the chart of step time leaves free, in CSS pixels (step_chart.js)."""


@pytest.fixture
def world() -> LiveWorld:
    """A run of two ranks, of whose steps of 200 ms ten have been seen in each of eight seconds."""
    world = LiveWorld()
    for second in range(9):
        ranks = tuple(rank_of(rank, run="gpt", reports_admitted=1, totals=totals_of(10 * second)) for rank in range(2))
        world.show(RunSnapshot(run="gpt", world_size=2, restart_count=0, ranks=ranks))
    return world


@pytest.fixture
def page(browser: webdriver.Chrome, world: LiveWorld) -> Iterator[LivePage]:
    prefer(browser, color_scheme="light")
    with world.serve() as server:
        yield LivePage(browser, server)
        browser.get("about:blank")


def keep_steps(folder: Path) -> Path:
    """A store with ten steps of a second, the fifth of which took one rank 30 s, and five of half a second after a
    restart; where it is.
    """
    path = folder / "store.db"
    batch = WriteBatch()
    batch.put_run(run_of("gpt", attempt=1))
    for number in range(10):
        batch.add_step("gpt", step_of(number, longest_ns=30 * S if number == 4 else S))
    for number in range(5):
        batch.add_step("gpt", step_of(number, attempt=1, wall_s=WALL_S + 20 + number, longest_ns=1_200 * MS))
    with closing(Database(path)) as database, closing(HistoryStore(database)) as store:
        store.write(batch)
    return path


def read(page: LivePage, chart: str, *keys: str) -> str:
    """What is read of a chart after these keys."""
    find(page.browser, f"#{chart}").send_keys(*keys)
    return page.text(f"#{chart}-readout")


def clock(page: LivePage, wall_s: float) -> str:
    """The date and time in the zone of the browser."""
    return str(page.run(CLOCK, wall_s))


def test_step_time_without_a_store_is_the_mean_of_all_ranks(page: LivePage) -> None:
    page.open("#run=gpt")
    page.wait_for_text("#steps-basis", "The mean of all ranks since this collector process was started or first heard")
    assert read(page, "steps", Keys.END).endswith(": 200.0 ms in the mean")
    assert not page.shown("#steps-longest")


def test_step_time_of_the_store_is_read_step_by_step(
    browser: webdriver.Chrome, world: LiveWorld, tmp_path: Path
) -> None:
    with world.serve(store=keep_steps(tmp_path)) as server:
        page = LivePage(browser, server).open("#run=gpt")
        # A point of 30 s is above four times the median of a second.
        page.wait_for_text("#steps-basis", "from the store. 1 of 15 points is cut off at the top.")
        assert read(page, "steps", Keys.HOME) == (
            f"{clock(page, WALL_S)}, step 0: 1.00 s in the median, the longest 1.00 s"
        )
        assert read(page, "steps", *[Keys.ARROW_RIGHT] * 4).endswith("the longest 30.0 s")
        assert read(page, "steps", Keys.END).endswith("step 4: 1.00 s in the median, the longest 1.20 s")
        page.click("#events-shown summary")
        assert page.text("#events") == f"{clock(page, WALL_S + 20)}: steps go on after restart 1"
        assert read(page, "steps", Keys.ESCAPE) == ""
        browser.get("about:blank")


def test_range_of_the_step_time_is_asked_from_the_store(page: LivePage, world: LiveWorld) -> None:
    page.open("#run=gpt")
    page.wait_for_text("#steps-basis", "The mean")
    read_requests(page.browser)
    find(page.browser, "#steps-range option[value='600']").click()
    least = int(world.snapshot.wall_s - 600)
    asked: list[str] = []

    def look() -> bool:
        asked.extend(read_requests(page.browser))
        return any(url.endswith(f"/history?points=400&since_wall_s={least}") for url in asked)

    assert wait_until(page.browser, look)


def show_events(page: LivePage, world: LiveWorld) -> None:
    """A finding 5 s, and a capture 3 s after the first snapshot."""
    found = finding_of(1, "Rank 1 is slow.", ranks=(1,))
    world.incidents = (incident_of(4, "gpt", found, BEGIN_WALL_S + 5.0),)
    asked_s = BEGIN_WALL_S + 3.0
    world.captures = (
        Capture(id="c5", run="gpt", run_id="gpt", state="failed", asked_wall_s=asked_s, changed_wall_s=asked_s),
    )
    page.open("#run=gpt")
    page.wait_for_text("#incident-list", "Rank 1 is slow.")
    page.wait_for_text("#events", "found: straggler of rank 1")
    page.run("document.getElementById('events-shown').open = true")


def test_events_are_listed_newest_first_with_their_time(page: LivePage, world: LiveWorld) -> None:
    show_events(page, world)
    assert page.text("#events").split("\n") == [
        f"{clock(page, BEGIN_WALL_S + 5)}: found: straggler of rank 1",
        f"{clock(page, BEGIN_WALL_S + 3)}: capture c5 ordered",
    ]


def test_checkpoints_are_events_with_how_long_ago_the_last_was(page: LivePage, world: LiveWorld) -> None:
    last = Checkpoint(attempt=0, step=1_200, wall_s=BEGIN_WALL_S + 6.0, duration_ns=2_300 * MS, rank=1)
    earlier = msgspec.structs.replace(last, step=600, wall_s=BEGIN_WALL_S + 4.0, duration_ns=40 * MS, rank=0)
    marked = Checkpoints(count=7, duration_ns=9 * S, latest=(earlier, last))
    ranks = tuple(rank_of(rank, run="gpt", reports_admitted=1, totals=totals_of(100)) for rank in range(2))
    world.show(RunSnapshot(run="gpt", world_size=2, restart_count=0, ranks=ranks, checkpoints=marked))
    page.open("#run=gpt")
    page.wait_for_text("#figures", "step 1,200, 4 s ago, 7 in all")
    page.wait_for_text("#events-count", "2")
    page.click("#events-shown summary")
    assert page.text("#events").split("\n") == [
        f"{clock(page, BEGIN_WALL_S + 6)}: checkpoint in step 1,200: 2.30 s",
        f"{clock(page, BEGIN_WALL_S + 4)}: checkpoint in step 600: 40.0 ms",
    ]


def test_changed_setting_is_a_mark_with_who_and_what(page: LivePage, world: LiveWorld) -> None:
    change = SettingChange(
        name="slowdown_ratio_min", value=1.2, before=1.05, own=1.05, by="anna", host="login-1",
        wall_s=BEGIN_WALL_S + 5.0,
    )  # fmt: skip
    (run,) = world.snapshot.runs
    world.show(msgspec.structs.replace(run, settings=RunSettings(past=(change,))))
    page.open("#run=gpt")
    page.wait_for_text("#marks", "setting changed")
    # The slices end 3, 5, 7 and 9 s after the first snapshot: the second is where the change was.
    said = read(page, "steps", Keys.HOME, Keys.ARROW_RIGHT)
    assert "setting slowdown_ratio_min 1.2 instead of 1.05, set by anna on login-1, " in said
    assert read(page, "steps", Keys.ESCAPE) == ""  # and the line of the reader is gone
    width, height = page.size("#steps")
    x = LEFT + (width - LEFT - CHART_RIGHT) * (5 - 3) / (9 - 3)
    drawn = [page.pixels("#steps", x + aside)[CHART_TOP : round(height - CHART_BELOW)] for aside in (-1, 0)]
    assert max(sum(is_near(color, page.color("event-setting"), 60) for color in column) for column in drawn) > 50


def test_marks_on_the_chart_are_explained_below_it(page: LivePage, world: LiveWorld) -> None:
    show_events(page, world)
    assert page.text("#marks").split("\n") == ["found", "capture ordered"]


def test_many_checkpoints_leave_room_for_other_events(page: LivePage, world: LiveWorld) -> None:
    show_events(page, world)
    latest = tuple(
        Checkpoint(attempt=0, step=step, wall_s=BEGIN_WALL_S + 6.0 + step / 100, duration_ns=S, rank=0)
        for step in range(64)
    )
    marked = Checkpoints(count=64, duration_ns=64 * S, latest=latest)
    (run,) = world.snapshot.runs
    world.show(msgspec.structs.replace(run, checkpoints=marked))
    page.wait_for_text("#events", "and 61 earlier checkpoints")
    kinds = [line.split(": ", 1)[-1] for line in page.text("#events").split("\n")]
    assert kinds == [
        *(f"checkpoint in step {step}: 1.00 s" for step in (63, 62, 61)),
        "found: straggler of rank 1",
        "capture c5 ordered",
        "and 61 earlier checkpoints",
    ]


POINTS = """
const [steps, done] = arguments;
import(new URL("live/step_chart.js", document.baseURI)).then(({ pointsOf }) =>
  done(pointsOf({ steps, shares: [] }).map(({ wallS }) => wallS)));
"""


def test_steps_that_came_together_stand_one_after_the_other(page: LivePage) -> None:
    # Steps of 2 s: three come at 10, four at 15, of which the first would have begun before the three were there.
    came_s = [10, 10, 10, 15, 15, 15, 15]
    steps = [
        {"attempt": 0, "first_step": step, "last_step": step, "steps": 1, "wall_s": wall_s, "median_ns": 2 * S,
         "longest_ns": 2 * S}
        for step, wall_s in enumerate(came_s)
    ]  # fmt: skip
    page.open()
    assert page.browser.execute_async_script(POINTS, steps) == [6, 8, 10, 10, 11, 13, 15]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_events_stand_on_the_chart_where_they_happened(page: LivePage, world: LiveWorld, scheme: str) -> None:
    prefer(page.browser, color_scheme=scheme)
    show_events(page, world)
    # The slices end 3, 5, 7 and 9 s after the first snapshot: the finding is a third of the way, the capture at 0.
    width, height = page.size("#steps")
    x = LEFT + (width - LEFT - CHART_RIGHT) / 3

    def count_red(x: float) -> int:
        drawn = page.pixels("#steps", x)[CHART_TOP : round(height - CHART_BELOW)]
        return sum(is_near(color, page.color("event-finding"), 60) for color in drawn)

    assert max(count_red(x - 1), count_red(x)) > 50
    assert max(count_red(x - 12), count_red(x + 12)) < 5


def test_begin_of_a_finding_is_marked_without_a_store_too(page: LivePage, world: LiveWorld) -> None:
    found = finding_of(1, "Rank 1 is slow.", ranks=(1,), since_step=60, since_wall_s=BEGIN_WALL_S + 4.0)
    (run,) = world.snapshot.runs
    world.show(msgspec.structs.replace(run, open_findings=(found,)))
    page.open("#run=gpt")
    page.wait_for_text("#events", "begin, step 60: ")
    assert page.text("#marks").split("\n") == ["a finding begins"]


def count_line(page: LivePage, chart: str, x: float) -> int:
    """How much of a vertical line of the color of a finding is in a chart at `x`, in pixels below the heads."""
    _, height = page.size(chart)
    red = page.color("event-finding")
    drawn = [page.pixels(chart, x + aside)[CHART_TOP : round(height - CHART_BELOW)] for aside in (-1, 0)]
    return max(sum(is_near(color, red, 60) for color in column) for column in drawn)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_begin_of_a_finding_is_drawn_on_every_chart_over_time(page: LivePage, world: LiveWorld, scheme: str) -> None:
    prefer(page.browser, color_scheme=scheme)
    found = finding_of(1, "Rank 1 is slow.", ranks=(1,), since_step=60, since_wall_s=BEGIN_WALL_S + 5.0)
    (run,) = world.snapshot.runs
    world.show(msgspec.structs.replace(run, open_findings=(found,)))
    page.open("#run=gpt")
    page.wait_for_text("#events", "begin, step 60: Rank 1 is slow.")
    page.wait_for_rows("#phases-now", 5)
    # The slices end 3, 5, 7 and 9 s after the first snapshot, and the first begins at 1.
    width, height = page.size("#steps")
    assert count_line(page, "#steps", LEFT + (width - LEFT - CHART_RIGHT) * (5 - 3) / (9 - 3)) > 0.9 * (
        height - CHART_TOP - CHART_BELOW
    )
    assert count_line(page, "#steps", LEFT + (width - LEFT) / 2) == 0
    for chart in ("#phases", "#device"):
        width, height = page.size(chart)
        middle = LEFT + (width - LEFT) * (5 - 1) / (9 - 1)
        assert count_line(page, chart, middle) > 0.9 * (height - CHART_TOP - CHART_BELOW), chart
        assert "begin, step 60: Rank 1 is slow." in read(page, chart[1:], *[Keys.ARROW_RIGHT] * 3)


def test_begin_of_a_finding_is_drawn_beside_the_ranks_peers(page: LivePage, world: LiveWorld) -> None:
    world.tell(slow_story(), "gpt")
    page.open("#run=gpt&rank=2")
    page.wait_for_rows("#beside", 3)
    page.wait_for_text("#open-findings", "Rank 2")
    (run,) = world.snapshot.runs
    (found,) = (one for one in run.open_findings if one.ranks == (2,))
    assert found.since_step is not None
    first = int(read(page, "peers", Keys.HOME).split()[1].rstrip(":"))
    last = int(read(page, "peers", Keys.END).split()[1].rstrip(":"))
    read(page, "peers", Keys.ESCAPE)
    width, height = page.size("#peers")
    column = (found.since_step - first + 0.5) / (last - first + 1)
    assert count_line(page, "#peers", LEFT + column * (width - LEFT)) > 0.7 * (height - CHART_TOP - CHART_BELOW)
    assert count_line(page, "#peers", LEFT + (column - 0.2) * (width - LEFT)) < 5


def test_every_chart_has_ticks(browser: webdriver.Chrome, world: LiveWorld) -> None:
    train(world, 100.0)
    with noting_paint(browser, 1300), world.serve() as server:
        page = LivePage(browser, server).open("#run=gpt&rank=1")
        page.wait_for_text("#steps-basis", "The mean")
        page.wait_for_rows("#beside", 2)
        page.wait_for_rows("#phases-now", 5)
        painted = read_painted(page)
    texts = {name: [text for text, *_ in one["texts"]] for name, one in painted.items()}
    for chart in ("steps", "peers"):
        levels = [text for text in texts[chart] if re.fullmatch(r"0|\d+\.\d ms", text)]
        assert levels[:1] == ["0"], chart
        assert 3 <= len(set(levels)) == len(levels) <= 6, chart
        heights = [y for text, _, _, y in painted[chart]["texts"] if text in levels]
        assert heights == sorted(heights, reverse=True), "0 is below"
    assert {"0 %", "25 %", "50 %", "75 %", "100 %"} <= set(texts["phases"])
    for chart in ("steps", "phases"):
        assert sum(bool(re.fullmatch(r"(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d", text)) for text in texts[chart]) == 2, chart
    assert sum(text.startswith("step ") for text in texts["peers"]) == 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_begin_and_find_of_a_finding_have_one_color(page: LivePage, world: LiveWorld, scheme: str) -> None:
    prefer(page.browser, color_scheme=scheme)
    show_events(page, world)
    assert page.color("event-finding") == page.color("critical")
    assert not is_near(page.color("event-finding"), page.color("mine"), 50)  # the line of the longest step
    swatch = "return getComputedStyle(document.querySelector('#marks .event-finding')).borderTopColor"
    assert page.run(swatch) == f"rgb({', '.join(map(str, page.color('critical')[:3]))})"


def test_shares_are_read_with_their_unit(page: LivePage) -> None:
    page.open("#run=gpt")
    page.wait_for_rows("#phases-now", 5)
    said = read(page, "phases", Keys.END)
    assert said.endswith(": data 50.0 %, forward 10.0 %, backward 20.0 %, optimizer 10.0 %, other 10.0 %")
    assert "exposed communication 25.0 %" in read(page, "device", Keys.END)


def test_rank_and_its_peers_are_read_with_their_unit(page: LivePage, world: LiveWorld) -> None:
    world.tell(slow_story(), "gpt")
    page.open("#run=gpt&rank=2")
    page.wait_for_rows("#beside", 3)
    said = read(page, "peers", Keys.END)
    assert said == "step 111: this rank 65.0 ms, its peers 35.0 ms (35.0 ms to 35.0 ms)"


def find_cut(painted: list[tuple[str, float, float, float]], width: float) -> list[str]:
    """The texts that are not whole in a canvas, or are written over another one."""
    outside = [text for text, left, right, _ in painted if left < 0 or right > width]
    over = [
        f"{one[0]} over {another[0]}"
        for one, another in itertools.combinations(painted, 2)
        if one[3] == another[3] and one[1] < another[2] and another[1] < one[2]
    ]
    return outside + over


@contextmanager
def noting_paint(browser: webdriver.Chrome, wide_px: int) -> Iterator[None]:
    """Note what canvases show, in a window of that width."""
    script = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": PAINTED})
    make_wide(browser, wide_px)
    try:
        yield
        browser.get("about:blank")
    finally:
        browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def make_wide(browser: webdriver.Chrome, wide_px: int) -> None:
    metrics = {"width": wide_px, "height": 2200, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def train(world: LiveWorld, step_ms: float) -> None:
    """Tell 48 steps of two ranks, late in a run."""
    story = Story(2).join()
    story.step = 1_234_000
    for _ in range(6):
        world.tell(story.train(8, forward=dict.fromkeys(range(2), step_ms)), "gpt")


def read_painted(page: LivePage) -> dict[str, Any]:
    """What each canvas that is shown has, once each is painted at its present width."""
    try:
        return wait_until(page.browser, lambda: page.run("return window.readPainted()"), PAINTED_S)
    except TimeoutException:
        widths = "return Object.entries(window.paintedAt).map(([name, at]) => [name, at, window.widthNow(name)])"
        raise AssertionError(f"canvas, painted at, now: {page.run(widths)}") from None


@pytest.mark.parametrize("wide_px", [1300, 420])
@pytest.mark.parametrize(("step_ms", "said"), [(1.0, " ms"), (1_000.0, "1.00 s"), (100_000.0, "100 s")])
def test_every_text_on_a_canvas_has_its_room(
    browser: webdriver.Chrome, world: LiveWorld, step_ms: float, said: str, wide_px: int
) -> None:
    train(world, step_ms)
    with noting_paint(browser, wide_px), world.serve() as server:
        page = LivePage(browser, server).open("#run=gpt&rank=1")
        page.wait_for_text("#steps-basis", "The mean")
        page.wait_for_rows("#beside", 2)
        page.wait_for_map(48, 2)
        painted = read_painted(page)
    cut = {name: find_cut(one["texts"], one["width"]) for name, one in painted.items()}
    assert {name: texts for name, texts in cut.items() if texts} == {}
    assert {"heat", "steps", "peers"} <= cut.keys()
    assert any(said in text for text, *_ in painted["peers"]["texts"])


def test_page_that_becomes_narrower_paints_every_canvas_again(browser: webdriver.Chrome, world: LiveWorld) -> None:
    """As it does when a scroll bar appears."""
    train(world, 100.0)
    with noting_paint(browser, 1300), world.serve() as server:
        page = LivePage(browser, server).open("#run=gpt&rank=1")
        page.wait_for_rows("#beside", 2)
        page.wait_for_map(48, 2)
        before = read_painted(page)
        make_wide(browser, 1285)
        after = read_painted(page)
    assert {"heat", "steps"} <= before.keys()
    assert {name: one["width"] - after[name]["width"] > 0 for name, one in before.items()} == dict.fromkeys(
        before, True
    )


def test_value_under_the_pointer_is_read_and_left(page: LivePage) -> None:
    page.open("#run=gpt")
    page.wait_for_text("#steps-basis", "The mean")
    ActionChains(page.browser).move_to_element(find(page.browser, "#steps")).perform()
    assert "200.0 ms in the mean" in page.wait_for_text("#steps-readout", "ms")
    ActionChains(page.browser).move_to_element(find(page.browser, "h1")).perform()
    wait_until(page.browser, lambda: page.text("#steps-readout") == "")


def test_chart_without_data_says_so(page: LivePage, world: LiveWorld) -> None:
    world.show(RunSnapshot(run="new", world_size=1, restart_count=0, ranks=()))
    page.open("#run=new")
    page.wait_for_label("#steps", "No data yet.")
    assert read(page, "steps", Keys.END) == ""
