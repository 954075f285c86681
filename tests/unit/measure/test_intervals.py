"""Sets of time: the cases where intervals touch, repeat or are empty. The laws are in tests/properties."""

import numpy as np
import pytest

from rankscope.measure import intervals
from rankscope.measure.intervals import EMPTY, Intervals

Spans = list[tuple[int, int]]


def spans(*pairs: tuple[int, int]) -> Intervals:
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def pairs(found: Intervals) -> Spans:
    return [(int(start), int(end)) for start, end in found]


@pytest.mark.parametrize(
    ("raw", "covered"),
    [
        ([], []),
        ([(3, 3), (5, 4)], []),
        ([(0, 5), (5, 9)], [(0, 9)]),
        ([(0, 5), (6, 9)], [(0, 5), (6, 9)]),
        ([(6, 9), (0, 5)], [(0, 5), (6, 9)]),
        ([(0, 9), (1, 2), (3, 4)], [(0, 9)]),
        ([(0, 5), (0, 5)], [(0, 5)]),
        ([(-4, -2), (-3, 1)], [(-4, 1)]),
        ([(0, 100), (10, 20), (50, 120)], [(0, 120)]),
    ],
)
def test_a_union_is_sorted_and_joins_what_overlaps_or_touches(raw: Spans, covered: Spans) -> None:
    assert pairs(intervals.union(spans(*raw))) == covered


@pytest.mark.parametrize(
    ("left", "right", "both"),
    [
        ([], [(0, 5)], []),
        ([(0, 5)], [], []),
        ([(0, 5)], [(5, 9)], []),
        ([(0, 5)], [(0, 5)], [(0, 5)]),
        ([(0, 9)], [(2, 3), (5, 7)], [(2, 3), (5, 7)]),
        ([(0, 4), (6, 9)], [(2, 7)], [(2, 4), (6, 7)]),
    ],
)
def test_an_intersection_is_what_both_cover(left: Spans, right: Spans, both: Spans) -> None:
    assert pairs(intervals.intersect(spans(*left), spans(*right))) == both


@pytest.mark.parametrize(
    ("left", "right", "rest"),
    [
        ([], [(0, 5)], []),
        ([(0, 5)], [], [(0, 5)]),
        ([(0, 5)], [(0, 5)], []),
        ([(0, 5)], [(5, 9)], [(0, 5)]),
        ([(0, 9)], [(2, 3), (5, 7)], [(0, 2), (3, 5), (7, 9)]),
        ([(3, 4), (6, 9)], [(0, 3), (7, 20)], [(3, 4), (6, 7)]),
    ],
)
def test_a_subtraction_leaves_what_only_the_left_covers(left: Spans, right: Spans, rest: Spans) -> None:
    assert pairs(intervals.subtract(spans(*left), spans(*right))) == rest


def test_clipping_cuts_at_both_ends_and_drops_what_is_outside() -> None:
    raw = spans((-5, 3), (4, 6), (9, 12), (12, 15), (-9, -7))
    assert pairs(intervals.clip(raw, 0, 10)) == [(0, 3), (4, 6), (9, 10)]


def test_length_of_a_set_is_exact_beyond_floats() -> None:
    # 2**53 + 1 is the first whole number that a float cannot represent.
    assert intervals.total_ns(spans((0, 2**53), (2**60, 2**60 + 1))) == 2**53 + 1
    assert intervals.total_ns(EMPTY) == 0


def test_starts_and_durations_make_raw_intervals() -> None:
    assert pairs(intervals.from_starts([5, 1], [2, 0])) == [(5, 7), (1, 1)]
    assert intervals.from_starts([], []).shape == (0, 2)


@pytest.mark.parametrize(("found", "expected"), [([(2, 5)], [False, True, True, False]), ([], [False] * 4)])
def test_a_set_contains_its_start_and_not_its_end(found: Spans, expected: list[bool]) -> None:
    covered = intervals.contains(spans(*found), np.array([1, 2, 4, 5]))
    assert covered.tolist() == expected
