"""The ideal test: its z of healthy ranks is that of a standard normal, and of slow ones what their size gives."""

import math
from dataclasses import replace

import numpy as np
import pytest

from rankscope.collector.config import CollectorConfig
from tests.simulation.faults import Fault
from tests.simulation.ideal import find_ideal_z, find_z
from tests.simulation.scenarios import LAYOUTS
from tests.simulation.world import Outcome, World

SLOW = Fault(cause="gpu_compute", ranks=(5,), ratio=1.1, begin=100)


def simulate(noise: str, *faults: Fault, seed: int = 7) -> Outcome:
    world = World(LAYOUTS["fsdp 64"].scenario(*faults, noise=noise, seed=seed), CollectorConfig())
    world.run_unreported()
    return world.outcome()


def nodes(seed: int) -> Outcome:
    return simulate("shared_nodes", seed=seed)


@pytest.mark.parametrize("noise", ["jittery", "uneven_batches", "bursts"])
def test_healthy_ranks_have_the_z_of_chance(noise: str) -> None:
    outcome = simulate(noise)
    found = np.array([find_z(outcome, rank, 100) for rank in range(64)])
    # 64 standard normal values: their mean is off by an eighth, their deviation by 1 / sqrt(128), both three times.
    assert abs(found.mean()) <= 3 / 8
    assert found.std() == pytest.approx(1, abs=3 / math.sqrt(128))


def test_correlated_noise_of_a_node_counts_for_more() -> None:
    # A rank of each of eight nodes; were its steps taken for independent, the deviation would be 3.9.
    found = [find_z(outcome, rank, 100) for outcome in map(nodes, range(5)) for rank in range(0, 64, 8)]
    assert np.std(found) == pytest.approx(1, abs=3 / math.sqrt(80))


def test_slow_rank_has_the_z_of_its_size() -> None:
    # Jitter of 10 % on the rank and on each kind of work, of which the GPU's is the larger part: 13 % in all. The mean
    # of 100 steps is off by 1.3 %, and log(1.1) = 9.5 % is seven times that.
    assert find_ideal_z(simulate("jittery", SLOW)) == pytest.approx(7.3, abs=2)
    assert (find_ideal_z(simulate("quiet", SLOW)) or 0) > 100


@pytest.mark.parametrize(
    "faults",
    [
        (),
        (SLOW, replace(SLOW, ranks=(6,))),
        (replace(SLOW, ranks=(5, 6)),),
        (replace(SLOW, end=150),),
        (replace(SLOW, every=5),),
        (replace(SLOW, drift_steps=60),),
        (replace(SLOW, cause="slow_link"),),
    ],
)
def test_other_faults_are_not_decided_by_it(faults: tuple[Fault, ...]) -> None:
    assert find_ideal_z(Outcome(LAYOUTS["dp 8"].scenario(*faults), [], None, np.ones((200, 8)))) is None
