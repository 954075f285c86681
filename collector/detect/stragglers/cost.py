"""Compute the cost of a slowness: the step against the step without it (docs/definitions.md section 4)."""

from typing import NamedTuple

import numpy as np

from rankscope.collector.detect.stragglers.persistent import SlowRank
from rankscope.collector.detect.view import RunView
from rankscope.collector.steps.step_series import Floats
from rankscope.measure.units import ns_to_s


class Cost(NamedTuple):
    """The cost of a slowness. `run_slowdown_ratio`: median step over ideal step, means for an intermittent slowness.
    `lost_rank_seconds`: over the priced steps, all ranks together (with one rank per GPU: GPU-seconds).
    `lost_rank_hours_per_hour`: at the present rate.
    """

    run_slowdown_ratio: float
    lost_rank_seconds: float
    lost_rank_hours_per_hour: float


def lost_to(slow: SlowRank, view: RunView) -> Floats:
    """Return what each step has lost to one straggler since it became slow, shape (n,) in ns; 0 before, NaN where not
    known.

    lost = self time of the straggler - median self time of its peers, at most the step less that median. A step
    is charged only to the rank with the largest excess, so that two stragglers are not both charged for it. For an
    intermittent slowness only the slow steps are charged.
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
    """Return the cost of the steps from `from_step` on. `lost_ns` is as `lost_to` returns it; unknown steps do not
    count.
    """
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
