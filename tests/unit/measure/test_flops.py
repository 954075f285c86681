"""FLOPs of single calls, by hand."""

import re

import pytest

from rankscope.measure.flops import (
    FORMULAS,
    NO_FORMULA,
    NO_VALUES,
    NOT_UNDERSTOOD,
    CallFlops,
    Inputs,
    add_formulas,
    broadcast,
    count_flops,
    decode_inputs,
    find_convolved_sizes,
    has_no_product,
)

Shapes = list[list[int]] | list[list[list[int]] | list[int]]


def count(name: str, shapes: Shapes, values: list[str] | None = None) -> int | None:
    return count_flops(f"aten::{name}", Inputs(["float"] * len(shapes), shapes, values or ())).flops


@pytest.mark.parametrize(
    ("name", "shapes", "flops"),
    [
        ("mm", [[2, 3], [3, 4]], 2 * 2 * 3 * 4),
        ("bmm", [[5, 2, 3], [5, 3, 4]], 5 * 48),
        ("addmm", [[4], [2, 3], [3, 4]], 48),
        ("baddbmm", [[5, 2, 4], [5, 2, 3], [5, 3, 4]], 5 * 48),
        ("addbmm", [[2, 4], [5, 2, 3], [5, 3, 4]], 5 * 48),
        ("_scaled_mm", [[16, 32], [32, 8], [], []], 2 * 16 * 32 * 8),
        ("mv", [[2, 3], [3]], 12),
        ("addmv", [[2], [2, 3], [3]], 12),
        ("dot", [[3], [3]], 6),
        ("linear", [[5, 2, 3], [4, 3], [4]], 5 * 48),
        ("linear", [[5, 3], [3]], 30),
        ("matmul", [[3], [3]], 6),
        ("matmul", [[2, 3], [3, 4]], 48),
        ("matmul", [[3], [3, 4]], 2 * 3 * 4),
        ("matmul", [[7, 1, 2, 3], [5, 3, 4]], 35 * 48),
        # Two groups of rows, 16 in all, each by its own (32, 8); groups along k; the batch of groups.
        ("_grouped_mm", [[16, 32], [2, 32, 8], [2]], 2 * 16 * 32 * 8),
        ("_grouped_mm", [[16, 32], [32, 8], [2]], 2 * 16 * 32 * 8),
        ("_grouped_mm", [[2, 16, 32], [2, 32, 8]], 2 * 2 * 16 * 32 * 8),
        ("_scaled_grouped_mm", [[2, 16, 32], [32, 8], [], [], [2]], 2 * 16 * 32 * 8),
        # Two heads of 3 queries on 5 keys, widths 4 and 7; grouped queries: four heads on one of keys.
        ("_scaled_dot_product_flash_attention", [[1, 2, 3, 4], [1, 2, 5, 4], [1, 2, 5, 7]], 2 * 2 * 3 * 5 * (4 + 7)),
        ("_scaled_dot_product_cudnn_attention", [[1, 4, 3, 4], [1, 1, 5, 4], [1, 1, 5, 7]], 2 * 4 * 3 * 5 * (4 + 7)),
        ("_scaled_dot_product_efficient_attention_backward", [[1, 2, 3, 7], [1, 2, 3, 4], [1, 2, 5, 4], [1, 2, 5, 7]],
         2 * 2 * 3 * 5 * (3 * 4 + 2 * 7)),
        # An LSTM of width 5 on 3 inputs, 4 positions of 2 sequences: matrices (20, 3) and (20, 5).
        ("mkldnn_rnn_layer", [[4, 2, 3], [20, 3], [20, 5], [20], [20]], 2 * 8 * (60 + 100)),
        ("mkldnn_rnn_layer_backward", [[4, 2, 3], [20, 3], [20, 5], [20], [20]], 2 * 2 * 8 * (60 + 100)),
        ("_cudnn_rnn", [[4, 2, 3], [[20, 3], [20, 5], [20], [20]], []], 2 * 8 * (60 + 100)),
        ("_cudnn_rnn_backward", [[4, 2, 3], [[20, 3], [20, 5], [20], [20]], []], 2 * 2 * 8 * (60 + 100)),
        # A packed batch of 6 positions, two layers of a GRU of width 5.
        ("miopen_rnn", [[6, 3], [[15, 3], [15, 5], [15], [15], [15, 5], [15, 5]], []], 2 * 6 * (45 + 3 * 75)),
    ],
)  # fmt: skip
def test_flops_follow_from_the_shapes(name: str, shapes: Shapes, flops: int) -> None:
    assert count(name, shapes) == flops


