"""Compute the cost of a slowness: the step against the step without it (docs/definitions.md section 4).

Without it the step would last for the slowest rank that is healthy: ranks vary, and the largest of many is longer than
their median. In a pipeline the rank would wait as its peers do: a stage that is slow hides the bubbles behind its own
work, and they come back once it is as fast as its peers. So there the time in point-to-point operations counts as well,
and no step has lost more than it is longer than the steps before any rank was slow, where these are known: what a stage
does while it would wait for another costs nothing.
"""

from collections.abc import Collection, Sequence
from typing import Final

import numpy as np

from rankscope.collector.detect.finding import Finding
from rankscope.collector.detect.finding_memory import recall
from rankscope.collector.detect.statistics.excess import find_peers_ns
from rankscope.collector.detect.stragglers.persistent import SlowRank
from rankscope.collector.detect.view import RunView
from rankscope.collector.steps.step_series import Floats

REST_RATIO_MAX: Final = 4.0
"""A step without what it lost counts as at most so many usual ones."""


class Healthy:
    """What a step would at least last for without the slow ranks: the longest time of any other rank with equal work,
    found once for all of them. `slow` are the ranks that are known to be slow; `step_before_ns`: the step of a pipeline
    before any was, None where it is not known, or no pipeline's.
    """

    def __init__(self, view: RunView, slow: Collection[int] = (), step_before_ns: float | None = None) -> None:
        self._view = view
        self._slow = frozenset(slow)
        self.step_before_ns = step_before_ns
        self._longest_ns: dict[tuple[int, ...], Floats] = {}

    def longest_beside(self, slow: SlowRank) -> Floats:
        """Return the longest own time of a healthy rank with the same work in each step, on whatever GPU, shape (n,)
        in ns. It is at least the median own time of the peers, or what is usual for the straggler without peers; NaN
        where its excess is not known.
        """
        column = self._view.series.column_of(slow.rank)
        median_ns = find_peers_ns(self._view.excess[:, column], self._view.series.own_ns[:, column])
        work = next((ranks for ranks in self._view.peer_groups.works if slow.rank in ranks), ())
        if work not in self._longest_ns:
            columns = self._view.series.columns_of([rank for rank in work if rank not in self._slow])
            of_work_ns = np.fmax.reduce(self._view.series.own_ns[:, columns], axis=1, initial=0.0)
            self._longest_ns[work] = of_work_ns
        return np.maximum(median_ns, self._longest_ns[work])

    def bound_ns(self, slow: SlowRank, rest_ns: float = 0.0) -> Floats:
        """Return what each step can have lost to a slow rank at most, shape (n,) in ns: what it is longer than the
        longest healthy rank and a `rest_ns`, or than the steps before. NaN where not known.
        """
        least_ns = self.longest_beside(slow) + rest_ns
        return np.maximum(self._view.longest_ns - np.maximum(least_ns, self.step_before_ns or 0.0), 0.0)

    def usual_rest_ns(self, slow: SlowRank, before_step: int) -> float:
        """Return by how much a step was longer than that before a step: what others move without computing. 0 where
        fewer than `steps_min` such steps are known.
        """
        rest_ns = self._view.longest_ns - self.longest_beside(slow)
        rest_ns = rest_ns[self._view.series.steps < before_step]
        rest_ns = rest_ns[~np.isnan(rest_ns)]
        return float(np.median(rest_ns)) if len(rest_ns) >= self._view.steps_min else 0.0


def lost_to(slow: SlowRank, view: RunView, healthy: Healthy, *, is_charged_once: bool = True) -> Floats:
    """Return what each step has lost to one straggler since it became slow, shape (n,) in ns; 0 before, NaN where not
    known.

    lost = own time of the straggler - the longest of a healthy rank (`Healthy`) - the time that the median peer is
    longer in point-to-point operations, at most `Healthy.bound_ns`. With `is_charged_once` a
    step is charged only to the rank with the largest excess, so that two stragglers are not both charged for it. For an
    intermittent slowness only the slow steps are charged.
    """
    series, column = view.series, view.series.column_of(slow.rank)
    known = ~np.isnan(view.excess[:, column]) & ~np.isnan(view.longest_ns)
    if slow.pattern == "intermittent":
        charged = known & np.isin(series.steps, slow.slow_steps)
    else:
        charged = known & (series.steps >= slow.since_step)
    if is_charged_once:
        charged &= view.worst == column
    healthy_ns = healthy.longest_beside(slow)
    saved_ns = series.own_ns[:, column] - healthy_ns - _bubbles_hidden_ns(slow, view)
    lost_ns = np.where(charged, np.clip(saved_ns, 0.0, healthy.bound_ns(slow)), 0.0)
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


def lost_together(sets: Sequence[Sequence[SlowRank]], view: RunView, healthy: Healthy, before_step: int) -> Floats:
    """Return what each step has lost to several sets of stragglers, the slowest first; shape (n,) in ns, NaN where not
    known.

    Ranks of one set with the same work hide each other: the step has lost what it has to one of them, and without
    their slowness the longest of them may still be longer than any other. Those that are slow at different places of a
    step add up. So it is the sum over these, at most what the step is longer than the
    longest own time of a healthy rank, less the same before any was slow, in `before_step`.
    """
    lost_ns = np.zeros(len(view.series.steps))
    for place in (ranks for one in sets for ranks in _by_work(one, view)):
        each_ns = [lost_to(one, view, healthy, is_charged_once=False) for one in _find_longest(place, view)]
        lost_ns = lost_ns + np.minimum(np.fmax.reduce(each_ns, axis=0), _saved_at_most(place, view))
    first = sets[0][0]
    at_most_ns = healthy.bound_ns(first, healthy.usual_rest_ns(first, before_step))
    return np.asarray(np.clip(lost_ns, 0.0, at_most_ns))


