"""What a straggler costs: the step as it was against what it would have been (docs/definitions.md section 4)."""

from typing import NamedTuple

import numpy as np

from rankscope.collector.detect.stragglers import Slow, StepSeries
from rankscope.measure.units import ns_to_s


class Cost(NamedTuple):
    """`job_slowdown_ratio`: median step over ideal step. `lost_rank_seconds`: of the steps looked at, all ranks
    together (on GPUs with one rank each: GPU-seconds). `lost_rank_hours_per_hour` at the present pace.
    """

    job_slowdown_ratio: float
    lost_rank_seconds: float
    lost_rank_hours_per_hour: float


def cost_of(slow: Slow, series: StepSeries, from_step: int) -> Cost:
    """The cost of one straggler in the steps from `from_step` on.

    ideal step = step - (self time of the straggler - median self time of its peers), at least the peers' self time;
    lost = (step - ideal step) x ranks. A step is charged to the rank with the longest self time only, so that two
    stragglers do not pay for the same step twice.
    """
    columns = np.array([series.ranks.index(peer) for peer in slow.peers.ranks], dtype=np.int64)
    column = series.ranks.index(slow.rank)
    known = ~np.isnan(series.self_ns).any(axis=1) & ~np.isnan(series.step_ns).all(axis=1)
    rows = np.flatnonzero((series.steps >= max(from_step, slow.since_step)) & known)
    if len(rows) == 0:
        return Cost(1.0, 0.0, 0.0)
    step_ns = np.maximum(np.nanmax(series.step_ns[rows], axis=1), 1.0)
    self_ns = series.self_ns[rows, column]
    peers_ns = np.median(series.self_ns[np.ix_(rows, columns)], axis=1)
    is_slowest = series.self_ns[rows].argmax(axis=1) == column
    lost_ns = np.where(is_slowest, np.clip(self_ns - peers_ns, 0.0, step_ns - np.minimum(peers_ns, step_ns)), 0.0)
    ideal_ns = np.maximum(step_ns - lost_ns, 1.0)
    ratio = float(np.median(step_ns) / np.median(ideal_ns))
    share = float(lost_ns.sum() / step_ns.sum())
    return Cost(ratio, ns_to_s(float(lost_ns.sum())) * len(series.ranks), share * len(series.ranks))
