"""Count the floating-point operations of operators from the names and inputs that a profiler records.

A multiplication and an addition are two operations, so that a multiply-accumulate (MAC) is two FLOPs. Only those of
products count, as in torch.utils.flop_counter: matrix products, convolutions, attention, and the matrix products
inside layers of recurrent networks. Attention counts the whole product, also where a mask leaves a part of it out.

    product          (m, k) (k, n)                      2 m k n, for each of the batch
    grouped product  (m, k) (g, k, n), g groups of rows  2 m k n; (g, m, k) (g, k, n): 2 g m k n
    convolution      x (N, C, *in), w (O, C/g, *k)      2 N prod(out) prod(w); transposed: prod(in) for prod(out)
    its backward                                        the same for each of the gradients of x and w (`output_mask`)
    attention        q (b, h, s, d), k, v (., ., t, e)  2 b h s t (d + e)
    its backward                                        2 b h s t (3 d + 2 e): scores, gradients of scores, v, q, k
    recurrent layer  x (T, N, C), matrices w            2 T N sum(prod(w)); its backward: twice that

Operators nest (`linear`, `addmm`), and a DTensor's outer product has global shapes: of operators with a formula only
the innermost ones count. This module counts one call; measure/counted_operators.py finds those that count.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import msgspec

NO_SHAPES = "no shapes recorded"
NO_FORMULA = "no formula"
NO_VALUES = "arguments not recorded"
NOT_UNDERSTOOD = "inputs not understood"


class Inputs(NamedTuple):
    """Recorded inputs of one call, by place: the types in torch's spelling, the shapes (of a list of tensors a list of
    shapes, of a scalar an empty one), and the texts of the values of scalars, empty where none were recorded.
    """

    types: Sequence[str]
    shapes: Sequence[Any]
    values: Sequence[str] = ()


Count = Callable[[Inputs], int]
"""Return the FLOPs of one call. Raises ValueError, TypeError or LookupError for inputs that it does not understand."""


class Formula(NamedTuple):
    """How to count an operator: the function, and the place of the input whose type is that of the operations."""

    count: Count
    factor: int = 0


class CallFlops(NamedTuple):
    """FLOPs of one call and the type of its numbers, None with the reason."""

    flops: int | None
    dtype: str | None = None
    reason: str | None = None


class NotRecordedError(Exception):
    """The values that the formula needs are not in the trace."""


def count_flops(name: str, inputs: Inputs, formulas: Mapping[str, Formula] | None = None) -> CallFlops:
    """Return the FLOPs of one call of an operator; `formulas` are those to use, FORMULAS if None.

    >>> count_flops("aten::addmm", Inputs(["float"] * 3, [[4], [2, 3], [3, 4]]))
    CallFlops(flops=48, dtype='float', reason=None)
    >>> count_flops("aten::sort", Inputs(["float"], [[4]])).reason
    'no formula'
    """
    formula = (FORMULAS if formulas is None else formulas).get(name)
    if formula is None:
        return CallFlops(None, reason=NO_FORMULA)
    try:
        flops = formula.count(inputs)
        expect(type(flops) is int and flops >= 0)
        return CallFlops(flops, inputs.types[formula.factor])
    except NotRecordedError:
        return CallFlops(None, reason=NO_VALUES)
    except (LookupError, ValueError, TypeError, ArithmeticError, AttributeError):
        return CallFlops(None, reason=NOT_UNDERSTOOD)


def add_formulas(own: Mapping[str, Count]) -> dict[str, Formula]:
    """Return FORMULAS with those of one's own operators, which go before them.

    >>> formulas = add_formulas({"mylib::square": lambda inputs: 2 * inputs.shapes[0][0] ** 3})
    >>> count_flops("mylib::square", Inputs(["float"], [[2, 2]]), formulas).flops
    16
    """
    return {**FORMULAS, **{name: Formula(count) for name, count in own.items()}}


def decode_inputs(recorded: tuple[bytes, bytes], values: bytes | None = None) -> Inputs:
    """Return the inputs of the JSON of `Input type` and `Input Dims`, and of `Concrete Inputs` where it was recorded.
    Raises ValueError for what is neither.

    >>> decode_inputs((b'["float", "Scalar"]', b"[[2, 3], []]"), b'["", "1"]')
    Inputs(types=['float', 'Scalar'], shapes=[[2, 3], []], values=['', '1'])
    """
    types, shapes = msgspec.json.decode(recorded[0], type=list[str]), msgspec.json.decode(recorded[1], type=list[Any])
    return Inputs(types, shapes, msgspec.json.decode(values, type=list[str]) if values is not None else ())


def read_value(inputs: Inputs, place: int) -> Any:
    """Return the recorded value of a scalar input: `[1, 1]`, `2`, `True`, `[True, False]`. Raises NotRecordedError.

    >>> read_value(Inputs([], [], ["", "[True, False]"]), 1)
    [True, False]
    """
    if place >= len(inputs.values) or not inputs.values[place]:
        raise NotRecordedError
    return msgspec.json.decode(inputs.values[place].replace("True", "true").replace("False", "false"))


def expect(holds: bool) -> None:  # noqa: FBT001 - the condition itself
    """Raise ValueError unless this holds."""
    if not holds:
        raise ValueError(NOT_UNDERSTOOD)


# -- products ---------------------------------------------------------------------------------------------------------


def _product(first: int) -> Formula:
    """Return the formula of a product of the inputs at this place and the next, with or without a batch."""

    def count(inputs: Inputs) -> int:
        *batch, rows, inner = inputs.shapes[first]
        *other_batch, other_inner, columns = inputs.shapes[first + 1]
        expect(len(batch) <= 1 and batch == other_batch and inner == other_inner)
        flops: int = 2 * prod(batch) * rows * inner * columns
        return flops

    return Formula(count, first)


def _vector_product(first: int) -> Formula:
    """Return the formula of the product of a matrix, or a vector, with a vector."""

    def count(inputs: Inputs) -> int:
        left, right = inputs.shapes[first : first + 2]
        expect(len(right) == 1 and left[-1] == right[0])
        flops: int = 2 * prod(left)
        return flops

    return Formula(count, first)


def _count_linear(inputs: Inputs) -> int:
    """Count x (..., k) with the weight (n, k), or (k)."""
    x, (*columns, inner) = inputs.shapes[:2]
    expect(x[-1] == inner)
    flops: int = 2 * prod(x) * prod(columns)
    return flops


def _count_matmul(inputs: Inputs) -> int:
    """Count a product by the rules of torch.matmul: vectors become matrices, batches are broadcast."""
    left, right = inputs.shapes[:2]
    left, right = (left if len(left) > 1 else [1, *left]), (right if len(right) > 1 else [*right, 1])
    expect(left[-1] == right[-2])
    flops: int = 2 * prod(broadcast([left[:-2], right[:-2]])) * left[-2] * left[-1] * right[-1]
    return flops


def broadcast(shapes: Sequence[Sequence[int]]) -> list[int]:
    """Return the shape to which these are broadcast. Raises ValueError where they do not fit.

    >>> broadcast([[4, 1, 3], [2, 1], []])
    [4, 2, 3]
    """
    rank = max(map(len, shapes))
    padded = [[1] * (rank - len(shape)) + list(shape) for shape in shapes]
    sizes = [set(column) - {1} for column in zip(*padded, strict=True)]
    expect(all(len(size) <= 1 for size in sizes))
    return [next(iter(size), 1) for size in sizes]


def _count_grouped(inputs: Inputs) -> int:
    """Count torch's grouped product: where a factor has no dimension of groups, its offsets cut rows or columns."""
    left, right = inputs.shapes[:2]
    expect(left[-1] == right[-2] and len(left) in _GROUPED and len(right) in _GROUPED)
    is_batched = len(left) == len(right) == max(_GROUPED)
    expect(not is_batched or left[0] == right[0])
    flops: int = 2 * (left[0] if is_batched else 1) * left[-2] * left[-1] * right[-1]
    return flops


