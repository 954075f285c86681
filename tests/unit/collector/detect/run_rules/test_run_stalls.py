"""Runs that stop as a whole: steps of 60 ms, of which some last 0.6 s longer on all ranks."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from rankscope.collector.detect.finding import Finding
from rankscope.collector.detect.run_rules.explained import find_explained_ns
from rankscope.collector.detect.run_rules.run_stalls import RunStalls, find_run_stalls
from rankscope.collector.detect.view import Candidate, RunView, Samples, SingleLosses, TimeCount
from rankscope.collector.steps.long_steps import EVERYBODY, UNKNOWN, LongStepsSeen, RareLongStep
from tests.unit.collector.steps.step_series import MS, series_of, view_of

USUAL_MS, STALL_MS = 60.0, 600.0
EVERY = 60


def seen_of(steps: Iterable[int], until: int, *, owner: int = EVERYBODY, part: str = "other") -> LongStepsSeen:
    """Return the long steps of a run of `until` steps."""
    found = [
        RareLongStep(
            step, owner, part, STALL_MS * MS, 0.0, (step * USUAL_MS + count * STALL_MS) * MS, USUAL_MS * MS,
            line="train.py:44 (main)", call="time.sleep",
        )
        for count, step in enumerate(steps)
    ]  # fmt: skip
    return LongStepsSeen(tuple(found), (until * USUAL_MS + len(found) * STALL_MS) * MS)


def view_with(seen: LongStepsSeen, ranks: int = 2, samples: Samples | None = None) -> RunView:
    return replace(view_of(series_of([[USUAL_MS] * ranks] * 12), samples=samples), long_steps=seen)


def find(seen: LongStepsSeen, ranks: int = 2, explained: Iterable[Finding] = ()) -> list[Candidate]:
    return list(RunStalls().find(view_with(seen, ranks), list(explained)))


def regular(count: int = 8) -> LongStepsSeen:
    return seen_of(range(EVERY, EVERY * (count + 1), EVERY), EVERY * (count + 1))


def test_finding_says_how_long_how_often_where_and_at_what_cost() -> None:
    ((finding, lost),) = find(regular())
    assert (finding.kind, finding.ranks, finding.severity, finding.pattern) == (
        "run_stalls", (), "warning", "intermittent",
    )  # fmt: skip
    assert finding.headline == "Whole run: stopped for 600.0 ms every 60 steps since about step 60 (1-60)"
    assert finding.why == "all ranks alike, between optimizer and next batch"
    assert finding.also == (
        "8 stalls of 600.0 ms in steps 60-480",
        "seen in time.sleep, called at train.py:44 (main), in 8 of 8 looks",
    )
    # Steps 0 to 540 take 32.4 s, and the stalls 4.8 s.
    assert finding.run_slowdown_ratio == pytest.approx(37.2 / 32.4)
    assert isinstance(lost, SingleLosses)
    assert lost.lost_ns.tolist() == [STALL_MS * MS] * 8


def test_three_stalls_or_irregular_ones_are_none() -> None:
    assert find(regular(3)) == []
    assert find(seen_of((60, 75, 190, 210, 340, 360, 480, 530), 560)) == []


def test_stalls_of_ranks_are_not_the_runs() -> None:
    assert find(seen_of(range(EVERY, 540, EVERY), 540, owner=1)) == []
    assert find(seen_of(range(EVERY, 540, EVERY), 540, owner=UNKNOWN)) == []


def test_stalls_of_a_single_rank_are_the_runs() -> None:
    (candidate,) = find(seen_of(range(EVERY, 540, EVERY), 540, owner=UNKNOWN), ranks=1)
    assert candidate.finding.why == "between optimizer and next batch"


def test_stalls_that_take_little_time_are_none_and_hold_down_to_half_of_it() -> None:
    every = 240  # 0.6 of 15 s
    seen = seen_of(range(every, every * 9, every), every * 9)
    assert find(seen) == []
    known = Finding(kind="run_stalls", ranks=(), cause="run_stalls", sentence="", since_step=240, since_step_min=1)
    (candidate,) = find(seen, explained=[known])
    assert candidate.finding.severity == "info"
    assert (candidate.finding.since_step, candidate.finding.since_step_min) == (240, 1)


def test_stalls_that_have_ended_are_none() -> None:
    seen = regular()
    assert find_run_stalls(seen._replace(total_ns=seen.total_ns * 2), 2) is None
    assert RunStalls().has_passed(view_with(seen), Finding(kind="run_stalls", ranks=(), cause="", sentence=""), [])


@pytest.mark.parametrize(
    ("part", "why"),
    [
        ("data", "waiting for data loaders"),
        ("checkpoint", "saving checkpoints"),
        ("augment", "in augment"),
    ],
)
def test_what_all_do_is_told(part: str, why: str) -> None:
    (candidate,) = find(seen_of(range(EVERY, 540, EVERY), 540, part=part))
    assert candidate.finding.why == f"all ranks alike, {why}"


def test_long_step_of_the_start_up_is_not_the_first_of_them() -> None:
    ((finding, _),) = find(seen_of((14, *range(EVERY, 540, EVERY)), 540))
    assert (finding.since_step, finding.since_step_min) == (60, 1)


def test_stops_explain_no_longer_median_step() -> None:
    ((finding, _),) = find(regular())
    view = view_with(regular())
    assert find_explained_ns(view, [finding]).tolist() == [0.0] * len(view.series.steps)


def test_what_the_rules_say_is_not_said_again() -> None:
    bound = Finding(kind="data_bound", ranks=(), cause="data_bound", sentence="")
    assert find(seen_of(range(EVERY, 540, EVERY), 540, part="data"), explained=[bound]) == []
    assert len(find(regular(), explained=[bound])) == 1


def test_pauses_of_the_collector_are_told() -> None:
    counts = [TimeCount(step, round(step // EVERY * 500 * MS)) for step in range(1, 540, 10)]
    view = view_with(regular(), samples=Samples({}, {0: counts}, {}))
    (candidate,) = RunStalls().find(view, [])
    assert candidate.finding.why == "all ranks alike, in Python's garbage collector"
    collecting = Finding(kind="garbage_collection", ranks=(), cause="garbage_collection", sentence="")
    assert RunStalls().find(view, [collecting]) == []
