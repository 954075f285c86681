"""Check slowness of every pattern and size through the whole collector: one finding each, with the right name and
begin.
"""

import pytest

from rankscope.collector.detect.finding import Finding
from tests.simulation.faults import Fault
from tests.simulation.noise import NOISES
from tests.simulation.topology import Topology
from tests.simulation.world import Scenario, run

BEGIN = 100
NODE = tuple(range(8, 16))
EVERYBODY = tuple(range(16))
ALL_EIGHT = tuple(range(8))
SYNCHRONIZES = "host_device_sync"


def findings(kind: str, topology: Topology, *faults: Fault, noise: str = "usual", steps: int = 220) -> list[Finding]:
    scenario = Scenario(topology=topology, kind=kind, faults=faults, noise=NOISES[noise], steps=steps, seed=1)
    return [opened.finding for opened in run(scenario).opened]


@pytest.mark.parametrize("every", [4, 10])
def test_rank_that_is_slow_every_kth_step(every: int) -> None:
    fault = Fault(cause="garbage_collection", ranks=(5,), ratio=1.5, begin=60, every=every)
    (found,) = findings("fsdp", Topology.mesh(dp=16), fault)
    assert (found.ranks, found.pattern, found.cause) == ((5,), "intermittent", "garbage_collection")
    assert found.since_step == 60
    assert f"every {every} steps" in found.sentence


@pytest.mark.parametrize("ranks", [3, 4])
def test_one_of_few_ranks_that_stalls_every_third_step(ranks: int) -> None:
    # 120 ms on top of 44: 3.7 times. Of three ranks 19 stalls are known in step 60 + 3 * 19 = 117, of four 15 in 105.
    fault = Fault(cause="host_cpu", ranks=(1,), ratio=3.7, begin=60, every=3)
    found = findings("dp", Topology.mesh(dp=ranks), fault, steps=120)
    (straggler,) = (one for one in found if one.kind == "straggler")
    assert (straggler.ranks, straggler.pattern, straggler.since_step) == ((1,), "intermittent", 60)


def test_rank_slow_every_fourth_step_among_stalling_ranks() -> None:
    fault = Fault(cause="host_cpu", ranks=(5,), ratio=1.5, begin=60, every=4)
    scenario = Scenario(
        topology=Topology.mesh(dp=16), kind="dp", faults=(fault,), noise=NOISES["bursts"], steps=220, seed=1
    )
    opened = {one.finding.kind: one for one in run(scenario).opened}
    assert (opened["straggler"].finding.ranks, opened["straggler"].finding.pattern) == ((5,), "intermittent")
    # Until the rank is distinguishable from the others' stalls the run may be called slower, and not after that.
    assert all(one.closed_step is not None for kind, one in opened.items() if kind != "straggler")


@pytest.mark.parametrize("drift_steps", [40, 100])
def test_rank_that_becomes_ever_slower(drift_steps: int) -> None:
    fault = Fault(cause="gpu_compute", ranks=(5,), ratio=1.5, begin=60, drift_steps=drift_steps)
    (found,) = findings("dp", Topology.mesh(dp=16), fault)
    assert (found.ranks, found.pattern, found.cause) == ((5,), "drifting", "gpu_compute")
    assert found.since_step is not None
    assert abs(found.since_step - 60) <= 10


@pytest.mark.parametrize("ranks", [16, 32])
def test_slow_node(ranks: int) -> None:
    fault = Fault(cause="gpu_thermal_throttle", ranks=NODE, ratio=1.3, begin=BEGIN)
    (found,) = findings("dp", Topology.mesh(dp=ranks), fault)
    assert (found.kind, found.ranks, found.nodes) == ("straggler", NODE, ("node0001",))
    assert (found.cause, found.since_step) == ("gpu_thermal_throttle", BEGIN)


@pytest.mark.parametrize("stages", [2, 4])
def test_slow_stage_of_a_pipeline(stages: int) -> None:
    fault = Fault(cause="data_loading", ranks=NODE, ratio=1.3, begin=BEGIN)
    (found,) = findings("pp", Topology.mesh(pp=stages, dp=8), fault)
    assert (found.kind, found.ranks, found.cause) == ("stage_slowdown", NODE, "data_loading")
    assert found.since_step == BEGIN


@pytest.mark.parametrize("cause", ["data_loading", "more_work", "gpu_compute", "garbage_collection"])
def test_run_of_which_every_rank_has_become_slower(cause: str) -> None:
    fault = Fault(cause=cause, ranks=EVERYBODY, ratio=1.3, begin=BEGIN)
    (found,) = findings("fsdp", Topology.mesh(dp=16), fault)
    assert (found.kind, found.ranks, found.cause, found.since_step) == ("run_slowdown", (), cause, BEGIN)


def test_two_slow_ranks_at_once() -> None:
    slow = Fault(cause="gpu_compute", ranks=(3,), ratio=1.3, begin=BEGIN)
    slower = Fault(cause="data_loading", ranks=(9,), ratio=1.5, begin=BEGIN + 40)
    found = findings("fsdp", Topology.mesh(dp=16), slow, slower)
    assert {(one.ranks, one.cause, one.since_step) for one in found} == {
        ((3,), "gpu_compute", BEGIN), ((9,), "data_loading", BEGIN + 40),
    }  # fmt: skip


def test_stages_of_unequal_work_are_not_compared() -> None:
    scenario = Scenario(topology=Topology.mesh(pp=4, dp=4), kind="pp", stage_shares=(0.8, 1.0, 1.0, 1.4), steps=120)
    assert not [opened for opened in run(scenario).opened if opened.finding.kind in ("straggler", "stage_slowdown")]


