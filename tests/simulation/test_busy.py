"""Check runs on machines that are busy with something else, with GPUs and on CPUs."""

import numpy as np
import pytest

from rankscope.collector.detect.finding import Finding
from tests.simulation.busy import Busy, BusyMachines
from tests.simulation.faults import Fault
from tests.simulation.topology import Topology
from tests.simulation.world import Scenario, run

BEGIN, SLOW = 60, 5
ONE_MACHINE, THREE_MACHINES = Topology.mesh(dp=8), Topology.mesh(dp=24)

both = pytest.mark.parametrize("on_cpus", [False, True], ids=["with GPUs", "on CPUs"])


def findings(
    *faults: Fault, on_cpus: bool, busy: Busy | None = None, topology: Topology = ONE_MACHINE, steps: int = 120
) -> list[Finding]:
    scenario = Scenario(topology=topology, kind="fsdp", faults=faults, busy=busy, on_cpus=on_cpus, steps=steps, seed=2)
    return [opened.finding for opened in run(scenario).opened]


def fault(cause: str, ratio: float = 1.3, ranks: tuple[int, ...] = (SLOW,)) -> Fault:
    return Fault(cause=cause, ranks=ranks, ratio=ratio, begin=BEGIN)


def test_busy_machines_hold_their_ranks_up_by_their_share() -> None:
    busy = BusyMachines(Busy(share=0.2), THREE_MACHINES, work_ns=100, seed=1)
    held_up_ns = np.array([busy.draw()[1] for _ in range(4000)])
    assert held_up_ns.shape == (4000, 24)
    assert held_up_ns.mean() == pytest.approx(20.0, rel=0.1)
    machines = held_up_ns.reshape(4000, 3, 8).mean(axis=2)
    assert np.corrcoef(machines[:, 0], machines[:, 1])[0, 1] < 0.2  # each by itself
    assert np.corrcoef(held_up_ns[:, 0], held_up_ns[:, 1])[0, 1] > 0.3  # those of one together


@both
@pytest.mark.parametrize(
    ("cause", "found_as"),
    [("core_wait", "cpu_pressure"), ("other_threads", "host_cpu"), ("unseen_wait", "unseen_wait")],
)
def test_what_a_slow_rank_waits_for_is_named(cause: str, found_as: str, *, on_cpus: bool) -> None:
    (found,) = findings(fault(cause), on_cpus=on_cpus)
    assert (found.kind, found.ranks, found.cause, found.since_step) == ("straggler", (SLOW,), found_as, BEGIN)
    assert ("interpreter lock" in found.sentence) is (cause == "other_threads")
    assert ("for a CPU core" in found.sentence) is (cause == "core_wait")


@both
def test_machine_that_holds_all_up_alike_is_named_and_no_rank(*, on_cpus: bool) -> None:
    found = findings(on_cpus=on_cpus, busy=Busy(share=0.3))
    (machine,) = (one for one in found if one.kind == "cpu_pressure")
    assert (machine.ranks, machine.nodes) == ((), ("node0000",))
    assert {one.kind for one in found} <= {"cpu_pressure", "uneven_work"}
    assert {one.cause for one in found} == {"cpu_pressure"}


@both
def test_machine_that_is_a_little_busy_is_no_finding(*, on_cpus: bool) -> None:
    assert findings(on_cpus=on_cpus, busy=Busy(share=0.05)) == []


@both
def test_one_busy_machine_of_three_is_named_with_its_waits(*, on_cpus: bool) -> None:
    ranks = THREE_MACHINES.ranks_on_node(1)
    (found,) = findings(fault("core_wait", ranks=ranks), on_cpus=on_cpus, topology=THREE_MACHINES)
    assert (found.ranks, found.nodes, found.cause) == (ranks, ("node0001",), "cpu_pressure")


@both
def test_rank_that_computes_longer_is_named_on_a_busy_machine(*, on_cpus: bool) -> None:
    found = findings(fault("host_cpu", 1.5), on_cpus=on_cpus, busy=Busy(share=0.05))
    assert [(one.kind, one.ranks, one.cause) for one in found] == [("straggler", (SLOW,), "host_cpu")]


@both
@pytest.mark.parametrize(
    ("cause", "found_as"),
    [("core_wait", "cpu_pressure"), ("other_threads", "host_cpu"), ("unseen_wait", "unseen_wait")],
)
def test_run_all_of_whose_ranks_wait_says_what_for(cause: str, found_as: str, *, on_cpus: bool) -> None:
    (found,) = findings(fault(cause, ranks=tuple(range(8))), on_cpus=on_cpus, steps=100)
    assert (found.kind, found.ranks, found.cause, found.since_step) == ("run_slowdown", (), found_as, BEGIN)
    assert any(one.startswith("which rank is to blame: not known") for one in found.also) is (cause == "unseen_wait")


@pytest.mark.parametrize("share", [0.05, 0.15])
def test_machine_busier_for_a_while_makes_no_slower_run(share: float) -> None:
    # All steps from 95 to 109 are longer than the median before, by 9 and by 24 %: the machine holds ranks up
    # by twice as much as usual, and the step is that of the unluckiest of eight.
    scenario = Scenario(topology=ONE_MACHINE, kind="dp", busy=Busy(share=share), steps=140, seed=50_007)
    assert not [opened for opened in run(scenario).opened if opened.finding.kind == "run_slowdown"]