def convolve(x: list[int], weight: list[int], values: str) -> int | None:
    """`values` are those from the stride on: stride, padding, dilation, transposed, output padding, groups."""
    return count("convolution", [x, weight, [], [], [], [], [], [], []], ["", "", "", *values.split("; ")])


def test_convolutions_multiply_the_weight_at_each_output() -> None:
    # 6 by 3 in steps of 2 with a border of 1: (6 + 2 - 2 - 1) // 2 + 1 = 3. 2 images, 4 channels to 8.
    assert convolve([2, 4, 6, 6], [8, 4, 3, 3], "[2, 2]; [1, 1]; [1, 1]; False; [0, 0]; 1") == 2 * 2 * 9 * 8 * 4 * 9
    assert convolve([2, 4, 6], [8, 4, 3], "[1]; [0]; [2]; False; [0]; 1") == 2 * 2 * 2 * 8 * 4 * 3  # 6 - 2 * 2 = 2
    # One value for all dimensions; each of 4 groups has 1 of 4 channels.
    assert convolve([2, 4, 6, 6], [8, 1, 3, 3], "[1]; [0]; [1]; False; [0]; 4") == 2 * 2 * 16 * 8 * 1 * 9


def test_transposed_convolution_multiplies_weights_at_each_input() -> None:
    values = "[2, 2]; [0, 0]; [1, 1]; True; [0, 0]; 2"
    assert convolve([1, 4, 5, 5], [4, 3, 3, 3], values) == 2 * 25 * 4 * 3 * 9
    recorded = Inputs(["float"], [[1, 4, 5, 5], [4, 3, 3, 3]], ["", "", "", *values.split("; ")])
    assert find_convolved_sizes(recorded) == [11, 11]  # (5 - 1) * 2 + (3 - 1) + 1


@pytest.mark.parametrize(("mask", "products"), [("[True, True, True]", 2), ("[False, True, False]", 1)])
def test_convolution_backward_counts_the_gradients_it_computes(mask: str, products: int) -> None:
    shapes: Shapes = [[2, 8, 3, 3], [2, 4, 6, 6], [8, 4, 3, 3], [], [], [], [], [], [], [], []]
    values = ["", "", "", "[8]", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", mask]
    assert count("convolution_backward", shapes, values) == products * 2 * 2 * 9 * 8 * 4 * 9
    values[7] = "True"  # the output's gradient is larger than x then: positions are those of x
    assert count("convolution_backward", shapes, values) == products * 2 * 2 * 36 * 8 * 4 * 9


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("mm", [[2, 3], [4, 5]]),
        ("mm", [[2], [2]]),
        ("mm", []),
        ("mm", [[[2, 3]], [3, 4]]),
        ("mv", [[2, 3], [4]]),
        ("linear", [[2, 3], [4, 5]]),
        ("matmul", [[2, 2, 3], [3, 3, 4]]),
        ("_grouped_mm", [[2, 3], [3]]),
        ("_grouped_mm", [[2, 4, 3], [5, 3, 4]]),
        ("convolution", [[2, 4], [8, 4]]),
        ("mkldnn_rnn_layer", [[4, 2, 3], [20], [20]]),
        ("_scaled_dot_product_flash_attention", [[1, 2, 3, 4], [2, 2, 5, 4], [1, 2, 5, 7]]),
    ],
)
def test_inputs_that_make_no_sense_are_not_counted(name: str, shapes: Shapes) -> None:
    found = count_flops(f"aten::{name}", Inputs(["float"] * len(shapes), shapes))
    assert found == CallFlops(None, reason=NOT_UNDERSTOOD)


