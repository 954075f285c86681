"""The collectives of each rank counted up by kind, by cases worked out by hand. Times in ns."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from rankscope.collector.steps import collective_totals
from rankscope.collector.steps.collective_totals import (
    KINDS_MAX,
    CollectiveCounts,
    CollectiveTotals,
    KindMeans,
    KindTime,
    SavedCounts,
    average_by_kind,
    sum_by_kind,
    unpack_counts,
)
from rankscope.measure.communication import bus_factor
from tests.unit.collector.steps.collective_steps import KindWaits, columns_of

RANK = 3
GROUP = "dp"


def kind_of(op: str = "all_reduce", **changed: Any) -> KindWaits:
    """Two calls of 30 ns each, matched: 10 ns of waiting and 20 ns of transfer each, 1,000 bytes each."""
    fields: dict[str, Any] = {
        "calls": 2, "duration_ns": 60, "size_bytes": 2_000, "matched": 2, "wait_ns": 20, "transfer_ns": 40,
        "matched_bytes": 2_000, "exposed_transfer_ns": 40,
    }  # fmt: skip
    return KindWaits(rank=RANK, group=GROUP, op=op, **(fields | changed))


UNMATCHED: dict[str, Any] = {"matched": 0, "wait_ns": 0, "transfer_ns": 0, "matched_bytes": 0, "exposed_transfer_ns": 0}
UNSIZED: dict[str, Any] = {"size_bytes": None, "matched_bytes": 0}


def counts_of(*steps: Sequence[KindWaits]) -> CollectiveCounts:
    counts = CollectiveCounts()
    for step in steps:
        counts.add(columns_of(step))
    return counts


def totals_of(*kinds: KindWaits, size: int = 4) -> CollectiveTotals:
    (found,) = counts_of(*([kind] for kind in kinds)).snapshot({GROUP: size}).of(RANK)
    return found


def test_collectives_of_a_kind_are_counted_up() -> None:
    totals = totals_of(kind_of(), kind_of())
    assert totals.bus_bandwidth_bytes_per_s == pytest.approx(2_000 / 40e-9 * 1.5)
    assert totals == CollectiveTotals(
        group=GROUP, op="all_reduce", count=4, duration_ns=120, bytes=4_000, matched=4, wait_ns=40, transfer_ns=80,
        bus_bandwidth_bytes_per_s=totals.bus_bandwidth_bytes_per_s,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("op", "factor"),
    [("all_reduce", 2 * 3 / 4), ("all_gather", 3 / 4), ("reduce_scatter", 3 / 4), ("all_to_all", 3 / 4)],
)
def test_bus_bandwidth_is_that_of_nccl_tests(op: str, factor: float) -> None:
    assert bus_factor(op, 4) == factor
    assert totals_of(kind_of(op)).bus_bandwidth_bytes_per_s == pytest.approx(2_000 / 40e-9 * factor)


@pytest.mark.parametrize("op", ["broadcast", "reduce", "barrier", "send"])
def test_operation_without_a_factor_has_no_bus_bandwidth(op: str) -> None:
    assert totals_of(kind_of(op)).bus_bandwidth_bytes_per_s is None


@pytest.mark.parametrize("size", [0, 1])
def test_group_of_one_or_of_unknown_size_has_no_bus_bandwidth(size: int) -> None:
    assert totals_of(kind_of(), size=size).bus_bandwidth_bytes_per_s is None


def test_bus_bandwidth_is_of_the_last_matched_calls() -> None:
    unmatched, unsized, instant = kind_of(**UNMATCHED), kind_of(**UNSIZED), kind_of(transfer_ns=0)
    assert totals_of(unmatched).bus_bandwidth_bytes_per_s is None
    found = totals_of(kind_of(transfer_ns=80), kind_of(), unmatched, unsized, instant)
    assert found.bus_bandwidth_bytes_per_s == pytest.approx(2_000 / 40e-9 * 1.5)


def test_without_a_match_waiting_and_transfer_are_not_known() -> None:
    found = totals_of(kind_of(**UNMATCHED))
    assert (found.count, found.matched, found.wait_ns, found.transfer_ns) == (2, 0, None, None)


def test_matched_without_waiting_has_waited_zero() -> None:
    assert totals_of(kind_of(wait_ns=0)).wait_ns == 0


def test_sizes_that_no_window_told_are_not_known() -> None:
    assert totals_of(kind_of(**UNSIZED)).bytes is None
    assert totals_of(kind_of(**UNSIZED), kind_of()).bytes == 2_000


def test_barrier_moves_zero_bytes_and_that_is_known() -> None:
    assert totals_of(kind_of("barrier", size_bytes=0, matched_bytes=0)).bytes == 0


def test_kinds_stand_in_order_and_beyond_the_limit_are_left_out() -> None:
    many = [[kind_of(f"op{number:02}")] for number in reversed(range(KINDS_MAX))]
    found = counts_of(*many, [kind_of("one_too_many")], [kind_of("op00")]).snapshot({}).of(RANK)
    assert [kind.op for kind in found] == [f"op{number:02}" for number in range(KINDS_MAX)]
    assert found[0].count == 4


def test_first_kinds_are_counted_beyond_the_limit() -> None:
    step = [kind_of(f"op{number:02}") for number in range(KINDS_MAX + 2)]
    other = kind_of("op00")._replace(rank=RANK + 1)
    snapshot = counts_of([*step, other]).snapshot({})
    assert [kind.op for kind in snapshot.of(RANK)] == [f"op{number:02}" for number in range(KINDS_MAX)]
    assert [kind.op for kind in snapshot.of(RANK + 1)] == ["op00"]


def test_more_kinds_than_a_run_may_have_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collective_totals, "KINDS_OF_RUN_MAX", 1)
    found = counts_of([kind_of("all_reduce"), kind_of("barrier")], [kind_of("barrier")]).snapshot({}).of(RANK)
    assert [(kind.op, kind.count) for kind in found] == [("all_reduce", 2)]


# -- several ranks ----------------------------------------------------------------------------------------------------


def test_each_rank_has_its_own_counts() -> None:
    low, high = kind_of(calls=1)._replace(rank=1), kind_of("barrier", calls=5)._replace(rank=9)
    snapshot = counts_of([high], [low, high], [high, low._replace(op="barrier")]).snapshot({})
    assert [(kind.op, kind.count) for kind in snapshot.of(1)] == [("all_reduce", 1), ("barrier", 1)]
    assert [(kind.op, kind.count) for kind in snapshot.of(9)] == [("barrier", 15)]
    assert [snapshot.of(rank) for rank in (0, 2, 8, 10, 10**6)] == [()] * 5


def test_step_without_collectives_changes_nothing() -> None:
    assert counts_of([], [kind_of()], []).snapshot({}).of(RANK) == counts_of([kind_of()]).snapshot({}).of(RANK)


def test_picture_shows_the_moment_it_was_taken_at() -> None:
    counts = counts_of([kind_of()])
    before = counts.snapshot({})
    counts.add(columns_of([kind_of()]))
    assert (before.of(RANK)[0].count, counts.snapshot({}).of(RANK)[0].count) == (2, 4)


def test_size_of_a_group_that_becomes_known_gives_the_bandwidth() -> None:
    counts = counts_of([kind_of()])
    known = [counts.snapshot(sizes).of(RANK)[0].bus_bandwidth_bytes_per_s for sizes in ({}, {GROUP: 4})]
    assert known == [None, pytest.approx(2_000 / 40e-9 * 1.5)]


def test_counts_that_were_saved_are_gone_on_with() -> None:
    sized, unmatched = kind_of(), kind_of("barrier", **UNMATCHED, size_bytes=None)
    before = counts_of([sized, unmatched], [sized._replace(rank=9, group="tp")])
    counts = CollectiveCounts()
    counts.restore(unpack_counts(before.read().pack()), ranks=10)
    for rank in (RANK, 9):
        assert counts.snapshot({}).of(rank) == before.snapshot({}).of(rank)
    counts.add(columns_of([unmatched, sized]))
    assert [(kind.op, kind.count, kind.bytes, kind.wait_ns) for kind in counts.snapshot({}).of(RANK)] == [
        ("all_reduce", 4, 4_000, 40),
        ("barrier", 4, None, None),
    ]


def test_the_bandwidth_is_that_of_a_step_and_not_gone_on_with() -> None:
    counts = CollectiveCounts()
    counts.restore(unpack_counts(counts_of([kind_of()]).read().pack()), ranks=RANK + 1)
    assert counts.snapshot({GROUP: 4}).of(RANK)[0].bus_bandwidth_bytes_per_s is None


def test_sums_are_of_their_time_and_compare_by_identity() -> None:
    counts = counts_of([kind_of()])
    sums = counts.read()
    assert counts.read().sums is sums.sums
    packed = sums.pack()
    counts.add(columns_of([kind_of(), kind_of("barrier")]))
    assert counts.read().sums is not sums.sums
    assert sums.pack() == packed


def test_a_step_without_collectives_leaves_nothing_more_to_keep() -> None:
    counts = counts_of([kind_of()])
    sums = counts.read()
    counts.add(columns_of([]))
    assert counts.read().sums is sums.sums


def test_ranks_that_the_run_does_not_have_are_not_gone_on_with() -> None:
    counts = CollectiveCounts()
    packed = counts_of([kind_of(), kind_of()._replace(rank=2**30)]).read().pack()
    counts.restore(unpack_counts(packed), ranks=RANK + 1)
    assert (len(counts.read().keys), counts.snapshot({}).of(RANK)[0].count) == (1, 2)


def test_counts_of_no_rank_are_gone_on_with_too() -> None:
    counts = CollectiveCounts()
    counts.restore(unpack_counts(CollectiveCounts().read().pack()), ranks=1)
    counts.add(columns_of([kind_of()]))
    assert counts.snapshot({}).of(RANK)[0].count == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"keys": b"\0" * 7},
        {"sums": b"\0" * 8},
        {"kinds": ()},
        {"keys": (-1).to_bytes(8, "little", signed=True)},
        {
            "keys": (5).to_bytes(8, "little") + (-(2**63)).to_bytes(8, "little", signed=True),
            "sums": b"\0" * 16 * collective_totals.COLUMN_COUNT,
        },
        {"keys": b"\0" * 16, "sums": b"\0" * 16 * collective_totals.COLUMN_COUNT},
    ],
)
def test_what_does_not_fit_together_is_refused(changes: dict[str, Any]) -> None:
    saved = unpack_counts(counts_of([kind_of()]).read().pack())
    parts = {"kinds": saved.kinds, "keys": saved.keys, "sums": saved.sums} | changes
    with pytest.raises(ValueError):  # noqa: PT011 - numpy has words of its own
        unpack_counts(msgspec.msgpack.encode(SavedCounts(**parts)))


@pytest.mark.parametrize("body", [b"", b"garbage", b"\x90", msgspec.msgpack.encode({"kinds": 1})])
def test_what_is_no_packed_counts_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the decoder has words of its own
        unpack_counts(body)


def test_means_of_a_kind_are_over_the_matched_calls_of_all_ranks() -> None:
    # Of rank 3 two calls with 20 ns of waiting and 40 of transfer, of rank 9 two with 60 and 40; barriers unmatched.
    counts = counts_of(
        [kind_of(), kind_of("barrier", **UNMATCHED, size_bytes=None)], [kind_of(wait_ns=60)._replace(rank=9)]
    )
    found = average_by_kind(unpack_counts(counts.read().pack()))
    assert found == {(GROUP, "all_reduce"): KindMeans(4, 20.0, 20.0)}


def test_times_of_a_kind_are_those_of_all_calls_of_all_ranks() -> None:
    counts = counts_of(
        [kind_of(), kind_of("barrier", **UNMATCHED), kind_of("send", **UNMATCHED, calls=0, duration_ns=0)],
        [kind_of(duration_ns=100)._replace(rank=9)],
    )
    found = sum_by_kind(unpack_counts(counts.read().pack()))
    assert found == {(GROUP, "all_reduce"): KindTime(4, 160), (GROUP, "barrier"): KindTime(2, 60)}