_GROUPED = (2, 3)
"""Dimensions of a factor, without and with that of the groups."""


# -- convolutions -----------------------------------------------------------------------------------------------------


def find_convolved_sizes(inputs: Inputs) -> list[int]:
    """Return the sizes of a convolution's output, without batch and channels.

    >>> values = ["", "", "", "[2]", "[1]", "[1]", "False", "[0]", "1"]
    >>> find_convolved_sizes(Inputs([], [[2, 4, 6], [8, 4, 3]], values))
    [3]
    """
    x, weight = inputs.shapes[:2]
    stride, padding, dilation, is_transposed, output_padding = (read_value(inputs, place) for place in range(3, 8))
    sizes = zip(x[2:], weight[2:], *(_spread(one, len(x) - 2) for one in (stride, padding, dilation, output_padding)),
                strict=True)  # fmt: skip
    if is_transposed:
        return [(size - 1) * step - 2 * pad + gap * (k - 1) + extra + 1 for size, k, step, pad, gap, extra in sizes]
    return [(size + 2 * pad - gap * (k - 1) - 1) // step + 1 for size, k, step, pad, gap, _ in sizes]


def _spread(value: Sequence[int], count: int) -> Sequence[int]:
    """Return a value for each dimension, where one stands for all."""
    return list(value) * count if len(value) == 1 else value


def _count_convolution(inputs: Inputs) -> int:
    x, weight = inputs.shapes[:2]
    expect(len(x) == len(weight) and len(x) > 2)  # noqa: PLR2004 - batch, channels and one dimension at least
    is_transposed = read_value(inputs, 6)
    positions = x[2:] if is_transposed else find_convolved_sizes(inputs)
    flops: int = 2 * x[0] * prod(positions) * prod(weight)
    return flops


def _count_convolution_backward(inputs: Inputs) -> int:
    gradient, x, weight = inputs.shapes[:3]
    is_transposed, (of_x, of_weight, _) = read_value(inputs, 7), read_value(inputs, 10)
    expect(len(gradient) == len(x) == len(weight))
    positions = prod(x[2:] if is_transposed else gradient[2:])
    flops: int = 2 * x[0] * positions * prod(weight) * (of_x + of_weight)
    return flops


# -- attention and recurrent layers -----------------------------------------------------------------------------------


def _attention(first: int, per_query: int, per_value: int) -> Formula:
    """Return the formula of attention whose q, k and v, (batch, heads, length, width), begin at this input: so many
    products over the width of a query, and so many over that of a value.
    """

    def count(inputs: Inputs) -> int:
        q, k, v = inputs.shapes[first : first + 3]
        batch, heads, length, width = q
        expect(k[0] == batch and k[2] == v[2] and k[3] == width)
        flops: int = 2 * batch * heads * length * k[2] * (per_query * width + per_value * v[3])
        return flops

    return Formula(count, first)


def _recurrent(times: int, *, is_list: bool) -> Formula:
    """Return the formula of recurrent layers: each matrix of the weights is applied at each position of the input, so
    many times. The weights are a list at the second place, else the inputs at the second and third.
    """

    def count(inputs: Inputs) -> int:
        x, *weights = inputs.shapes[:3]
        matrices = [shape for shape in (weights[0] if is_list else weights) if len(shape) == 2]  # noqa: PLR2004
        expect(len(x) > 1 and len(matrices) > 1)
        flops: int = times * 2 * prod(x[:-1]) * sum(map(prod, matrices))
        return flops

    return Formula(count)


_LAYER_PASSES = (("", 1), ("_backward", 2))
"""Suffix of the name, and how often each product of the forward is made."""
FORMULAS: Mapping[str, Formula] = {
    **{f"aten::{name}": _product(0) for name in ("mm", "bmm", "_scaled_mm", "_scaled_mm_v2", "_int_mm")},
    **{f"aten::{name}": _product(1) for name in ("addmm", "baddbmm", "addbmm", "_addmm_activation")},
    **{f"aten::{name}": _vector_product(0) for name in ("mv", "dot", "vdot")},
    "aten::addmv": _vector_product(1),
    "aten::linear": Formula(_count_linear),
    "aten::matmul": Formula(_count_matmul),
    **{f"aten::{name}": Formula(_count_grouped) for name in ("_grouped_mm", "_scaled_grouped_mm")},
    "aten::convolution": Formula(_count_convolution),
    "aten::convolution_backward": Formula(_count_convolution_backward),
    **{
        f"aten::_scaled_dot_product_{kind}{suffix}": formula
        for kind in (
            "flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention",
            "fused_attention_overrideable",
        )
        for suffix, formula in (("", _attention(0, 1, 1)), ("_backward", _attention(1, 3, 2)))
    },
    **{f"aten::mkldnn_rnn_layer{suffix}": _recurrent(times, is_list=False) for suffix, times in _LAYER_PASSES},
    **{
        f"aten::{name}{suffix}": _recurrent(times, is_list=True)
        for name in ("_cudnn_rnn", "miopen_rnn")
        for suffix, times in _LAYER_PASSES
    },
}  # fmt: skip
"""By the name of the operator. Attention in plain operators, and the recurrent layers that torch computes step by step,
consist of products that count by themselves.
"""
VALUE_OPERATORS = frozenset({"aten::convolution", "aten::convolution_backward"})
"""Operators whose formula needs values beside the shapes."""


# -- operators without products ---------------------------------------------------------------------------------------

_NAMES = """
    abs add addcdiv addcmul amax amin any all arange argmax argmin as_strided bernoulli bitwise_and bitwise_not
    bitwise_or cat ceil clamp clamp_max clamp_min clone contiguous copy cos cumsum detach div dropout elu embedding
    embedding_bag embedding_dense empty empty_like empty_strided eq erf exp exponential expand fill flip floor
    full full_like gather ge gelu glu gt hardswish hardtanh index index_add index_put index_put_impl index_select
    isfinite isnan is_nonzero item layer_norm le leaky_relu lerp local_scalar_dense log log_sigmoid log_softmax
    logical_and logical_not logical_or lt masked_fill masked_select max max_pool2d max_pool2d_with_indices maximum mean
    min minimum mish mse_loss mul multinomial native_batch_norm native_dropout native_group_norm native_layer_norm
    native_norm batch_norm cudnn_batch_norm miopen_batch_norm group_norm rms_norm fused_rms_norm ne neg new_zeros
    nll_loss nll_loss2d nonzero norm normal ones ones_like pad pixel_shuffle pow prod rand randint randn randperm
    reciprocal relu relu6 repeat reshape resize roll round rsqrt rsub scatter scatter_add select selu set sigmoid sign
    silu sin slice smooth_l1_loss softmax softplus sort split sqrt square squeeze stack std sub sum t tanh threshold to
    to_copy topk transpose tril triu unfold uniform unsqueeze upsample_bilinear2d upsample_nearest2d var view
    weight_norm where zero zeros zeros_like adaptive_avg_pool2d avg_pool2d binary_cross_entropy
    binary_cross_entropy_with_logits cross_entropy_loss linalg_vector_norm constant_pad_nd amp_update_scale
    thnn_fused_lstm_cell thnn_fused_gru_cell
    alias allclose atleast_1d atleast_2d broadcast_tensors broadcast_to chunk concat concatenate diagonal expand_as
    flatten hstack is_floating_point is_same_size isclose lift_fresh linspace log1p logsumexp meshgrid movedim
    narrow narrow_copy new_empty new_empty_strided new_full new_ones numpy_t permute pin_memory promote_types ravel
    record_stream rename reshape_alias reshape_as resize_as resolve_conj resolve_neg result_type rot90 scalar_tensor
    sgn size split_with_sizes stride swapaxes tile type_as unbind unflatten unsafe_chunk unsafe_split
    unsafe_split_with_sizes unsafe_view view_as view_as_complex view_as_real vstack equal bincount searchsorted
    bucketize one_hot isinf isin sinh cosh tan atan atan2 asin acos erfinv expm1 log2 log10 trunc frac remainder
    fmod xor heaviside cummax cummin cumprod unique unique2 median nan_to_num nansum glu_jvp prelu prelu_kernel
    rrelu hardsigmoid celu softshrink hardshrink tanhshrink logit polar complex max_pool1d max_pool3d
    max_pool3d_with_indices avg_pool1d avg_pool3d adaptive_max_pool2d adaptive_avg_pool1d adaptive_avg_pool3d
    upsample_nearest1d upsample_nearest3d upsample_linear1d upsample_bicubic2d upsample_trilinear3d reflection_pad1d
    reflection_pad2d replication_pad2d l1_loss huber_loss kl_div nll_loss_nd cosine_similarity repeat_interleave
    take take_along_dim index_copy index_fill masked_scatter channel_shuffle pixel_unshuffle im2col col2im
    embedding_renorm to_dense batch_norm_impl_index native_channel_shuffle dist frobenius_norm clip
    absolute negative true_divide floor_divide isneginf isposinf cudnn_is_acceptable
    eye safe_softmax linalg_check_errors outer ger numpy_T matrix_H adjoint real imag conj conj_physical
"""
_WITHOUT_PRODUCTS = frozenset(_NAMES.split())
_MANY_AT_ONCE = re.compile(
    r"^aten::(?:_foreach_|_amp_foreach_|_fused_(?:adam|adamw|sgd|adagrad)_?$)|^Optimizer\.|^autograd::engine::"
    r"|^(?:c10d|_?c10d_functional(?:_autograd)?|_dtensor|fsdp|nccl|gloo)::?|^record_param_comms$"
    r"|^detach_?$"  # a range inside `aten::detach`
    r"|^(?:TorchDynamo Cache Lookup|Pregraph bytecode|AOTDispatcher Runtime Wrapper Prologue)$"
)
_ENDING = re.compile(r"(?:_backward(?:_data)?|_forward|_out|_impl|_interface)$")


def has_no_product(name: str) -> bool:
    """Return whether an operator is known to multiply no matrices, so that it counts as 0 FLOPs.

    >>> [has_no_product(f"aten::{name}") for name in ("embedding", "_softmax_backward_data", "add_", "mm", "einsum")]
    [True, True, True, False, False]
    >>> has_no_product("aten::_fused_adamw_"), has_no_product("detach"), has_no_product("mylib::attention")
    (True, True, False)
    >>> has_no_product("_c10d_functional::wait_tensor"), has_no_product("symm_mem::fused_all_gather_matmul")
    (True, False)
    >>> has_no_product("TorchDynamo Cache Lookup"), has_no_product("Torch-Compiled Region: 0/0")
    (True, False)
    """
    if _MANY_AT_ONCE.match(name):
        return True
    prefix, _, base = name.rpartition("::")
    return prefix == "aten" and _ENDING.sub("", base).strip("_") in _WITHOUT_PRODUCTS
