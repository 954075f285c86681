"""Find the operators whose products count in a trace, with their FLOPs, phase and time.

Of operators with a formula the innermost ones count. What runs inside a backward operator is backward, but for forward
operators that autograd gave a number there: these repeat a forward (activation checkpointing), as gradients are not
recorded while a backward runs. On a device only operators count under which a computing kernel was launched: of a
recomputation that stops early the last operator is in the trace and has computed nothing.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rankscope.measure.backward_links import find_backward
from rankscope.measure.flops import NO_SHAPES, NOT_UNDERSTOOD, CallFlops, Formula, count_flops, decode_inputs
from rankscope.measure.kineto import NONE, Ints
from rankscope.measure.nesting import OUTSIDE, Nesting
from rankscope.measure.rank_view import Bools, RankView
from rankscope.measure.tensor_cores import uses_tensor_cores

FORWARD, RECOMPUTE, BACKWARD = 0, 1, 2
PHASES = ("forward", "recompute", "backward")
_NODE = re.compile(r"Backward\d*$")
"""Nodes of autograd: traces of 2021 have no ranges of the engine around them."""


class ProfiledWindow(NamedTuple):
    """What of a trace is counted: what the host began from the start up to, not including, the end. `length_ns` is that
    of the steps, by the device's clock where they have bounds by it; without steps that of all work.
    """

    start_ns: int
    end_ns: int
    length_ns: int
    step_count: int | None

    def select(self, times_ns: Ints) -> Bools:
        """Return which of these times are in the window."""
        selected: Bools = (times_ns >= self.start_ns) & (times_ns < self.end_ns)
        return selected


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """Computing kernels launched in the window: the operator that each belongs to (the innermost one around its launch,
    by place; OUTSIDE for none), the row of its launch, its length, and whether it runs on tensor cores.
    """

    inside: Ints
    call: Ints
    length_ns: Ints
    on_tensor_cores: Bools


@dataclass(frozen=True, slots=True)
class CountedOperators:
    """Operators whose products count, as columns of equal length: the place in the nesting of operators, the row of
    the event, the phase, what is known of the FLOPs, the time (ns, zeros where it is not known), and whether most of it
    was on tensor cores. `owner` has by place the counted operator in or at which an operator is, else OUTSIDE.
    `skipped` are those that launched no kernel, by name; `kernels` are None without a device.
    """

    place: Ints
    row: Ints
    phase: Ints
    found: list[CallFlops]
    time_ns: Ints
    on_tensor_cores: Bools
    owner: Ints
    skipped: Mapping[str, int]
    kernels: KernelTimes | None


def find_counted(view: RankView, window: ProfiledWindow, formulas: Mapping[str, Formula]) -> CountedOperators:
    """Return the operators in the window that count. The trace was read with every shape, the values of convolutions
    and of operators with formulas of their own, and the links of autograd.
    """
    nesting, rows = view.host.operators, view.host.operator_rows
    place = find_innermost_places(view, formulas.__contains__)
    is_counted = np.zeros(len(rows), dtype=bool)
    is_counted[place] = True
    owner = _inherit(nesting, lambda level, above: np.where(is_counted[level], level, above), OUTSIDE)
    kernels = _find_kernels(view, window) if view.has_device else None
    place = place[window.select(view.events.start_ns[rows[place]])]
    time_ns, on_tensor_cores = _sum_times(view, kernels, owner, rows)
    skipped: Counter[str] = Counter()
    if kernels is not None:
        launched = np.isin(place, owner[kernels.inside[kernels.inside != OUTSIDE]])
        skipped.update(view.trace.name(row) for row in rows[place[~launched]].tolist())
        place = place[launched]
    return CountedOperators(
        place, rows[place], _find_phases(view)[place], _count_each(view, rows[place], formulas), time_ns[place],
        on_tensor_cores[place], owner, skipped, kernels,
    )  # fmt: skip


def find_innermost_places(view: RankView, matches: Callable[[str], object]) -> Ints:
    """Return the places of those operators with such a name that have no other of them inside: a DTensor's outer
    product has global shapes, of which this rank multiplies a part, in the inner one.
    """
    nesting = view.host.operators
    places = np.flatnonzero(view.trace.names_like(matches)[view.events.name[view.host.operator_rows]])
    is_outer = np.zeros(len(view.host.operator_rows), dtype=bool)
    above = np.unique(nesting.parent[places])
    while len(above := above[above != OUTSIDE]):
        is_outer[above] = True
        above = np.unique(nesting.parent[above])
    return places[~is_outer[places]]


def _inherit(nesting: Nesting, find: Callable[[Ints, Ints], Ints], outside: int) -> Ints:
    """Return a value for each range, found from the outermost inwards: by `find` from the ranges of one depth and the
    values of those around them, `outside` for none.
    """
    values = np.full(len(nesting.parent), outside, dtype=np.int64)
    for level in nesting.levels():
        above = nesting.parent[level]
        values[level] = find(level, np.where(above == OUTSIDE, outside, values[above]))
    return values


def _find_phases(view: RankView) -> Ints:
    """Return the phase of each operator."""
    rows = view.host.operator_rows
    is_backward = np.isin(rows, find_backward(view)[0])
    is_backward |= view.trace.names_like(_NODE.search)[view.events.name[rows]]
    has_number = np.zeros(len(rows), dtype=bool)
    if view.trace.autograd is not None:
        forward = view.trace.autograd.row[view.trace.autograd.forward_thread <= 0]
        has_number = np.isin(rows, forward) & ~is_backward

    def find(level: Ints, above: Ints) -> Ints:
        repeated = np.where(has_number[level] & (above == BACKWARD), RECOMPUTE, above)
        return np.where(is_backward[level], BACKWARD, repeated)

    return _inherit(view.host.operators, find, FORWARD)


def _count_each(view: RankView, rows: Ints, formulas: Mapping[str, Formula]) -> list[CallFlops]:
    """Return the FLOPs of these calls; calls with the same inputs are counted once."""
    known: dict[tuple[str, tuple[bytes, bytes] | None, bytes | None], CallFlops] = {}
    found = []
    for row in rows.tolist():
        key = (view.trace.name(row), view.trace.shapes.get(row), view.trace.addresses.get(row))
        if key not in known:
            known[key] = _count_one(*key, formulas)
        found.append(known[key])
    return found


def _count_one(
    name: str, recorded: tuple[bytes, bytes] | None, values: bytes | None, formulas: Mapping[str, Formula]
) -> CallFlops:
    if recorded is None:
        return CallFlops(None, reason=NO_SHAPES)
    try:
        return count_flops(name, decode_inputs(recorded, values), formulas)
    except ValueError:
        return CallFlops(None, reason=NOT_UNDERSTOOD)


# -- times ------------------------------------------------------------------------------------------------------------


def _find_kernels(view: RankView, window: ProfiledWindow) -> KernelTimes:
    work, launch = view.work, view.launch
    kernels = np.flatnonzero(work.is_kernel & ~work.is_communication & (launch != NONE))
    kernels = kernels[window.select(view.events.start_ns[launch[kernels]])]
    call = launch[kernels]
    inside = view.host.operators.find_innermost(view.events.thread[call], view.events.start_ns[call])
    on_tensor_cores = view.trace.names_like(uses_tensor_cores)[work.name[kernels]]
    return KernelTimes(inside, call, (work.end_ns - work.start_ns)[kernels], on_tensor_cores)


def _sum_times(
    view: RankView, kernels: KernelTimes | None, owner: Ints, rows: Ints
) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Return by place the time of an operator, and whether most of it was on tensor cores."""
    if kernels is None:
        known = not view.has_unknown_device
        return view.events.duration_ns[rows] if known else np.zeros(len(rows), np.int64), np.zeros(len(rows), bool)
    time_ns, tensor_ns = np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=np.int64)
    inside = np.flatnonzero(kernels.inside != OUTSIDE)
    owners = owner[kernels.inside[inside]]
    inside, owners = inside[owners != OUTSIDE], owners[owners != OUTSIDE]
    np.add.at(time_ns, owners, kernels.length_ns[inside])
    np.add.at(tensor_ns, owners, kernels.length_ns[inside] * kernels.on_tensor_cores[inside])
    return time_ns, 2 * tensor_ns > time_ns
