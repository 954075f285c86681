"""Find the sizes of convolutions where the arguments of operators were not recorded: by the gradient of the output.

The gradient that a convolution's backward gets has the shape of the forward's output. Autograd gives both the same
number, and the operator around the forward says whether it is a transposed one. Which gradients the backward then
computes is not known: that of the weight and that of the input are counted, so its FLOPs are an upper bound.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from math import prod
from typing import Any, Final

import msgspec
import numpy as np

from rankscope.measure.backward_links import find_backward
from rankscope.measure.flops import FORMULAS, Formula, Inputs, decode_inputs, expect, read_value
from rankscope.measure.kineto import NONE
from rankscope.measure.nesting import OUTSIDE
from rankscope.measure.rank_view import RankView

FORWARD: Final = "aten::convolution"
BACKWARD: Final = "aten::convolution_backward"
_PLAIN = re.compile(r"^aten::conv\dd$")
_TRANSPOSED = re.compile(r"^aten::conv_transpose\dd$")


def find_positions(view: RankView) -> dict[int, bytes]:
    """Return by row of a convolution, forward or backward, how often its weights are applied to a sample, as the JSON
    of a list of this number in a text: so `count_flops` gets the values of arguments. Rows of which it is not known are
    left out. A forward without a backward of its own, as a recomputed one, is as those of the same shapes, if these
    agree.
    """
    found: dict[int, int] = {}
    alike: dict[object, set[int]] = defaultdict(set)
    for backward, forward in _link(view):
        gradient, *inputs = _read_shapes(view, backward)[:3] or [[]]
        kind = _find_kind(view, forward)
        if kind is not None and inputs and inputs == _read_shapes(view, forward)[:2]:
            found[backward] = found[forward] = prod((inputs[0] if kind is _TRANSPOSED else gradient)[2:])
            alike[kind, str(inputs)].add(found[forward])
    for row in view.trace.rows_named(view.host.operator_rows, FORWARD.__eq__).tolist():
        others = alike[_find_kind(view, row), str(_read_shapes(view, row)[:2])] if row not in found else set()
        if len(others) == 1:
            found[row] = next(iter(others))
    return {row: msgspec.json.encode([str(positions)]) for row, positions in found.items()}


def _link(view: RankView) -> list[tuple[int, int]]:
    """Return the rows of the backwards of convolutions, each with that of its forward, as far as both are there."""
    nodes, forward = find_backward(view)
    rows = view.trace.rows_named(view.host.operator_rows, BACKWARD.__eq__)
    inside = view.host.nest_rows(nodes).find_innermost(view.events.thread[rows], view.events.start_ns[rows])
    known = np.flatnonzero(inside != OUTSIDE)
    pairs = zip(rows[known].tolist(), forward[inside[known]].tolist(), strict=True)
    return [(row, of) for row, of in pairs if of != NONE and view.trace.name(of) == FORWARD]


def _find_kind(view: RankView, row: int) -> re.Pattern[str] | None:
    """Return which kind of convolution this forward is, by the operator around it."""
    rows, nesting = view.host.operator_rows, view.host.operators
    around = nesting.parent[np.searchsorted(rows, row)]
    name = "" if around == OUTSIDE else view.trace.name(int(rows[around]))
    return next((kind for kind in (_PLAIN, _TRANSPOSED) if kind.match(name)), None)


def _read_shapes(view: RankView, row: int) -> list[Any]:
    recorded = view.trace.shapes.get(row)
    return [] if recorded is None else list(decode_inputs(recorded).shapes)


def _apply_weights(first: int, times: int) -> Formula:
    """Return the formula of a convolution whose input and weights begin at this place, made so many times."""

    def count(inputs: Inputs) -> int:
        positions = read_value(inputs, 0)
        x, weight = inputs.shapes[first : first + 2]
        expect(len(x) == len(weight))
        flops: int = times * 2 * x[0] * positions * prod(weight)
        return flops

    return Formula(count, first)


HOST_FORMULAS: Mapping[str, Formula] = {**FORMULAS, FORWARD: _apply_weights(0, 1), BACKWARD: _apply_weights(1, 2)}
"""Those for rows that have the values of `find_positions`."""
