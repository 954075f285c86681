"""Find ranks that are slow in turns: each for a while, then another. No rank is to blame for that.

A loader whose next shard lies on slow storage, garbage collectors, a hot expert make one rank after the other the last
one. While its turn lasts each looks as a straggler does, and is none: replacing it would change nothing.

    turn      slow steps in a row, those that are not slow left out, with the same slowest rank. Of more than
              FEW_RANKS_MAX ranks, `steps_min` or more: of so many each stalls now and then
    takers    ranks whose turns hold at least half of an equal share of all excess
    in turns  more than half of the ranks that do the same work are takers, or the present turn began where that of
              another ended; and it is no longer than LONGER_RATIO times the longest one of another, or than
              `steps_min`, and than PATIENCE_STEPS
    alike     a taker is usual in the turns of others, and its turns but the last one hold at most LONGER_RATIO times as
              much excess as the median of the other takers': of the steps that are kept some have one turn more

A rank whose slowness goes on for longer than the others' turns, which have ended, has become a straggler, and is named;
so is one that has more of it than others, whose stalls only interrupt it.
"""

from typing import Final, NamedTuple

import numpy as np

from rankscope.collector.detect.finding import SinceRange
from rankscope.collector.detect.statistics.begin_range import to_since_range
from rankscope.collector.detect.stragglers.intermittent import SlowPeriods, find_begin, find_slow_periods
from rankscope.collector.detect.stragglers.persistent import SlowRank, Thresholds
from rankscope.collector.detect.view import RunView
from rankscope.collector.steps.step_series import Floats, Ints
from rankscope.measure.rank_view import Bools

TAKER_SHARE: Final = 0.5
"""Of an equal share: turns of unequal length are turns."""
FEW_RANKS_MAX: Final = 2
"""Of three ranks none is steadily the slowest by chance; noise of a busy machine makes short turns of any number."""
LONGER_RATIO: Final = 2.0
PATIENCE_STEPS: Final = 64
"""Known steps for which a rank is not named while it may be its turn."""
OWNED_MIN: Final = 0.8
"""Share of the excess since a rank became slow that is its own, where no other has turns. Of two ranks that are slow at
random one has two thirds of 40 steps in one of 100 cases.
"""
HANDED_ON_STEPS: Final = 2
"""Known steps from the last slow one of a rank to the first of the next one."""
INTERRUPTED_STEPS: Final = 2
"""Slow steps of another rank, or fewer, amid a turn that do not end it."""
MEMBERS_MAX: Final = 64
"""Of more ranks half never take turns within the steps that are kept."""
RANKS_MAX: Final = 2048
"""Ranks of a run of which turns are looked for, in 50 ms; of 16,384 it would take 400 ms, twice in each pass."""


class Turns(NamedTuple):
    """Ranks that are slow in turns and alike, ascending. `rows` of the series are the slow steps since the turns began,
    `owners` the slowest rank in each, and `excess_ns` by how much it exceeds the median of its peers; shape (n,) each.
    For `patience` known steps a slowness may be one of these turns. They began at `since_step`, or another one in
    `since_range`; None where they go on since the first step that is kept. `lost_ns`: what each step of the series lost
    since then, also in a turn that is too short yet; NaN where own times are not known. `are_short`: a turn may be a
    single step though there are more ranks than FEW_RANKS_MAX.
    """

    ranks: tuple[int, ...]
    patience: int
    since_step: int
    since_range: SinceRange | None
    rows: Ints
    owners: Ints
    excess_ns: Floats
    lost_ns: Floats
    are_short: bool = False


def find_turns(view: RunView, thresholds: Thresholds, *, also_short: bool = False) -> tuple[Turns, ...]:
    """Return the turns of each set of ranks that do the same work, if these take turns; with `also_short` turns of any
    length where there are no long ones.
    """
    comparisons = [
        one for one in view.peer_groups.comparisons if one.do_same_work and 1 < len(one.members) <= MEMBERS_MAX
    ]
    if not comparisons or len(view.series.ranks) > RANKS_MAX:
        return ()
    periods = find_slow_periods(view, thresholds)
    found = []
    for one in comparisons:
        are_few = len(one.members) <= FEW_RANKS_MAX
        turns = _find_turns(view, periods, one.members, thresholds.steps_min, 1 if are_few else thresholds.steps_min)
        if turns is None and also_short and not are_few:
            turns = _find_turns(view, periods, one.members, thresholds.steps_min, 1)
            turns = None if turns is None else turns._replace(are_short=True)
        found.append(turns)
    return tuple(one for one in found if one is not None)


def find_in_turns(view: RunView, thresholds: Thresholds) -> dict[int, Turns]:
    """Return the ranks whose slowness may be one of several turns, each another rank's, with these."""
    return {rank: turns for turns in find_turns(view, thresholds) for rank in turns.ranks}


def is_turn(slow: SlowRank, turns: Turns, view: RunView) -> bool:
    """Return whether a slowness may be one of these turns: it has not lasted for longer, or others had turns since it
    began.
    """
    since = view.series.steps[turns.rows] >= slow.since_step
    lost_ns = turns.excess_ns[since]
    mine_ns = lost_ns[turns.owners[since] == slow.rank]
    return slow.steps_judged <= turns.patience or float(mine_ns.sum()) < OWNED_MIN * float(lost_ns.sum())


