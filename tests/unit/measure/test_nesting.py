"""Check the nesting of ranges by examples; the laws are in tests/properties/test_trace_laws.py."""

import numpy as np

from rankscope.measure.nesting import OUTSIDE, Nesting, nest


def nest_ranges(*ranges: tuple[int, int, int]) -> Nesting:
    """(thread, start, end)."""
    columns = np.array(ranges, dtype=np.int64).reshape(-1, 3)
    return nest(columns[:, 0].astype(np.int32), columns[:, 1], columns[:, 2])


def innermost(found: Nesting, *moments: tuple[int, int]) -> list[int]:
    asked = np.array(moments, dtype=np.int64).reshape(-1, 2)
    return list(found.find_innermost(asked[:, 0].astype(np.int32), asked[:, 1]))


def test_a_range_is_inside_the_nearest_that_encloses_it() -> None:
    found = nest_ranges((1, 0, 10), (1, 1, 6), (1, 2, 3), (1, 7, 9))
    assert found.parent.tolist() == [OUTSIDE, 0, 1, 0]
    assert found.depth.tolist() == [0, 1, 2, 1]


def test_ranges_of_other_threads_enclose_nothing() -> None:
    assert nest_ranges((1, 0, 10), (2, 1, 6)).parent.tolist() == [OUTSIDE, OUTSIDE]


def test_longer_of_two_with_one_start_encloses_the_shorter() -> None:
    assert nest_ranges((1, 0, 3), (1, 0, 10)).parent.tolist() == [1, OUTSIDE]


def test_of_two_equal_ranges_one_encloses_the_other() -> None:
    assert nest_ranges((1, 0, 3), (1, 0, 3)).parent.tolist() == [OUTSIDE, 0]


def test_ranges_that_touch_are_neighbors() -> None:
    assert nest_ranges((1, 0, 3), (1, 3, 5)).parent.tolist() == [OUTSIDE, OUTSIDE]


def test_a_thousand_siblings_have_one_parent() -> None:
    siblings = [(1, start, start + 1) for start in range(1_000)]
    assert set(nest_ranges((1, 0, 1_000), *siblings).parent.tolist()[1:]) == {0}


def test_a_range_is_open_from_its_start_to_before_its_end() -> None:
    found = nest_ranges((1, 2, 5))
    assert innermost(found, (1, 1), (1, 2), (1, 4), (1, 5)) == [OUTSIDE, 0, 0, OUTSIDE]


def test_between_two_inner_ranges_the_outer_one_is_open() -> None:
    found = nest_ranges((1, 0, 10), (1, 1, 3), (1, 5, 8))
    assert innermost(found, (1, 4), (1, 6), (1, 9)) == [0, 2, 0]


def test_a_range_without_length_is_never_open() -> None:
    assert innermost(nest_ranges((1, 0, 10), (1, 4, 4)), (1, 4)) == [0]


def test_on_a_thread_without_ranges_none_is_open() -> None:
    assert innermost(nest_ranges((1, 0, 10)), (0, 4), (2, 4)) == [OUTSIDE, OUTSIDE]


def test_of_overlapping_ranges_the_later_one_is_open() -> None:
    found = nest_ranges((1, 0, 10), (1, 8, 12))
    assert innermost(found, (1, 7), (1, 9), (1, 11)) == [0, 1, 1]


def test_without_ranges_nothing_is_found() -> None:
    found = nest_ranges()
    assert innermost(found, (1, 4)) == [OUTSIDE]
    assert found.sum_up(np.empty(0, dtype=np.int64)).tolist() == []


def test_nobody_asked_for_gets_no_answer() -> None:
    assert innermost(nest_ranges((1, 0, 10))) == []


def test_time_of_its_own_is_less_what_is_directly_inside() -> None:
    # 10 less 5 and 2; of the 5 one is inside.
    assert nest_ranges((1, 0, 10), (1, 1, 6), (1, 2, 3), (1, 7, 9)).self_ns().tolist() == [3, 4, 1, 2]


def test_a_sum_takes_in_all_levels() -> None:
    found = nest_ranges((1, 0, 10), (1, 1, 6), (1, 2, 3), (1, 7, 9))
    assert found.sum_up(np.array([1, 10, 100, 1_000])).tolist() == [1_111, 110, 100, 1_000]


def test_100000_nested_levels_cost_no_more_than_as_many_siblings() -> None:
    levels = 100_000  # a pass over all ranges for each level would take minutes
    start_ns = np.arange(levels)
    found = nest(np.zeros(levels, np.int32), start_ns, 2 * levels - start_ns)
    assert found.depth.tolist() == list(range(levels))
    assert found.sum_up(np.ones(levels, np.int64))[[0, levels - 1]].tolist() == [levels, 1]
