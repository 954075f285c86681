"""Count the FLOPs of one training step of a live run, from a profiler window that was recorded with shapes.

    model FLOPs      3 x those of the forward's products (PaLM, appendix B: https://arxiv.org/abs/2204.02311)
    executed FLOPs   as run: forward, recomputed and backward

Both are those of `collector/traces/model_profile.py`, for one step instead of a whole trace. There is no figure where
it could be wrong: a product that could not be counted, work with 5 % of the time or more that may hold products, or
steps that differ.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
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
from rankscope.measure.flops import FORMULAS
from rankscope.measure.kineto import Ints
from rankscope.measure.rank_view import RankView
from rankscope.measure.uncounted_operators import UncountedOperator, find_uncounted_operators

TRAINING_FACTOR: Final = 3
"""Model FLOPs of a training step over those of its forward."""
NO_STEP: Final = "no step was recorded whole"
NO_PRODUCTS: Final = "no products were counted"
NAMES_MAX: Final = 3
"""How many operators a reason names."""


class StepFlops(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The FLOPs (2 for a multiply-accumulate) of each of `step_count` steps from `first_step` on, or the `reason` why
    they are not known. Without a backward model FLOPs are those of the forward. With `is_upper_bound` a recomputation
    may have stopped before its last product, which a window of a CPU does not show: executed FLOPs are at most this.
    """

    first_step: int
    step_count: int
    model_flops: int | None = None
    executed_flops: int | None = None
    is_upper_bound: bool = False
    reason: str | None = None


def count_step_flops(view: RankView, steps: Sequence[tuple[int, int, int]]) -> StepFlops:
    """Return the FLOPs of a step. `steps` are number, start and end (ns, of the view's clock), in order, of those that
    were recorded whole; what the host began outside of them does not count. The view has the shapes of operators with a
    formula, the values of convolutions, and the numbers of autograd.
    """
    if not steps:
        return StepFlops(first_step=0, step_count=0, reason=NO_STEP)
    first_step, count = steps[0][0], len(steps)
    start_ns, end_ns = steps[0][1], steps[-1][2]
    window = ProfiledWindow(start_ns, end_ns, end_ns - start_ns, count)
    counted = find_counted(view, window, FORMULAS)
    sums = _sum_by_step(view, counted, steps)
    reason = _find_reason(find_uncounted_operators(view, window, counted), sums)
    if reason is not None:
        return StepFlops(first_step=first_step, step_count=count, reason=reason)
    flops = sums[0].tolist()
    return StepFlops(
        first_step=first_step,
        step_count=count,
        model_flops=(TRAINING_FACTOR if flops[BACKWARD] else 1) * flops[FORWARD],
        executed_flops=sum(flops),
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
