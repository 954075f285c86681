"""Nodes that are slow as a whole: own times of 100 ms a step, four ranks a node, seeded noise."""

import numpy as np
import pytest

from rankscope.collector.detect.finding import Finding
from rankscope.collector.detect.stragglers.detector import Stragglers
from rankscope.collector.detect.stragglers.persistent import Thresholds
from rankscope.collector.detect.stragglers.slow_nodes import find_slow_nodes
from rankscope.collector.detect.view import Candidate, RunView
from rankscope.collector.steps.step_series import Floats
from tests.unit.collector.steps.step_series import MS, UNKNOWN, series_of, view_of

PER_NODE = 4
STEPS = 12


def work(*nodes_ms: float, steps: int = 40, spread: float = 0.01, seed: int = 1) -> Floats:
    usual = np.repeat(np.array(nodes_ms), PER_NODE)
    return usual * np.exp(np.random.default_rng(seed).normal(0.0, spread, (steps, len(usual))))


def view(self_ms: Floats, per_node: int = PER_NODE) -> RunView:
    nodes = {rank: f"node{rank // per_node}" for rank in range(self_ms.shape[1])}
    return view_of(series_of(self_ms.tolist()), nodes=nodes)


def slower_in(self_ms: Floats, per_node: int = PER_NODE) -> list[int]:
    return sorted(find_slow_nodes(view(self_ms, per_node), Thresholds(steps_min=STEPS), ()).ranks)


def ranks_of(*nodes: int) -> list[int]:
    return [rank for node in nodes for rank in range(PER_NODE * node, PER_NODE * (node + 1))]


def found_in(run: RunView) -> list[Finding]:
    found = Stragglers(Thresholds()).find(run, ())
    return [one.finding for one in found if isinstance(one, Candidate)]  # type: ignore[union-attr]


def cost_of(finding: Finding) -> float:
    return 1 - 1 / (finding.run_slowdown_ratio or 1.0)


@pytest.mark.parametrize("slow", [(7,), (1, 4), (0, 3, 5), (0, 1, 4, 6)])
def test_slower_nodes_up_to_half_are_found(slow: tuple[int, ...]) -> None:
    assert slower_in(work(*(108.0 if node in slow else 100.0 for node in range(8)))) == ranks_of(*slow)


def test_of_more_than_half_none_are_the_slower_ones() -> None:
    assert slower_in(work(*[108.0] * 5, *[100.0] * 3)) == []


@pytest.mark.parametrize("nodes_ms", [(100.0, 101.0, 102.0, 103.0, 104.0, 105.0), (103.0, 103.0, 100.0, 100.0)])
def test_nodes_that_are_not_far_apart_are_not_slow(nodes_ms: tuple[float, ...]) -> None:
    assert slower_in(work(*nodes_ms)) == []


@pytest.mark.parametrize("seed", range(100))
def test_equal_nodes_are_not_slow_in_any_noise(seed: int) -> None:
    assert slower_in(work(*[100.0] * 16, spread=0.02 + 0.001 * seed, seed=seed)) == []


@pytest.mark.parametrize(("nodes", "per_node", "steps"), [(3, 4, 40), (8, 1, 40), (8, 4, STEPS - 1)])
def test_too_little_to_tell_is_nothing(nodes: int, per_node: int, steps: int) -> None:
    self_ms = np.repeat(np.where(np.arange(nodes) == 0, 150.0, 100.0), per_node) * np.ones((steps, 1))
    assert slower_in(self_ms, per_node) == []


def test_one_slow_rank_and_two_make_no_slow_node() -> None:
    self_ms = work(*[100.0] * 8)
    self_ms[:, [4, 9, 10]] *= 1.3
    assert slower_in(self_ms) == []


def test_healthy_rank_of_a_slow_node_is_not_among_its_slow_ones() -> None:
    self_ms = work(*[100.0] * 7, 110.0)
    self_ms[:, 30] /= 1.1
    assert slower_in(self_ms) == [28, 29, 31]


def test_rank_reporting_half_of_its_steps_leaves_its_node_known() -> None:
    self_ms = work(*[100.0] * 7, 110.0, steps=80)
    self_ms[::2, 30] = UNKNOWN
    assert slower_in(self_ms) == ranks_of(7)


def test_rank_far_slower_than_its_slow_node_has_own_numbers() -> None:
    self_ms = work(*[100.0] * 6, 106.0, 106.0, steps=80)
    self_ms[:, 30] *= 1.5
    found = find_slow_nodes(view(self_ms), Thresholds(), ())
    assert (sorted(found.ranks), found.beyond) == (ranks_of(6, 7), frozenset({30}))
    assert sorted(found.not_explained(range(32))) == [*range(24), 30]


@pytest.mark.parametrize(("nodes", "slow", "ratio"), [(8, 4, 1.07), (16, 4, 1.05), (16, 8, 1.05), (64, 3, 1.06)])
@pytest.mark.parametrize("since", [0, 40])
@pytest.mark.parametrize("spread", [0.01, 0.03])
def test_slow_nodes_are_one_finding(nodes: int, slow: int, ratio: float, since: int, spread: float) -> None:
    self_ms = work(*[100.0] * nodes, steps=120, spread=spread)
    without = self_ms[since:].max(axis=1).sum()
    self_ms[since:, : slow * PER_NODE] *= ratio
    (finding,) = found_in(view(self_ms))
    assert finding.ranks == tuple(range(slow * PER_NODE))
    assert len(finding.nodes) == slow
    assert (finding.since_step_min or 0) <= since <= (finding.since_step_max or 0)
    true = 1 - without / self_ms[since:].max(axis=1).sum()
    assert cost_of(finding) == pytest.approx(true, rel=0.2)


def test_begins_of_nodes_that_became_slow_apart_are_apart() -> None:
    self_ms = work(*[100.0] * 16, steps=120)
    self_ms[30:, :PER_NODE] *= 1.2
    self_ms[70:, PER_NODE : 2 * PER_NODE] *= 1.2
    assert [(one.nodes, one.since_step) for one in found_in(view(self_ms))] == [(("node0",), 30), (("node1",), 70)]


def large(slow: int, ranks: int = 16_384, steps: int = 64) -> RunView:
    """Nodes of eight ranks, of which `slow` are slower by 6 % since the middle of the steps."""
    own_ns = 100.0 * MS * np.exp(np.random.default_rng(slow).normal(0.0, 0.01, (steps, ranks)))
    own_ns[steps // 2 :, : 8 * slow] *= 1.06
    names = {rank: f"node{rank // 8}" for rank in range(ranks)}
    return view_of(series_of(own_ns / MS), nodes=names)  # type: ignore[arg-type]


@pytest.mark.parametrize("slow", [4, 512, 1_000])
def test_set_of_nodes_is_one_finding_among_16384_ranks(slow: int) -> None:
    (finding,) = found_in(large(slow))
    assert finding.ranks == tuple(range(8 * slow))
    assert len(finding.nodes) == slow
    assert abs((finding.since_step or 0) - 32) <= 1
