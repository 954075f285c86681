"""Find the operators whose FLOPs are not known, with the share of the time that they took."""

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import numpy as np

from rankscope.measure.counted_operators import CountedOperators, KernelTimes, ProfiledWindow
from rankscope.measure.flops import NO_FORMULA, has_no_product
from rankscope.measure.kineto import Ints
from rankscope.measure.nesting import OUTSIDE
from rankscope.measure.rank_view import RankView

TIME_RATIO_MIN = 0.05
"""Share of the computing time from which an operator without a formula is listed."""
OUTSIDE_OPERATORS = "outside of operators: products in it, as of a replayed CUDA graph, are not counted"


class UncountedOperator(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of an operator whose FLOPs are not in the sums: of one with a formula always, with the `reason`; of others
    where they have 5 % of the time or more and are not known to be without products. `time_ratio` is of all computing
    time.
    """

    operator: str
    reason: str
    count: int
    time_ns: int | None
    time_ratio: float | None


class _Key(NamedTuple):
    operator: str
    reason: str


def find_uncounted_operators(
    view: RankView, window: ProfiledWindow, counted: CountedOperators
) -> list[UncountedOperator]:
    """Return the operators that are not in the sums, the most time first: those with a formula that could not be used,
    and others with TIME_RATIO_MIN of the computing time or more that are not known to be without products.
    """
    if counted.kernels is not None:
        others, total_ns = _sum_kernels(view, counted, counted.kernels)
    else:
        others, total_ns = _sum_leaves(view, window, counted)
    has_times = view.has_device or not view.has_unknown_device
    long = {key: sums for key, sums in others.items() if sums[1] >= TIME_RATIO_MIN * total_ns and total_ns}
    rows = [
        UncountedOperator(
            operator=key.operator,
            reason=key.reason,
            count=count,
            time_ns=time_ns if has_times else None,
            time_ratio=time_ns / total_ns if has_times and total_ns else None,
        )
        for key, (count, time_ns) in {**_sum_failed(view, counted), **long}.items()
    ]
    return sorted(rows, key=lambda row: (-(row.time_ns or 0), row.operator, row.reason))


_Sums = Mapping[_Key, list[int]]
"""Calls and ns."""


def _sum_failed(view: RankView, counted: CountedOperators) -> _Sums:
    sums: dict[_Key, list[int]] = defaultdict(lambda: [0, 0])
    for row, found, time_ns in zip(counted.row.tolist(), counted.found, counted.time_ns.tolist(), strict=True):
        if found.reason is not None:
            one = sums[_Key(view.trace.name(row), found.reason)]
            one[0], one[1] = one[0] + 1, one[1] + time_ns
    return sums


def _sum_kernels(view: RankView, counted: CountedOperators, kernels: KernelTimes) -> tuple[_Sums, int]:
    """Return the kernels that are in no counted operator, by the innermost operator around their launch, and without
    one by the launching call; and the time of all kernels.
    """
    sums: dict[_Key, list[int]] = defaultdict(lambda: [0, 0])
    calls: dict[_Key, set[int]] = defaultdict(set)
    inside = kernels.inside
    outside = (inside == OUTSIDE) | (counted.owner[inside] == OUTSIDE) if len(counted.owner) else inside == OUTSIDE
    for kernel in np.flatnonzero(outside).tolist():
        row = int(view.host.operator_rows[inside[kernel]] if inside[kernel] != OUTSIDE else kernels.call[kernel])
        key = _Key(view.trace.name(row), NO_FORMULA if inside[kernel] != OUTSIDE else OUTSIDE_OPERATORS)
        if not has_no_product(key.operator):
            calls[key].add(row)
            sums[key][1] += int(kernels.length_ns[kernel])
    for key, rows in calls.items():
        sums[key][0] = len(rows)
    return sums, int(kernels.length_ns.sum())


def _sum_leaves(view: RankView, window: ProfiledWindow, counted: CountedOperators) -> tuple[_Sums, int]:
    """Return the operators of a CPU that are in no counted one and have no other inside them; and the time of all."""
    rows, nesting = view.host.operator_rows, view.host.operators
    mine = window.select(view.events.start_ns[rows]) & np.isin(rows, view.host.compute_rows)
    own_ns = nesting.self_ns()
    has_inner = np.zeros(len(rows), dtype=bool)
    has_inner[nesting.parent[nesting.parent != OUTSIDE]] = True
    leaves: Ints = np.flatnonzero(mine & ~has_inner & (counted.owner == OUTSIDE))
    sums: dict[_Key, list[int]] = defaultdict(lambda: [0, 0])
    for row, time_ns in zip(rows[leaves].tolist(), own_ns[leaves].tolist(), strict=True):
        if not has_no_product(view.trace.name(row)):
            one = sums[_Key(view.trace.name(row), NO_FORMULA)]
            one[0], one[1] = one[0] + 1, one[1] + time_ns
    return sums, int(own_ns[mine].sum())
