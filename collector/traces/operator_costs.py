"""Count the floating-point operations of operators, and the bytes that they must move, from the shapes of their inputs.

A multiplication and an addition are two operations; only those of products count, as in torch.utils.flop_counter, with
which the counts are compared in a test (for grouped convolutions its count for weights is higher, by the groups). The
bytes are the least that can be: each input read once, each output written once. Attention counts the whole product,
also where a mask leaves a part of it out.

    product      (m, k) (k, n)                    2 m k n
    convolution  x (N, C, *in), w (O, C/g, *k)    2 N prod(out) prod(w); transposed: prod(in) for prod(out)
    its backward                                  the same for each of the gradients of x and w
    attention    q (b, h, s, d), k, v (., ., t, e)  2 b h s t (d + e)
    its backward                                  2 b h s t (3 d + 2 e): scores, gradients of scores, v, q and k
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import msgspec

from rankscope.measure.communication import item_bytes

NO_SHAPES = "no shapes recorded"
NO_FORMULA = "no formula"
NO_VALUES = "arguments not recorded"
NOT_UNDERSTOOD = "inputs not understood"

Shape = Sequence[int]


class Cost(NamedTuple):
    """Operations and least bytes of one call; `reason` says why one of them is not known. `dtype` is that of the first
    input.
    """

    flops: int | None
    bytes: int | None
    dtype: str | None = None
    reason: str | None = None


class Inputs(NamedTuple):
    """Recorded inputs of one call. `values` are the texts of the values of scalars, empty where none were recorded."""

    types: Sequence[str]
    shapes: Sequence[Shape]
    values: Sequence[str] = ()


class _Work(NamedTuple):
    """What a formula finds: operations, None where products are not what the operator does; elements read beside the
    inputs or written, each of the size of the first input; `reads_inputs`: each input is read once.
    """

    flops: int | None
    other_elements: int
    reads_inputs: bool = True


class _NotRecordedError(Exception):
    """The values that the formula needs are not in the trace."""


Formula = Callable[[Inputs], _Work]


def _product(first: int) -> Formula:
    """Return the formula of a product of the inputs at this place and the next, with or without a batch."""

    def count(inputs: Inputs) -> _Work:
        left, right = inputs.shapes[first], inputs.shapes[first + 1]
        *batch, rows, inner = left
        *other_batch, other_inner, columns = right
        _expect(len(batch) <= 1 and batch == other_batch and inner == other_inner)
        return _Work(2 * prod(batch) * rows * inner * columns, prod(batch) * rows * columns)

    return count


def _count_convolution(inputs: Inputs) -> _Work:
    x, weight = inputs.shapes[0], inputs.shapes[1]
    stride, padding, dilation, is_transposed, output_padding, groups = map(_read, inputs.values[3:9])
    _expect(len(x) == len(weight) and len(x) > 2)  # noqa: PLR2004 - batch, channels and one dimension at least
    sizes = zip(x[2:], weight[2:], stride, padding, dilation, output_padding, strict=True)
    if is_transposed:
        out = [(size - 1) * step - 2 * pad + gap * (k - 1) + extra + 1 for size, k, step, pad, gap, extra in sizes]
    else:
        out = [(size + 2 * pad - gap * (k - 1) - 1) // step + 1 for size, k, step, pad, gap, _ in sizes]
    channels = weight[1] * groups if is_transposed else weight[0]
    positions = prod(x[2:]) if is_transposed else prod(out)
    return _Work(2 * x[0] * positions * prod(weight), x[0] * channels * prod(out))


def _count_convolution_backward(inputs: Inputs) -> _Work:
    gradient, x, weight = inputs.shapes[:3]
    is_transposed, (of_x, of_weight, _) = _read(inputs.values[7]), _read(inputs.values[10])
    _expect(len(gradient) == len(x) == len(weight))
    positions = prod(x[2:] if is_transposed else gradient[2:])
    once = 2 * x[0] * positions * prod(weight)
    # For x the weight is read and x written, for the weight the other way round: the same elements.
    elements = prod(gradient) + (of_x + of_weight) * (prod(x) + prod(weight))
    return _Work(once * (of_x + of_weight), elements, reads_inputs=False)


def _attention(first: int, per_query: int, per_value: int) -> Formula:
    """Return the formula of attention whose q, k and v, (batch, heads, length, width), begin at this input: so many
    products over the width of a query, and so many over that of a value.
    """

    def count(inputs: Inputs) -> _Work:
        q, k, v = inputs.shapes[first : first + 3]
        batch, heads, length, width = q
        _expect(k[0] == batch and k[2] == v[2] and k[3] == width)
        flops = 2 * batch * heads * length * k[2] * (per_query * width + per_value * v[3])
        written = prod(q) + prod(k) + prod(v) if first else batch * heads * length * v[3]
        return _Work(flops, written)

    return count


def _count_pointwise(inputs: Inputs) -> _Work:
    """Count the output of an operator whose inputs are broadcast to it."""
    shapes = [shape for shape in inputs.shapes if shape]
    rank = max(map(len, shapes))
    padded = [[1] * (rank - len(shape)) + list(shape) for shape in shapes]
    sizes = [set(column) - {1} for column in zip(*padded, strict=True)]
    _expect(all(len(size) <= 1 for size in sizes))
    return _Work(None, prod(next(iter(size), 1) for size in sizes))


def _count_like_first(inputs: Inputs) -> _Work:
    """Count the output of an operator that has the shape of its first input."""
    return _Work(None, prod(inputs.shapes[0]))


def _count_copy(_: Inputs) -> _Work:
    """Count nothing beside the inputs: the first is written, the second read."""
    return _Work(None, 0)


def _expect(holds: bool) -> None:  # noqa: FBT001 - the condition itself
    if not holds:
        raise ValueError(NOT_UNDERSTOOD)


def _read(value: str) -> Any:
    """Return a recorded value: `[1, 1]`, `2`, `True`, `[True, False]`."""
    if not value:
        raise _NotRecordedError
    return msgspec.json.decode(value.replace("True", "true").replace("False", "false"))


_POINTWISE = (
    "add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_", "neg", "exp", "sqrt", "rsqrt", "tanh", "sigmoid",
    "relu", "relu_", "gelu", "silu", "silu_", "threshold_backward", "gelu_backward", "silu_backward",
)  # fmt: skip
_LIKE_FIRST = (
    "_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data", "native_layer_norm",
    "native_layer_norm_backward", "native_batch_norm", "native_batch_norm_backward", "cudnn_batch_norm",
    "cudnn_batch_norm_backward", "miopen_batch_norm", "miopen_batch_norm_backward",
)  # fmt: skip
_FORMULAS: Mapping[str, Formula] = {
    **{f"aten::{name}": _product(0) for name in ("mm", "bmm", "_scaled_mm", "_int_mm")},
    **{f"aten::{name}": _product(1) for name in ("addmm", "baddbmm", "_addmm_activation")},
    "aten::convolution": _count_convolution,
    "aten::convolution_backward": _count_convolution_backward,
    **{
        f"aten::_scaled_dot_product_{kind}_attention{suffix}": formula
        for kind, device in (("flash", "_for_cpu"), ("flash", ""), ("efficient", ""), ("cudnn", ""))
        for suffix, formula in (
            (device, _attention(0, 1, 1)),
            (f"{device}_backward", _attention(1, 3, 2)),
        )
    },
    **{f"aten::{name}": _count_pointwise for name in _POINTWISE},
    **{f"aten::{name}": _count_like_first for name in _LIKE_FIRST},
    "aten::copy_": _count_copy,
}
OPERATORS = frozenset(_FORMULAS)
VALUE_OPERATORS = frozenset({"aten::convolution", "aten::convolution_backward"})
"""Operators whose formula needs values beside the shapes."""


def count_cost(name: str, recorded: tuple[bytes, bytes] | None, values: bytes | None = None) -> Cost:
    """Return the cost of a call with these inputs, the JSON of `Input type` and `Input Dims`; `values` is the JSON of
    `Concrete Inputs`.

    >>> count_cost("aten::mm", (b'["float", "float"]', b"[[2, 3], [3, 4]]"))
    Cost(flops=48, bytes=104, dtype='float', reason=None)
    >>> count_cost("aten::mm", None).reason
    'no shapes recorded'
    """
    formula = _FORMULAS.get(name)
    if formula is None:
        return Cost(None, None, reason=NO_FORMULA)
    if recorded is None:
        return Cost(None, None, reason=NO_SHAPES)
    if values is None and name in VALUE_OPERATORS:
        return Cost(None, None, reason=NO_VALUES)
    try:
        inputs = Inputs(*(msgspec.json.decode(text, type=kind) for text, kind in zip(recorded, _JSON, strict=True)))
        if values is not None:
            inputs = inputs._replace(values=msgspec.json.decode(values, type=list[str]))
        return _find_cost(inputs, formula(inputs))
    except _NotRecordedError:
        return Cost(None, None, reason=NO_VALUES)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, TypeError, IndexError):
        return Cost(None, None, reason=NOT_UNDERSTOOD)


_JSON = (list[str], list[list[int]])


def _find_cost(inputs: Inputs, work: _Work) -> Cost:
    dtype = inputs.types[0]
    size = item_bytes(dtype)
    read = [(item_bytes(kind), prod(shape)) for kind, shape in zip(inputs.types, inputs.shapes, strict=True) if shape]
    if size is None or any(of is None for of, _ in read):
        return Cost(work.flops, None, dtype, f"size of a type not known: {', '.join(inputs.types)}")
    read_bytes = sum((of or 0) * count for of, count in read) if work.reads_inputs else 0
    return Cost(work.flops, read_bytes + work.other_elements * size, dtype)
