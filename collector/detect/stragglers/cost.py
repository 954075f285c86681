"""What a slowness costs: the step as it was against what it would have been (docs/definitions.md section 4)."""

from typing import NamedTuple

import numpy as np

from rankscope.collector.detect.stragglers.persistent import Slow
from rankscope.collector.detect.view import RunView
from rankscope.collector.steps.step_series import Floats
from rankscope.measure.units import ns_to_s


class Cost(NamedTuple):
    """`run_slowdown_ratio`: median step over ideal step, of an intermittent slowness the means. `lost_rank_seconds`: of
    the steps looked at, all ranks together (on GPUs with one rank each: GPU-seconds). `lost_rank_hours_per_hour` at the
    present pace.
    """

    run_slowdown_ratio: float
    lost_rank_seconds: float
    lost_rank_hours_per_hour: float


def lost_to(slow: Slow, view: RunView) -> Floats:
    """What each step lost to one straggler since it is slow, shape (n,) in ns; 0 before, NaN where not known.

    lost = self time of the straggler - median self time of those it is compared with, at most what would leave that
    time of the step. A step is charged to the rank with the largest excess only, so that two stragglers do not pay for
    the same step twice. Of an intermittent slowness only the slow steps are charged.
    """
    series, column = view.series, view.series.column_of(slow.rank)
    known = ~np.isnan(view.excess[:, column]) & ~np.isnan(view.longest_ns)
    if slow.pattern == "intermittent":
        charged = known & np.isin(series.steps, slow.slow_steps)
    else:
        charged = known & (series.steps >= slow.since_step)
    charged &= view.worst == column
    excess_ns = view.excess_ns[:, column]
    at_most_ns = np.maximum(view.longest_ns - (series.self_ns[:, column] - excess_ns), 0.0)
    lost_ns = np.where(charged, np.clip(excess_ns, 0.0, at_most_ns), 0.0)
    return np.where(known, lost_ns, np.nan)


def price(lost_ns: Floats, view: RunView, from_step: int, *, by_mean: bool = False) -> Cost:
    """What the steps from `from_step` on have lost. `lost_ns` is as of `lost_to`; unknown steps are left out."""
    series = view.series
    rows = np.flatnonzero((series.steps >= from_step) & ~np.isnan(lost_ns) & ~np.isnan(view.longest_ns))
    if len(rows) == 0:
        return Cost(1.0, 0.0, 0.0)
    step_ns = np.maximum(view.longest_ns[rows], 1.0)
    lost_ns = np.minimum(lost_ns[rows], step_ns - 1.0)
    typical = np.mean if by_mean else np.median
    ratio = float(typical(step_ns) / typical(step_ns - lost_ns))
    share = float(lost_ns.sum() / step_ns.sum())
    return Cost(ratio, ns_to_s(float(lost_ns.sum())) * len(series.ranks), share * len(series.ranks))
