"""Nodes that are the slower half: eight nodes of four ranks each, own times of 100 ms, seeded noise of 2 % a step."""

import numpy as np
import pytest

from rankscope.collector.detect.statistics.node_split import find_slower_nodes
from rankscope.collector.detect.stragglers.detector import Stragglers
from rankscope.collector.detect.stragglers.persistent import Thresholds
from rankscope.collector.detect.view import Candidate
from rankscope.collector.steps.step_series import Floats
from tests.unit.collector.steps.step_series import series_of, view_of

PER_NODE = 4
STEPS = 12


def work(*nodes_ms: float, steps: int = 40, spread: float = 0.02, seed: int = 1) -> Floats:
    usual = np.repeat(np.array(nodes_ms), PER_NODE)
    return usual * np.exp(np.random.default_rng(seed).normal(0.0, spread, (steps, len(usual))))


def slower_in(self_ms: Floats, per_node: int = PER_NODE) -> list[int]:
    ranks = range(self_ms.shape[1])
    nodes = {rank: f"node{rank // per_node}" for rank in ranks}
    return find_slower_nodes(series_of(self_ms.tolist()), nodes, tuple(ranks), STEPS)


def ranks_of(*nodes: int) -> list[int]:
    return [rank for node in nodes for rank in range(PER_NODE * node, PER_NODE * (node + 1))]


@pytest.mark.parametrize("slow", [(7,), (1, 4), (0, 3, 5), (0, 1, 4, 6)])
def test_slower_nodes_up_to_half_are_found(slow: tuple[int, ...]) -> None:
    assert slower_in(work(*(108.0 if node in slow else 100.0 for node in range(8)))) == ranks_of(*slow)


def test_of_more_than_half_none_are_the_slower_ones() -> None:
    assert slower_in(work(*[108.0] * 5, *[100.0] * 3)) == []


@pytest.mark.parametrize("nodes_ms", [(100.0, 102.0, 104.0, 106.0, 108.0, 110.0), (103.0, 103.0, 100.0, 100.0)])
def test_nodes_that_are_not_far_apart_are_no_groups(nodes_ms: tuple[float, ...]) -> None:
    assert slower_in(work(*nodes_ms)) == []


@pytest.mark.parametrize("seed", range(200))
def test_equal_nodes_are_no_groups(seed: int) -> None:
    assert slower_in(work(*[100.0] * 8, spread=0.1, seed=seed)) == []


@pytest.mark.parametrize(("nodes", "per_node", "steps"), [(3, 4, 40), (8, 1, 40), (8, 4, STEPS - 1)])
def test_too_little_to_tell_is_nothing(nodes: int, per_node: int, steps: int) -> None:
    self_ms = np.repeat(np.where(np.arange(nodes) == 0, 150.0, 100.0), per_node) * np.ones((steps, 1))
    assert slower_in(self_ms, per_node) == []


def test_four_of_eight_nodes_are_one_finding() -> None:
    self_ms = work(*[100.0] * 8, steps=80, spread=0.01)
    self_ms[40:, : 4 * PER_NODE] *= 1.07
    nodes = {rank: f"node{rank // PER_NODE}" for rank in range(8 * PER_NODE)}
    found = Stragglers(Thresholds()).find(view_of(series_of(self_ms.tolist()), nodes=nodes), ())
    (candidate,) = [one for one in found if isinstance(one, Candidate)]  # type: ignore[union-attr]
    assert candidate.finding.nodes == ("node0", "node1", "node2", "node3")
    assert (candidate.finding.ranks, candidate.finding.since_step) == (tuple(ranks_of(0, 1, 2, 3)), 40)
    assert candidate.finding.run_slowdown_ratio == pytest.approx(1.07, abs=0.03)
