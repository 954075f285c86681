"""Tell a rank that has more to compute from one that is slow: by its tokens, and by what it moves in all-to-alls. Pure.

Problem: a router prefers one expert. The rank that holds it gets 1.4 times the tokens and computes for longer, all
others wait for it, and nothing is wrong with its hardware. To a comparison of own times it looks like a slow rank.

So a rank with longer own times has more work where its tokens, or its bytes in all-to-alls, exceed those of its peers
by a large part of what its own times do, in the same steps. For example: 1.40 times the bytes and 1.31 times the time.
Ranks that all-to-alls alone set apart from others (`peer_groups.py`) are compared with these here.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from rankscope.collector.detect.finding import Abstain
from rankscope.collector.detect.stragglers.persistent import SlowRank, Thresholds, find_stragglers
from rankscope.collector.detect.view import RunView
from rankscope.collector.steps.peer_groups import Comparison, PeerGroups
from rankscope.collector.steps.step_series import Cells, Floats

MORE_WORK: Final = "more_work_ratio"
"""Evidence key: how many times its peers' work a rank has."""
TOKENS: Final = "tokens"
EXCHANGED: Final = "bytes in all-to-alls"
RATIO_MIN: Final = 1.05
"""Ratio to the peers' work below which it explains nothing: batches differ by chance."""
EXPLAINS: Final = 0.5
"""Share of the excess of its own time that a rank's excess of work must have."""
STEPS_MIN: Final = 6
"""Known steps, of three windows of two on a GPU, from which on a rank with more work is told: two signs agree."""
STEPS_READ: Final = 64


class MoreWork(NamedTuple):
    """How many times its peers' work a rank has, and which: TOKENS or EXCHANGED."""

    ratio: float
    what: str


class Loaded(NamedTuple):
    """A rank that has more work than its peers."""

    slow: SlowRank
    more: MoreWork


def find_more_work(view: RunView, slow: SlowRank) -> MoreWork | None:
    """Return the work that makes a rank's own times longer, over its slow steps; None where it is not known to."""
    rows = np.flatnonzero(np.isin(view.series.steps, slow.slow_steps))
    columns = view.series.columns_of((slow.rank, *slow.peers.ranks))
    found = [MoreWork(_compare(work[rows[:, np.newaxis], columns]), what) for work, what in _list_work(view)]
    needed = max(RATIO_MIN, 1.0 + EXPLAINS * (slow.slowdown_ratio - 1.0))
    return max((more for more in found if more.ratio >= needed), default=None)


def _list_work(view: RunView) -> Iterable[tuple[Cells, str]]:
    pairs = ((view.series.tokens, TOKENS), (view.series.exchanged_bytes, EXCHANGED))
    return [(work, what) for work, what in pairs if work is not None]


def _compare(work: Floats) -> float:
    """Return how many times as much as the median peer the first of these ranks has, by the median step that is known
    of all; 1 where none is. `work`: shape (n, ranks).
    """
    known = work[~np.isnan(work).any(axis=1)]
    if not len(known) or work.shape[1] == 1:
        return 1.0
    peers = np.median(known[:, 1:], axis=1)
    return float(np.median(known[peers > 0, 0] / peers[peers > 0])) if (peers > 0).any() else 1.0


def find_loaded(view: RunView, thresholds: Thresholds, known: Collection[int]) -> list[Loaded]:
    """Return the ranks whose own times are longer than those of ranks with the same kind of work because they have more
    of it, the slowest first. `known`: those of open findings, which need only not have recovered.
    """
    beside = compare_alike(view)
    among = _find_heavy(beside)
    if not among:
        return []
    few = replace(thresholds, steps_min=min(STEPS_MIN, thresholds.steps_min))
    found = find_stragglers(beside, few, known, among=among)
    if isinstance(found, Abstain):
        return []
    loaded = [(slow, find_more_work(beside, slow)) for slow in found]
    return [Loaded(slow, more) for slow, more in loaded if more is not None]


def compare_alike(view: RunView) -> RunView:
    """Return the view with the ranks that only their bytes in all-to-alls set apart as peers."""
    alike = [group for group in view.peer_groups.alike if all(view.series.has(rank) for rank in group)]
    if not alike:
        return view
    again = {rank for group in alike for rank in group}
    kept = [_leave_out(one, again) for one in view.peer_groups.comparisons]
    comparisons = [
        *(one for one in kept if one.members),
        *(Comparison(group, group, do_same_work=True) for group in alike),
    ]
    place = {rank: number for number, one in enumerate(comparisons) for rank in one.members}
    return replace(view, peer_groups=PeerGroups(tuple(comparisons), place, view.peer_groups.works))


def _leave_out(one: Comparison, ranks: Collection[int]) -> Comparison:
    return one._replace(members=tuple(rank for rank in one.members if rank not in ranks))


def _find_heavy(view: RunView) -> set[int]:
    """Return the ranks whose work in the last steps exceeds the median of those that they are compared with."""
    found: set[int] = set()
    for work, _ in _list_work(view):
        values = work[-STEPS_READ:]
        known = values[~np.isnan(values).any(axis=1)]
        if not len(known):
            continue
        usual = np.median(known, axis=0)
        for one in view.peer_groups.comparisons:
            if one.do_same_work:
                columns = view.series.columns_of(one.members)
                middle = np.median(usual[view.series.columns_of(one.against)])
                heavy = np.flatnonzero(usual[columns] >= RATIO_MIN * max(1.0, middle)).tolist()
                found.update(one.members[place] for place in heavy)
    return found
