"""Say why "no rank was slower" is not known although nobody was found: time was lost in steps of which it is not known
whose they were, or in too few that were one rank's.

What single ranks are known to have cost is none of that, unless one rank's stalls alone cost as much.

Lost is what a rare long step took longer than those around it, and what steps of which own times are not known took
longer, in the mean, than those of which they are. A loss of less than LOST_MIN of the time does not matter: no rank can
have cost more than that.
"""

from typing import Final, NamedTuple

import numpy as np

from rankscope.collector.detect.finding import name_ranks
from rankscope.collector.detect.stragglers.root_cause import EXPLAINS
from rankscope.collector.detect.view import RunView
from rankscope.collector.steps.long_steps import EVERYBODY, LONG_RATIO, SIDE_STEPS, UNKNOWN
from rankscope.collector.steps.step_series import Flags, Floats, Ints
from rankscope.measure.units import NS_PER_S, format_duration

LOST_MIN: Final = 0.04
"""Share of the time from which on a loss may matter: a slow rank does at 0.05, and a loss is known to a fifth."""
LATE_S: Final = 10.0
"""Reports come every second; what is later by this much is said."""
START_STEPS: Final = 10
"""The first steps of a run, which are long for its start-up, do not count."""
BEFORE_STEPS: Final = 64
"""Latest steps whose median is what the last of them are compared with."""


class _Lost(NamedTuple):
    """Steps in order, what they lost in ns, and the rank that each was due to, or UNKNOWN; shape (m,) each."""

    steps: Ints
    ns: Floats
    owners: Ints

    def of(self, is_of: Flags) -> "_Lost":
        """Return some of the steps."""
        return _Lost(self.steps[is_of], self.ns[is_of], self.owners[is_of])

    def joined(self, more: "_Lost") -> "_Lost":
        """Return these steps and later ones."""
        return _Lost(*(np.concatenate(both) for both in zip(self, more, strict=True)))

    @property
    def text(self) -> str:
        """The steps in words."""
        first, last = int(self.steps.min()), int(self.steps.max())
        where = f"step {first}" if first == last else f"steps {first}-{last}"
        return f"{len(self.steps)} longer step{'' if len(self.steps) == 1 else 's'} ({where})"


def describe_doubt(view: RunView) -> str:
    """Return why it is not known whether a rank is slower than the others, where none was found; empty where too little
    was lost for that to matter.
    """
    unheard = _describe_late_reports(view) or _describe_gap(view)
    if unheard:
        return unheard
    seen = view.long_steps
    rare = [one for one in seen.steps if one.owner != EVERYBODY and one.step >= START_STEPS]
    lost = _Lost(
        np.array([one.step for one in rare], dtype=np.int64),
        np.array([one.excess_ns for one in rare]),
        np.array([one.owner for one in rare], dtype=np.int64),
    )
    latest = _find_latest(view, lost.steps)
    lost = lost.joined(latest)
    others = _find_unknown(view, lost.steps)
    total_ns = max(seen.total_ns, float(np.nansum(view.longest_ns)), 1.0)
    others_ns = float(others.ns.sum())
    of_rank = {rank: float(lost.ns[lost.owners == rank].sum()) for rank in set(lost.owners.tolist()) if rank >= 0}
    most = max(of_rank, key=lambda rank: of_rank[rank], default=None)
    unknown = lost.of(lost.owners == UNKNOWN)
    share = (float(unknown.ns.sum()) + others_ns) / total_ns
    if most is not None:
        mine = lost.of(lost.owners == most)
        may_be = mine.joined(latest)  # whose these are is not known yet
        may_be_share = float(may_be.ns.sum()) / total_ns
        few = "too few to say that it stops again and again"
        if of_rank[most] >= LOST_MIN * total_ns:
            return f"{_percent(of_rank[most] / total_ns)} was lost in {mine.text} of rank {most}: {few}"
        if share < LOST_MIN <= may_be_share:
            which = f"{len(mine.steps)} of them of rank {most}"
            return f"{_percent(may_be_share)} was lost in {may_be.text}, {which}: {few}"
    if share < LOST_MIN:
        return ""
    if others_ns > float(unknown.ns.sum()):
        return f"{_percent(share)} was lost in {others.text}, and the ranks' own times in them are not known"
    return f"{_percent(share)} was lost in {unknown.text}, {_describe_compiling(view, unknown)}"


