"""Rows of a ring that are seldom known: what was put is read, and everything else is NaN."""

import numpy as np

from rankscope.collector.steps.sparse_rows import CELLS_MAX, SparseRows

NAN = float("nan")


def slots(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def test_slots_are_read_in_order_with_nan_where_unknown() -> None:
    rows = SparseRows(2, np.float64)
    rows.put(3, np.array([1.0, NAN]))
    rows.put(1, np.array([5.0, 6.0]))
    np.testing.assert_equal(rows.read(slots(1, 2, 3)), [[5.0, 6.0], [NAN, NAN], [1.0, NAN]])


def test_cleared_slot_is_not_known_and_the_others_stay() -> None:
    rows = SparseRows(1, np.float64)
    rows.put(0, np.array([1.0]))
    rows.put(1, np.array([2.0]))
    rows.clear(slots(1, 7))
    assert [(places.tolist(), found.tolist()) for places, found in rows.blocks(slots(1, 0))] == [([1], [[1.0]])]


def test_moved_rows_are_known_under_their_new_slots_only() -> None:
    rows = SparseRows(1, np.float64)
    rows.put(0, np.array([1.0]))
    rows.put(2, np.array([2.0]))
    rows.move(slots(0, 1, 2), slots(5, 6, 7))
    ((places, found),) = rows.blocks(slots(0, 2, 5, 6, 7))
    assert (places.tolist(), found.tolist()) == ([2, 4], [[1.0], [2.0]])


def test_wide_rows_are_read_some_at_a_time() -> None:
    rows = SparseRows(CELLS_MAX // 2, np.float32)
    for slot in range(5):
        rows.put(slot, np.full(CELLS_MAX // 2, float(slot)))
    assert [places.tolist() for places, _ in rows.blocks(slots(*range(5)))] == [[0, 1], [2, 3], [4]]
    assert rows.read(slots(4, 0, 2, 3))[:, 0].tolist() == [4.0, 0.0, 2.0, 3.0]


def test_row_that_is_put_again_takes_the_place_of_the_former_one() -> None:
    rows = SparseRows(1, np.float64)
    rows.put(0, np.array([1.0]))
    rows.put(0, np.array([2.0]))
    assert rows.read(slots(0)).tolist() == [[2.0]]


def test_rows_of_half_the_size_are_read_whole_to_seven_digits() -> None:
    rows = SparseRows(1, np.float32)
    rows.put(0, np.array([1e9 + 1]))
    read = rows.read(slots(0))
    assert read.dtype == np.float64
    assert read.tolist() == [[1e9]]


def test_cells_that_come_one_after_the_other_are_counted() -> None:
    rows = SparseRows(3, np.float32)
    assert rows.update(2, slots(1), np.array([5.0])) == 1
    assert rows.update(2, slots(0, 1), np.array([4.0, 6.0])) == 2
    np.testing.assert_equal(rows.read(slots(2)), [[4.0, 6.0, NAN]])
    assert rows.has(slots(1, 2)).tolist() == [False, True]
    assert [place for place, _ in rows.find(slots(1, 2)).items()] == [1]


def test_no_slots_are_no_rows() -> None:
    assert SparseRows(3, np.float64).read(slots()).shape == (0, 3)
