"""Check runs that are slow on all ranks from their first step on: no rank is to blame, and a rule names the cause."""

import pytest

from rankscope.collector.detect.run_rules.rules import RULES
from tests.simulation.faults import Fault
from tests.simulation.noise import NOISES
from tests.simulation.topology import Topology
from tests.simulation.world import Scenario, run

STEPS = 120
JOBS = {"dp": Topology.mesh(dp=8), "tp": Topology.mesh(tp=2, dp=4), "pp": Topology.mesh(pp=2, dp=4)}


def findings(kind: str, *faults: Fault, noise: str = "usual") -> set[tuple[str, str, tuple[int, ...]]]:
    scenario = Scenario(topology=JOBS[kind], kind=kind, noise=NOISES[noise], faults=faults, steps=STEPS, seed=2)
    opened = [one.finding for one in run(scenario).opened]
    return {(finding.kind, finding.cause, finding.ranks) for finding in opened}


def everywhere(cause: str, ratio: float) -> Fault:
    return Fault(cause=cause, ranks=tuple(range(8)), ratio=ratio, begin=0)


@pytest.mark.parametrize("kind", sorted(JOBS))
@pytest.mark.parametrize(
    ("cause", "ratio", "expected"),
    [
        ("data_loading", 1.3, {"data_bound"}),
        ("host_cpu", 1.7, {"host_bound"}),
        ("memory_pressure", 1.7, {"host_bound", "memory_pressure"}),
        ("gpu_slow_clock", 1.5, set()),
        ("slow_copies", 1.3, {"copy_bound"}),
    ],
)
def test_run_slow_everywhere_gets_the_matching_rule(kind: str, cause: str, ratio: float, expected: set[str]) -> None:
    assert findings(kind, everywhere(cause, ratio)) == {(rule, rule, ()) for rule in expected}


@pytest.mark.parametrize("noise", sorted(NOISES))
def test_no_rule_fires_on_a_healthy_run(noise: str) -> None:
    assert not {kind for kind, _, _ in findings("tp", noise=noise)} & set(RULES)


@pytest.mark.parametrize("cause", ["data_loading", "host_cpu", "memory_pressure", "slow_copies"])
def test_no_rule_speaks_beside_the_one_rank_that_is_slow(cause: str) -> None:
    fault = Fault(cause=cause, ranks=(3,), ratio=2.0, begin=0)
    assert not {kind for kind, _, _ in findings("dp", fault)} & set(RULES)


def test_links_slow_from_the_first_step_are_communication_bound() -> None:
    # One group, without siblings or a past to compare it with: 110 ms of transfer beside 100 ms of work.
    slow = Fault(cause="slow_link", ranks=(3,), ratio=2.0, begin=0)
    assert findings("dp", slow) == {("communication_bound", "communication_bound", ())}
    # From a later step on the finding is about the link.
    assert {kind for kind, _, _ in findings("dp", Fault(cause="slow_link", ranks=(3,), ratio=2.0, begin=60))} == {
        "slow_link"
    }
