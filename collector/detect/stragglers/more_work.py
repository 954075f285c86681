"""Find ranks that have more to compute: by their tokens, and by what they move in all-to-alls.

Problem: a router prefers one expert. The rank that holds it gets 1.4 times the tokens and computes for longer, all
others wait for it, and nothing is wrong with its hardware. To a comparison of own times it looks like a slow rank.

So a rank with longer own times has more work where its tokens, or its bytes in all-to-alls, exceed those of its peers
by a large part of what its own times do, in the same steps. For example: 1.40 times the bytes and 1.31 times the time.
Where it was like that before its own times became longer still, only what has grown since counts: a rank with more
tokens in every step that gets a slow clock is a slow rank. Ranks that all-to-alls alone set apart from others
(`peer_groups.py`) are compared with these here.

Each step costs what the rank with the longest own time exceeds the mean by: what an even split would save.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from rankscope.collector.detect.finding import Abstain, Finding
from rankscope.collector.detect.finding_words import format_ratio
from rankscope.collector.detect.stragglers.begin import date_begin, find_since_range
from rankscope.collector.detect.stragglers.cost import lost_beyond_mean, price
from rankscope.collector.detect.stragglers.persistent import SlowRank, Thresholds, find_stragglers, has_recovered
from rankscope.collector.detect.stragglers.sentence import describe_own
from rankscope.collector.detect.suggestions import suggest
from rankscope.collector.detect.view import Candidate, RunView
from rankscope.collector.steps.step_series import Cells, Flags, Floats

MORE_WORK: Final = "more_work"
TOKENS: Final = "tokens"
EXCHANGED: Final = "bytes in all-to-alls"
RATIO_MIN: Final = 1.05
"""Ratio to the peers' work below which it explains nothing: batches differ by chance."""
EXPLAINS: Final = 0.5
STILL_EXPLAINS: Final = 0.35
"""Share of the excess of its own time that a rank's excess of work must have; of one that was told (hysteresis)."""
STEPS_MIN: Final = 6
"""Known steps, of three windows of two on a GPU, from which on a rank with more work is told: two signs agree."""
BEFORE_MIN: Final = 3
"""Known steps before a rank became slower that tell how it was."""
STEPS_READ: Final = 64
RANKS_MAX: Final = 64
"""Ranks that are told, those that take the longest first."""


class More(NamedTuple):
    """How many times its peers' work a rank has, and which: TOKENS or EXCHANGED."""

    ratio: float
    what: str


class MoreWork:
    """The detector of ranks that have more work than their peers."""

    kinds = frozenset({MORE_WORK})

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self._few = replace(thresholds, steps_min=min(STEPS_MIN, thresholds.steps_min))

    def find(self, view: RunView, explained: Sequence[Finding]) -> Sequence[Candidate] | Abstain:
        """Return every rank whose own times are longer because of its work, those that take the longest first."""
        known = {one.ranks[0]: one for one in explained if one.kind == MORE_WORK}
        beside = view.beside_alike
        among = _find_heavy(beside).union(rank for rank in known if view.series.has(rank))
        if not among:
            return []
        slow_ranks = find_stragglers(beside, self._few, known, among=among)
        if isinstance(slow_ranks, Abstain):
            return slow_ranks
        found = [(slow, find_more(beside, slow, is_told=slow.rank in known)) for slow in slow_ranks]
        loaded = [(slow, more) for slow, more in found if more is not None][:RANKS_MAX]
        return [_describe(beside, slow, more, known.get(slow.rank), explained) for slow, more in loaded]

    def has_passed(self, view: RunView, finding: Finding, _explained: Sequence[Finding]) -> bool:
        """Return whether its own times are no longer than its peers', or its work no longer explains them."""
        rank, beside = finding.ranks[0], view.beside_alike
        if not view.series.has(rank) or has_recovered(beside.excess_of(rank), self._thresholds):
            return True
        slow = find_stragglers(beside, self._few, {rank}, among={rank})
        return not isinstance(slow, Abstain) and bool(slow)  # else `find` had found it again


def find_more(view: RunView, slow: SlowRank, *, is_told: bool = False) -> More | None:
    """Return the work that makes a rank's own times longer, over its slow steps; None where it is not known to.
    `is_told`: it was found to before.
    """
    share = STILL_EXPLAINS if is_told else EXPLAINS
    rows, before = np.isin(view.series.steps, slow.slow_steps), _find_before(view, slow)
    columns = view.series.columns_of((slow.rank, *slow.peers.ranks))
    grown = slow.slowdown_ratio / (1.0 if before is None else _find_ratio(view, slow, before))
    found = []
    for work, what in _list_work(view):
        ratio = _compare(work, rows, columns)
        since = ratio if before is None else ratio / _compare(work, before, columns)
        is_growth_explained = grown < RATIO_MIN or since >= 1.0 + share * (grown - 1.0)
        if is_growth_explained and ratio >= max(RATIO_MIN, 1.0 + share * (slow.slowdown_ratio - 1.0)):
            found.append(More(ratio, what))
    return max(found, default=None)