def test_node_whose_cpus_are_short_is_named_with_its_pressure() -> None:
    fault = Fault(cause="cpu_pressure", ranks=NODE, ratio=1.3, begin=BEGIN)
    (found,) = findings("dp", Topology.mesh(dp=32), fault)
    assert (found.ranks, found.nodes, found.cause) == (NODE, ("node0001",), "cpu_pressure")
    assert found.evidence["peers_cpu_pressure_ns_per_step"] == 1_000_000


def test_slow_host_among_healthy_neighbors_is_no_cpu_pressure() -> None:
    fault = Fault(cause="cpu_pressure", ranks=(8,), ratio=1.3, begin=BEGIN)
    (found,) = findings("dp", Topology.mesh(dp=32), fault)
    # Its GPU is idle and its thread on no CPU: what for is seen of neighbors only.
    assert (found.ranks, found.cause) == ((8,), "unseen_wait")


def test_rank_with_a_narrow_pcie_link_is_named_with_its_lanes() -> None:
    fault = Fault(cause="pcie_downgrade", ranks=(5,), ratio=1.3, begin=BEGIN)
    (found,) = findings("dp", Topology.mesh(dp=16), fault)
    assert (found.ranks, found.cause) == ((5,), "pcie_downgrade")
    assert (found.evidence["pcie_lanes"], found.evidence["peers_pcie_lanes"]) == (4, 16)


def test_rank_with_slow_copies_is_named_with_their_extra_time() -> None:
    fault = Fault(cause="slow_copies", ranks=(5,), ratio=1.3, begin=BEGIN)
    (found,) = findings("dp", Topology.mesh(dp=16), fault)
    assert (found.ranks, found.cause) == ((5,), "slow_copies")
    assert found.why.endswith("longer per step for as many bytes, its GPU waiting")


def test_slow_link_with_errors_of_its_port_says_so() -> None:
    fault = Fault(cause="slow_link", ranks=(5,), ratio=1.3, begin=BEGIN)
    (found,) = findings("tp", Topology.mesh(tp=8, dp=4), fault)
    assert found.kind == "slow_link"
    assert "symbol errors on port mlx5_0/1 of node node0000" in found.details["link_errors"]
    assert found.also[-1].startswith("sign of link errors: ")


def test_slow_links_with_errors_everywhere_do_not_blame_errors() -> None:
    fault = Fault(cause="slow_link", ranks=EVERYBODY, ratio=1.2, begin=BEGIN)
    (found,) = findings("fsdp", Topology.mesh(dp=16), fault)
    assert (found.kind, found.details.keys() & {"link_errors", "congestion"}) == ("slow_link", set())


def find_waits(*faults: Fault, noise: str = "usual") -> list[Finding]:
    return findings("fsdp", Topology.mesh(dp=8), *faults, noise=noise, steps=160)


def test_rank_waiting_for_its_device_is_named_with_line_and_cost() -> None:
    fault = Fault(cause=SYNCHRONIZES, ranks=(5,), ratio=1.3, begin=BEGIN)
    (found,) = find_waits(fault, noise="quiet")
    assert (found.ranks, found.cause, found.since_step) == ((5,), SYNCHRONIZES, BEGIN)
    # 0.3 of 100 ms of work in every step; the usual wait of each rank, at another line, is none of it.
    assert found.evidence["sync_excess_ns"] == pytest.approx(30e6, rel=0.05)
    assert "100 % of it in loss.py:12 (weigh) (aten::nonzero, cudaStreamSynchronize)" in found.sentence
    # A healthy step has 100 ms of work and 10 ms of transfer, which nothing hides: the next operation waits for it.
    assert found.run_slowdown_ratio == pytest.approx(1 + 30 / 110, abs=0.02)


def test_rank_that_waits_for_its_device_every_fifth_step() -> None:
    fault = Fault(cause=SYNCHRONIZES, ranks=(5,), ratio=1.3, begin=60, every=5)
    (found,) = find_waits(fault)
    assert (found.ranks, found.pattern, found.cause) == ((5,), "intermittent", SYNCHRONIZES)


def test_waits_for_the_device_that_all_ranks_have_accuse_nobody() -> None:
    fault = Fault(cause=SYNCHRONIZES, ranks=ALL_EIGHT, ratio=1.3, begin=0)
    assert find_waits(fault) == []


def test_run_of_which_every_rank_begins_to_wait_for_its_device() -> None:
    fault = Fault(cause=SYNCHRONIZES, ranks=ALL_EIGHT, ratio=1.3, begin=BEGIN)
    (found,) = find_waits(fault)
    # Of a change of the whole run only the idle GPUs are compared with before, not the calls.
    assert (found.kind, found.ranks, found.cause, found.since_step) == ("run_slowdown", (), "host_cpu", BEGIN)


@pytest.mark.parametrize("cause", ["data_loading", "gpu_compute", "host_cpu"])
def test_slow_rank_keeps_its_cause_where_all_wait_for_devices(cause: str) -> None:
    equal = Fault(cause=SYNCHRONIZES, ranks=ALL_EIGHT, ratio=1.3, begin=0)
    slow = Fault(cause=cause, ranks=(5,), ratio=1.3, begin=BEGIN)
    (found,) = find_waits(equal, slow)
    assert (found.ranks, found.cause) == ((5,), cause)


@pytest.mark.parametrize("cause", ["data_loading", "slow_link"])
def test_ranks_waiting_for_a_late_collective_await_no_device(cause: str) -> None:
    fault = Fault(cause=cause, ranks=(5,), ratio=1.3, begin=BEGIN)
    found = findings("tp", Topology.mesh(tp=2, dp=4), fault, steps=160)
    assert len(found) == 1
    assert found[0].cause != SYNCHRONIZES
