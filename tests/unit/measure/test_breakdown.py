"""Check the breakdown of a window: compute before communication, communication before copies, the remainder is idle."""

import numpy as np
import pytest

from rankscope.measure.breakdown import break_down
from rankscope.measure.intervals import Intervals
from rankscope.measure.records import WindowBreakdown

Spans = list[tuple[int, int]]


def spans(pairs: Spans) -> Intervals:
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def break_100_ns(compute: Spans, communication: Spans, copies: Spans) -> WindowBreakdown:
    return break_down(
        spans(compute), spans(communication), spans(copies), start_ns=0, end_ns=100, first_step=7, step_count=2
    )


def test_a_window_in_which_nothing_ran_is_idle() -> None:
    nothing = WindowBreakdown(
        first_step=7, step_count=2, window_ns=100, compute_ns=0, communication_ns=0, overlap_ns=0,
        exposed_communication_ns=0, copy_ns=0, idle_ns=100,
    )  # fmt: skip
    assert break_100_ns([], [], []) == nothing


def test_communication_under_compute_is_overlap_else_exposed() -> None:
    b = break_100_ns([(0, 40)], [(30, 60)], [])
    assert (b.compute_ns, b.communication_ns, b.overlap_ns, b.exposed_communication_ns, b.idle_ns) == (
        40,
        30,
        10,
        20,
        40,
    )


def test_a_copy_counts_only_where_nothing_else_runs() -> None:
    b = break_100_ns([(0, 40)], [(50, 60)], [(30, 55), (90, 95)])
    # 40..50 between the kernel and the collective, and 90..95.
    assert (b.copy_ns, b.idle_ns) == (15, 100 - 40 - 10 - 15)


def test_kernels_that_run_at_the_same_time_count_once() -> None:
    assert break_100_ns([(0, 40), (10, 50), (10, 20)], [], []).compute_ns == 50


@pytest.mark.parametrize("kernel", [(-10, 25), (-10, 10), (95, 200)])
def test_what_lies_outside_the_window_does_not_count(kernel: tuple[int, int]) -> None:
    inside_ns = min(kernel[1], 100) - max(kernel[0], 0)
    b = break_100_ns([kernel], [], [])
    assert (b.compute_ns, b.idle_ns) == (inside_ns, 100 - inside_ns)


def test_the_steps_and_the_operators_are_passed_on() -> None:
    b = break_down(spans([]), spans([]), spans([]), start_ns=5, end_ns=5, first_step=3, step_count=1, operator_count=0)
    assert (b.first_step, b.step_count, b.window_ns, b.operator_count) == (3, 1, 0, 0)
    assert break_100_ns([], [], []).operator_count is None
