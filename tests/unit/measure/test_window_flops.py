"""FLOPs of one step: products counted by hand in windows written by hand, and why there is no figure."""

from collections.abc import Sequence
from typing import Any

import pytest

from rankscope.measure.flops import NO_FORMULA, NO_SHAPES, VALUE_OPERATORS
from rankscope.measure.kineto import ReadOptions
from rankscope.measure.kineto_columns import read_trace
from rankscope.measure.rank_view import RankView
from rankscope.measure.records import WindowFlops
from rankscope.measure.window_flops import NO_PRODUCTS, NO_STEP, count_window_flops
from tests.unit.measure.written_traces import Event, event, kernel, launch, to_json

ENGINE = "autograd::engine::evaluate_function: MmBackward0"
ONCE = 2 * 10 * 20 * 30
"""FLOPs of each product written here."""


def product(start_us: int, *, number: int | None = None, rows: int = 10, **more: Any) -> Event:
    shapes = {"Input Dims": [[rows, 20], [20, 30]], "Input type": ["float", "float"]}
    numbers = {} if number is None else {"Sequence number": number, "Fwd thread id": 0}
    return event("cpu_op", "aten::mm", start_us, 5, **shapes, **numbers, **more)


def backward(start_us: int, length_us: int) -> Event:
    return event("cpu_op", ENGINE, start_us, length_us, **{"Sequence number": 7, "Fwd thread id": 1})


def step(start_us: int) -> list[Event]:
    """Return a forward product, and a backward of it: the forward again, and the two products of the gradients."""
    again, gradients = product(start_us + 25, number=8), [product(start_us + 30), product(start_us + 40)]
    return [product(start_us, number=7), backward(start_us + 20, 40), again, *gradients]


def count(events: Sequence[Event], bounds_us: Sequence[tuple[int, int]], *, autograd: bool = True) -> WindowFlops:
    """Return the FLOPs of steps number 10 and up with these bounds."""
    text = to_json(*events)
    view = RankView(read_trace([text], ReadOptions(every_shape=True, values_of=VALUE_OPERATORS, autograd=autograd)))
    return count_window_flops(view, [(10 + at, 1000 * a, 1000 * b) for at, (a, b) in enumerate(bounds_us)])


def test_model_flops_are_three_forwards_and_executed_as_run() -> None:
    found = count([*step(0), *step(100)], [(0, 100), (100, 200)])
    assert (found.first_step, found.step_count, found.reason) == (10, 2, None)
    assert (found.model_flops, found.executed_flops) == (3 * ONCE, 4 * ONCE)
    assert found.number_types == {"fp32": (1.0, 1.0)}
    assert found.is_upper_bound, "a CPU's window does not show whether the recomputation stopped early"


def test_repeated_forward_without_autograd_numbers_is_backward() -> None:
    found = count(step(0), [(0, 100)], autograd=False)
    assert (found.model_flops, found.executed_flops, found.is_upper_bound) == (3 * ONCE, 4 * ONCE, False)


def test_step_without_backward_has_its_forward_once() -> None:
    found = count([product(0), product(10)], [(0, 100)])
    assert (found.model_flops, found.executed_flops) == (2 * ONCE, 2 * ONCE)


def test_each_number_type_has_shares_of_model_and_executed_flops() -> None:
    # Forward: 1 product in fp32, 3 times as large one in bf16, and one of numbers without a peak that counts 0 rows.
    # Backward: 4 products in bf16.
    half = {"Input type": ["c10::BFloat16", "c10::BFloat16"]}
    in_half = [{**one, "args": {**one["args"], **half}} for one in (product(10, rows=30), product(30, rows=40))]
    empty = product(15, rows=0)
    empty["args"]["Input type"] = ["long int", "long int"]
    found = count([product(0), in_half[0], empty, backward(20, 40), in_half[1], product(200)], [(0, 100)])
    assert found.number_types == {"fp32": (0.25, 0.125), "bf16": (0.75, 0.875)}


def test_step_without_a_forward_has_the_shares_of_its_backward() -> None:
    found = count([backward(20, 40), product(30)], [(0, 100)])
    assert (found.model_flops, found.number_types) == (0, {"fp32": (1.0, 1.0)})


def test_work_outside_of_the_steps_does_not_count() -> None:
    events = [product(0), *step(100), product(210), product(250), *step(300), product(450)]
    found = count(events, [(100, 200), (300, 400)])
    assert (found.step_count, found.model_flops, found.executed_flops) == (2, 3 * ONCE, 4 * ONCE)


def test_product_without_a_launch_on_a_device_does_not_count() -> None:
    events = [
        product(0, number=7), launch(1, 1), kernel("gemm", 50, 5, correlation=1),
        backward(20, 40), product(25, number=8),
        product(30), launch(31, 2), kernel("gemm", 60, 5, correlation=2),
    ]  # fmt: skip
    found = count(events, [(0, 100)])
    assert (found.model_flops, found.executed_flops, found.is_upper_bound) == (3 * ONCE, 2 * ONCE, False)


UNKNOWN = event("cpu_op", "mylib::attention", 70, 20)


@pytest.mark.parametrize(
    ("events", "bounds_us", "reason"),
    [
        ([], [], NO_STEP),
        ([event("cpu_op", "aten::relu", 5, 5)], [(0, 100)], NO_PRODUCTS),
        ([*step(0), UNKNOWN], [(0, 100)], f"products may be missing, of mylib::attention ({NO_FORMULA})"),
        ([*step(0), event("cpu_op", "aten::bmm", 70, 1)], [(0, 100)],
         f"products may be missing, of aten::bmm ({NO_SHAPES})"),
        ([*step(0), *(event("cpu_op", f"mylib::op{at}", 60 + 10 * at, 10) for at in range(4))], [(0, 100)],
         f"products may be missing, of {', '.join(f'mylib::op{at} (no formula)' for at in range(3))} and 1 more"),
        ([*step(0), product(100, rows=5)], [(0, 100), (100, 200)],
         "the steps of the window differ: 6,000 to 48,000 FLOPs"),
    ],
)  # fmt: skip
def test_figure_that_could_be_wrong_is_a_reason(
    events: list[Event], bounds_us: list[tuple[int, int]], reason: str
) -> None:
    found = count(events, bounds_us)
    assert (found.model_flops, found.executed_flops, found.reason) == (None, None, reason)


def test_unknown_operator_of_little_time_leaves_the_flops_known() -> None:
    assert count([*step(0), {**UNKNOWN, "dur": 1}], [(0, 100)]).model_flops == 3 * ONCE
