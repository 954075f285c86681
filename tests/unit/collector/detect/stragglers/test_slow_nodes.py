"""Slow ranks of one machine: the node is named where nearly all of its ranks are slow, and only there."""

from rankscope.collector.detect.stragglers.detector import join_nodes
from tests.unit.collector.steps.step_series import slow_of

NODES = {rank: f"node{rank // 4}" for rank in range(12)}


def joined(*ranks: int, nodes: dict[int, str] | None = None) -> list[tuple[str | None, tuple[int, ...]]]:
    slow = [slow_of(rank, (), self_ms=2.0, peers_ms=1.0) for rank in ranks]
    return [(node, tuple(one.rank for one in found)) for node, found in join_nodes(slow, nodes or NODES)]


def test_node_of_which_all_ranks_are_slow_is_named() -> None:
    assert joined(5, 4, 7, 6) == [("node1", (5, 4, 7, 6))]


def test_one_rank_of_four_may_be_missing_and_two_may_not() -> None:
    assert joined(4, 5, 6) == [("node1", (4, 5, 6))]
    assert joined(4, 5) == [(None, (4,)), (None, (5,))]


def test_two_slow_nodes_and_a_slow_rank_are_three_findings() -> None:
    assert joined(8, 4, 9, 5, 0, 10, 6, 11, 7) == [("node2", (8, 9, 10, 11)), ("node1", (4, 5, 6, 7)), (None, (0,))]


def test_node_of_one_rank_and_the_only_node_are_named_by_rank() -> None:
    assert joined(1, nodes={0: "a", 1: "b", 2: "c"}) == [(None, (1,))]
    assert joined(0, 1, nodes=dict.fromkeys(range(2), "a")) == [(None, (0,)), (None, (1,))]
