"""Check that a rank that stops in a run of several dimensions is distinguished from all ranks that wait for it."""

from dataclasses import replace

import numpy as np
import pytest

from rankscope.collector.detect.finding import PAUSES, Abstain, Finding
from rankscope.collector.detect.hangs.detector import Hangs
from rankscope.collector.detect.view import RunView, Samples
from rankscope.collector.steps.peer_groups import find_peer_groups
from rankscope.collector.steps.step_series import StepSeries
from tests.simulation.hangs import HOWS, Fault, Hang, draw_fault
from tests.simulation.topology import Topology

TOPOLOGIES = {
    "data 4": Topology.mesh(dp=4),
    "tensor 2, data 2": Topology.mesh(tp=2, dp=2),
    "data 2, pipeline 3": Topology.mesh(dp=2, pp=3),
    "tensor 2, data 2, pipeline 2": Topology.mesh(tp=2, dp=2, pp=2),
    "tensor 2, data 3, pipeline 4": Topology.mesh(tp=2, dp=3, pp=4),
}
SEEDS = (*range(6), *range(7_100, 7_106))
"""The second half is held out: no rule was written with its results in view."""
CAUSES = {
    "stuck": "missing_rank",
    "frozen": "missing_rank",
    "stopped": "missing_rank",
    "dead": "dead_rank",
    "silent": "silent_rank",
    "reads": "data_wait",
    "moves": "busy_rank",
    "computes": "busy_rank",
}


def view_of(hang: Hang) -> RunView:
    world = hang.topology.world_size
    nothing = np.full((0, world), np.nan)
    return RunView(
        now_collector_ns=0,
        world_size=world,
        series=StepSeries(np.arange(0), tuple(range(world)), nothing, nothing, nothing, {}, own_is_measured=True),
        peer_groups=find_peer_groups(range(world), {}),
        nodes=dict.fromkeys(range(world), "node-a"),
        samples=Samples({}, {}, {}),
        groups=hang.groups,
        hang_states=hang.hang_states(),
    )


def find(hang: Hang, *, with_ras: bool = False) -> Finding | Abstain | None:
    view = view_of(hang)
    found = Hangs().find(replace(view, ras=hang.ask_ras()) if with_ras else view, ())
    if isinstance(found, Abstain):
        return found
    return found[0].finding if found else None


@pytest.mark.parametrize("runs_ahead", [False, True])
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("topology", TOPOLOGIES.values(), ids=TOPOLOGIES)
def test_stopped_rank_is_distinguished_from_waiting_ones(topology: Topology, how: str, runs_ahead: bool) -> None:
    for seed in SEEDS:
        fault = draw_fault(np.random.default_rng(seed), topology, calls=20, how=how)
        hang = Hang(topology, fault, steps=20, runs_ahead=runs_ahead)
        found = find(hang)
        assert isinstance(found, Finding), (seed, fault, found)
        assert (found.cause, found.ranks) == (CAUSES[how], (fault.rank,)), (seed, fault, found)
        assert found.severity == ("warning" if found.cause in PAUSES else "critical")
        assert found.group is not None
        assert fault.rank in hang.groups[found.group], (seed, fault, found)


@pytest.mark.parametrize("runs_ahead", [False, True])
@pytest.mark.parametrize("how", CAUSES)
@pytest.mark.parametrize("topology", TOPOLOGIES.values(), ids=TOPOLOGIES)
def test_witness_changes_no_verdict_and_agrees_where_it_saw(topology: Topology, how: str, runs_ahead: bool) -> None:
    agreed = 0
    for seed in SEEDS:
        fault = draw_fault(np.random.default_rng(seed), topology, calls=20, how=how)
        hang = Hang(topology, fault, steps=20, runs_ahead=runs_ahead)
        alone, found = find(hang), find(hang, with_ras=True)
        assert isinstance(alone, Finding), (seed, fault, alone)
        assert isinstance(found, Finding), (seed, fault, found)
        assert (found.cause, found.ranks, found.group) == (alone.cause, alone.ranks, alone.group)
        saw = {rank.rank for one in hang.ask_ras().communicators for rank in one.ranks}
        assert ("NCCL RAS agreed: " in found.sentence) is (fault.rank in saw), (seed, fault, found.sentence)
        assert ("NCCL RAS did not show this: " in found.sentence) is (not saw), (seed, fault, found.sentence)
        agreed += fault.rank in saw
    assert agreed


@pytest.mark.parametrize("runs_ahead", [False, True])
@pytest.mark.parametrize("name", [name for name in TOPOLOGIES if "pipeline" in name])
def test_receiver_of_a_missing_send_is_not_blamed_alone(name: str, runs_ahead: bool) -> None:
    topology = TOPOLOGIES[name]
    for seed in SEEDS:
        random = np.random.default_rng(seed)
        healthy = Hang(topology, Fault(0, 1, "skips"), steps=3)
        sends = [
            (rank, number)
            for rank, one in enumerate(healthy.ranks)
            for number, call in enumerate(one.calls)
            if call.op == "send"
        ]
        rank, number = sends[random.integers(len(sends))]
        receiver = healthy.ranks[rank].calls[number].peer
        found = find(Hang(topology, Fault(rank, number, "skips"), steps=3, runs_ahead=runs_ahead))
        assert isinstance(found, Finding), (seed, rank, number, found)
        assert found.cause in {"deadlock", "unmatched_transfer"}, (seed, rank, number, found)
        assert {rank, receiver} <= set(found.ranks), (seed, rank, number, found)


@pytest.mark.parametrize("topology", TOPOLOGIES.values(), ids=TOPOLOGIES)
def test_rank_with_two_groups_in_other_order_is_in_a_cycle(topology: Topology) -> None:
    for rank in range(topology.world_size):
        length = Hang(topology, Fault(rank, 1, "stuck")).step_length[rank]
        # The last two calls of a step: the gradients of its data parallel group, the norm over all.
        hang = Hang(topology, Fault(rank, length - 2, "swaps"))
        found = find(hang)
        assert isinstance(found, Finding), (rank, found)
        assert found.cause == "deadlock", (rank, found)
        assert rank in found.ranks
