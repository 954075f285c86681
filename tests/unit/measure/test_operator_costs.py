"""Operations and bytes of operators, by hand and against torch's own counter."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from rankscope.measure.flops import NO_FORMULA, NO_SHAPES, NO_VALUES, NOT_UNDERSTOOD, VALUE_OPERATORS
from rankscope.measure.kineto import ReadOptions
from rankscope.measure.kineto_columns import read_trace
from rankscope.measure.operator_costs import OperatorCost, count_cost

Shapes = list[list[int]]


def cost(name: str, shapes: Shapes, *, dtype: str = "float", values: list[str] | None = None) -> OperatorCost:
    types = [dtype if shape else "Scalar" for shape in shapes]
    recorded = (json.dumps(types).encode(), json.dumps(shapes).encode())
    return count_cost(f"aten::{name}", recorded, json.dumps(values).encode() if values is not None else None)


@pytest.mark.parametrize(
    ("name", "shapes", "flops", "elements"),
    [
        ("mm", [[2, 3], [3, 4]], 2 * 2 * 3 * 4, 6 + 12 + 8),
        ("addmm", [[4], [2, 3], [3, 4], [], []], 2 * 2 * 3 * 4, 4 + 6 + 12 + 8),
        ("bmm", [[5, 2, 3], [5, 3, 4]], 5 * 2 * 2 * 3 * 4, 5 * (6 + 12 + 8)),
        ("baddbmm", [[5, 2, 4], [5, 2, 3], [5, 3, 4]], 5 * 2 * 2 * 3 * 4, 5 * (8 + 6 + 12 + 8)),
        # Two heads of 3 queries on 5 keys, widths 4 and 7: 2 * 2 * 3 * 5 * (4 + 7) operations.
        ("_scaled_dot_product_flash_attention", [[1, 2, 3, 4], [1, 2, 5, 4], [1, 2, 5, 7]], 660,
         24 + 40 + 70 + 42),
        # 2 * 2 * 3 * 5 * (3 * 4 + 2 * 7) operations; gradient of the output, q, k, v read, those of q, k, v written.
        ("_scaled_dot_product_flash_attention_backward",
         [[1, 2, 3, 7], [1, 2, 3, 4], [1, 2, 5, 4], [1, 2, 5, 7]], 1560, 42 + 24 + 40 + 70 + 24 + 40 + 70),
        ("add", [[2, 3], [3], []], None, 6 + 3 + 6),
        ("mul", [[2, 1], [1, 3]], None, 2 + 3 + 6),
        ("native_layer_norm", [[2, 3], [], [3], [3], []], None, 6 + 3 + 3 + 6),
        ("copy_", [[2, 3], [2, 3], []], None, 12),
    ],
)  # fmt: skip
def test_work_follows_from_the_shapes(name: str, shapes: Shapes, flops: int | None, elements: int) -> None:
    assert cost(name, shapes) == OperatorCost(flops, 4 * elements, "float")


def test_bytes_are_those_of_the_type() -> None:
    assert cost("mm", [[2, 3], [3, 4]], dtype="c10::BFloat16").bytes == 2 * 26


def test_convolution_needs_the_size_of_its_output() -> None:
    # 6 x 6 by 3 x 3 in steps of 2 with a border of 1: (6 + 2 - 2 - 1) // 2 + 1 = 3. 2 images, 4 channels to 8.
    values = ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]
    shapes: Shapes = [[2, 4, 6, 6], [8, 4, 3, 3], [8], [], [], [], [], [], []]
    found = cost("convolution", shapes, values=values)
    assert found.flops == 2 * 2 * 9 * (8 * 4 * 9)
    assert found.bytes == 4 * (2 * 4 * 36 + 8 * 4 * 9 + 8 + 2 * 8 * 9)


def test_grouped_convolution_multiplies_within_its_groups() -> None:
    values = ["", "", "", "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "4"]
    found = cost("convolution", [[2, 4, 6, 6], [8, 1, 3, 3], [], [], [], [], [], [], []], values=values)
    assert found.flops == 2 * 2 * 16 * (8 * 1 * 9)


def test_backward_counts_only_the_gradients_that_are_computed() -> None:
    shapes: Shapes = [[2, 8, 3, 3], [2, 4, 6, 6], [8, 4, 3, 3], [], [], [], [], [], [], [], []]
    values = ["", "", "", "[8]", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", "[False, True, True]"]
    found = cost("convolution_backward", shapes, values=values)
    assert found.flops == 2 * 2 * 9 * (8 * 4 * 9)
    # The gradient of the output and x are read, that of the weight is written.
    assert found.bytes == 4 * (2 * 8 * 9 + 2 * 4 * 36 + 8 * 4 * 9)


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (count_cost("aten::sort", (b'["float"]', b"[[2]]")), NO_FORMULA),
        (count_cost("aten::mm", None), NO_SHAPES),
        (cost("convolution", [[1, 1, 2, 2], [1, 1, 1, 1]]), NO_VALUES),
        (cost("convolution", [[1, 1, 2, 2], [1, 1, 1, 1]], values=["", "", "", "", "", "", "", "", ""]), NO_VALUES),
        (cost("mm", [[2, 3], [4, 5]]), NOT_UNDERSTOOD),
        (cost("mm", [[2], [2]]), NOT_UNDERSTOOD),
        (cost("mm", []), NOT_UNDERSTOOD),
        (cost("add", [[2], [3]]), NOT_UNDERSTOOD),
        (cost("add", [[], []]), NOT_UNDERSTOOD),
        (count_cost("aten::mm", (b'["float"]', b"[[1")), NOT_UNDERSTOOD),
        (
            cost("mm", [[2, 3], [3, 4]], dtype="GenericList"),
            "size of a type not known: GenericList, GenericList",
        ),
    ],
)
def test_what_cannot_be_counted_says_why(found: OperatorCost, reason: str) -> None:
    assert (found.bytes, found.reason) == (None, reason)


# -- against torch ----------------------------------------------------------------------------------------------------


def run_products() -> None:
    a, b = torch.randn(7, 5), torch.randn(5, 3)
    torch.addmm(torch.randn(3), a, b)
    torch.bmm(torch.randn(4, 7, 5), torch.randn(4, 5, 3))
    torch.baddbmm(torch.randn(4, 7, 3), torch.randn(4, 7, 5), torch.randn(4, 5, 3))
    functional.linear(torch.randn(2, 9, 5), b.T)


def run_convolutions() -> None:
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, stride=2, padding=1),
        torch.nn.Conv2d(8, 8, (3, 1), dilation=2, bias=False),
        torch.nn.ConvTranspose2d(8, 4, 3, stride=2, output_padding=1),
    )
    layers(torch.randn(2, 3, 19, 17)).sum().backward()
    torch.nn.Conv1d(4, 6, 5)(torch.randn(2, 4, 20, requires_grad=True)).sum().backward()
    torch.nn.Conv2d(4, 8, 3, groups=4)(torch.randn(2, 4, 6, 6))


@pytest.mark.parametrize("run", [run_products, run_convolutions])
def test_operations_are_those_of_torchs_counter(run: Callable[[], None], tmp_path: Path) -> None:
    with FlopCounterMode(display=False) as counter:
        run()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        run()
    recorded.export_chrome_trace(str(tmp_path / "trace.json"))
    trace = read_trace(
        [(tmp_path / "trace.json").read_bytes()], ReadOptions(every_shape=True, values_of=VALUE_OPERATORS)
    )
    costs = [count_cost(trace.name(row), trace.shapes[row], trace.addresses.get(row)) for row in trace.shapes]
    found = [one.flops for one in costs if one.flops is not None]
    assert (sum(found), len(found) > 3) == (counter.get_total_flops(), True)


def test_attention_counts_as_torchs_counter_does() -> None:
    # The counter's own formulas, since the kernel for the CPU has none: q (2, 4, 8, 16) on k, v of 6 and width 16.
    q, k, v = [2, 4, 8, 16], [2, 4, 6, 16], [2, 4, 6, 16]
    assert cost("_scaled_dot_product_efficient_attention", [q, k, v]).flops == sdpa_flop_count(q, k, v)
    backward = cost("_scaled_dot_product_cudnn_attention_backward", [q, q, k, v])
    assert backward.flops == sdpa_backward_flop_count(q, q, k, v)
