"""Check runs whose ranks are not equal though nothing is wrong, or not equal and one of them slow."""

from dataclasses import replace

import pytest

from rankscope.collector.config import CollectorConfig
from rankscope.collector.detect.finding import Finding
from tests.simulation.faults import Fault
from tests.simulation.topology import EXPERT, Topology
from tests.simulation.unequal import Duty, Hardware, VaryingSizes
from tests.simulation.world import Scenario, World, run

SLOW = 5
STEPS = 120
EXPERTS = VaryingSizes(dimensions=(EXPERT,), deviation=0.2)
UNEQUAL = {
    "a pair with a collective of its own": Scenario(
        topology=Topology.mesh(dp=16, pairs=((4, 5),)), kind="fsdp", steps=STEPS
    ),
    "experts with other sizes in every step": Scenario(
        topology=Topology.mesh(dp=16, ep=4), kind="ep", sizes=EXPERTS, steps=STEPS
    ),
    "stages of two ranks": Scenario(topology=Topology.mesh(pp=6, dp=2), kind="pp", steps=STEPS),
}


def findings(scenario: Scenario, *faults: Fault, seed: int = 2) -> list[Finding]:
    fields = {name: getattr(scenario, name) for name in scenario.__dataclass_fields__}
    return [opened.finding for opened in run(Scenario(**{**fields, "faults": faults, "seed": seed})).opened]


@pytest.mark.parametrize("name", UNEQUAL)
def test_rank_slow_from_its_first_step_is_found_among_unequals(name: str) -> None:
    (found,) = findings(UNEQUAL[name], Fault(cause="gpu_compute", ranks=(SLOW,), ratio=1.2, begin=0))
    assert (found.kind, found.ranks, found.cause) == ("straggler", (SLOW,), "gpu_compute")


@pytest.mark.parametrize("name", UNEQUAL)
def test_healthy_unequal_ranks_are_not_blamed(name: str) -> None:
    assert findings(UNEQUAL[name]) == []


def test_heavy_stage_of_two_ranks_is_an_imbalance() -> None:
    scenario = Scenario(topology=Topology.mesh(pp=4, dp=2), kind="pp", stage_shares=(0.8, 0.8, 0.8, 1.6), steps=STEPS)
    (found,) = findings(scenario)
    assert (found.kind, found.ranks) == ("imbalance", (6, 7))


def test_stage_of_two_ranks_that_becomes_slower_is_one_finding() -> None:
    scenario = Scenario(topology=Topology.mesh(pp=4, dp=2), kind="pp", steps=160)
    (found,) = findings(scenario, Fault(cause="gpu_compute", ranks=(4, 5), ratio=1.3, begin=80))
    assert (found.kind, found.ranks, found.since_step) == ("stage_slowdown", (4, 5), 80)


def mixed(slower: int) -> Scenario:
    """64 ranks, of which the last `slower` have a GPU that takes 1.07 times as long."""
    hardware = Hardware(model="OLD", ranks=tuple(range(64 - slower, 64)), ratio=1.07, clock_hertz=1_700_000_000)
    return Scenario(topology=Topology.mesh(dp=64), kind="fsdp", hardware=(hardware,), steps=56)


@pytest.mark.parametrize("slower", [16, 24, 32])
def test_slower_model_of_gpu_is_one_finding_about_no_rank(slower: int) -> None:
    (found,) = findings(mixed(slower))
    assert (found.kind, found.ranks, found.nodes) == ("slow_gpu_model", (), ())
    assert found.headline.startswith(f"{slower} ranks on OLD: 1.07x slower than {64 - slower} ranks")
    assert found.run_slowdown_ratio == pytest.approx(1.06, abs=0.02)


def test_slow_rank_of_the_slower_model_is_named() -> None:
    found = findings(mixed(32), Fault(cause="gpu_compute", ranks=(50,), ratio=1.2, begin=0))
    assert {(one.kind, one.ranks) for one in found} == {("slow_gpu_model", ()), ("straggler", (50,))}


LOG, EVALUATE, SAVE = (
    Duty(rank=0, every=10, ratio=0.4),
    Duty(rank=0, every=25, ratio=3),
    Duty(rank=0, every=60, ratio=5),
)


@pytest.mark.parametrize(
    ("duties", "periods"),
    [
        ((LOG,), "every 10 steps since"),
        ((LOG, EVALUATE), "every 10 steps and every 25 steps since"),
        ((LOG, SAVE), "every 10 steps since"),
    ],
)
def test_duties_of_a_rank_are_work_of_its_own(duties: tuple[Duty, ...], periods: str) -> None:
    scenario = Scenario(topology=Topology.mesh(dp=8), kind="fsdp", duties=duties, steps=200)
    (found,) = findings(scenario)
    assert (found.kind, found.ranks, found.severity, found.since_step) == ("periodic_work", (0,), "info", 10)
    assert periods in found.headline


def test_rank_slow_beside_the_duties_of_another_is_a_straggler() -> None:
    scenario = Scenario(topology=Topology.mesh(dp=8), kind="fsdp", duties=(LOG,), steps=160)
    found = findings(scenario, Fault(cause="gpu_compute", ranks=(SLOW,), ratio=1.2, begin=0))
    assert {(one.kind, one.ranks) for one in found} == {("periodic_work", (0,)), ("straggler", (SLOW,))}


def test_ranks_without_peers_are_counted() -> None:
    scenario = Scenario(topology=Topology.mesh(pp=4), kind="pp", steps=40)
    world = World(scenario, CollectorConfig())
    assert world.run().opened == []
    assert world.snapshot().ranks_without_peers == 4
    not_judged = world.snapshot().not_judged
    assert not_judged["imbalance"] == "no two groups of two ranks or more that do different work are known"
    assert not_judged["stage_slowdown"] == ("no two ranks are known to do the same work: there is no stage to compare")


def test_always_slow_rank_without_peers_only_waits_least() -> None:
    scenario = Scenario(topology=Topology.mesh(pp=4), kind="pp", steps=80)
    slow = replace(scenario, faults=(Fault(cause="gpu_compute", ranks=(2,), ratio=1.6, begin=0),))
    found = {}
    for name, one in (("healthy", scenario), ("slow", slow)):
        world = World(one, CollectorConfig())
        assert world.run().opened == []
        found[name] = world.snapshot().least_waiting
    assert found["healthy"] is None
    assert found["slow"] is not None
    assert (found["slow"].rank, found["slow"].share) == (2, 1.0)
