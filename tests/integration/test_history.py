"""A collector with a store: killed and started again no counter goes back, its runs can be reported on, and a full disk
costs it nothing but the disk.
"""

import contextlib
import json
import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rankscope.collector.runs.snapshot import RunSnapshot
from rankscope.collector.storage.database import Database
from rankscope.collector.storage.run_reader import opening_run
from rankscope.collector.storage.run_store import HistoryStore
from rankscope.measure.errors import UnavailableError
from tests.integration.killed_writer import kill_writer
from tests.integration.serving import (
    Api,
    Served,
    find_fixed_port,
    have_ended,
    have_stepped,
    serving,
    wait_for,
    wait_for_readiness,
)
from tests.integration.small_disk import fill, mounted
from tests.integration.torchrun import Ended, forked_ranks, python, run, started
from tests.integration.wire_ranks import telling
from tests.unit.collector.runs.run_stories import Story

RANKS = 4
SLOW_RANK = 2
LIVES = 3
TRAINING_RUN = "kept-training"
TRAINING = {
    "RANKSCOPE_RUN": TRAINING_RUN,
    "RANKSCOPE_REPORT_INTERVAL_S": "0.1",
    "RANKSCOPE_COLLECTIVE_WINDOW_S": "0.1",
    "RANKSCOPE_OVERHEAD_RATIO_MAX": "0.5",
}
TRAINING_COUNTERS = frozenset({"rankscope_collective_wait_seconds_total", "rankscope_lost_gpu_seconds_total"})
Counters = dict[tuple[str, frozenset[tuple[str, str]]], float]


def rankscope(*arguments: str) -> Ended:
    """Run a command to its end."""
    return run(python("-m", "rankscope.collector", *arguments))


def read_counters(api: Api) -> Counters:
    """Every counter that has a run."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(api.read_metrics())
        if family.type == "counter"
        for sample in family.samples
        if sample.name.endswith("_total") and "run" in sample.labels
    }


def wait_for_counters(api: Api, ranks: int = RANKS, steps: int = 0, names: frozenset[str] = frozenset()) -> Counters:
    """Those of a moment at which every rank has been heard of, has made so many steps, and all of `names` are there.

    Metrics show only what the store has, so they come later than what the API says.
    """

    def look() -> Counters | None:
        found = read_counters(api)
        made = [value for (name, _), value in found.items() if name == "rankscope_steps_total"]
        is_there = len(made) == ranks and min(made) >= steps and names <= {name for name, _ in found}
        return found if is_there else None

    return wait_for(look, lambda: f"not {steps} steps of each of {ranks} ranks and {set(names)} in /metrics")


def read_store(path: Path) -> int:
    """How many steps of the story the file has; none before the run is in it."""
    with contextlib.suppress(UnavailableError), opening_run(path, "story") as history:
        return len(list(history.read_steps()))
    return 0


def read_lost(pictures: list[RunSnapshot]) -> float:
    """What the straggler has cost in rank-seconds, by these pictures of the run; 0 before a round has found it."""
    return sum(one.lost_rank_seconds for picture in pictures for one in picture.lost if one.rank == SLOW_RANK)


def wait_for_more_lost(served: Served, steps: int, known: float) -> RunSnapshot:
    """The first picture with that many steps in which the straggler has cost more: rounds come after the steps."""
    return served.wait_for_run("story", lambda run: have_stepped(run, steps) and read_lost([run]) > known)


# -- killed and started again -----------------------------------------------------------------------------------------


@dataclass
class Seen:
    """What was seen of one run over three collectors, all but the last killed."""

    pages: list[Counters] = field(default_factory=list)
    at_start: list[RunSnapshot | None] = field(default_factory=list)
    pictures: list[RunSnapshot] = field(default_factory=list)
    text_by_url: Ended | None = None
    text: Ended | None = None
    json: Ended | None = None
    html: Ended | None = None
    path: Path = Path()
    stderr: str = ""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Each collector hears some steps more and is killed right after a scrape, in the middle of everything."""
    seen = Seen(path=tmp_path_factory.mktemp("history") / "store.db")
    store, story = str(seen.path), Story(RANKS)
    for life in range(LIVES):
        with serving("--store", store, environment={"RANKSCOPE_SERVE_CONSTANT_HISTORY_INTERVAL_S": "1"}) as served:
            seen.at_start.append(served.read_run("story"))
            with telling(story, served.endpoint, again=life > 0):
                for _ in range(4):
                    story.train(15, forward={SLOW_RANK: 30.0})
                    seen.pages.append(wait_for_counters(served))
                seen.pictures.append(wait_for_more_lost(served, 60 * (life + 1), read_lost(seen.pictures[-1:])))
                seen.pages.append(wait_for_counters(served))
                if life < LIVES - 1:
                    served.kill()
                    continue
                for rank in range(RANKS):
                    story.say_goodbye(rank)
                served.wait_for_run("story", have_ended)
                seen.text_by_url = wait_for_report(served, "finished")
                served.end(signal.SIGTERM)
                seen.stderr = served.read_stderr()
    seen.text = rankscope("report", "story", "--store", store)
    seen.json = rankscope("report", "story", "--store", store, "--json")
    seen.html = rankscope("report", "story", "--store", store, "--html")
    return seen


