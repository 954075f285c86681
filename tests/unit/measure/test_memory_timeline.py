"""Lifetimes of allocations, and what is held over time."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rankscope.measure.memory_timeline import (
    CATEGORIES,
    HeldBytes,
    MemoryCategory,
    ModelMark,
    PairedEvents,
    categorize,
    count_live,
    find_peak,
    hold_by_events,
    hold_by_totals,
    pair_events,
    raise_to_known,
    split_held,
    sum_by_key,
)

A, B, C = 4096, 8192, 2**62


def pair(*events: tuple[int, int]) -> PairedEvents:
    address, size = np.array(events, dtype=np.int64).reshape(-1, 2).T
    return pair_events(address, size)


def as_lists(found: HeldBytes) -> tuple[list[int], list[int]]:
    return found.held.tolist(), found.older.tolist()


def test_address_that_is_used_again_has_two_lifetimes() -> None:
    lives = pair((A, 10), (A, -10), (A, 30), (A, -30)).lifetimes
    assert (lives.allocated.tolist(), lives.freed.tolist(), lives.bytes.tolist()) == ([0, 2], [1, 3], [10, 30])


def test_lifetimes_are_in_the_order_of_their_allocation() -> None:
    lives = pair((C, 1), (A, 2), (B, 3), (A, -2)).lifetimes
    assert (lives.address.tolist(), lives.freed.tolist()) == ([C, A, B], [4, 3, 4])


def test_free_of_what_was_never_allocated_is_of_older_memory() -> None:
    paired = pair((A, -5), (A, 10), (B, -7), (B, -8))
    assert paired.older_event.tolist() == [0, 2, 3]
    assert (paired.older_address.tolist(), paired.older_bytes.tolist()) == ([A, B, B], [5, 7, 8])


def test_second_allocation_at_an_address_ends_the_first() -> None:
    paired = pair((A, 10), (A, 20), (A, -20))
    assert (paired.lifetimes.freed.tolist(), paired.replaced_count) == ([1, 2], 1)
    assert count_live(paired.lifetimes, 3).tolist() == [10, 20, 0]


def test_no_events_have_no_lifetimes() -> None:
    paired = pair()
    assert (paired.event_count, len(paired.lifetimes.bytes), as_lists(hold_by_events(paired))) == (0, 0, ([], []))


def test_what_is_alive_was_allocated_and_not_freed_yet() -> None:
    lives = pair((A, 10), (B, 20), (A, -10), (C, 30)).lifetimes
    assert [lives.alive_at(event).tolist() for event in range(4)] == [[0], [0, 1], [1], [1, 2]]


def test_total_of_the_allocator_shows_older_memory() -> None:
    # 100 bytes are older; 40 of them are freed by the last event.
    paired = pair((A, 10), (A, -10), (B, -40))
    assert as_lists(hold_by_totals(paired, np.array([110, 100, 60]))) == ([110, 100, 60], [100, 100, 60])


def test_total_that_lags_behind_another_thread_is_raised() -> None:
    assert as_lists(hold_by_totals(pair((A, 10), (B, 20)), np.array([10, 20]))) == ([10, 30], [0, 0])


def test_without_totals_older_memory_is_what_is_freed_later() -> None:
    assert as_lists(hold_by_events(pair((B, -40), (A, 10)))) == ([0, 10], [0, 0])
    assert as_lists(hold_by_events(pair((A, 10), (B, -40)), 7)) == ([57, 17], [47, 7])


def test_peak_is_the_first_of_equal_ones() -> None:
    assert find_peak(np.array([1, 5, 5, 2])) == 1


def test_categories_are_named_in_their_order() -> None:
    assert CATEGORIES[MemoryCategory.OPTIMIZER_STATE] == "optimizer_state"
    assert len(CATEGORIES) == len(MemoryCategory)


def test_sums_by_key_of_no_rows_are_empty() -> None:
    assert sum_by_key(np.zeros(0, dtype=np.int64), [], np.zeros(0, dtype=np.int64)) == []


def test_sums_by_key_have_the_most_bytes_first() -> None:
    size = np.array([10, 50, 30, 99])
    assert sum_by_key(np.array([0, 1, 2]), [5, 6, 5, 6], size) == [(6, 50, 1, 50), (5, 40, 2, 30)]


# -- categories -------------------------------------------------------------------------------------------------------

FORWARD_BACKWARD = np.array([[20, 30], [60, 70]])


def kinds(
    *events: tuple[int, int, int], marks: Sequence[ModelMark] = (), backward: Any = FORWARD_BACKWARD
) -> list[str]:
    """Return the category of each lifetime of events of (time, address, bytes)."""
    time_ns, address, size = np.array(events, dtype=np.int64).reshape(-1, 3).T
    found = categorize(pair_events(address, size), time_ns, backward, marks)
    return [CATEGORIES[one] for one in found.kind.tolist()]


def mark(time_ns: int, **storages: Sequence[tuple[int, int]]) -> ModelMark:
    return ModelMark(time_ns, {MemoryCategory[name.upper()]: rows for name, rows in storages.items()})


def test_what_forward_leaves_to_backward_is_an_activation() -> None:
    assert kinds((10, A, 8), (25, A, -8)) == ["activations"]
    assert kinds((10, A, 8), (40, A, -8)) == ["activations"], "freed after the backward"
    assert kinds((40, A, 8), (60, A, -8)) == ["activations"], "of the second backward"


def test_what_ends_in_its_phase_is_temporary() -> None:
    assert kinds((10, A, 8), (19, A, -8)) == ["temporary"]
    assert kinds((20, A, 8), (29, A, -8)) == ["temporary"]
    assert kinds((80, A, 8), (90, A, -8)) == ["temporary"], "after the last backward"
    assert kinds((80, A, 8), (90, A, -8), backward=np.zeros((0, 2), dtype=np.int64)) == ["temporary"]


def test_memory_outliving_backward_may_be_gradient_unless_marked() -> None:
    events = ((25, A, 8), (50, A, -8))
    assert kinds(*events) == ["unknown"]
    assert kinds(*events, marks=[mark(40, gradients=[(A, 8)])]) == ["gradients"]
    assert kinds(*events, marks=[mark(40, gradients=[(B, 8)])]) == ["temporary"]


def test_what_is_not_freed_in_the_window_is_unknown() -> None:
    assert kinds((10, A, 8)) == ["unknown"]


def test_mark_is_of_what_is_at_the_address_at_its_time() -> None:
    # The address of a gradient is used again in the next forward.
    events = ((25, A, 8), (45, A, -8), (46, A, 8), (48, A, -8), (65, A, 8))
    assert kinds(*events, marks=[mark(40, gradients=[(A, 8)])]) == ["gradients", "temporary", "unknown"]


def test_first_mark_of_a_lifetime_decides() -> None:
    marks = [mark(12, parameters=[(A, 8)]), mark(14, optimizer_state=[(A, 8)])]
    assert kinds((10, A, 8), marks=marks) == ["parameters"]


def split(*events: tuple[int, int, int], marks: Sequence[ModelMark], left: int = 0) -> tuple[Any, Any]:
    time_ns, address, size = np.array(events, dtype=np.int64).T
    paired = pair_events(address, size)
    found = categorize(paired, time_ns, FORWARD_BACKWARD, marks)
    held = raise_to_known(hold_by_events(paired, left), found)
    return held, split_held(paired, held, found)


def test_marked_older_memory_counts_until_it_is_freed() -> None:
    marks = [mark(12, parameters=[(B, 100)], optimizer_state=[(C, 30)])]
    held, found = split((10, A, 8), (15, C, -30), (16, A, -8), marks=marks)
    assert found[MemoryCategory.PARAMETERS].tolist() == [100, 100, 100]
    assert found[MemoryCategory.OPTIMIZER_STATE].tolist() == [30, 0, 0]
    assert found[MemoryCategory.TEMPORARY].tolist() == [8, 8, 0]
    assert held.held.tolist() == [138, 108, 100], "events know of 30 older bytes, the mark of 130"


def test_older_memory_that_no_mark_knows_is_unknown() -> None:
    held, found = split((10, A, 8), (15, C, -30), marks=[mark(12, parameters=[(B, 100)])], left=150)
    assert (held.older.tolist(), found[MemoryCategory.UNKNOWN].tolist()) == ([180, 150], [88, 58])


def test_without_marks_nothing_is_raised() -> None:
    held, found = split((10, A, 8), marks=[], left=5)
    assert (held.held.tolist(), found[MemoryCategory.UNKNOWN].tolist()) == ([13], [13])
