"""The laws of sets of time, against a model that is slow and obvious: the set of the nanoseconds covered."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rankscope.measure import intervals
from rankscope.measure.breakdown import break_down
from rankscope.measure.intervals import Intervals

Spans = list[tuple[int, int]]

# Few distinct times, so that intervals often touch, repeat and enclose each other; ends may lie before starts.
moments = st.integers(-12, 12)
raw_spans = st.lists(st.tuples(moments, moments), max_size=8)


def to_array(spans: Spans) -> Intervals:
    return np.array(spans, dtype=np.int64).reshape(-1, 2)


def to_points(spans: Spans) -> set[int]:
    return {moment for start, end in spans for moment in range(start, end)}


def to_set(spans: Spans) -> Intervals:
    return intervals.union(to_array(spans))


def points(found: Intervals) -> set[int]:
    return to_points([(int(start), int(end)) for start, end in found])


def is_set(found: Intervals) -> bool:
    """Return whether it is sorted, disjoint and without touching or empty intervals."""
    edges = found.ravel()
    return found.dtype == np.int64 and bool((edges[1:] > edges[:-1]).all())


@given(raw_spans)
def test_a_union_is_a_set_that_covers_the_same(raw: Spans) -> None:
    found = to_set(raw)
    assert is_set(found)
    assert points(found) == to_points(raw)


@given(raw_spans)
def test_the_union_of_a_set_is_the_set(raw: Spans) -> None:
    assert intervals.union(to_set(raw)).tolist() == to_set(raw).tolist()


@given(raw_spans, raw_spans)
def test_an_intersection_is_a_set_of_what_both_cover(left: Spans, right: Spans) -> None:
    found = intervals.intersect(to_set(left), to_set(right))
    assert is_set(found)
    assert points(found) == to_points(left) & to_points(right)


@given(raw_spans, raw_spans)
def test_a_subtraction_is_a_set_of_what_only_the_left_covers(left: Spans, right: Spans) -> None:
    found = intervals.subtract(to_set(left), to_set(right))
    assert is_set(found)
    assert points(found) == to_points(left) - to_points(right)


@given(raw_spans, moments, st.integers(0, 12))
def test_clipping_covers_what_lies_inside(raw: Spans, start_ns: int, length_ns: int) -> None:
    found = intervals.clip(to_array(raw), start_ns, start_ns + length_ns)
    assert points(found) == to_points(raw) & set(range(start_ns, start_ns + length_ns))


@given(raw_spans)
def test_the_length_of_a_set_is_the_number_of_its_nanoseconds(raw: Spans) -> None:
    assert intervals.total_ns(to_set(raw)) == len(to_points(raw))


@given(raw_spans, st.lists(st.integers(-14, 14)))
def test_moments_that_a_set_contains_are_its_nanoseconds(raw: Spans, asked: list[int]) -> None:
    expected = [moment in to_points(raw) for moment in asked]
    assert intervals.contains(to_set(raw), np.array(asked, dtype=np.int64)).tolist() == expected


@given(raw_spans, st.lists(st.integers(-14, 14)))
def test_covered_before_is_exact_to_the_nanosecond(raw: Spans, asked: list[int]) -> None:
    expected = [sum(ns < moment for ns in to_points(raw)) for moment in asked]
    assert intervals.covered_before(to_set(raw), np.array(asked, dtype=np.int64)).tolist() == expected


@given(raw_spans, raw_spans, raw_spans, moments, st.integers(0, 12))
def test_every_nanosecond_of_a_window_is_spent_on_one_part(
    compute: Spans, communication: Spans, copies: Spans, start_ns: int, window_ns: int
) -> None:
    b = break_down(
        to_array(compute),
        to_array(communication),
        to_array(copies),
        start_ns=start_ns,
        end_ns=start_ns + window_ns,
        first_step=0,
        step_count=1,
    )
    window = set(range(start_ns, start_ns + window_ns))
    kernels, transfers, moves = (to_points(raw) & window for raw in (compute, communication, copies))
    assert (b.compute_ns, b.communication_ns, b.overlap_ns) == (len(kernels), len(transfers), len(kernels & transfers))
    assert b.exposed_communication_ns == len(transfers - kernels)
    assert b.copy_ns == len(moves - kernels - transfers)
    assert b.idle_ns == len(window - kernels - transfers - moves)
    parts = (b.compute_ns - b.overlap_ns, b.overlap_ns, b.exposed_communication_ns, b.copy_ns, b.idle_ns)
    assert sum(parts) == b.window_ns == window_ns
