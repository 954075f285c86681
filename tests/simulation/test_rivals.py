"""Check the rules of other tools on runs whose outcome is plain."""

import numpy as np
import pytest

from rankscope.collector.config import CollectorConfig
from tests.simulation.engine import Floats
from tests.simulation.faults import Fault
from tests.simulation.rivals import RULES, find_slow, judge_rivals
from tests.simulation.topology import Topology
from tests.simulation.world import Scenario, run

STEPS = 96
SLOW = 5


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
    (found,) = find_slow(times_of(seen_at), RULES[rule], CollectorConfig())
    # The median of the last 32 steps is the slow one's once more than 16 of them are: at the pass after step 64.
    assert (found.finding.ranks, found.opened_step) == ((SLOW,), 72)
    assert find_slow(times_of(missed_at), RULES[rule], CollectorConfig()) == []


def test_temporarily_slow_rank_is_one_finding_that_closes() -> None:
    times = times_of(1.5)
    times[72:] = times[0]
    (found,) = find_slow(times, RULES["> 1.1 x median"], CollectorConfig())
    # Of the last 32 steps 16 are slow at both step 64 and step 88: the median is in the middle, at 125 ns.
    assert (found.opened_step, found.closed_step) == (64, 96)


def test_step_times_hide_the_slow_rank_kernel_times_the_host() -> None:
    fault = Fault(cause="host_cpu", ranks=(SLOW,), ratio=1.5, begin=48)
    judged = judge_rivals(run(Scenario(topology=Topology.mesh(dp=8), kind="dp", faults=(fault,), steps=STEPS)))
    found = {seen: judged["> 1.2 x median", seen].faults[0].found for seen in ("step time", "kernel time", "own work")}
    assert found == {"step time": False, "kernel time": False, "own work": True}