def test_what_was_not_recorded_is_said() -> None:
    convolution = Inputs(["float"] * 9, [[1, 1, 2, 2], [1, 1, 1, 1], [], [], [], [], [], [], []])
    assert count_flops("aten::convolution", convolution).reason == NO_VALUES
    assert count_flops("aten::convolution", convolution._replace(values=[""] * 9)).reason == NO_VALUES
    assert count_flops("aten::sort", Inputs(["float"], [[2]])).reason == NO_FORMULA


def test_type_is_that_of_the_first_factor() -> None:
    found = count_flops("aten::addmm", Inputs(["float", "c10::BFloat16", "c10::BFloat16"], [[4], [2, 3], [3, 4]]))
    assert found == CallFlops(48, "c10::BFloat16")


def test_formulas_of_ones_own_go_before_those_of_torch() -> None:
    formulas = add_formulas({"mylib::attention": lambda inputs: 4 * inputs.shapes[0][0], "aten::mm": lambda _: 1})
    assert count_flops("mylib::attention", Inputs(["float"], [[3]]), formulas) == CallFlops(12, "float")
    assert count_flops("aten::mm", Inputs(["float"], [[3]]), formulas).flops == 1
    assert FORMULAS["aten::mm"] is not formulas["aten::mm"]


@pytest.mark.parametrize("answer", [-1, 2.5, None, True])
def test_formula_that_returns_no_count_is_not_believed(answer: object) -> None:
    formulas = add_formulas({"mylib::odd": lambda _: answer})  # type: ignore[dict-item, return-value]
    assert count_flops("mylib::odd", Inputs(["float"], [[3]]), formulas).reason == NOT_UNDERSTOOD


def test_formula_that_fails_is_not_understood() -> None:
    formulas = add_formulas({"mylib::odd": lambda inputs: inputs.shapes[0][0] // 0})
    assert count_flops("mylib::odd", Inputs(["float"], [[3]]), formulas).reason == NOT_UNDERSTOOD


def test_inputs_are_read_from_what_the_profiler_writes() -> None:
    assert decode_inputs((b'["float", "TensorList"]', b"[[2, 3], [[1, 2], [3]]]")) == Inputs(
        ["float", "TensorList"], [[2, 3], [[1, 2], [3]]]
    )
    with pytest.raises(ValueError, match="truncated"):
        decode_inputs((b'["float"]', b"[[2"))


def test_shapes_that_do_not_broadcast_are_refused() -> None:
    assert broadcast([[]]) == []
    with pytest.raises(ValueError, match=re.escape(NOT_UNDERSTOOD)):
        broadcast([[2], [3]])


def test_every_operator_is_of_one_kind_only() -> None:
    assert not [name for name in FORMULAS if has_no_product(name)]
    assert all(map(has_no_product, ("aten::_foreach_add_", "aten::nll_loss_forward", "aten::embedding_dense_backward")))
    assert not any(map(has_no_product, ("aten::einsum", "mylib::add", "aten::scaled_dot_product_attention")))


def test_torch_schemas_have_arguments_where_formulas_read_them() -> None:
    torch = pytest.importorskip("torch")
    for name in FORMULAS:
        overloads = torch._C._jit_get_schemas_for_operator(name)
        assert overloads, f"{name} is no operator of torch {torch.__version__}"
    arguments = [one.name for one in torch._C._jit_get_schemas_for_operator("aten::convolution_backward")[0].arguments]
    assert (arguments[:3], arguments[7], arguments[10]) == (
        ["grad_output", "input", "weight"], "transposed", "output_mask",
    )  # fmt: skip
