"""Rounds in which all nodes meet."""

import itertools

import pytest

from rankscope.agent.preflight.network import pair_rounds


@pytest.mark.parametrize("count", range(2, 18))
def test_each_pair_meets_once_and_no_node_twice_a_round(count: int) -> None:
    rounds = pair_rounds(count, 99)
    assert sorted(itertools.chain(*rounds)) == list(itertools.combinations(range(count), 2))
    for one in rounds:
        nodes = list(itertools.chain(*one))
        assert len(nodes) == len(set(nodes))


def test_many_nodes_meet_in_the_rounds_allowed() -> None:
    rounds = pair_rounds(1024, 8)
    assert [len(one) for one in rounds] == [512] * 8
    assert len(set(itertools.chain(*rounds))) == 8 * 512


def test_without_rounds_nobody_meets() -> None:
    assert pair_rounds(4, 0) == []
