"""Count the FLOPs of one training step of a live run, from a profiler window that was recorded with shapes.

    model FLOPs      3 x those of the forward's products (PaLM, appendix B: https://arxiv.org/abs/2204.02311)
    executed FLOPs   as run: forward, recomputed and backward

Both are those of `collector/traces/model_profile.py`, for one step instead of a whole trace. There is no figure where
it could be wrong: a product that could not be counted, work with 5 % of the time or more that may hold products, or
steps that differ.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

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
from rankscope.measure.kineto import Ints
from rankscope.measure.rank_view import RankView
from rankscope.measure.records import WindowFlops
from rankscope.measure.uncounted_operators import UncountedOperator, find_uncounted_operators
from rankscope.measure.unseen_products import find_unseen_products

TRAINING_FACTOR: Final = 3
"""Model FLOPs of a training step over those of its forward."""
READ_OPTIONS: Final[Mapping[str, Any]] = {"every_shape": True, "values_of": VALUE_OPERATORS, "autograd": True}
"""Options of `kineto_columns.read_trace` for a file in which FLOPs are to be counted."""
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
    in the view.
    """
    if not steps:
        return WindowFlops(first_step=0, step_count=0, reason=NO_STEP)
    first_step, count = steps[0][0], len(steps)
    start_ns, end_ns = steps[0][1], steps[-1][2]
    window = ProfiledWindow(start_ns, end_ns, end_ns - start_ns, count)
    counted = find_counted(view, window, FORMULAS)
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
        number_type=_find_number_type(counted),
        is_upper_bound=bool(flops[RECOMPUTE]) and not view.has_device,
    )


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


def _find_number_type(counted: CountedOperators) -> str | None:
    by_type: Counter[str | None] = Counter()
    for one, on_tensor_cores in zip(counted.found, counted.on_tensor_cores.tolist(), strict=True):
        by_type[name_number_type(one.dtype or "", on_tensor_cores=on_tensor_cores)] += one.flops or 0
    return by_type.most_common(1)[0][0]


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
