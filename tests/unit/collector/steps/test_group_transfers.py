"""Transfers of process groups, kept step by step, by cases worked out by hand. Times in ns."""

from collections.abc import Sequence

import numpy as np
import pytest

from rankscope.collector.steps import group_transfers
from rankscope.collector.steps.group_transfers import TransferRing
from tests.unit.collector.steps.collective_steps import KindWaits, columns_of

SIZES = {"dp": 4, "tp": 2}
KEPT = 4


def kind(rank: int = 0, group: str = "dp", op: str = "all_reduce", **changed: int | None) -> KindWaits:
    """One matched call of 1,000 bytes whose transfer took 20 ns, 5 of them exposed."""
    fields = {
        "calls": 1, "duration_ns": 50, "size_bytes": 1_000, "matched": 1, "wait_ns": 30, "transfer_ns": 20,
        "matched_bytes": 1_000, "exposed_transfer_ns": 5,
    } | changed  # fmt: skip
    return KindWaits(rank=rank, group=group, op=op, **fields)  # type: ignore[arg-type]


def sum_groups(kinds: list[KindWaits], sizes: dict[str, int]) -> dict[str, Sequence[float]]:
    return group_transfers.sum_groups(columns_of(kinds), sizes)


def put(made: TransferRing, slot: int, kinds: list[KindWaits], sizes: dict[str, int] = SIZES) -> None:
    made.put(slot, columns_of(kinds), sizes)


def ring(**step_of_slot: list[KindWaits]) -> TransferRing:
    made = TransferRing(KEPT)
    for slot, kinds in step_of_slot.items():
        put(made, int(slot.removeprefix("slot")), kinds)
    return made


def every_slot() -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.arange(KEPT)


# -- one step ---------------------------------------------------------------------------------------------------------


def test_transfer_of_a_group_counts_once_and_not_once_a_member() -> None:
    assert sum_groups([kind(0), kind(1), kind(2), kind(3)], SIZES)["dp"] == [20, 1_000, 1_500, 5]


def test_bytes_are_those_of_the_member_with_the_most() -> None:
    # The expert that the router prefers: its all-to-all takes longer for all, and no link is slow.
    kinds = [kind(rank, op="all_to_all", size_bytes=1_400 if rank == 2 else 1_000) for rank in range(4)]
    assert sum_groups(kinds, SIZES)["dp"] == [20, 1_400, 1_050, 5]


def test_operations_of_a_group_add_up_each_with_its_bus_factor() -> None:
    # Of four ranks an all-reduce moves 2 * 3/4 of its bytes over the bus, an all-gather 3/4.
    found = sum_groups([kind(), kind(op="all_gather", transfer_ns=7, size_bytes=400, exposed_transfer_ns=1)], SIZES)
    assert found == {"dp": [27, 1_400, 1_500 + 300, 6]}


def test_exposure_is_that_of_the_least_exposed_member() -> None:
    kinds = [kind(0, exposed_transfer_ns=20), kind(1, exposed_transfer_ns=3), kind(1, op="all_gather")]
    # Rank 0 has 20 exposed, rank 1 has 3 + 5.
    assert sum_groups(kinds, SIZES)["dp"][3] == 8


def test_group_of_which_a_call_was_not_matched_is_not_known() -> None:
    assert sum_groups([kind(calls=2), kind(group="tp")], SIZES).keys() == {"tp"}


def test_operations_without_a_transfer_do_not_count() -> None:
    assert sum_groups([kind(op="broadcast", matched=0), kind(op="send", matched=0)], SIZES) == {}


def test_size_that_is_not_told_leaves_the_transfer_known() -> None:
    transfer_ns, size_bytes, bus_bytes, exposed_ns = sum_groups([kind(size_bytes=None)], SIZES)["dp"]
    assert (transfer_ns, exposed_ns) == (20, 5)
    assert np.isnan([size_bytes, bus_bytes]).all()


def test_barrier_moves_nothing_over_the_bus() -> None:
    assert sum_groups([kind(op="barrier", size_bytes=0)], SIZES)["dp"] == [20, 0, 0, 5]


# -- the ring ---------------------------------------------------------------------------------------------------------


def test_steps_are_read_in_the_order_asked_for() -> None:
    found = ring(slot0=[kind(transfer_ns=10)], slot3=[kind(transfer_ns=13)]).read(np.array([3, 0]))
    assert found.ns["dp"].tolist() == [13, 10]
    assert found.size_bytes["dp"].tolist() == [1_000, 1_000]


def test_step_without_the_group_is_not_known_of_it() -> None:
    found = ring(slot0=[kind()], slot1=[kind(group="tp")]).read(every_slot())
    assert np.isnan(found.ns["dp"]).tolist() == [False, True, True, True]
    assert np.isnan(found.exposed_ns["tp"]).tolist() == [True, False, True, True]


def test_group_whose_steps_have_all_left_is_left_out() -> None:
    made = ring(slot0=[kind()], slot1=[kind(group="tp")])
    made.clear(np.array([0]))
    assert made.read(every_slot()).ns.keys() == {"tp"}


def test_moved_step_is_known_under_its_new_slot_only() -> None:
    made = ring(slot0=[kind(transfer_ns=10)], slot1=[kind(transfer_ns=11)])
    made.move(np.array([1, 2]), np.array([3, 2]))
    found = made.read(every_slot()).ns["dp"]
    assert np.nan_to_num(found, nan=-1).tolist() == [10, -1, -1, 11]


def test_many_groups_are_all_kept() -> None:
    names = [f"tp/{number}" for number in range(48)]
    made = TransferRing(KEPT)
    put(made, 2, [kind(group=name, transfer_ns=number) for number, name in enumerate(names)], dict.fromkeys(names, 2))
    found = made.read(np.array([2]))
    assert [found.ns[name].tolist() for name in names] == [[number] for number in range(len(names))]


@pytest.mark.parametrize("groups_max", [1, 16])
def test_groups_beyond_the_bound_are_left_out_and_counted(groups_max: int) -> None:
    names = [f"tp/{number}" for number in range(groups_max + 3)]
    made = TransferRing(KEPT, groups_max)
    for slot in (0, 1):
        put(made, slot, [kind(group=name) for name in names], dict.fromkeys(names, 2))
    assert list(made.read(every_slot()).ns) == names[:groups_max]
    assert made.dropped == 2 * 3
