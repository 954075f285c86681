"""The orders of ranks, which the API and the live page ask for, and `rankscope top` sorts by itself."""

import msgspec
import pytest

from rankscope.collector.publish.api.rank_views import list_ranks
from rankscope.collector.runs.rank_orders import ORDERS, sort_ranks
from rankscope.collector.runs.snapshot import RankSnapshot, RunSnapshot
from rankscope.collector.top.board import ORDERS as KEYS
from rankscope.collector.top.board import Board
from rankscope.collector.top.snapshot_fetch import FetchedRank
from rankscope.measure.model_flops import FlopSum, StepFlops
from rankscope.measure.records import DeviceSample, WindowBreakdown
from tests.unit.collector.runs.run_snapshots import rank_of

NAMES = {
    "s": "slowdown", "t": "step", "o": "own", "w": "wait", "d": "data", "a": "forward", "b": "backward", "e": "exposed",
    "i": "idle", "m": "mfu", "u": "utilization", "r": "rank",
}  # fmt: skip
"""Order of the API by the key of `top`."""


def window(exposed_ns: int, idle_ns: int) -> WindowBreakdown:
    return WindowBreakdown(
        first_step=0, step_count=1, window_ns=100, compute_ns=100 - exposed_ns - idle_ns, communication_ns=exposed_ns,
        overlap_ns=0, exposed_communication_ns=exposed_ns, copy_ns=0, idle_ns=idle_ns,
    )  # fmt: skip


def a_rank(number: int, place: int) -> RankSnapshot:
    """A rank whose every value is larger the larger `place` is."""
    return rank_of(
        number, slowdown_ratio=1.0 + place, step_ns_median=5.0 * place, own_ns_median=4.0 * place,
        wait_caused_ns_median=3.0 * place, phases_ns_median={"data": place, "forward": place, "backward": place},
        breakdown=window(10 * place, 10 * place),
        flops=StepFlops(model=FlopSum(place, 1, 10**9), peak_flops_per_s=10.0),
        devices=(DeviceSample(host_ns=0, uuid="a", model="H100", utilization_ratio=place / 10),),
    )  # fmt: skip


RANKS = [a_rank(0, 2), a_rank(1, 4), a_rank(2, 4), rank_of(3), a_rank(4, 1)]
"""Two are equal, and of rank 3 nothing is known."""


@pytest.mark.parametrize("order", [order for order in ORDERS if order != "rank"])
def test_largest_comes_first_and_unknown_last(order: str) -> None:
    assert [rank.identity.rank for rank in sort_ranks(RANKS, order, 9)] == [1, 2, 0, 4, 3]
    assert [rank.identity.rank for rank in sort_ranks(RANKS, order, 9, is_reversed=True)] == [4, 0, 1, 2, 3]


def test_by_rank_the_lowest_comes_first() -> None:
    assert [rank.identity.rank for rank in sort_ranks(RANKS, "rank", 2)] == [0, 1]
    assert [rank.identity.rank for rank in sort_ranks(RANKS, "rank", 2, is_reversed=True)] == [4, 3]


def test_top_has_a_key_for_each_order() -> None:
    assert list(NAMES) == sorted(NAMES, key=list(KEYS).index)
    assert set(NAMES) == set(KEYS)
    assert set(NAMES.values()) == set(ORDERS)


@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize("key", NAMES)
def test_top_sorts_as_the_api_does(key: str, is_reversed: bool) -> None:
    run = RunSnapshot(run="bert", world_size=5, restart_count=0, ranks=tuple(RANKS))
    listed = list_ranks(run, "rank", 0, 9).ranks
    lines = [msgspec.convert(msgspec.to_builtins(one), FetchedRank) for one in listed]
    asked = list_ranks(run, NAMES[key], 0, 9, is_reversed=is_reversed).ranks
    shown = Board(order=key, is_reversed=is_reversed).arrange(lines)
    assert [one.rank for one in shown] == [one.rank for one in asked]