def wait_for_report(served: Served, said: str) -> Ended:
    """The report that a collector gives, once this is in it: it is made from the store, which is a moment behind."""
    ended: list[Ended] = []

    def look() -> Ended | None:
        ended.append(rankscope("report", "story", "--url", served.url))
        return ended[-1] if said in ended[-1].stdout else None

    return wait_for(look, lambda: f"no {said!r} in {ended[-1]}")


def test_no_counter_of_the_live_run_goes_backwards(seen: Seen) -> None:
    for before, after in zip(seen.pages, seen.pages[1:], strict=False):
        assert {key: (value, after.get(key)) for key, value in before.items() if after.get(key, value) < value} == {}


def test_no_counter_of_the_live_run_gets_lost(seen: Seen) -> None:
    names = {name for name, _ in seen.pages[0]}
    assert {
        "rankscope_steps_total", "rankscope_collective_wait_seconds_total", "rankscope_run_seconds_total",
        "rankscope_step_records_lost_total", "rankscope_report_gaps_total",
    } <= names  # fmt: skip
    for before, after in zip(seen.pages, seen.pages[1:], strict=False):
        assert before.keys() <= after.keys()


def test_the_run_is_there_again_before_any_rank_says_hello(seen: Seen) -> None:
    assert seen.at_start[0] is None
    for known in seen.at_start[1:]:
        assert known is not None
        assert [(rank.awaited, rank.ended) for rank in known.ranks] == [(True, None)] * RANKS


def test_no_report_counts_as_missing_or_twice(seen: Seen) -> None:
    for picture in seen.pictures:
        assert [rank.report_gaps for rank in picture.ranks] == [0] * RANKS
        assert [rank.reports_duplicate for rank in picture.ranks] == [0] * RANKS
    reports = [rank.reports_admitted for rank in seen.pictures[-1].ranks]
    assert reports == [rank.last_sequence for rank in seen.pictures[-1].ranks]


def test_what_the_straggler_costs_is_counted_on(seen: Seen) -> None:
    lost = [read_lost([picture]) for picture in seen.pictures]
    assert 0 < lost[0] < lost[1] < lost[2] <= RANKS * 0.020 * 60 * LIVES  # 20 ms a step; a moment behind the steps


def test_every_step_that_was_written_is_in_the_history_once(seen: Seen) -> None:
    with opening_run(seen.path, "story") as history:
        steps = [step.step for step in history.read_steps()]
    assert steps == sorted(set(steps))
    assert steps[-1] == 60 * LIVES - 1
    assert len(steps) >= 60 * LIVES - 15 * (LIVES - 1)  # a kill costs at most what one tick had not written


def test_report_is_there_while_the_collector_runs_and_after_it(seen: Seen) -> None:
    for ended in (seen.text_by_url, seen.text):
        assert ended is not None
        assert (ended.exit_code, ended.stderr) == (0, "")
        assert "run story: 4 ranks, 180 steps" in ended.stdout
        assert "ended: finished  0-3" in ended.stdout
        assert f"Rank {SLOW_RANK} (node-a): 1.57x slower than its 3 peers, steps " in ended.stdout


def test_the_report_is_json_and_a_page_too(seen: Seen) -> None:
    assert seen.json is not None
    assert seen.html is not None
    report: dict[str, Any] = json.loads(seen.json.stdout)
    assert (report["run"], report["is_over"], report["worst_ranks"][0]["rank"]) == ("story", True, SLOW_RANK)
    assert seen.html.stdout.startswith("<!doctype html>")


def test_nothing_went_wrong_inside(seen: Seen) -> None:
    assert "Traceback" not in seen.stderr
    assert " ERROR " not in seen.stderr


def test_no_counter_of_a_real_training_falls_over_a_kill(tmp_path: Path) -> None:
    """Two real agents, which are not told of anything, and whose reports are on the way when the collector dies."""
    stop, port = tmp_path / "stop", find_fixed_port()
    listen, store = f"tcp://127.0.0.1:{port}", ("--store", str(tmp_path / "store.db"))
    command = forked_ranks(2, "-m", "rankscope.agent", "paced.py", "--stop", str(stop), "--slow-rank", "1")
    with contextlib.ExitStack() as ends:
        first = ends.enter_context(serving(*store, listen=listen))
        job = ends.enter_context(started(command, {**TRAINING, "RANKSCOPE_COLLECTOR": listen}))
        before = wait_for_counters(first, ranks=2, names=TRAINING_COUNTERS)
        first.kill()
        second = ends.enter_context(serving(*store, listen=listen))
        steps = round(max(value for (name, _), value in before.items() if name == "rankscope_steps_total")) + 20
        # Those of the machine are there with its next sample.
        after = wait_for_counters(second, ranks=2, steps=steps, names=frozenset(name for name, _ in before))
        known = second.wait_for_steps(TRAINING_RUN, steps)
        stop.touch()
        assert job.wait().exit_code == 0
        ended = second.wait_for_run(TRAINING_RUN, lambda run: [rank.ended for rank in run.ranks] == ["finished"] * 2)
    assert {key: (value, after.get(key)) for key, value in before.items() if after.get(key, -1.0) < value} == {}
    assert [(rank.report_gaps, rank.first_sequence) for rank in known.ranks] == [(0, 1)] * 2
    assert [rank.reports_admitted for rank in ended.ranks] == [rank.last_sequence for rank in ended.ranks]


