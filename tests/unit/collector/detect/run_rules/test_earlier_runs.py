"""A run is compared with earlier ones of the same work: when it is slower, what is said, and when nothing is."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from rankscope.collector.detect.finding import Abstain, Finding, close_finding
from rankscope.collector.detect.run_rules.earlier_runs import (
    DEVIATION_FLOOR,
    RUNS_MAX,
    RUNS_MIN,
    SLOWER_THAN_EARLIER,
    EarlierRuns,
    measure_excess,
)
from rankscope.collector.detect.view import RunView
from rankscope.collector.steps.equal_work import Work
from rankscope.collector.steps.run_start import EarlierRun, RunStart
from tests.unit.collector.steps.step_series import MS, UNKNOWN, series_of, view_of

DETECTOR = EarlierRuns()
SPREAD = (100.0, 99.0, 101.0, 100.5, 99.5)
"""Steps of five earlier runs in ms; their logs are 0, 0.5 and 1 % from the median, so the deviation is the floor."""


def start_of(
    step_ms: float,
    *,
    phases_ms: Mapping[str, float] | None = None,
    uses_ms: Mapping[str, float] | None = None,
    **known: object,
) -> RunStart:
    """A start of 128 steps."""
    start = RunStart(
        begun_wall_s=0.0, work=Work(2), first_step=10, last_step=137, steps=128, step_ns=step_ms * MS,
        phases_ns={name: ms * MS for name, ms in (phases_ms or {}).items()},
        uses_ns={name: ms * MS for name, ms in (uses_ms or {}).items()},
    )  # fmt: skip
    return msgspec.structs.replace(start, **known)


def earlier_of(*steps_ms: float, **known: object) -> list[EarlierRun]:
    return [EarlierRun(f"bert@{place}", start_of(ms, **known)) for place, ms in enumerate(steps_ms)]  # type: ignore[arg-type]


def view_with(
    start: RunStart | None, earlier: Sequence[EarlierRun] | None, present_ms: float = 110.0, steps: int = 64
) -> RunView:
    return replace(view_of(series_of([[present_ms, present_ms]] * steps)), start=start, earlier_runs=earlier)


def find_one(view: RunView, explained: Sequence[Finding] = ()) -> Finding:
    found = DETECTOR.find(view, explained)
    assert not isinstance(found, Abstain)
    (candidate,) = found
    assert candidate.lost_ns is None
    return candidate.finding


def test_run_is_slower_than_five_earlier_ones() -> None:
    found = find_one(view_with(start_of(110.0), earlier_of(*SPREAD)))
    assert (found.kind, found.cause, found.ranks, found.since_step) == (
        SLOWER_THAN_EARLIER,
        SLOWER_THAN_EARLIER,
        (),
        10,
    )
    assert found.slowdown_ratio == pytest.approx(1.1)
    assert found.evidence["earlier_runs"] == 5
    # log(1.1) = 9.53 % in deviations of 1 % * sqrt(1 + pi / 10) = 1.146 %
    assert found.evidence["robust_z"] == pytest.approx(8.315, abs=0.01)
    assert found.headline == "Whole run: 1.10x slower than the last 5 runs of the same work since step 10"
    assert found.figures == "Step 110.0 ms, earlier runs 100.0 ms"
    assert found.also == ("runs of this work differ by a standard deviation of 1.0 %, counted as 1 % at least",)


@pytest.mark.parametrize("step_ms", [104.9, 100.0, 80.0])
def test_run_within_five_percent_is_not_slower(step_ms: float) -> None:
    assert DETECTOR.find(view_with(start_of(step_ms), earlier_of(*SPREAD)), ()) == []


def test_runs_that_differ_much_prove_nothing() -> None:
    # Distances of 4 and 8 %: 4 % / 0.6745 = 5.9 %, so 10 % is 1.4 deviations.
    assert DETECTOR.find(view_with(start_of(110.0), earlier_of(100, 104, 96, 108, 92)), ()) == []


def test_few_slow_runs_change_neither_usual_nor_deviation() -> None:
    steps_ms = np.array([100, 101, 99, 100, 101, 99, 100, 100, 150, 160]) * 1.0
    excess = measure_excess(start_of(110.0), earlier_of(*steps_ms))
    assert excess.usual_ns == pytest.approx(100 * MS, rel=0.01)
    assert excess.deviation == pytest.approx(DEVIATION_FLOOR, rel=0.5)


def test_first_runs_are_never_judged() -> None:
    for count in range(RUNS_MIN):
        found = DETECTOR.find(view_with(start_of(1_000.0), earlier_of(*SPREAD[:count])), ())
        assert isinstance(found, Abstain)
        runs = "1 earlier run" if count == 1 else f"{count} earlier runs"
        assert found.reason == f"the first steps of {runs} of the same work are in the store; 5 are needed"


def test_runs_with_a_finding_in_their_start_do_not_count() -> None:
    disturbed = earlier_of(130.0, 131.0, was_disturbed=True)
    found = DETECTOR.find(view_with(start_of(110.0), [*disturbed, *earlier_of(*SPREAD[:4])]), ())
    assert isinstance(found, Abstain)
    assert (
        "4 earlier runs of the same work are in the store, beside 2 that had a finding in their first" in found.reason
    )
    assert find_one(view_with(start_of(110.0), [*disturbed, *earlier_of(*SPREAD)])).evidence["earlier_runs"] == 5


def test_latest_earlier_runs_decide() -> None:
    earlier = earlier_of(*[110.0] * RUNS_MAX, *[90.0] * 100)
    assert DETECTOR.find(view_with(start_of(110.0), earlier), ()) == []


def test_nothing_is_said_without_start_or_store() -> None:
    for view in (view_with(None, earlier_of(*SPREAD)), view_with(start_of(110.0), None)):
        assert isinstance(DETECTOR.find(view, ()), Abstain)


def test_slow_start_that_has_passed_is_no_finding() -> None:
    assert DETECTOR.find(view_with(start_of(110.0), earlier_of(*SPREAD), present_ms=103.0), ()) == []


def test_open_finding_stays_until_steps_are_as_short_as_usual() -> None:
    view = view_with(start_of(110.0), earlier_of(*SPREAD))
    known = find_one(view)
    slower, usual = (view_with(start_of(110.0), earlier_of(*SPREAD), present_ms=ms) for ms in (103.0, 101.0))
    assert find_one(slower, [known]).kind == SLOWER_THAN_EARLIER
    assert not DETECTOR.has_passed(slower, known, [known])
    assert DETECTOR.find(usual, [known]) == []
    assert DETECTOR.has_passed(usual, known, [known])


def test_nothing_is_judged_by_steps_that_are_not_known() -> None:
    known = find_one(view_with(start_of(110.0), earlier_of(*SPREAD)))
    view = view_with(start_of(110.0), earlier_of(*SPREAD), present_ms=UNKNOWN)
    assert DETECTOR.find(view, ()) == []
    assert not DETECTOR.has_passed(view, known, ())


def test_what_another_finding_explains_is_not_said_again() -> None:
    link = Finding(kind="slow_link", group="dp", cause="slow_link", sentence="", since_step=0, run_slowdown_ratio=1.1)
    assert DETECTOR.find(view_with(start_of(110.0), earlier_of(*SPREAD)), [link]) == []
    find_one(view_with(start_of(120.0), earlier_of(*SPREAD), present_ms=120.0), [link])


def test_parts_by_use_are_named_with_their_share() -> None:
    earlier = earlier_of(*SPREAD, uses_ms={"compute": 80.0, "exposed communication": 20.0})
    start = start_of(110.0, uses_ms={"compute": 82.0, "exposed communication": 27.5, "copies": 0.5})
    why = find_one(view_with(start, earlier)).why
    assert why == "75 % of the difference in exposed communication, 20 % in compute"


def test_phases_are_named_where_uses_are_not_known() -> None:
    start = start_of(110.0, phases_ms={"data": 19.0, "forward": 91.0}, uses_ms={"compute": 110.0})
    earlier = earlier_of(*SPREAD, phases_ms={"data": 10.0, "forward": 90.0})
    why = find_one(view_with(start, earlier)).why
    assert why == "90 % of the difference in the phase data, 10 % in the phase forward"


def test_new_nodes_and_versions_are_named() -> None:
    earlier = earlier_of(*SPREAD, nodes=("n1", "n2"), versions={"torch": ("2.9",), "agent": ()})
    new = tuple(f"n{number}" for number in range(2, 8))
    start = start_of(110.0, nodes=new, versions={"torch": ("2.10",), "python": ("3.12",), "agent": ("1.0",)})
    found = find_one(view_with(start, earlier))
    assert found.also[1:] == ("new nodes: n3, n4, n5, n6 and 1 more", "torch 2.10 instead of 2.9")
    assert found.details == {"latest_earlier_run": "bert@0", "nodes_new": "n3, n4, n5, n6 and 1 more",
                             "torch_changed": "torch 2.10 instead of 2.9"}  # fmt: skip
    same = start_of(110.0, nodes=("n1",), versions={"torch": ("2.9",)})
    assert len(find_one(view_with(same, earlier)).also) == 1


def test_closed_finding_has_its_period() -> None:
    found = close_finding(find_one(view_with(start_of(110.0), earlier_of(*SPREAD))), until_step=300, lasted_s=90.0)
    assert found.headline.endswith("runs of the same work, steps 10-300 (1.5 min)")
