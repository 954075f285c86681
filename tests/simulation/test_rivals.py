"""Check the rules of other tools on runs whose outcome is plain."""

import numpy as np
import pytest

from bench.rivals import RIVALS, STAGES, find_slow, judge_rivals
from rankscope.collector.config import CollectorConfig
from tests.simulation.engine import Floats
from tests.simulation.faults import Fault
from tests.simulation.topology import Topology
from tests.simulation.world import Outcome, Scenario, run

STEPS = 96
SLOW = 5
SCENARIO = Scenario(topology=Topology.mesh(dp=8), kind="dp", steps=STEPS)
STEP, PHASES, CALLED = "step time", "host phases", "time in collectives"


def outcome_of(step_ns: Floats, phases_ns: dict[str, Floats] | None = None, called_ns: Floats | None = None) -> Outcome:
    """Return a course of eight ranks; phases that are not given are 0."""
    nothing = np.zeros_like(step_ns)
    phases = {stage: (phases_ns or {}).get(stage, nothing) for stage in STAGES}
    return Outcome(SCENARIO, [], None, step_ns, {}, phases, nothing if called_ns is None else called_ns)


def times_of(ratio: float) -> Floats:
    """Return eight ranks of 100 ns with 1 ns of jitter; from step 48 on one of them is slower."""
    times = np.tile([99.0, 100.0, 101.0, 100.0, 99.0, 100.0, 101.0, 100.0], (STEPS, 1))
    times[48:, SLOW] *= ratio
    return times


@pytest.mark.parametrize(
    ("rule", "seen_at", "missed_at"),
    [
        # The best is 99: 99 / 0.75 = 132.
        ("relative score < 0.75", 1.33, 1.31),
        # Of the deviations from 100 three are 0, four are 1 and one is the slow rank's: 100 + 2 x 1.4826 x 1 = 102.97.
        ("median + 2 MAD", 1.03, 1.02),
        ("> 2 x median", 2.01, 1.99),
        ("> 1.2 x median", 1.21, 1.19),
        ("> 1.1 x median", 1.11, 1.09),
    ],
)
def test_rule_calls_slow_what_is_beyond_its_bound(rule: str, seen_at: float, missed_at: float) -> None:
    rival = RIVALS[rule, STEP]
    (found,) = find_slow(outcome_of(times_of(seen_at)), rival, CollectorConfig())
    # The median of the last 32 steps is the slow one's once more than 16 of them are: at the pass after step 64.
    assert (found.finding.ranks, found.opened_step) == ((SLOW,), 72)
    assert find_slow(outcome_of(times_of(missed_at)), rival, CollectorConfig()) == []


def test_temporarily_slow_rank_is_one_finding_that_closes() -> None:
    times = times_of(1.5)
    times[72:] = times[0]
    (found,) = find_slow(outcome_of(times), RIVALS["> 1.1 x median", STEP], CollectorConfig())
    # Of the last 32 steps 16 are slow at both step 64 and step 88: the median is in the middle, at 125 ns.
    assert (found.opened_step, found.closed_step) == (64, 96)


def test_step_times_hide_the_slow_rank_kernel_times_the_host() -> None:
    fault = Fault(cause="host_cpu", ranks=(SLOW,), ratio=1.5, begin=48)
    judged = judge_rivals(run(Scenario(topology=Topology.mesh(dp=8), kind="dp", faults=(fault,), steps=STEPS)))
    found = {seen: judged["> 1.2 x median", seen].faults[0].found for seen in ("step time", "kernel time", "own work")}
    assert found == {"step time": False, "kernel time": False, "own work": True}


def accused(rule: str, seen: str, outcome: Outcome) -> list[int]:
    """Return the ranks that a rule names at the end of a course."""
    return np.flatnonzero(RIVALS[rule, seen](outcome, slice(64, STEPS))).tolist()


@pytest.mark.parametrize(("lead_ns", "expected"), [(6.0, [SLOW]), (4.0, [])])
def test_frontier_names_the_rank_whose_lead_grows_and_where(lead_ns: float, expected: list[int]) -> None:
    """Steps of 100: all have 30 of forward, rank 5 `lead_ns` more; in backward rank 2 is ahead by less than that."""
    forward, backward = np.full((STEPS, 8), 30.0), np.full((STEPS, 8), 60.0)
    forward[:, SLOW] += lead_ns
    backward[:, SLOW] -= lead_ns  # it arrives when the others do
    backward[:, 2] += 3.0
    found = accused(
        "frontier", PHASES, outcome_of(np.full((STEPS, 8), 100.0), {"forward": forward, "backward": backward})
    )
    assert found == expected


def test_worst_phase_names_worst_of_step_before_worst_of_phase() -> None:
    """Forward is 30 of 90: 10 % more of it are 3, too little of the step; 12 % of the phase."""
    forward, backward = np.full((STEPS, 8), 30.0), np.full((STEPS, 8), 60.0)
    steps = np.full((STEPS, 8), 90.0)
    forward[:, 3] *= 1.12
    assert accused("worst phase", PHASES, outcome_of(steps, {"forward": forward, "backward": backward})) == [3]
    backward[:, SLOW] *= 1.16  # 9.6 of 90 are 10.7 % of the step
    assert accused("worst phase", PHASES, outcome_of(steps, {"forward": forward, "backward": backward})) == [SLOW]
    level = {"forward": np.full((STEPS, 8), 30.0), "backward": np.full((STEPS, 8), 60.0)}
    assert accused("worst phase", PHASES, outcome_of(steps, level)) == []


def test_least_waiting_always_names_and_lateness_from_3_percent() -> None:
    steps, called = np.full((STEPS, 8), 100.0), np.full((STEPS, 8), 20.0)
    called[:, SLOW] = 17.5
    assert accused("least waiting", CALLED, outcome_of(steps, called_ns=called)) == [SLOW]
    assert accused("3 % late", CALLED, outcome_of(steps, called_ns=called)) == []
    called[:, SLOW] = 16.5
    assert accused("3 % late", CALLED, outcome_of(steps, called_ns=called)) == [SLOW]


def test_change_of_waiting_needs_a_change() -> None:
    steps, called = np.full((STEPS, 8), 100.0), np.full((STEPS, 8), 20.0)
    called[:, 1] = 10.0  # late from the beginning
    called[64:, SLOW] = 18.0  # 2 % of the step later since step 64
    assert accused("change of waiting", CALLED, outcome_of(steps, called_ns=called)) == [SLOW]