# -- what is asked for wrongly ----------------------------------------------------------------------------------------


def test_collector_without_a_store_says_it_keeps_no_history() -> None:
    with serving() as served:
        ended = rankscope("report", "story", "--url", served.url)
    assert ended.exit_code == 1
    assert "404" in ended.stderr


def test_parquet_wants_the_file() -> None:
    ended = rankscope("report", "story", "--parquet", "out")
    assert (ended.exit_code, ended.stderr) == (
        2, "rankscope: --parquet reads the store itself: name it with --store.\n"
    )  # fmt: skip


def test_a_table_without_rows_is_refused() -> None:
    ended = rankscope("report", "story", "--top", "0")
    assert (ended.exit_code, ended.stderr) == (2, "rankscope: --top is 0; the smallest allowed is 1.\n")


# -- a full disk ------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    with mounted(tmp_path / "small", 8) as folder:
        if folder is None:
            pytest.skip("no file system can be mounted here: that needs root")
        yield folder


def test_full_disk_is_told_and_caught_up_with_once_it_has_room(small_disk: Path) -> None:
    path = small_disk / "store.db"
    with serving("--store", str(path)) as served, telling(Story(2), served.endpoint) as story:
        story.train(20)
        wait_for(lambda: read_store(path) == 20 or None, lambda: "the first steps are not in the store")
        filler = fill(small_disk)
        story.train(30)
        said = wait_for_readiness(served, "ok, but nothing is written to the store, and all is kept in memory: ")
        assert f"the store {path} cannot be used: " in said
        served.wait_for_metrics("rankscope_store_writable 0.0\n")
        for _ in range(5):
            story.train(10)
        assert served.wait_for_steps("story", 100).ranks[0].totals.steps == 100
        filler.unlink()
        wait_for_readiness(served, "ok\n")
        wait_for(lambda: read_store(path) == 100 or None, lambda: "not all steps are in the store")
        served.wait_for_metrics(
            "rankscope_store_writable 1.0\n",
            'rankscope_collector_errors_total{part="history_store"}',
            "rankscope_history_rows_dropped_total 0.0\n",
        )
        assert "Traceback" not in served.read_stderr()


def test_collector_killed_on_a_full_disk_goes_on_after_a_start(small_disk: Path) -> None:
    """The files that the killed one has left are as large as they have to be to be opened."""
    path, story = small_disk / "store.db", Story(2)
    with serving("--store", str(path)) as first, telling(story, first.endpoint):
        story.train(20)
        wait_for(lambda: read_store(path) == 20 or None, lambda: "the first steps are not in the store")
        filler = fill(small_disk)
        story.train(30)
        wait_for_readiness(first, "ok, but nothing is written")
        first.kill()
    with serving("--store", str(path)) as second:
        known = second.read_run("story")
        assert known is not None
        assert [rank.totals.steps for rank in known.ranks] == [20, 20]
        with telling(story, second.endpoint, again=True):
            story.train(10)
            wait_for_readiness(second, "ok, but nothing is written")
            filler.unlink()
            wait_for_readiness(second, "ok\n")
            wait_for(lambda: read_store(path) == 30 or None, lambda: "the last steps are not in the store")
            assert [rank.report_gaps for rank in second.wait_for_steps("story", 60).ranks] == [0, 0]


# -- killed while it writes -------------------------------------------------------------------------------------------

WRITES = 60
WRITER = """
import itertools, sys
from pathlib import Path
from rankscope.collector.storage.write_batch import WriteBatch
from rankscope.collector.storage.run_store import HistoryStore
from rankscope.collector.storage.database import Database
from tests.unit.collector.runs.kept_runs import interval_of, life_of, run_of, step_of

store = HistoryStore(Database(Path(sys.argv[1])))
for number in itertools.count():
    batch = WriteBatch()
    batch.put_run(run_of("story", attempt=number))
    batch.ranks["story", 0] = number, life_of("story", 0)
    batch.add_step("story", step_of(number))
    batch.add_interval("story", interval_of(float(number)))
    store.write(batch)
    print(number, flush=True)
"""


def test_killed_writer_loses_nothing_and_leaves_nothing_half(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    last = kill_writer(WRITER, path, WRITES)[-1]
    with closing(Database(path)) as database, closing(HistoryStore(database)) as store:
        (kept,), rows_unreadable = store.load()
    with opening_run(path, "story") as history:
        steps = [step.step for step in history.read_steps()]
        intervals = list(history.read_intervals())
    assert kept.run.attempt in {last, last + 1}
    assert (len(kept.ranks), rows_unreadable) == (1, 0)
    assert steps == list(range(kept.run.attempt + 1))
    assert len(intervals) == len(steps)