def _describe_compiling(view: RunView, lost: _Lost) -> str:
    """Return which ranks compiled for half of the time that was lost, or that it is not known whose it was."""
    steps = set(lost.steps.tolist())
    spent_ns = {
        rank: sum(one.duration_ns for one in frames or () if one.step in steps)
        for rank, frames in view.samples.compiled.items()
    }
    longest_ns = max(spent_ns.values(), default=0)
    if longest_ns < EXPLAINS * float(lost.ns.sum()):
        return "and which rank the others waited for in them is not known"
    ranks = [rank for rank, ns in sorted(spent_ns.items()) if ns >= EXPLAINS * longest_ns]
    each = " each" if len(ranks) > 1 else ""
    return f"in which {name_ranks(ranks)} compiled for {format_duration(longest_ns)}{each} (torch.compile)"


def _describe_late_reports(view: RunView) -> str:
    """Return from which ranks the latest steps are missing, for longer than LATE_S; empty where they are not. What was
    said of the steps before is not known of these.
    """
    missing = np.isnan(view.series.step_ns)
    complete = np.flatnonzero(~missing.any(axis=1))
    late = slice(int(complete[-1]) + 1 if len(complete) else 0, None)
    steps, late_ns = view.series.steps[late], float(np.nansum(view.longest_ns[late]))
    if not len(complete) or len(steps) < view.steps_min or late_ns < LATE_S * NS_PER_S:
        return ""
    what = f"steps {steps[0]}-{steps[-1]} ({late_ns / NS_PER_S:.0f} s) are missing from"
    silent = [rank for column, rank in enumerate(view.series.ranks) if missing[late, column].all()]
    if silent:
        return f"{what} {name_ranks(silent)}"
    partly = [rank for column, rank in enumerate(view.series.ranks) if missing[late, column].any()]
    return f"{what} {name_ranks(partly)}, some from each of them"


def _describe_gap(view: RunView) -> str:
    """Return that there are too few steps since some were not reported; empty where there are enough, or no gap."""
    steps = view.series.steps[view.series.earlier_count :]
    gaps = np.flatnonzero(np.diff(steps) > view.steps_min)
    if not len(gaps) or len(steps) - 1 - gaps[-1] >= view.steps_min:
        return ""
    last, first = int(steps[gaps[-1]]), int(steps[gaps[-1] + 1])
    since = len(steps) - 1 - int(gaps[-1])
    return f"steps {last + 1}-{first - 1} are missing from every rank, and {since} steps since then are too few"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} % of the time"


def _find_unknown(view: RunView, rare: Ints) -> _Lost:
    """Return the kept steps that every rank has reported, and of which their own times are not known, with what they
    lost in all over the mean of those that are known, in equal shares; without the `rare` ones.
    """
    steps = view.series.steps
    is_reported = ~np.isnan(view.series.step_ns).any(axis=1) & ~np.isin(steps, rare) & (steps >= START_STEPS)
    rows, known = np.flatnonzero(is_reported & ~view.is_known), np.flatnonzero(is_reported & view.is_known)
    if not len(rows) or not len(known):
        return _Lost(steps[:0], np.zeros(0), np.zeros(0, dtype=np.int64))
    longer_ns = float(view.longest_ns[rows].mean() - view.longest_ns[known].mean())
    return _Lost(steps[rows], np.full(len(rows), max(0.0, longer_ns)), np.full(len(rows), UNKNOWN))


def _find_latest(view: RunView, rare: Ints) -> _Lost:
    """Return the latest long steps, whose neighbors are yet to come: whose they were is looked at then."""
    steps, longest_ns = view.series.steps, view.longest_ns
    usual_ns = longest_ns[-BEFORE_STEPS:-SIDE_STEPS]
    usual_ns = usual_ns[~np.isnan(usual_ns)]
    excess_ns = longest_ns[-SIDE_STEPS:] - (float(np.median(usual_ns)) if len(usual_ns) else np.inf)
    latest = steps[-SIDE_STEPS:]
    with np.errstate(invalid="ignore"):
        is_long = (excess_ns > LONG_RATIO * (longest_ns[-SIDE_STEPS:] - excess_ns)) & (latest >= START_STEPS)
    is_long &= ~np.isin(latest, rare)
    return _Lost(latest[is_long], excess_ns[is_long], np.full(np.count_nonzero(is_long), UNKNOWN))
