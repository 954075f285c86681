"""What a straggler is slower than, in words."""

import dataclasses

import numpy as np
import pytest

from rankscope.collector.detect.finding_words import OWN_TIME
from rankscope.collector.detect.stragglers.persistent import SlowRank
from rankscope.collector.detect.stragglers.sentence import (
    describe_level,
    describe_own,
    describe_slow_layer,
    name_others,
    write_what,
    write_who,
)
from rankscope.collector.steps.layer_times import RunLayers, SlowLayer
from rankscope.collector.steps.step_series import StepSeries
from tests.unit.collector.steps.step_series import series_of, slow_of

SLOW = slow_of(2, (0, 1, 3), own_ms=75.0, peers_ms=35.0, since_step=1_040)
SERIES = series_of([[35.0, 35.0, 75.0, 35.0]])


def say(*slow: SlowRank, series: StepSeries = SERIES) -> str:
    return write_what(slow or (SLOW,), (slow or (SLOW,))[0], series)


@pytest.mark.parametrize(
    ("peers", "do_same_work", "whom"),
    [
        ((0, 1, 3), True, "than its 3 peers"),
        ((0, 1, 3), False, "than usual, compared with the other 3 ranks (none known to do the same work)"),
        ((0,), True, "than its only peer"),
        ((0,), False, "than usual, compared with the other rank (none known to do the same work)"),
    ],
)
def test_comparison_is_named(peers: tuple[int, ...], do_same_work: bool, whom: str) -> None:
    assert say(slow_of(2, peers, own_ms=75.0, peers_ms=35.0, do_same_work=do_same_work)) == whom


def test_only_other_rank_of_a_run_is_named_so() -> None:
    slow = slow_of(1, (0,), own_ms=75.0, peers_ms=35.0)
    assert say(slow, series=series_of([[35.0, 75.0]])) == "than the other rank"


def test_own_time_is_explained_where_it_is_another_one() -> None:
    stood_in = series_of([[35.0, 35.0, 75.0, 35.0]], own_is_measured=False)
    by_device = dataclasses.replace(stood_in, is_by_device=True)
    assert describe_own(SERIES) == {}
    assert describe_own(stood_in) == {OWN_TIME: "in data, forward and optimizer"}
    assert describe_own(by_device)[OWN_TIME].startswith("on the GPU (without the end of backward")


@pytest.mark.parametrize(("excess_ms", "rank", "is_told"), [(25.0, 2, True), (15.0, 2, False), (25.0, 1, False)])
def test_block_is_told_that_has_half_of_the_slowness(excess_ms: float, rank: int, *, is_told: bool) -> None:
    """The rank is slower by 40 ms a step."""
    one = SlowLayer(
        rank=rank, kind="Block", number=17, first=0, count=32, peers=3, ns=(10.0 + excess_ms) * 1e6, peers_ns=1e7,
        forward_ns=1e7, peers_forward_ns=1e7,
    )  # fmt: skip
    told = ("layer 17 of 32 (Block): 3.5x slower than its peers', 35.0 ms per step, peers 10.0 ms",)
    assert describe_slow_layer(RunLayers(slow=(one,)), SLOW) == (told if is_told else ())
    assert describe_slow_layer(None, SLOW) == ()


def test_node_is_named_with_its_ranks() -> None:
    slow = [slow_of(rank, (4, 5, 6, 7), own_ms=75.0, peers_ms=35.0) for rank in (1, 0, 3)]
    assert write_who(slow, ("node-a",)) == "node node-a (ranks 0-1, 3)"
    assert write_who(slow, ("node-a", "node-b")) == "nodes node-a, node-b (ranks 0-1, 3)"
    assert say(*slow) == "than their 4 peers"
    assert write_who(slow[:1], ()) == ""


def test_ranks_slow_together_are_not_slower_than_each_other() -> None:
    def slow_among(ranks: int, *slow: int) -> str:
        every = tuple(range(ranks))
        named = [slow_of(rank, tuple(one for one in every if one != rank), own_ms=75.0, peers_ms=35.0) for rank in slow]
        return say(*named)

    assert slow_among(8, 4, 5, 6) == "than their 5 peers"
    assert slow_among(3, 0, 2) == "than their only other peer"
    assert slow_among(4, 0, 1, 2, 3) == "than their 3 peers"


@pytest.mark.parametrize(
    ("slow_steps", "words"),
    [
        ([10, 14, 18, 22], "than its 3 peers every 4 steps"),
        ([10, 14, 19, 30], "than its 3 peers in 25 % of steps"),
    ],
)
def test_intermittent_rank_has_how_often(slow_steps: list[int], words: str) -> None:
    assert say(SLOW._replace(pattern="intermittent", slow_steps=np.array(slow_steps), persistence=0.25)) == words


def test_drifting_rank_gets_slower() -> None:
    assert say(SLOW._replace(pattern="drifting")) == "than its 3 peers and getting slower"


def test_level_is_told_where_the_slowness_began_with_another() -> None:
    slow = SLOW._replace(told_level_step=1_100)
    assert describe_level(slow) == ("by this much since step 1100 only",)
    for other in ({"told_level_step": None}, {"told_level_step": 0}, {"pattern": "drifting"}):
        assert describe_level(slow._replace(**other)) == ()


def test_ranks_whose_slowness_is_in_the_cost_are_named() -> None:
    assert (name_others(()), name_others((6, 8))) == ("", "ranks 6, 8")