def _by_work(slow_ranks: Sequence[SlowRank], view: RunView) -> list[list[SlowRank]]:
    """Return slow ranks by the work that they do; one that does no other's work is alone."""
    place = {rank: number for number, work in enumerate(view.peer_groups.works) for rank in work}
    found: dict[tuple[str, int], list[SlowRank]] = {}
    for slow in slow_ranks:
        key = ("work", place[slow.rank]) if slow.rank in place else ("rank", slow.rank)
        found.setdefault(key, []).append(slow)
    return list(found.values())


def _saved_at_most(slow_ranks: Sequence[SlowRank], view: RunView) -> Floats:
    """Return by how much the longest of slow ranks would be shorter without the slowness that they have at the present
    level, shape (n,) in ns; the whole time in steps before it.
    """
    own_ns = view.series.own_ns[:, view.series.columns_of([slow.rank for slow in slow_ranks])]
    ratios = np.array([slow.slowdown_ratio for slow in slow_ranks])
    is_present = view.series.steps >= max(slow.level_from_step for slow in slow_ranks)
    healthy_ns = np.where(is_present, np.fmax.reduce(own_ns / ratios, axis=1), 0.0)
    return np.asarray(np.fmax.reduce(own_ns, axis=1) - healthy_ns)


def _find_longest(slow_ranks: Sequence[SlowRank], view: RunView) -> list[SlowRank]:
    """Return those of slow ranks whose own time is the longest of them in any step: of thousands a few hundred."""
    own_ns = view.series.own_ns[:, view.series.columns_of([slow.rank for slow in slow_ranks])]
    return [slow_ranks[place] for place in np.unique(np.argmax(np.nan_to_num(own_ns, nan=-1.0), axis=1)).tolist()]


def spared_by(lost_ns: Floats, view: RunView, others: Sequence[int], usual_rest_ns: float = 0.0) -> Floats:
    """Return by how much each step would be shorter without a slowness alone, shape (n,) in ns: what it lost, at most
    the step, less what it is usually longer than an own time, less the longest own time of the `others` that are slow.
    NaN where not known.
    """
    own_ns = view.series.own_ns[:, view.series.columns_of(others)]
    longest_ns = np.fmax.reduce(own_ns, axis=1, initial=0.0) + usual_rest_ns
    return np.clip(lost_ns, 0.0, np.maximum(view.longest_ns - longest_ns, 0.0))


def lost_beyond_mean(own_ns: Floats, column: int, mean_ns: Floats, view: RunView) -> Floats:
    """Return what each step lost as one column of own times exceeds their mean, shape (n,) in ns: what an even split
    would save, at most what leaves the mean of the step; NaN where not known. A step is charged only to the column with
    the longest own time. `own_ns`: shape (n, columns); `mean_ns`: (n,).
    """
    lost_ns = np.full(len(own_ns), np.nan)
    rows = np.flatnonzero(~np.isnan(own_ns[:, column]) & ~np.isnan(mean_ns) & ~np.isnan(view.longest_ns))
    mine_ns, mean_ns, longest_ns = own_ns[rows, column], mean_ns[rows], view.longest_ns[rows]
    beyond_ns = np.clip(mine_ns - mean_ns, 0.0, np.maximum(longest_ns - mean_ns, 0.0))
    lost_ns[rows] = np.where(np.nanargmax(own_ns[rows], axis=1) == column, beyond_ns, 0.0)
    return lost_ns


def find_step_before(view: RunView, since_step: int, known: Finding | None, from_step: int = 0) -> float | None:
    """Return the median step before a change in ns, since `from_step`; of an open finding as it was found. None where
    it is not known.
    """
    if known is not None:
        return recall(known).step_before_ns
    before_ns = view.longest_ns[(view.series.steps < since_step) & (view.series.steps >= from_step)]
    before_ns = before_ns[~np.isnan(before_ns)]
    return float(np.median(before_ns)) if len(before_ns) else None


def find_pipeline_before(view: RunView, since_step: int, known: Collection[Finding]) -> float | None:
    """Return the median step of a pipeline before any of its ranks became slow, in ns; as it was found first, where
    that is no longer kept. None where it is not known, and where ranks do not wait for stages.
    """
    if view.series.handover_ns is None:
        return None
    told_ns = [ns for one in known if (ns := recall(one).step_before_ns) is not None]
    if told_ns:
        return min(told_ns)
    earlier = (view.series.steps < since_step) & ~np.isnan(view.longest_ns)
    return find_step_before(view, since_step, None) if np.count_nonzero(earlier) >= view.steps_min else None


def price(lost_ns: Floats, view: RunView, from_step: int, *, is_over_level: bool = False) -> float:
    """Return the steps from `from_step` on over the same without what they lost. `lost_ns` is as `lost_to` returns it;
    unknown steps do not count.

    The steps are compared by their sums. Of a step what is not lost counts up to REST_RATIO_MAX times the usual one:
    one stall of a minute hides no cost. Where what is lost is what a step is longer than a level of the past
    (`is_over_level`) they are compared by their medians: some steps of the past were longer than that level, too.
    """
    rows = np.flatnonzero((view.series.steps >= from_step) & ~np.isnan(lost_ns) & ~np.isnan(view.longest_ns))
    if len(rows) == 0:
        return 1.0
    step_ns = np.maximum(view.longest_ns[rows], 1.0)
    lost_ns = np.minimum(lost_ns[rows], step_ns - 1.0)
    rest_ns = step_ns - lost_ns
    if is_over_level:
        return float(np.median(step_ns) / np.median(rest_ns))
    return 1.0 + float(lost_ns.sum() / np.minimum(rest_ns, REST_RATIO_MAX * np.median(rest_ns)).sum())