def _find_ratio(view: RunView, slow: SlowRank, rows: Flags) -> float:
    return math.exp(float(np.median(view.excess_of(slow.rank)[rows])))


def _find_before(view: RunView, slow: SlowRank) -> Flags | None:
    """Return the known steps before the present level of a rank, shape (n,); None where there are too few."""
    before = (view.series.steps < slow.level_from_step) & ~np.isnan(view.excess_of(slow.rank))
    return before if np.count_nonzero(before) >= BEFORE_MIN else None


def _list_work(view: RunView) -> Iterable[tuple[Cells, str]]:
    pairs = ((view.series.tokens, TOKENS), (view.series.exchanged_bytes, EXCHANGED))
    return [(work, what) for work, what in pairs if work is not None]


def _compare(work: Cells, rows: Flags, columns: np.ndarray) -> float:
    """Return how many times as much as the median peer the first of these columns has, by the median of the steps that
    are known of all; 1 where none is.
    """
    values: Floats = work[np.flatnonzero(rows)[:, np.newaxis], columns]
    known = values[~np.isnan(values).any(axis=1)]
    if not len(known) or known.shape[1] == 1:
        return 1.0
    peers = np.median(known[:, 1:], axis=1)
    return float(np.median(known[peers > 0, 0] / peers[peers > 0])) if (peers > 0).any() else 1.0


def _find_heavy(view: RunView) -> set[int]:
    """Return the ranks whose work in the last steps exceeds the median of those that they are compared with."""
    found: set[int] = set()
    for work, _ in _list_work(view):
        values = work[-STEPS_READ:]
        if np.isnan(values).all():
            continue
        for one in view.peer_groups.comparisons:
            among = values[:, view.series.columns_of(one.against)]
            known = ~np.isnan(among).any(axis=1)
            if not one.do_same_work or not known.any():
                continue
            usual = np.median(values[known][:, view.series.columns_of(one.members)], axis=0)
            heavy = usual >= RATIO_MIN * max(1.0, float(np.median(among[known])))
            found.update(one.members[place] for place in np.flatnonzero(heavy).tolist())
    return found


def _describe(
    view: RunView, slow: SlowRank, more: More, known: Finding | None, explained: Sequence[Finding]
) -> Candidate:
    """Build the finding about one rank. An open one keeps its begin."""
    slow = date_begin(slow, view, explained)
    since_step = slow.since_step if known is None or known.since_step is None else known.since_step
    found = find_since_range(slow, since_step, view, None if known is None else known.since_range)
    earliest, latest = (None, since_step) if found is None else found
    own_ns = view.series.own_ns
    mean_ns = _find_mean(own_ns)
    lost_ns = lost_beyond_mean(own_ns, view.series.column_of(slow.rank), mean_ns, view)
    is_known = ~np.isnan(mean_ns) & np.isin(view.series.steps, slow.slow_steps)
    usual_ns = float(np.median(mean_ns[is_known])) if is_known.any() else slow.peers_own_ns
    ratio = slow.own_ns / max(usual_ns, 1.0)
    finding = Finding(
        kind=MORE_WORK,
        ranks=(slow.rank,),
        node=view.nodes[slow.rank],
        since_step=since_step,
        since_step_min=earliest,
        since_step_max=latest,
        cause=MORE_WORK,
        pattern=slow.pattern,
        what=f"{format_ratio(ratio)} as much work as the mean of all ranks",
        why=f"{format_ratio(more.ratio)} as many {more.what} as its peers",
        suggestion=suggest(MORE_WORK, MORE_WORK),
        severity="warning",
        slowdown_ratio=ratio,
        run_slowdown_ratio=price(lost_ns, view, since_step),
        evidence={"more_work_ratio": more.ratio, "own_ns": slow.own_ns, "mean_own_ns": usual_ns, **slow.tests},
        details=describe_own(view.series),
    )
    return Candidate(finding, lost_ns)


def _find_mean(own_ns: Floats) -> Floats:
    """Return the mean of the own times that are known in each step, shape (n,); NaN where none is."""
    mean_ns = np.full(len(own_ns), np.nan)
    rows = np.flatnonzero(~np.isnan(own_ns).all(axis=1))
    mean_ns[rows] = np.nanmean(own_ns[rows], axis=1)
    return mean_ns
