"""Blame where the truth is known: simulated ranks that really wait for one slow rank, and for each other's noise."""

from collections.abc import Sequence

import numpy as np
import pytest

from rankscope.collector.steps.wait_attribution import WaitAttribution, attribute_waits
from rankscope.measure.table import MISSING
from tests.simulation.engine import Call, Engine, Step
from tests.simulation.noise import NOISES, Weather
from tests.simulation.program import KERNEL, KINDS, Scale
from tests.simulation.topology import Topology
from tests.unit.collector.steps.collective_steps import RankCollectives, step_of

SLOW = 3
STEPS = 10
FIRST_STEP = 5
"""Behind the warm-up of the simulated weather."""


def collectives_of(step: Step, rank: int, group_of: dict[str, str], *, exposure_is_told: bool) -> RankCollectives:
    calls = [(number, call) for number, call in enumerate(step.calls) if call.takes_part[rank]]
    groups = sorted(group_of.values())

    def column(values: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.array(values, dtype=np.int64)

    def exposed_ns(call: Call) -> int:
        return int(call.exposed_ns[rank]) if exposure_is_told else MISSING

    return RankCollectives(
        groups=groups,
        ops=[call.op for _, call in calls],
        group=column([groups.index(group_of[call.dimension]) for _, call in calls]),
        op=np.arange(len(calls)),
        sequence=column([number for number, _ in calls]),
        start_ns=column([int(call.start_ns[rank]) + rank * 10**12 for _, call in calls]),
        duration_ns=column([int(call.end_ns[rank] - call.start_ns[rank]) for _, call in calls]),
        size_bytes=column([call.size_bytes for _, call in calls]),
        exposed_ns=column([exposed_ns(call) for _, call in calls]),
    )


def blames(kind: str, topology: Topology, noise: str, *, exposure_is_told: bool = True) -> list[WaitAttribution]:
    """Steps in which rank SLOW computes 1.3 times as long."""
    engine = Engine(topology, KINDS[kind](topology, Scale()))
    weather = Weather(NOISES[noise], topology, Scale().work_ns, np.random.default_rng(1))
    described = topology.describe_groups()
    group_of = [{group.description: group.label for group in groups} for groups in described]
    sizes = {group.label: len(group.ranks) for groups in described for group in groups}
    found = []
    for number in range(FIRST_STEP, FIRST_STEP + STEPS):
        conditions = weather.draw(number)
        conditions.work[KERNEL][SLOW] *= 1.3
        step = engine.run_step(conditions)
        by_rank = {
            rank: collectives_of(step, rank, group_of[rank], exposure_is_told=exposure_is_told)
            for rank in range(topology.world_size)
        }
        blame = attribute_waits(step_of(by_rank), sizes)
        assert blame is not None
        found.append(blame)
    return found


def caused_ns(found: Sequence[WaitAttribution]) -> list[int]:
    return [int(one) for one in np.sum([blame.caused_ns for blame in found], axis=0)]


@pytest.mark.parametrize("exposure_is_told", [True, False])
@pytest.mark.parametrize("tensor", [2, 4])
def test_tensor_parallel_peer_of_slow_rank_causes_no_wait(tensor: int, exposure_is_told: bool) -> None:
    found = blames("tp", Topology.mesh(tp=tensor, dp=4), "quiet", exposure_is_told=exposure_is_told)
    caused = caused_ns(found)
    peers = [rank for rank in range(tensor * (SLOW // tensor), tensor * (SLOW // tensor + 1)) if rank != SLOW]
    assert all(caused[peer] < 0.05 * caused[SLOW] for peer in peers)
    # They passed on a good part of it: without them the data parallel peers of theirs would not have waited.
    assert min(int(sum(blame.passed_on_ns[peer] for blame in found)) for peer in peers) > 0.1 * caused[SLOW]


@pytest.mark.parametrize(
    ("kind", "topology"),
    [
        ("dp", Topology.mesh(dp=8)),
        ("fsdp", Topology.mesh(dp=8)),
        ("tp", Topology.mesh(tp=2, dp=4)),
        ("ep", Topology.mesh(dp=8, ep=4)),
    ],
)
def test_slow_rank_causes_most_of_the_wait(kind: str, topology: Topology) -> None:
    found = blames(kind, topology, "usual")
    waited_ns = sum(int(blame.waited_ns.sum()) for blame in found)
    assert caused_ns(found)[SLOW] > 0.85 * waited_ns


def test_traced_wait_in_a_pipeline_is_caused_by_the_slow_rank() -> None:
    found = blames("pp", Topology.mesh(pp=2, dp=4), "quiet")
    caused = caused_ns(found)
    assert caused[SLOW] > 0.9 * sum(caused)
