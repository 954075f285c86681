"""Pending changes for the store: the newest states, all rows of the history, within limits."""

import pytest

from rankscope.collector.runs.saved_runs import SavedStory
from rankscope.collector.runs.snapshot import Snapshot
from rankscope.collector.steps.collective_totals import CollectiveCounts
from rankscope.collector.storage import write_batch as batch_module
from rankscope.collector.storage.write_batch import WriteBatch
from tests.unit.collector.runs.kept_runs import interval_of, life_of, run_of, step_of


def test_newer_state_replaces_an_older_one() -> None:
    batch = WriteBatch()
    batch.put_run(run_of("a", attempt=0))
    batch.put_run(run_of("a", attempt=1))
    assert [run.attempt for run in batch.runs.values()] == [1]


def test_earlier_batch_comes_before_later_changes() -> None:
    earlier, batch = WriteBatch(), WriteBatch()
    for each, attempt in ((earlier, 0), (batch, 1)):
        each.put_run(run_of("a", attempt=attempt))
        each.ranks["a", 0] = attempt, life_of("a", 0)
        each.stories["a"] = SavedStory(former_boots=(str(attempt),))
        each.collectives["a"] = CollectiveCounts().read()
        each.add_step("a", step_of(attempt))
        each.add_interval("a", interval_of(float(attempt)))
    earlier.put_run(run_of("b"))
    since = batch.collectives["a"]
    earlier.collectives["b"] = CollectiveCounts().read()
    earlier.forget("gone")
    earlier.snapshot = Snapshot(wall_s=1.0, version="0")
    batch.merge_earlier(earlier)
    assert {name: run.attempt for name, run in batch.runs.items()} == {"a": 1, "b": 0}
    assert batch.ranks["a", 0][0] == 1
    assert batch.stories["a"].former_boots == ("1",)
    assert batch.collectives["a"] is since
    assert batch.collectives["b"] is earlier.collectives["b"]
    assert [step.step for _, step in batch.steps] == [0, 1]
    assert [interval.begin_wall_s for _, interval in batch.intervals] == [0.0, 1.0]
    assert (batch.forgotten, batch.snapshot) == ({"gone"}, earlier.snapshot)


def test_run_that_returned_is_not_forgotten() -> None:
    earlier, batch = WriteBatch(), WriteBatch()
    earlier.forget("a")
    batch.put_run(run_of("a"))
    batch.merge_earlier(earlier)
    assert batch.forgotten == set()
    batch.forget("a")
    batch.put_run(run_of("a"))
    assert batch.forgotten == set()


def test_run_forgotten_while_writes_fail_stays_forgotten() -> None:
    earlier, batch = WriteBatch(), WriteBatch()
    earlier.put_run(run_of("a"))
    earlier.forget("a")
    batch.merge_earlier(earlier)
    assert (set(batch.runs), batch.forgotten) == ({"a"}, {"a"})


@pytest.mark.parametrize("limit", ["FORGOTTEN_RUNS_MAX", "RANKS_WAITING_MAX"])
def test_oldest_forgotten_runs_are_dropped_and_counted(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four runs after one another, of which the last is known: of the other three there is room for two."""
    monkeypatch.setattr(batch_module, limit, 2 if limit == "FORGOTTEN_RUNS_MAX" else 3)
    batch = WriteBatch()
    for number in range(4):
        run = f"bert@{number}"
        batch.put_run(run_of(run))
        batch.ranks[run, 0] = 0, life_of(run, 0)
        batch.stories[run] = SavedStory()
        batch.collectives[run] = CollectiveCounts().read()
    for number in range(3):
        batch.forget(f"bert@{number}")
    left = {"bert@1", "bert@2", "bert@3"}
    assert [set(batch.runs), {run for run, _ in batch.ranks}, set(batch.stories), set(batch.collectives)] == [left] * 4
    assert batch.dropped == 1


def test_oldest_rows_are_dropped_and_counted() -> None:
    batch = WriteBatch(steps_max=2, intervals_max=1)
    for number in range(4):
        batch.add_step("a", step_of(number))
    for begin in range(2):
        batch.add_interval("a", interval_of(float(begin)))
    assert [step.step for _, step in batch.steps] == [2, 3]
    assert [interval.begin_wall_s for _, interval in batch.intervals] == [1.0]
    assert batch.dropped == 3


def test_merged_rows_are_within_the_limit_too() -> None:
    earlier, batch = WriteBatch(), WriteBatch(steps_max=2)
    for number in range(3):
        earlier.add_step("a", step_of(number))
    batch.add_step("a", step_of(3))
    batch.merge_earlier(earlier)
    assert [step.step for _, step in batch.steps] == [2, 3]
    assert batch.dropped == 2
