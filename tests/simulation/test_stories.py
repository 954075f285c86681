"""Check runs with one known fault, through the agent's encoder and the collector: the verdict is the truth."""

import pytest

from tests.simulation.faults import EFFECTS, Fault
from tests.simulation.noise import NOISES
from tests.simulation.scoring import judge
from tests.simulation.topology import Topology
from tests.simulation.world import Scenario, run

BEGIN = 60
STEPS = 120
SLOW = 3
UNEVEN = {("dp", "jittery"), ("dp", "rough"), ("dp", "uneven_batches")}
"""Noises that cost every step more than a tenth, each time on another rank, in runs whose forward waits for no rank:
there all parts of the work vary together."""
JOBS = {
    "dp": Topology.mesh(dp=8),
    "fsdp": Topology.mesh(dp=8),
    "tp": Topology.mesh(tp=2, dp=4),
    "ep": Topology.mesh(dp=8, ep=4),
    "pp": Topology.mesh(pp=2, dp=4),
}


def story(kind: str, *faults: Fault, noise: str = "usual", seed: int = 1) -> Scenario:
    return Scenario(topology=JOBS[kind], kind=kind, noise=NOISES[noise], faults=faults, steps=STEPS, seed=seed)


@pytest.mark.parametrize("kind", sorted(JOBS))
def test_slow_rank_is_found_and_no_rank_that_waits_for_it(kind: str) -> None:
    found = run(story(kind, Fault(cause="gpu_compute", ranks=(SLOW,), ratio=1.3, begin=BEGIN))).opened
    assert [(opened.finding.rank, opened.finding.cause) for opened in found] == [(SLOW, "gpu_compute")]
    assert abs((found[0].finding.since_step or 0) - BEGIN) <= 2


@pytest.mark.parametrize("cause", sorted(EFFECTS.keys() - {"cpu_pressure"}))  # that is a machine's: test_patterns.py
def test_cause_is_named(cause: str) -> None:
    judged = judge(run(story("fsdp", Fault(cause=cause, ranks=(SLOW,), ratio=1.3, begin=BEGIN))))
    (fault,) = judged.faults
    assert (fault.found, fault.right_cause, judged.false_findings) == (True, True, 0)


@pytest.mark.parametrize("kind", sorted(JOBS))
def test_slow_link_is_found_and_no_rank_that_uses_it(kind: str) -> None:
    found = run(story(kind, Fault(cause="slow_link", ranks=(SLOW,), ratio=1.3, begin=BEGIN))).opened
    assert {opened.finding.kind for opened in found} == {"slow_link"}
    assert all(SLOW in opened.finding.ranks for opened in found)
    assert abs((found[0].finding.since_step or 0) - BEGIN) <= 2


def test_rank_whose_links_are_slow_in_two_groups_is_suspected() -> None:
    topology = Topology.mesh(tp=4, dp=4)
    fault = Fault(cause="slow_link", ranks=(5,), ratio=1.3, begin=BEGIN)
    (opened,) = run(Scenario(topology=topology, kind="tp", faults=(fault,), steps=STEPS)).opened
    assert (opened.finding.ranks, opened.finding.details["suspected rank"]) == ((5,), "5")


def test_links_that_all_become_slow_are_found() -> None:
    topology = Topology.mesh(tp=4, dp=4)
    fault = Fault(cause="slow_link", ranks=tuple(range(16)), ratio=1.2, begin=BEGIN)
    found = run(Scenario(topology=topology, kind="tp", faults=(fault,), steps=STEPS)).opened
    assert sorted(opened.finding.group or "" for opened in found) == ["mesh_dp/*0", "mesh_tp/*0"]


@pytest.mark.parametrize("kind", sorted(JOBS))
def test_rank_however_slow_makes_no_slow_link(kind: str) -> None:
    found = run(story(kind, Fault(cause="host_cpu", ranks=(SLOW,), ratio=3.0, begin=BEGIN))).opened
    assert [(opened.finding.kind, opened.finding.rank) for opened in found] == [("straggler", SLOW)]


@pytest.mark.parametrize("noise", sorted(set(NOISES) - {"shared_nodes"}))
@pytest.mark.parametrize("kind", ["dp", "pp"])
def test_healthy_run_blames_no_rank(kind: str, noise: str) -> None:
    outcome = run(story(kind, noise=noise))
    assert outcome.abstained is None
    kinds = ["uneven_work"] if (kind, noise) in UNEVEN else []
    assert [(opened.finding.kind, opened.finding.ranks) for opened in outcome.opened] == [(kind, ()) for kind in kinds]


def test_batches_of_different_size_are_the_cause_of_uneven_work() -> None:
    (opened,) = run(story("dp", noise="uneven_batches")).opened
    assert opened.finding.cause == "data_imbalance"


def test_stage_with_more_work_is_an_imbalance_not_slow() -> None:
    topology = Topology.mesh(pp=2, dp=4)
    (opened,) = run(Scenario(topology=topology, kind="pp", steps=STEPS, stage_shares=(0.8, 1.2))).opened
    assert (opened.finding.kind, opened.finding.ranks) == ("imbalance", (4, 5, 6, 7))


def test_finding_closes_when_the_rank_has_recovered() -> None:
    fault = Fault(cause="gpu_compute", ranks=(SLOW,), ratio=1.5, begin=30, end=60)
    (opened,) = run(story("fsdp", fault)).opened
    assert opened.closed_step is not None
    assert opened.closed_step > 60


def test_same_seed_is_the_same_run() -> None:
    fault = Fault(cause="host_cpu", ranks=(SLOW,), ratio=1.3, begin=BEGIN)
    one, other = run(story("tp", fault, seed=7)), run(story("tp", fault, seed=7))
    assert one.opened == other.opened
    assert (one.step_ns == other.step_ns).all()