def _find_turns(
    view: RunView, periods: SlowPeriods, ranks: tuple[int, ...], steps_min: int, turn_min: int
) -> Turns | None:
    """Return the turns of these ranks of `turn_min` slow steps or more."""
    columns, members = view.series.columns_of(ranks), np.array(ranks, dtype=np.int64)
    weight = np.nan_to_num(view.excess_ns[np.ix_(periods.rows, columns)], nan=0.0)
    weight[~periods.slow[:, columns]] = 0.0
    rows = np.flatnonzero(weight.max(axis=1, initial=0.0) > 0)
    is_slow = np.zeros(len(periods.rows), dtype=bool)
    is_slow[rows] = True
    worst = weight[rows].argmax(axis=1)
    if turn_min > 1:
        belongs = _find_uninterrupted(worst, turn_min)
        rows, worst = rows[belongs], worst[belongs]
    begins, lengths = _split(worst)
    counts = lengths >= turn_min
    if not counts.any():
        return None
    is_handed_on = _is_handed_on(weight, rows, worst, begins[counts], lengths[counts])
    is_in_one = np.repeat(counts, lengths)
    rows, worst, owners, lengths = rows[is_in_one], worst[is_in_one], worst[begins[counts]], lengths[counts]
    worst_ns = weight[rows, worst]
    sums = np.bincount(worst, worst_ns, minlength=len(members))
    takers = sums >= TAKER_SHARE * sums.sum() / len(members)
    if 2 * np.count_nonzero(takers) <= len(members) and not (is_handed_on and takers[owners[-1]]):
        return None
    longest = int(lengths[(owners != owners[-1]) & takers[owners]].max(initial=0))
    longest_turn = min(max(LONGER_RATIO * longest, steps_min), PATIENCE_STEPS) if longest else 0
    if takers[owners[-1]] and int(lengths[-1]) > longest_turn:
        return None
    last_ns = np.zeros(len(members))
    last_ns[owners] = np.add.reduceat(worst_ns, np.cumsum(lengths) - lengths)  # of several the last one stays
    alike = [
        member
        for member in np.flatnonzero(takers).tolist()
        if sums[member] - last_ns[member]
        <= LONGER_RATIO * np.median(np.delete(sums, member)[np.delete(takers, member)])
    ]
    own_ns = view.series.own_ns[np.ix_(periods.rows[rows], columns)]
    above_ns = own_ns - np.nanmin(own_ns, axis=1, keepdims=True)
    alike = [member for member in alike if _is_slow_in_its_turns_alone(above_ns[:, member], worst == member)]
    if not alike:
        return None
    patience = max(2 * steps_min, min(round(LONGER_RATIO * lengths.max()), PATIENCE_STEPS))
    began, earliest, latest = find_begin(is_slow)
    since = rows >= began
    lost_ns = np.where(view.is_known, 0.0, np.nan)
    lost_ns[periods.rows[began:]] = np.minimum(weight[began:].max(axis=1), view.longest_ns[periods.rows[began:]])
    steps = view.series.steps[periods.rows]
    return Turns(
        tuple(members[alike].tolist()),
        patience,
        int(steps[began]),
        to_since_range(steps, earliest, latest) if began else None,
        periods.rows[rows[since]],
        members[worst[since]],
        worst_ns[since],
        lost_ns,
    )


def _split(worst: Ints) -> tuple[Ints, Ints]:
    """Return where each row of steps with the same slowest rank begins, and how many it has."""
    begins = np.flatnonzero(np.diff(worst, prepend=-1) != 0)
    return begins, np.diff(np.append(begins, len(worst)))


def _find_uninterrupted(worst: Ints, steps_min: int) -> Bools:
    """Return which slow steps are not those of another rank that stalled for a moment amid a turn, shape as `worst`."""
    begins, lengths = _split(worst)
    owners, is_amid = worst[begins], np.zeros(len(begins), dtype=bool)
    is_a_turn = np.maximum(lengths[:-2], lengths[2:]) >= steps_min
    is_amid[1:-1] = (lengths[1:-1] <= INTERRUPTED_STEPS) & (owners[:-2] == owners[2:]) & is_a_turn
    return np.repeat(~is_amid, lengths)


def _is_slow_in_its_turns_alone(above_ns: Floats, is_its_turn: Bools) -> bool:
    """Return whether a rank is usual in the turns of others: one that is not is slow all the time, and longer stalls of
    others interrupt it. `above_ns`, shape (n,): its own time above the lowest in each step of a turn.
    """
    in_others = above_ns[~is_its_turn & ~np.isnan(above_ns)]
    return not len(in_others) or float(np.median(in_others)) < TAKER_SHARE * float(np.median(above_ns[is_its_turn]))


def _is_handed_on(weight: Floats, rows: Ints, worst: Ints, begins: Ints, lengths: Ints) -> bool:
    """Return whether the last turn began where that of another rank ended. `weight`, shape (n, ranks), is the excess of
    slow steps, `rows` those that are slow, `worst` the slowest rank in each; turns begin at `begins` of them.
    """
    if len(begins) < 2:  # noqa: PLR2004 - it takes two
        return False
    first, before = int(begins[-1]), int(worst[begins[-2]])
    last = int(begins[-2] + lengths[-2]) - 1
    is_next = int(rows[first] - rows[last]) <= HANDED_ON_STEPS and int(worst[first]) != before
    return is_next and not np.median(weight[rows[first:], before])
