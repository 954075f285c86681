"""Compute the cost of a slowness: the step against the step without it (docs/definitions.md section 4).

Without it the rank would wait in the pipeline as its peers do. A stage that is slow hides the bubbles of the pipeline
behind its own work: they come back once it is as fast as its peers, so they are no part of the cost.
"""

from collections.abc import Sequence
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


def lost_to(slow: SlowRank, view: RunView, *, is_charged_once: bool = True) -> Floats:
    """Return what each step has lost to one straggler since it became slow, shape (n,) in ns; 0 before, NaN where not
    known.

    lost = self time of the straggler - median self time of its peers - the time that these spend longer in
    point-to-point operations, at most the step less the median self time. With
    `is_charged_once` a step is charged only to the rank with the largest excess, so that two stragglers are not both
    charged for it. For an intermittent slowness only the slow steps are charged.
    """
    series, column = view.series, view.series.column_of(slow.rank)
    known = ~np.isnan(view.excess[:, column]) & ~np.isnan(view.longest_ns)
    if slow.pattern == "intermittent":
        charged = known & np.isin(series.steps, slow.slow_steps)
    else:
        charged = known & (series.steps >= slow.since_step)
    if is_charged_once:
        charged &= view.worst == column
    excess_ns = view.excess_ns[:, column]
    saved_ns = excess_ns - _bubbles_hidden_ns(slow, view)
    at_most_ns = np.maximum(view.longest_ns - (series.self_ns[:, column] - excess_ns), 0.0)
    lost_ns = np.where(charged, np.clip(saved_ns, 0.0, at_most_ns), 0.0)
    return np.where(known, lost_ns, np.nan)


def _bubbles_hidden_ns(slow: SlowRank, view: RunView) -> Floats:
    """Return by how much longer the median peer was in point-to-point operations in each step, shape (n,) in ns; 0
    where that is not known, as without peers of equal work: the others of its pipeline wait for the rank itself.
    """
    series = view.series
    hidden_ns = np.zeros(len(series.steps))
    if series.handover_ns is None or not slow.peers.do_same_work:
        return hidden_ns
    rows = np.flatnonzero(~np.isnan(series.handover_ns).any(axis=1))
    peers_ns = np.median(series.handover_ns[np.ix_(rows, series.columns_of(slow.peers.ranks))], axis=1)
    hidden_ns[rows] = np.maximum(0.0, peers_ns - series.handover_ns[rows, series.column_of(slow.rank)])
    return hidden_ns


def lost_together(slow_ranks: Sequence[SlowRank], view: RunView) -> Floats:
    """Return what each step has lost to several stragglers, the slowest first; shape (n,) in ns, NaN where not known.

    Those that are slow at different places of a step add up, others hide each other. So it is the sum of what is lost
    to each, at most what the step is longer than the median self time of their peers, less the same before any of them
    was slow, as far as that is known: what others move without computing.
    """
    slowest = slow_ranks[0]
    lost_ns = np.sum([lost_to(one, view, is_charged_once=False) for one in slow_ranks], axis=0)
    column = view.series.column_of(slowest.rank)
    peers_ns = view.series.self_ns[:, column] - view.excess_ns[:, column]
    longer_ns = view.longest_ns - peers_ns
    before_ns = longer_ns[view.series.steps < min(one.since_step for one in slow_ranks)]
    before_ns = before_ns[~np.isnan(before_ns)]
    usual_ns = float(np.median(before_ns)) if len(before_ns) >= view.steps_min else 0.0
    return np.asarray(np.clip(lost_ns, 0.0, np.maximum(longer_ns - usual_ns, 0.0)))


def spared_by(lost_ns: Floats, view: RunView, others: Sequence[int]) -> Floats:
    """Return by how much each step would be shorter without a slowness alone, shape (n,) in ns: what it lost, at most
    the step less the longest self time of the `others` that are slow. NaN where not known.
    """
    self_ns = view.series.self_ns[:, view.series.columns_of(others)]
    longest_ns = np.fmax.reduce(self_ns, axis=1, initial=0.0)
    return np.clip(lost_ns, 0.0, np.maximum(view.longest_ns - longest_ns, 0.0))


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
