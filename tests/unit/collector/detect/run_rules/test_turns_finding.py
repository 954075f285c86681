"""The finding about ranks that are slow in turns, by hand: two ranks, steps of 20 ms, of 80 in which one is slow."""

from dataclasses import replace

import numpy as np
import pytest

from rankscope.collector.detect.finding import Abstain, Finding
from rankscope.collector.detect.finding_memory import FindingMemory, recall, remember
from rankscope.collector.detect.run_rules.batch_imbalance import BatchImbalance
from rankscope.collector.detect.stragglers.persistent import Thresholds
from rankscope.collector.detect.view import RunView, Samples, TimeCount
from tests.unit.collector.steps.step_series import MS, series_of, view_of

DETECTOR = BatchImbalance(cost_ratio_min=0.1, thresholds=Thresholds())


def turns_of(
    steps: int = 140, phase: str = "data", more_ms: float = 60.0, usual_steps: int = 60, ranks: int = 2
) -> RunView:
    """Return the view of a run in which, after usual steps, each rank is slow in every other step."""
    own_ms = np.full((usual_steps + steps, ranks), 20.0)
    own_ms += np.random.default_rng(1).normal(0, 0.1, own_ms.shape)
    part_ms = np.full_like(own_ms, 1.0)
    for step in range(usual_steps, len(own_ms)):
        part_ms[step, step % 2] += more_ms
    own_ms += part_ms - 1.0
    return view_of(series_of(own_ms.tolist(), phases_ms={phase: part_ms.tolist()}))


def find(view: RunView, *known: Finding) -> list[Finding]:
    found = DETECTOR.find(view, known)
    assert not isinstance(found, Abstain)
    return [candidate.finding for candidate in found]


def test_loaders_slow_in_turns_are_uneven_work_of_nobody() -> None:
    (found,) = find(turns_of())
    assert (found.kind, found.cause, found.severity, found.ranks) == ("uneven_work", "data_loading", "warning", ())
    assert found.since_step == 60
    # 60 of 80 ms in each of 140 steps.
    assert found.evidence["gap_step_ratio"] == pytest.approx(0.75, abs=0.01)
    assert found.evidence["gap_ns"] == pytest.approx(60 * MS, rel=0.02)
    assert found.run_slowdown_ratio == pytest.approx(4.0, rel=0.02)
    assert found.headline == "Ranks 0-1 slowest in turns, no single rank to blame since step 60"
    assert found.also[0].startswith("140 turns in steps ")


def test_waits_for_a_core_are_the_cause_where_they_are_as_long() -> None:
    view = turns_of(phase="forward")
    counts = [TimeCount(60, 0), TimeCount(200, round(140 * 40 * MS))]
    clock = [TimeCount(60, 0), TimeCount(200, round(140 * 80 * MS))]
    samples = Samples({}, {}, {}, core_waits={0: counts, 1: counts}, host_clock={0: clock, 1: clock})
    waiting = replace(view, samples=samples)
    assert [one.cause for one in find(waiting)] == ["cpu_pressure"]


def test_turns_without_a_cause_must_have_gone_on_for_long() -> None:
    (found,) = find(turns_of(phase="forward"))
    assert (found.cause, found.severity) == ("unattributed", "info")
    assert found.why.endswith("most of it in forward")
    assert isinstance(DETECTOR.find(turns_of(100, phase="forward"), ()), Abstain)
    assert find(turns_of(100, phase="forward"), found) != []


def test_what_turns_lose_in_backward_has_no_phase() -> None:
    (found,) = find(turns_of(phase="backward"))
    assert found.why == "no known cause"


def test_a_slower_run_with_the_same_cause_explains_turns() -> None:
    slower = Finding(kind="run_slowdown", cause="data_loading", sentence="")
    assert isinstance(DETECTOR.find(turns_of(), (slower,)), Abstain)


@pytest.mark.parametrize("more_ms", [0.5, 2.0])
def test_cheap_turns_are_left_alone(more_ms: float) -> None:
    assert isinstance(DETECTOR.find(turns_of(more_ms=more_ms, usual_steps=140), ()), Abstain)


def test_turns_of_four_ranks_are_found_unless_random() -> None:
    def find_of(view: RunView) -> list[str]:
        return [one.cause for one in find(view)]

    own_ms = np.full((200, 4), 20.0) + np.random.default_rng(1).normal(0, 0.1, (200, 4))
    data_ms = np.full_like(own_ms, 1.0)
    for step in range(60, 200):
        data_ms[step, step // 20 % 3] += 60.0
    own_ms += data_ms - 1.0
    assert find_of(view_of(series_of(own_ms.tolist(), phases_ms={"data": data_ms.tolist()}))) == ["data_loading"]


def test_finding_passes_when_the_ranks_take_no_turns_any_more() -> None:
    (found,) = find(turns_of())
    healthy = view_of(series_of([[20.0, 20.1]] * 200))
    assert find(healthy, found) == []
    assert DETECTOR.has_passed(healthy, found, ())


def test_finding_keeps_its_begin() -> None:
    (found,) = find(turns_of())
    earlier = remember(Finding(kind=found.kind, cause=found.cause, since_step=10), recall(found))
    assert [one.since_step for one in find(turns_of(), earlier)] == [10]


def test_open_finding_stays_beside_a_slower_run_with_its_cause() -> None:
    (found,) = find(turns_of())
    slower = Finding(kind="run_slowdown", cause="data_loading", sentence="")
    assert [one.since_step for one in find(turns_of(), slower, found)] == [60]


def test_begin_has_a_range() -> None:
    (found,) = find(turns_of())
    assert (found.since_step_min, found.since_step_max) == (60, 61)


def test_ranks_that_took_turns_and_are_random_now_are_told_so() -> None:
    """Of four ranks and more: the cause of the turns is none of what is not in turns."""
    random = np.random.default_rng(3)
    own_ms = np.full((200, 4), 20.0)
    own_ms[np.arange(200), random.integers(0, 4, 200)] += 60.0
    told = Finding(kind="uneven_work", cause="data_loading", since_step=10)
    turns = remember(told, FindingMemory(holds_while_found=True))
    (found,) = find(view_of(series_of(own_ms.tolist())), turns)
    assert (found.cause, found.since_step) == ("unattributed", 10)
