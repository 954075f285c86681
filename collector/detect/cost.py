"""What a slowness costs: the step as it was against what it would have been (docs/definitions.md section 4)."""

from typing import NamedTuple

import numpy as np

from rankscope.collector.detect.series import Floats, StepSeries
from rankscope.collector.detect.stragglers import Slow
from rankscope.measure.units import ns_to_s


class Cost(NamedTuple):
    """`job_slowdown_ratio`: median step over ideal step. `lost_rank_seconds`: of the steps looked at, all ranks
    together (on GPUs with one rank each: GPU-seconds). `lost_rank_hours_per_hour` at the present pace.
    """

    job_slowdown_ratio: float
    lost_rank_seconds: float
    lost_rank_hours_per_hour: float


def lost_to(slow: Slow, series: StepSeries) -> Floats:
    """What each step lost to one straggler since it is slow, shape (n,) in ns; 0 before, NaN where not known.

    lost = self time of the straggler - median self time of its peers, at most what would leave the peers' self time of
    the step. A step is charged to the rank with the longest self time only, so that two stragglers do not pay for the
    same step twice.
    """
    columns = series.columns_of(slow.peers.ranks)
    column = series.column_of(slow.rank)
    known = ~np.isnan(series.self_ns).any(axis=1) & ~np.isnan(series.step_ns).all(axis=1)
    lost_ns = np.where(known, 0.0, np.nan)
    rows = np.flatnonzero((series.steps >= slow.since_step) & known)
    if len(rows):
        step_ns = np.nanmax(series.step_ns[rows], axis=1)
        self_ns = series.self_ns[rows, column]
        peers_ns = np.median(series.self_ns[np.ix_(rows, columns)], axis=1)
        is_slowest = series.self_ns[rows].argmax(axis=1) == column
        at_most_ns = np.maximum(step_ns - peers_ns, 0.0)
        lost_ns[rows] = np.where(is_slowest, np.clip(self_ns - peers_ns, 0.0, at_most_ns), 0.0)
    return lost_ns


def price(lost_ns: Floats, series: StepSeries, from_step: int) -> Cost:
    """What the steps from `from_step` on have lost. `lost_ns` is as of `lost_to`; unknown steps are left out."""
    known = ~np.isnan(lost_ns) & ~np.isnan(series.step_ns).all(axis=1)
    rows = np.flatnonzero((series.steps >= from_step) & known)
    if len(rows) == 0:
        return Cost(1.0, 0.0, 0.0)
    step_ns = np.maximum(np.nanmax(series.step_ns[rows], axis=1), 1.0)
    lost_ns = np.minimum(lost_ns[rows], step_ns - 1.0)
    ratio = float(np.median(step_ns) / np.median(step_ns - lost_ns))
    share = float(lost_ns.sum() / step_ns.sum())
    return Cost(ratio, ns_to_s(float(lost_ns.sum())) * len(series.ranks), share * len(series.ranks))


def cost_of(slow: Slow, series: StepSeries, from_step: int) -> Cost:
    """The cost of one straggler in the steps from `from_step` on."""
    return price(lost_to(slow, series), series, max(from_step, slow.since_step))
