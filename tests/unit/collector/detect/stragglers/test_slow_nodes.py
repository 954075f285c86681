"""Slow ranks that are one set: a node where nearly all of its ranks are slow, and what became slow together."""

from rankscope.collector.detect.finding import Finding
from rankscope.collector.detect.stragglers.slow_sets import SlowSet, join_alike, join_nodes
from tests.unit.collector.steps.step_series import slow_of

NODES = {rank: f"node{rank // 4}" for rank in range(12)}


def joined(*ranks: int, nodes: dict[int, str] | None = None) -> list[tuple[tuple[str, ...], tuple[int, ...]]]:
    slow = [slow_of(rank, (), own_ms=2.0, peers_ms=1.0) for rank in ranks]
    return [(found, tuple(one.rank for one in ranks)) for found, ranks in join_nodes(slow, nodes or NODES)]


def test_node_of_which_all_ranks_are_slow_is_named() -> None:
    assert joined(5, 4, 7, 6) == [(("node1",), (5, 4, 7, 6))]


def test_one_rank_of_four_may_be_missing_and_two_may_not() -> None:
    assert joined(4, 5, 6) == [(("node1",), (4, 5, 6))]
    assert joined(4, 5) == [((), (4,)), ((), (5,))]


def test_two_slow_nodes_and_a_slow_rank_are_three_findings() -> None:
    assert joined(8, 4, 9, 5, 0, 10, 6, 11, 7) == [(("node2",), (8, 9, 10, 11)), (("node1",), (4, 5, 6, 7)), ((), (0,))]


def test_node_of_one_rank_and_the_only_node_are_named_by_rank() -> None:
    assert joined(1, nodes={0: "a", 1: "b", 2: "c"}) == [((), (1,))]
    assert joined(0, 1, nodes=dict.fromkeys(range(2), "a")) == [((), (0,)), ((), (1,))]


# -- sets that became slow together -----------------------------------------------------------------------------------


def set_of(*ranks: int, node: str = "", since: int = 40, more_ms: float = 1.0, pattern: str = "steady") -> SlowSet:
    slow = [slow_of(rank, (), own_ms=1.0 + more_ms, peers_ms=1.0) for rank in ranks]
    return SlowSet((node,) if node else (), tuple(one._replace(since_step=since, pattern=pattern) for one in slow))


def alike(*sets: SlowSet, causes: str = "aaaa", known: dict[int, Finding] | None = None) -> list[list[int]]:
    found = join_alike(sets, causes[: len(sets)], known or {})
    return [[slow.rank for slow in one.ranks] for one in found]


def test_ranks_that_became_slow_together_by_as_much_are_one_set() -> None:
    assert alike(set_of(3), set_of(9, since=45, more_ms=0.8)) == [[3, 9]]


def test_nodes_that_became_slow_together_are_named_in_order() -> None:
    (one,) = join_alike([set_of(8, 9, node="n2"), set_of(4, 5, node="n1")], "aa", {})
    assert (one.nodes, [slow.rank for slow in one.ranks]) == (("n1", "n2"), [8, 9, 4, 5])


def test_another_begin_size_cause_or_pattern_is_another_set() -> None:
    apart = [[3], [9]]
    assert alike(set_of(3), set_of(9, since=51)) == apart
    assert alike(set_of(3), set_of(9, more_ms=0.6)) == apart
    assert alike(set_of(3), set_of(9), causes="ab") == apart
    assert alike(set_of(3), set_of(9, pattern="intermittent")) == apart
    assert alike(set_of(3), set_of(8, 9, node="n2")) == [[3], [8, 9]]


def test_what_an_open_finding_has_joined_stays_joined() -> None:
    finding = Finding(kind="straggler", ranks=(3, 9), cause="a", sentence="", number=1)
    assert alike(set_of(3), set_of(9, more_ms=0.2), causes="ab", known={3: finding, 9: finding}) == [[3, 9]]
    assert alike(set_of(3), set_of(9, more_ms=0.2), causes="ab", known={3: finding}) == [[3], [9]]
