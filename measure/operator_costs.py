"""Count the bytes that operators must move, from the shapes of their inputs, beside their floating-point operations.

The operations are those of rankscope.measure.flops. The bytes are the least that can be: each input read once, each
output written once.
"""

from collections.abc import Callable, Mapping
from math import prod
from typing import NamedTuple

from rankscope.measure.communication import item_bytes
from rankscope.measure.flops import (
    FORMULAS,
    NO_FORMULA,
    NO_SHAPES,
    NO_VALUES,
    NOT_UNDERSTOOD,
    VALUE_OPERATORS,
    CallFlops,
    Inputs,
    NotRecordedError,
    broadcast,
    count_flops,
    decode_inputs,
    find_convolved_sizes,
    read_value,
)


class OperatorCost(NamedTuple):
    """Operations and least bytes of one call; `reason` says why one of them is not known. `dtype` is that of the first
    factor, else of the first input.
    """

    flops: int | None
    bytes: int | None
    dtype: str | None = None
    reason: str | None = None


class _Elements(NamedTuple):
    """Elements read beside the inputs or written, each of the size of the first input; `reads_inputs`: each input is
    read once.
    """

    other: int
    reads_inputs: bool = True


Measure = Callable[[Inputs], _Elements]


def _product(first: int) -> Measure:
    """Return the output of a product of the inputs at this place and the next, with or without a batch."""

    def measure(inputs: Inputs) -> _Elements:
        return _Elements(prod(inputs.shapes[first][:-1]) * inputs.shapes[first + 1][-1])

    return measure


def _measure_convolution(inputs: Inputs) -> _Elements:
    x, weight = inputs.shapes[:2]
    channels = weight[1] * read_value(inputs, 8) if read_value(inputs, 6) else weight[0]
    return _Elements(x[0] * channels * prod(find_convolved_sizes(inputs)))


def _measure_convolution_backward(inputs: Inputs) -> _Elements:
    gradient, x, weight = inputs.shapes[:3]
    of_x, of_weight, _ = read_value(inputs, 10)
    # For x the weight is read and x written, for the weight the other way round: the same elements.
    return _Elements(prod(gradient) + (of_x + of_weight) * (prod(x) + prod(weight)), reads_inputs=False)


def _measure_attention(inputs: Inputs) -> _Elements:
    (batch, heads, length, _), _, v = inputs.shapes[:3]
    return _Elements(batch * heads * length * v[3])


def _measure_attention_backward(inputs: Inputs) -> _Elements:
    return _Elements(sum(map(prod, inputs.shapes[1:4])))


def _measure_pointwise(inputs: Inputs) -> _Elements:
    """Return the output of an operator whose inputs are broadcast to it."""
    return _Elements(prod(broadcast([shape for shape in inputs.shapes if shape])))


def _measure_like_first(inputs: Inputs) -> _Elements:
    """Return the output of an operator that has the shape of its first input."""
    return _Elements(prod(inputs.shapes[0]))


def _measure_copy(_: Inputs) -> _Elements:
    """Return nothing beside the inputs: the first is written, the second read."""
    return _Elements(0)


_POINTWISE = (
    "add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_", "neg", "exp", "sqrt", "rsqrt", "tanh", "sigmoid",
    "relu", "relu_", "gelu", "silu", "silu_", "threshold_backward", "gelu_backward", "silu_backward",
)  # fmt: skip
_LIKE_FIRST = (
    "_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data", "native_layer_norm",
    "native_layer_norm_backward", "native_batch_norm", "native_batch_norm_backward", "cudnn_batch_norm",
    "cudnn_batch_norm_backward", "miopen_batch_norm", "miopen_batch_norm_backward",
)  # fmt: skip
_ELEMENTS: Mapping[str, Measure] = {
    **{f"aten::{name}": _product(0) for name in ("mm", "bmm", "_scaled_mm", "_int_mm")},
    **{f"aten::{name}": _product(1) for name in ("addmm", "baddbmm", "_addmm_activation")},
    "aten::convolution": _measure_convolution,
    "aten::convolution_backward": _measure_convolution_backward,
    **{
        f"aten::_scaled_dot_product_{kind}_attention{suffix}": measure
        for kind, device in (("flash", "_for_cpu"), ("flash", ""), ("efficient", ""), ("cudnn", ""))
        for suffix, measure in (
            (device, _measure_attention),
            (f"{device}_backward", _measure_attention_backward),
        )
    },
    **{f"aten::{name}": _measure_pointwise for name in _POINTWISE},
    **{f"aten::{name}": _measure_like_first for name in _LIKE_FIRST},
    "aten::copy_": _measure_copy,
}
OPERATORS = frozenset(_ELEMENTS)


def count_cost(name: str, recorded: tuple[bytes, bytes] | None, values: bytes | None = None) -> OperatorCost:
    """Return the cost of a call with these inputs, the JSON of `Input type` and `Input Dims`; `values` is the JSON of
    `Concrete Inputs`.

    >>> count_cost("aten::mm", (b'["float", "float"]', b"[[2, 3], [3, 4]]"))
    OperatorCost(flops=48, bytes=104, dtype='float', reason=None)
    >>> count_cost("aten::mm", None).reason
    'no shapes recorded'
    """
    if name not in _ELEMENTS:
        return OperatorCost(None, None, reason=NO_FORMULA)
    if recorded is None:
        return OperatorCost(None, None, reason=NO_SHAPES)
    if values is None and name in VALUE_OPERATORS:
        return OperatorCost(None, None, reason=NO_VALUES)
    try:
        return find_cost(name, decode_inputs(recorded, values))
    except (LookupError, ValueError, TypeError, ArithmeticError, AttributeError):
        return OperatorCost(None, None, reason=NOT_UNDERSTOOD)


def find_cost(name: str, inputs: Inputs) -> OperatorCost:
    """Return the cost of a call with these inputs.

    >>> find_cost("aten::relu", Inputs(["c10::Half"], [[8, 4]]))
    OperatorCost(flops=None, bytes=128, dtype='c10::Half', reason=None)
    """
    measure = _ELEMENTS.get(name)
    if measure is None:
        return OperatorCost(None, None, reason=NO_FORMULA)
    try:
        work = count_flops(name, inputs) if name in FORMULAS else CallFlops(None, inputs.types[0])
        return (
            _find_cost(inputs, work, measure(inputs))
            if work.reason is None
            else OperatorCost(None, None, reason=work.reason)
        )
    except NotRecordedError:
        return OperatorCost(None, None, reason=NO_VALUES)
    except (LookupError, ValueError, TypeError, ArithmeticError, AttributeError):
        return OperatorCost(None, None, reason=NOT_UNDERSTOOD)


def _find_cost(inputs: Inputs, work: CallFlops, elements: _Elements) -> OperatorCost:
    size = item_bytes(inputs.types[0])
    read = [(item_bytes(kind), prod(shape)) for kind, shape in zip(inputs.types, inputs.shapes, strict=True) if shape]
    if size is None or any(of is None for of, _ in read):
        return OperatorCost(work.flops, None, work.dtype, f"size of a type not known: {', '.join(inputs.types)}")
    read_bytes = sum((of or 0) * count for of, count in read) if elements.reads_inputs else 0
    return OperatorCost(work.flops, read_bytes + elements.other * size, work.dtype)
