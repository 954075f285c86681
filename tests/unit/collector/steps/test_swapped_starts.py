"""Pairs of collectives whose starts two worker threads wrote in the other order; times in ms, worked out by hand."""

import numpy as np
import pytest

from rankscope.collector.steps.collectives import stack
from rankscope.collector.steps.swapped_starts import pair_by_ends
from rankscope.measure.table import MISSING
from rankscope.measure.units import NS_PER_MS
from tests.unit.collector.steps.collective_steps import RankCollectives, split_ranks, step_of

Call = tuple[float, float] | tuple[float, float, int]
"""Start and end in ms; its bytes."""


def buckets(*calls: Call, ahead_ms: float = 0.0, op: str = "all_reduce", first: int = 1) -> RankCollectives:
    """The collectives of a rank in the order of their starts, numbered so, by a clock that is ahead."""
    count = len(calls)
    start_ns = np.array([round((call[0] + ahead_ms) * NS_PER_MS) for call in calls])
    end_ns = np.array([round((call[1] + ahead_ms) * NS_PER_MS) for call in calls])
    return RankCollectives(
        groups=["world"],
        ops=[op],
        group=np.zeros(count, dtype=np.int64),
        op=np.zeros(count, dtype=np.int64),
        sequence=np.arange(first, first + count),
        start_ns=start_ns,
        duration_ns=end_ns - start_ns,
        size_bytes=np.array([call[2] if len(call) > 2 else 64 for call in calls]),
        exposed_ns=np.full(count, MISSING),
    )


def pair(*ranks: RankCollectives) -> list[list[int]]:
    """The number that each rank's collectives stand under, in the order of their starts, from 0."""
    rows, _ = stack(step_of(dict(enumerate(ranks))))
    key = pair_by_ends(rows, np.ones(len(rows.rank), dtype=bool))
    return [key[rows.rank == rank].tolist() for rank in range(len(ranks))]


IN_ORDER = (10.0, 20.0), (10.2, 27.0)
SWAPPED = (10.0, 27.0), (10.1, 20.0)
"""The first of the pair ends at 20 on every rank; here its start was written last."""


def test_pair_that_ends_the_other_way_round_is_swapped() -> None:
    assert pair(buckets(*IN_ORDER), buckets(*SWAPPED), buckets(*IN_ORDER)) == [[0, 1], [1, 0], [0, 1]]


def test_clocks_of_the_ranks_do_not_matter() -> None:
    assert pair(buckets(*IN_ORDER), buckets(*SWAPPED, ahead_ms=1e6), buckets(*IN_ORDER))[1] == [1, 0]


def test_of_two_ranks_one_is_swapped_whichever_it_was() -> None:
    assert pair(buckets(*IN_ORDER), buckets(*SWAPPED)) == [[0, 1], [1, 0]]
    assert pair(buckets(*SWAPPED), buckets(*IN_ORDER)) == [[1, 0], [0, 1]]


def test_rank_whose_starts_are_apart_is_certain() -> None:
    # Both others have written the starts in the wrong order; the first has enqueued its second one 4 ms later.
    apart = (10.0, 20.0), (14.0, 27.0)
    assert pair(buckets(*SWAPPED), buckets(*SWAPPED), buckets(*apart)) == [[1, 0], [1, 0], [0, 1]]


def test_starts_that_are_apart_are_never_swapped() -> None:
    apart = (10.0, 27.0), (14.0, 20.0)
    assert pair(buckets(*IN_ORDER), buckets(*apart), buckets(*IN_ORDER))[1] == [0, 1]


@pytest.mark.parametrize("second_end", [20.3, 30.0])
def test_ends_that_are_not_alike_once_swapped_stay(second_end: float) -> None:
    late = (10.0, second_end), (10.1, 20.0)  # by 0.3 ms as much as chance, or by 10 ms where the others have 2
    assert pair(buckets((10.0, 20.0), (10.2, 22.0)), buckets(*late))[1] == [0, 1]


def test_sizes_tell_where_the_two_differ() -> None:
    large_first = (10.0, 27.0, 4096), (10.1, 20.0, 64)
    small_first = (10.0, 20.0, 64), (10.1, 27.0, 4096)
    assert pair(buckets(*large_first), buckets(*small_first), buckets(*large_first))[1] == [1, 0]


def test_pair_of_two_sizes_in_order_stays_though_its_ends_differ() -> None:
    one, other = ((10.0, 20.0, 64), (10.2, 27.0, 4096)), ((10.0, 27.0, 64), (10.1, 20.0, 4096))
    assert pair(buckets(*one), buckets(*other), buckets(*one))[1] == [0, 1]


def test_two_pairs_in_a_row_are_swapped_each() -> None:
    in_order = (*IN_ORDER, (30.0, 41.0), (30.1, 49.0))
    swapped = (*SWAPPED, (30.0, 49.0), (30.1, 41.0))
    assert pair(buckets(*in_order), buckets(*swapped), buckets(*in_order))[1] == [1, 0, 3, 2]


def test_ranks_with_other_numbers_or_counts_are_left_alone() -> None:
    assert pair(buckets(*IN_ORDER), buckets(*SWAPPED, first=2), buckets(*IN_ORDER))[1] == [1, 2]
    more = buckets(*IN_ORDER), buckets(*SWAPPED, (30.0, 31.0)), buckets(*IN_ORDER)
    assert pair(*more)[1] == [0, 1, 2]


def wait_ms(*ranks: RankCollectives, host_groups: tuple[str, ...] = ("world",)) -> list[float]:
    waits = split_ranks(dict(enumerate(ranks)), {"world": len(ranks)}, host_groups)
    return [one.wait_ns / NS_PER_MS for one in waits.kinds]


def test_nobody_waits_for_a_rank_with_a_swapped_pair() -> None:
    # All three left both together: no wait but the 0.2 and 0.1 ms of the starts.
    healthy = buckets(*IN_ORDER), buckets(*SWAPPED), buckets(*IN_ORDER)
    assert max(wait_ms(*healthy)) < 0.25
    # As numbered, rank 1 would have left the second one 7 ms before the others, who seem to wait for it.
    assert wait_ms(*healthy, host_groups=())[0] > 6.5


def test_operations_with_a_root_keep_their_numbers() -> None:
    ranks = [buckets(*calls, op="broadcast") for calls in (IN_ORDER, SWAPPED, IN_ORDER)]
    exposed = [split_ranks(dict(enumerate(ranks)), {"world": 3}, host).exposed_ns for host in ((), ("world",))]
    assert exposed[0] == exposed[1]
