"""Find ranks that are slow in turns: each for a while, then another. No rank is to blame for that.

A loader whose next shard lies on slow storage, garbage collectors, a hot expert make one rank after the other the last
one. While its turn lasts each looks as a straggler does, and is none: replacing it would change nothing.

    turn      consecutive slow steps with the same slowest rank; steps in between that are not slow belong to it
    takers    ranks whose turns hold at least half of an equal share of all excess
    in turns  more than half of the ranks that do the same work are takers, and the present turn is no longer than
              LONGER_RATIO times the longest one of another, and than PATIENCE_STEPS

A rank whose slowness goes on for longer than the others' turns has become a straggler, and is named.
"""

from typing import Final, NamedTuple

import numpy as np

from rankscope.collector.detect.stragglers.intermittent import SlowPeriods, find_slow_periods
from rankscope.collector.detect.stragglers.persistent import Thresholds
from rankscope.collector.detect.view import RunView
from rankscope.collector.steps.step_series import Floats, Ints

TAKER_SHARE: Final = 0.5
"""Of an equal share: turns of unequal length are turns."""
LONGER_RATIO: Final = 2.0
PATIENCE_STEPS: Final = 64
"""Known steps for which a rank is not named while it may be its turn."""
MEMBERS_MAX: Final = 64
"""Of more ranks half never take turns within the steps that are kept."""
RANKS_MAX: Final = 2048
"""Ranks of a run of which turns are looked for, in 50 ms; of 16,384 it would take 400 ms, twice in each pass."""


class Turns(NamedTuple):
    """Ranks that are slow in turns, ascending. `rows` of the series are the slow steps, `owners` the slowest rank in
    each, and `excess_ns` by how much it exceeds the median of its peers; shape (n,) each.
    """

    ranks: tuple[int, ...]
    rows: Ints
    owners: Ints
    excess_ns: Floats


def find_turns(view: RunView, thresholds: Thresholds) -> tuple[Turns, ...]:
    """Return the turns of each set of ranks that do the same work, if these take turns."""
    comparisons = [
        one for one in view.peer_groups.comparisons if one.do_same_work and 1 < len(one.members) <= MEMBERS_MAX
    ]
    if not comparisons or len(view.series.ranks) > RANKS_MAX:
        return ()
    periods = find_slow_periods(view, thresholds)
    found = (_find_turns(view, periods, np.array(one.members, dtype=np.int64)) for one in comparisons)
    return tuple(one for one in found if one is not None)


def find_in_turns(view: RunView, thresholds: Thresholds) -> frozenset[int]:
    """Return the ranks whose slowness is one of several turns, each another rank's."""
    return frozenset(rank for turns in find_turns(view, thresholds) for rank in turns.ranks)


def _find_turns(view: RunView, periods: SlowPeriods, members: Ints) -> Turns | None:
    columns = view.series.columns_of(members.tolist())
    excess_ns = view.excess_ns[np.ix_(periods.rows, columns)]
    weight = np.where(periods.slow[:, columns], np.nan_to_num(excess_ns, nan=0.0), 0.0)
    rows = np.flatnonzero(weight.max(axis=1, initial=0.0) > 0)
    if not len(rows):
        return None
    worst = weight[rows].argmax(axis=1)
    worst_ns = weight[rows, worst]
    sums = np.bincount(worst, worst_ns, minlength=len(members))
    takers = sums >= TAKER_SHARE * sums.sum() / len(members)
    if 2 * np.count_nonzero(takers) <= len(members):
        return None
    begins = np.flatnonzero(np.diff(worst, prepend=-1) != 0)
    lengths = np.diff(rows[np.append(begins, len(rows) - 1)])
    lengths[-1] += 1  # up to its last slow step; an earlier turn lasts until the next one begins
    owners = worst[begins]
    present = int(lengths[-1])
    longest = int(lengths[(owners != owners[-1]) & takers[owners]].max(initial=0))
    if takers[owners[-1]] and present > min(LONGER_RATIO * longest, PATIENCE_STEPS):
        return None
    return Turns(tuple(members[takers].tolist()), periods.rows[rows], members[worst], worst_ns)
