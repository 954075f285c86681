"""Count the FLOPs of one training step of a live run, from a profiler window that was recorded with shapes.

    model FLOPs      3 x those of the forward's products (PaLM, appendix B: https://arxiv.org/abs/2204.02311)
    executed FLOPs   as run: forward, recomputed and backward

Both are those of `collector/traces/model_profile.py`, for one step instead of a whole trace. There is no figure where
it could be wrong: a product that could not be counted, work with 5 % of the time or more that may hold products, or
steps that differ.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from rankscope.measure.counted_operators import (
    BACKWARD,
    FORWARD,
    PHASES,
    RECOMPUTE,
    CountedOperators,
    ProfiledWindow,
    find_counted,
)
from rankscope.measure.device_peaks import name_number_type
from rankscope.measure.flops import FORMULAS, VALUE_OPERATORS
from rankscope.measure.host_convolutions import BACKWARD as BACKWARD_CONVOLUTION
from rankscope.measure.host_convolutions import HOST_FORMULAS, find_positions
from rankscope.measure.kineto import Ints, ReadOptions
from rankscope.measure.rank_view import RankView
from rankscope.measure.records import WindowFlops
from rankscope.measure.uncounted_operators import UncountedOperator, find_uncounted_operators
from rankscope.measure.unseen_products import find_unseen_products

TRAINING_FACTOR: Final = 3
"""Model FLOPs of a training step over those of its forward."""
READ_OPTIONS: Final = ReadOptions(every_shape=True, values_of=VALUE_OPERATORS, autograd=True)
"""Of a file in which FLOPs are to be counted."""
NO_STEP: Final = "no step was recorded whole"
NO_PRODUCTS: Final = "no products were counted"
NAMES_MAX: Final = 3
"""How many operators a reason names."""


def count_window_flops(
    view: RankView, steps: Sequence[tuple[int, int, int]], *, host_only: bool = False
) -> WindowFlops:
    """Return the FLOPs of a step. `steps` are number, start and end (ns, of the view's clock), in order, of those that
    were recorded whole; what the host began outside of them does not count. The view has the shapes of operators with a
    formula, the values of convolutions, and the numbers of autograd. With `host_only` a device did the work, and is not
    in the view; neither are the types of numbers.
    """
    if not steps:
        return WindowFlops(first_step=0, step_count=0, reason=NO_STEP)
    first_step, count = steps[0][0], len(steps)
    start_ns, end_ns = steps[0][1], steps[-1][2]
    window = ProfiledWindow(start_ns, end_ns, end_ns - start_ns, count)
    if host_only:
        view = _add_positions(view)
    counted = find_counted(view, window, HOST_FORMULAS if host_only else FORMULAS)
    sums = _sum_by_step(view, counted, steps)
    find_others = find_unseen_products if host_only else find_uncounted_operators
    reason = _find_reason(find_others(view, window, counted), sums)
    if reason is not None:
        return WindowFlops(first_step=first_step, step_count=count, reason=reason)
    flops = sums[0].tolist()
    return WindowFlops(
        first_step=first_step,
        step_count=count,
        model_flops=(TRAINING_FACTOR if flops[BACKWARD] else 1) * flops[FORWARD],
        executed_flops=sum(flops),
        number_types={} if host_only else find_shares(_sum_by_type(view, counted, (start_ns, end_ns))),
        is_upper_bound=not view.has_device
        and (bool(flops[RECOMPUTE]) or (host_only and _has_convolutions(view, counted))),
    )


def _add_positions(view: RankView) -> RankView:
    addresses = {**view.trace.addresses, **find_positions(view)}
    return RankView(replace(view.trace, addresses=addresses), has_unknown_device=True)


def _has_convolutions(view: RankView, counted: CountedOperators) -> bool:
    return any(view.trace.name(row) == BACKWARD_CONVOLUTION for row in counted.row.tolist())


def _sum_by_step(view: RankView, counted: CountedOperators, steps: Sequence[tuple[int, int, int]]) -> Ints:
    """Return the FLOPs of each step (rows) and phase (columns)."""
    starts_ns, ends_ns = np.array([start for _, start, _ in steps]), np.array([end for _, _, end in steps])
    begun_ns = view.events.start_ns[counted.row]
    step = np.searchsorted(starts_ns, begun_ns, side="right") - 1
    inside = (step >= 0) & (begun_ns < ends_ns[step])
    flops = np.array([one.flops or 0 for one in counted.found], dtype=np.int64)
    sums = np.zeros((len(steps), len(PHASES)), dtype=np.int64)
    np.add.at(sums, (step[inside], counted.phase[inside]), flops[inside])
    return sums


def _sum_by_type(view: RankView, counted: CountedOperators, bounds_ns: tuple[int, int]) -> dict[str, list[int]]:
    """Return the FLOPs of each phase by the type of their numbers, of what begins within these bounds."""
    by_type: dict[str, list[int]] = defaultdict(lambda: [0] * len(PHASES))
    begun_ns = view.events.start_ns[counted.row]
    inside = (begun_ns >= bounds_ns[0]) & (begun_ns < bounds_ns[1])
    for at in np.flatnonzero(inside).tolist():
        dtype = counted.found[at].dtype or ""
        name = name_number_type(dtype, on_tensor_cores=bool(counted.on_tensor_cores[at])) or dtype
        by_type[name][counted.phase[at]] += counted.found[at].flops or 0
    return by_type


def find_shares(by_type: Mapping[str, Sequence[int]]) -> dict[str, tuple[float, float]]:
    """Return the shares of the forward's FLOPs, which are those of the model's, and of all, by type; of FLOPs by type
    and phase. Types without any are left out; without a forward both shares are of all.

    >>> find_shares({"bf16": [30, 0, 60], "fp32": [10, 0, 0], "int8": [0, 0, 0]})
    {'bf16': (0.75, 0.9), 'fp32': (0.25, 0.1)}
    """
    executed = {name: sum(flops) for name, flops in by_type.items() if sum(flops)}
    forward = {name: by_type[name][FORWARD] for name in executed}
    model = forward if sum(forward.values()) else executed
    return {name: (model[name] / sum(model.values()), executed[name] / sum(executed.values())) for name in executed}


def _find_reason(uncounted: Sequence[UncountedOperator], sums: Ints) -> str | None:
    """Return why there is no figure, None where there is one."""
    if uncounted:
        names = [f"{one.operator} ({one.reason})" for one in uncounted[:NAMES_MAX]]
        more = len(uncounted) - len(names)
        return f"products may be missing, of {', '.join(names)}{f' and {more} more' if more else ''}"
    if not sums.any():
        return NO_PRODUCTS
    if (sums != sums[0]).any():
        totals = sums.sum(axis=1)
        return f"the steps of the window differ: {int(totals.min()):,} to {int(totals.max()):,} FLOPs"
    return None
