"""Say why "no rank was slower" is not known although nobody was found: time was lost in steps of which it is not known
whose they were, or in too few that were one rank's.

Lost is what a rare long step took longer than those around it, and what steps of which own times are not known took
longer, in the mean, than those of which they are. A loss of less than LOST_MIN of the time does not matter: no rank can
have cost more than that.
"""

from typing import Final, NamedTuple

import numpy as np

from rankscope.collector.detect.view import RunView
from rankscope.collector.steps.long_steps import EVERYBODY

LOST_MIN: Final = 0.05
"""Share of the time that a slow rank must cost to matter."""


class _Lost(NamedTuple):
    """Steps in order, and what they lost in ns, shape (m,) each; `owners`: the rank that each was due to, -1 where that
    is not known.
    """

    steps: np.ndarray
    ns: np.ndarray
    owners: np.ndarray

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
    seen = view.long_steps
    rare = [one for one in seen.steps if one.owner != EVERYBODY]
    lost = _Lost(
        np.array([one.step for one in rare], dtype=np.int64),
        np.array([one.excess_ns for one in rare]),
        np.array([one.owner for one in rare], dtype=np.int64),
    )
    others = _find_unknown(view, lost.steps)
    total_ns = max(seen.total_ns, float(np.nansum(view.longest_ns)), 1.0)
    others_ns = float(others.ns.sum())
    share = (float(lost.ns.sum()) + others_ns) / total_ns
    if share < LOST_MIN:
        return ""
    percent = f"{100 * share:.0f} % of the time"
    if others_ns > float(lost.ns.sum()):
        return f"{percent} was lost in {others.text}, and the ranks' own times in them are not known"
    owned = lost.owners >= 0
    if float(lost.ns[owned].sum()) < 0.5 * float(lost.ns.sum()):
        return f"{percent} was lost in {lost.text}, and which rank the others waited for in them is not known"
    ranks, counts = np.unique(lost.owners[owned], return_counts=True)
    most = int(counts.argmax())
    return (
        f"{percent} was lost in {lost.text}, of which rank {ranks[most]} had {counts[most]}: too few to say that it "
        "stops again and again"
    )


def _find_unknown(view: RunView, rare: np.ndarray) -> _Lost:
    """Return the kept steps that every rank has reported, and of which their own times are not known, with what they
    lost in all over the mean of those that are known, in equal shares; without the `rare` ones.
    """
    is_reported = ~np.isnan(view.series.step_ns).any(axis=1) & ~np.isin(view.series.steps, rare)
    rows, known = np.flatnonzero(is_reported & ~view.is_known), np.flatnonzero(is_reported & view.is_known)
    if not len(rows) or not len(known):
        return _Lost(view.series.steps[:0], np.zeros(0), np.zeros(0, dtype=np.int64))
    longer_ns = float(view.longest_ns[rows].mean() - view.longest_ns[known].mean())
    return _Lost(view.series.steps[rows], np.full(len(rows), max(0.0, longer_ns)), np.full(len(rows), -1))
