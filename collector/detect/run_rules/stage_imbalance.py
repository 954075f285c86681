"""Find pipeline stages or expert groups that have more work than others by design.

Ranks that are no peers may differ by design: the first stage has the embedding, the last one the loss. The excess of
the heaviest group over the mean of all is what an even split would save in every step.

    ratio = median own time of the group's ranks / mean over all ranks, a group's ranks counted at their median

Of a group of two ranks the shorter time counts (`middle_of_ranks`): one slow rank is no heavy stage. A stage of a
single rank is not judged: whether it has more work or is slow is not known.

It is the split and not a fault because it has lasted from the first known step to the last; an excess that began later
is left to the detectors of slowness.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from rankscope.collector.detect.finding import STRAGGLER, Abstain, Finding
from rankscope.collector.detect.finding_words import format_ratio
from rankscope.collector.detect.stragglers.cost import lost_beyond_mean, price
from rankscope.collector.detect.stragglers.persistent import SlowRank, Thresholds, find_stragglers, has_recovered
from rankscope.collector.detect.stragglers.sentence import describe_own
from rankscope.collector.detect.suggestions import suggest
from rankscope.collector.detect.view import Candidate, RunView, as_rank_series
from rankscope.collector.steps.peer_groups import PeerComparison, middle_of_ranks
from rankscope.collector.steps.step_series import Floats

IMBALANCE: Final = "imbalance"


class StageImbalance:
    """The detector of peer groups that have more work than the others by design."""

    kinds = frozenset({IMBALANCE})

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds

    def find(self, view: RunView, explained: Sequence[Finding]) -> Sequence[Candidate] | Abstain:
        """Return every group whose ranks have more work than the mean in every step, the heaviest first."""
        if len(view.series.ranks) < view.world_size:
            missing = view.world_size - len(view.series.ranks)
            return Abstain(f"no steps of {missing} of {view.world_size} ranks are known")
        groups = view.peer_groups.works
        if len(groups) < 2:  # noqa: PLR2004 - a split takes two
            return Abstain("no two groups of two ranks or more that do different work are known")
        stages = view_stages(view, groups)
        verdict = find_stragglers(stages, self._thresholds)
        if isinstance(verdict, Abstain):
            return Abstain("too few steps are known of all groups of ranks that do different work")
        slow_ranks = {rank for finding in explained if finding.kind == STRAGGLER for rank in finding.ranks}
        known = [finding for finding in explained if finding.kind == IMBALANCE]
        return [
            _describe(view, stages, groups[slow.rank], slow, known)
            for slow in verdict
            if not slow.change_is_seen and not slow_ranks.issuperset(groups[slow.rank])
        ]

    def has_passed(self, view: RunView, finding: Finding, _explained: Sequence[Finding]) -> bool:
        """Return whether the group's work is near the mean; False when its ranks are no group any more."""
        groups = view.peer_groups.works
        for column, group in enumerate(groups):
            if group == finding.ranks:
                return has_recovered(view_stages(view, groups).excess_of(column), self._thresholds)
        return False


def view_stages(view: RunView, groups: Sequence[tuple[int, ...]]) -> RunView:
    """Return a view with a column per group, the middle own time of its ranks, each compared with the last column, the
    mean over all ranks. Steps without the own times of all ranks are NaN.
    """
    own_ns = view.series.own_ns.copy()
    own_ns[np.isnan(own_ns).any(axis=1)] = np.nan
    medians, weights = [], []
    for group in groups:
        medians.append(_middle(own_ns[:, view.series.columns_of(group)]))
        weights.append(len(group))
    grouped = {rank for group in groups for rank in group}
    ungrouped = [rank for rank in view.series.ranks if rank not in grouped]
    if ungrouped:
        medians.append(own_ns[:, view.series.columns_of(ungrouped)].mean(axis=1))
        weights.append(len(ungrouped))
    mean = np.average(medians, axis=0, weights=weights)
    columns = [*medians[: len(groups)], mean]
    against = [PeerComparison((column,), (column, len(groups)), do_same_work=True) for column in range(len(groups))]
    return as_rank_series(view, columns, against)


def _middle(own_ns: Floats) -> Floats:
    found = np.full(len(own_ns), np.nan)
    known = ~np.isnan(own_ns[:, 0])
    found[known] = middle_of_ranks(own_ns[known])
    return found


def _describe(
    view: RunView, stages: RunView, group: tuple[int, ...], slow: SlowRank, known: Sequence[Finding]
) -> Candidate:
    before = [one.since_step for one in known if one.ranks == group and one.since_step is not None]
    since_step = min(before, default=slow.since_step)
    work_ns = stages.series.own_ns
    lost_ns = lost_beyond_mean(work_ns, slow.rank, work_ns[:, -1], view)
    cost = price(lost_ns, view, since_step)
    finding = Finding(
        kind=IMBALANCE,
        ranks=group,
        since_step=since_step,
        cause="more_work",
        what=f"{format_ratio(slow.slowdown_ratio)} as much work as the mean of all ranks in every step",
        why="different work from the other ranks, split unevenly",
        suggestion=suggest(IMBALANCE, "more_work"),
        severity="info",
        slowdown_ratio=slow.slowdown_ratio,
        run_slowdown_ratio=cost,
        evidence={
            "own_ns": slow.own_ns,
            "mean_own_ns": slow.peers_own_ns,
            **slow.tests,
        },
        details=describe_own(view.series),
    )
    return Candidate(finding, lost_ns)
