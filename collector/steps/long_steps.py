"""Remember the rare long steps of a whole attempt, and whose they were, in bounded memory. Pure.

Problem: a rank that stops for two seconds every 80 steps costs a fifth of the run. The table of steps holds two or
three of such stalls, medians do not move, and windows meet none of them.

Naive: keep all steps, or test each rank by how often it is the slowest. Few stalls prove little by their number,
however long they are.

So each step that is much longer than those around it is looked at once, and kept with what its phases say:

    long      longest duration on any rank >= (1 + LONG_RATIO) * median of the SIDE_STEPS before and after it, and
              beyond DEVIATIONS of their noise
    holder    rank of which one phase is longer than usual by at least half of the step's excess
    owner     the only holder of the earliest phase that has one, which is not backward

Where the own times of all ranks are known in the step and around it, the only one whose own time holds half of the
excess is the owner. Else the others wait in a later phase, or not before the next step. Where ranks wait for each other
within the phase of the stall, as with FSDP, all of them hold it, and nobody is its owner. A step that is long because
ranks wait for what their peer did at the end of the step before, after its last collective, is not counted again.

Beside one other rank, or in a group of two, the one that waits holds its phase alone as well. So a holder is no owner

- when it ended the step before ahead of another rank, by half of the excess: then it waits for that one;
- when another rank holds `other` or a phase of the user, whose place in the step is not known: that may come first;
  not so `checkpoint_wait`, which follows a rank's own part of a distributed save. But where hosts wait for their
  devices in `other` in each step, two ranks or more that hold the same excess there wait. A phase of the user itself
  also needs two more ranks that wait in backward, or none that holds anything;
- of `forward` in a pipeline, where a stage waits for the one before it;
- when another rank is long too, and none of the phases that it reports says where;
- when a tenth of the ranks have not reported the step, or one of two;
- when it was seen to wait in a collective meanwhile.

Where that leaves no owner, as where a rank works before a barrier and the others wait in it, it is the rank that was
seen to work while the others waited (`quiet_places.py`).

Example: steps of 20 ms; step 160 takes 2.02 s. Rank 1 has 2.006 s in forward, usually 6 ms; ranks 0, 2 and 3 have
2.01 s in backward. Forward comes first, and rank 1 alone holds it: 2.0 s are its own.
"""

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

import numpy as np

from rankscope.collector.invariants import require
from rankscope.collector.steps.host_own_times import WAITS_IN
from rankscope.collector.steps.quiet_places import NO_PLACES, QuietPlaces
from rankscope.collector.steps.step_aggregates import PATIENCE_STEPS
from rankscope.collector.steps.step_series import Cells, Flags, Floats, Ints, StepSeries
from rankscope.measure.records import CHECKPOINT, CHECKPOINT_WAIT, PHASES

LONG_RATIO: Final = 0.5
"""Least excess over the usual step. A stall every 50 steps or less often that is shorter costs less than 1 %."""
SIDE_STEPS: Final = 12
"""Steps before and after a step that it is compared with. As many on each side, so that a lasting change makes no step
long. A stall in more than every third step is no rare one."""
NEIGHBORS_MIN: Final = 12
DEVIATIONS: Final = 8.0
"""Median deviations of the steps around it."""
HOLDS_RATIO: Final = 0.5
"""Share of a step's excess that a phase must hold."""
WAITS_RATIO: Final = 0.25
"""Share of a usual step in `other` from which hosts wait for their devices there."""
SAME_RATIO: Final = 0.1
"""Share of the excess by which ranks that wait for the same one differ."""
RECENT_MAX: Final = 256
LARGEST_MAX: Final = 256
"""Long steps kept: the latest, and of the earlier ones the longest. 80 KB a run at most."""
CELLS_MAX: Final = 2**17
"""Ranks x long steps that are looked at in a pass: 8 of 16,384 ranks, half a second; others count in the time only."""

NONE: Final = np.empty(0, dtype=np.int64)
UNKNOWN: Final = -1
"""Owner of a step of which it is not known whose it was."""
EVERYBODY: Final = -2
"""Owner of a step in which most ranks did the same, as an evaluation or a checkpoint."""
MOST_RANKS: Final = 0.9
_LAST_PHASES: Final = PHASES[1:]  # after the loader and the user's own phases
_FORWARD: Final = "forward"
_ANYWHERE: Final = "other"


class RareLongStep(NamedTuple):
    """A step that was longer than those around it by `excess_ns`, of which `owner`, a rank, UNKNOWN or EVERYBODY, held
    `owned_ns` in phase `part` (empty where it is not known). Steps of the run took `before_ns` in all before it began,
    and `usual_ns` each around it. `cpu_ns`: CPU time of the owner's training thread in it, None where not known.
    `line`: where the owner, or one of EVERYBODY, was seen in it, `train.py:52 (main)`, and `call` what it called; empty
    where not known. `is_seen`: it is known of some rank what that did in it. A single rank owns none, but has the part.
    """

    step: int
    owner: int
    part: str
    excess_ns: float
    owned_ns: float
    before_ns: float
    usual_ns: float
    cpu_ns: float | None = None
    line: str = ""
    call: str = ""
    is_seen: bool = False


class LongStepsSeen(NamedTuple):
    """The long steps that are kept, in order, and the time of all steps up to now, in ns: of each the longest of any
    rank, without what was a wait for the step before. `first_step`: the first that was looked at; a collector that
    comes later has not seen what was before.
    """

    steps: tuple[RareLongStep, ...] = ()
    total_ns: float = 0.0
    first_step: int = 0


NO_LONG_STEPS: Final = LongStepsSeen()


class LongSteps:
    """The long steps of one attempt. `add` is given each step once it is complete, or late."""

    def __init__(self) -> None:
        #: The last step that was looked at; -1 before any. Only grows.
        self.last_step = -1
        #: The first one; 0 before any.
        self.first_step = 0
        #: The time of all steps up to it, in ns: their longest durations, without waits for the step before. Grows.
        self._total_ns = 0.0
        self._largest: list[RareLongStep] = []
        self._recent: list[RareLongStep] = []

    def read(self) -> LongStepsSeen:
        """Return what is kept."""
        return LongStepsSeen((*self._largest, *self._recent), self._total_ns, self.first_step)

    def add(self, series: StepSeries, places: QuietPlaces = NO_PLACES, *, is_last: bool = False) -> None:
        """Look at the complete steps of the series that have enough later ones, `is_last`: at all. `places`: where
        ranks were in them.
        """
        step_ns = series.step_ns[series.earlier_count :]
        steps = series.steps[series.earlier_count :]
        known = ~np.isnan(step_ns)
        is_complete = known.all(axis=1) | (known.any(axis=1) & (steps <= steps.max(initial=-1) - PATIENCE_STEPS))
        rows = np.flatnonzero(is_complete)
        longest_ns = np.fmax.reduce(step_ns[rows], axis=1, initial=0.0)
        until = len(rows) if is_last else len(rows) - SIDE_STEPS
        fresh = [place for place in range(until) if steps[rows[place]] > self.last_step]
        may_be_long = _may_be_long(longest_ns)
        seen = 0
        for place in fresh:
            begin, end = max(0, place - SIDE_STEPS), place + SIDE_STEPS + 1
            around = np.delete(np.arange(begin, min(end, len(rows))), place - begin) if may_be_long[place] else NONE
            usual_ns = _find_usual(longest_ns[place], longest_ns[around])
            step, lasted_ns = int(steps[rows[place]]), float(longest_ns[place])
            if self.last_step < 0:
                self.first_step = step
            else:  # steps that left the table unseen were usual ones
                self._total_ns += (step - self.last_step - 1) * (lasted_ns if usual_ns is None else usual_ns)
            self.last_step = step
            if usual_ns is not None:
                seen += 1
                at = _Place(int(rows[place]), rows[around], usual_ns, lasted_ns - usual_ns)
                if seen * len(series.ranks) <= max(CELLS_MAX, len(series.ranks)):
                    is_kept = self._keep(_look(series, places, at, self._total_ns))
                    lasted_ns = lasted_ns if is_kept else usual_ns
            self._total_ns += lasted_ns

    def _keep(self, found: RareLongStep) -> bool:
        """Keep a long step, and return True; not one that is the wait for the step before."""
        last = self._recent[-1] if self._recent else None
        is_handed_on = (
            found.owner == UNKNOWN
            and last is not None
            and last.step == found.step - 1
            and last.owner >= 0
            and found.excess_ns <= (1 + HOLDS_RATIO) * last.excess_ns
        )
        if is_handed_on:
            return False
        self._recent.append(found)
        if len(self._recent) > RECENT_MAX:
            self._largest.append(self._recent.pop(0))
        if len(self._largest) > LARGEST_MAX:
            self._largest.remove(min(self._largest, key=lambda one: one.excess_ns))
        return True

    def validate(self) -> None:
        """Raise InvariantError where an invariant does not hold."""
        kept = (*self._largest, *self._recent)
        require([one.step for one in kept] == sorted({one.step for one in kept}), "long steps are out of order")
        require(len(self._recent) <= RECENT_MAX and len(self._largest) <= LARGEST_MAX, "too many long steps")
        require(all(0 <= one.owned_ns <= one.excess_ns for one in kept), "a rank owns more than a step's excess")
        require(sum(one.excess_ns for one in kept) <= self._total_ns + 1, "long steps exceed all steps")


class _Place(NamedTuple):
    """Row of a long step, rows around it, its usual duration and its excess, in ns; of steps kept one by one."""

    row: int
    around: Ints
    usual_ns: float
    excess_ns: float


class _Owned(NamedTuple):
    """Whose a long step is: a column, UNKNOWN or EVERYBODY, in which phase, and how much of the excess, in ns."""

    column: int
    part: str
    ns: float


def _may_be_long(longest_ns: Floats) -> Flags:
    """Return which steps may be long, shape (n,): a quick test that leaves out none that is. The median of those around
    a step is at least the lower middle one of all, with the step itself where that is longer.
    """
    found = np.ones(len(longest_ns), dtype=bool)
    if len(longest_ns) > 2 * SIDE_STEPS:
        windows = np.lib.stride_tricks.sliding_window_view(longest_ns, 2 * SIDE_STEPS + 1)
        lower_ns = np.partition(windows, SIDE_STEPS - 1, axis=1)[:, SIDE_STEPS - 1]
        found[SIDE_STEPS:-SIDE_STEPS] = longest_ns[SIDE_STEPS:-SIDE_STEPS] >= (1 + LONG_RATIO) * lower_ns
    return found


def _find_usual(longest_ns: float, around_ns: Floats) -> float | None:
    """Return the usual duration around a long step; None for one that is not long."""
    if len(around_ns) < NEIGHBORS_MIN:
        return None
    usual_ns = float(np.median(around_ns))
    deviation_ns = float(np.median(np.abs(around_ns - usual_ns)))
    is_long = longest_ns >= (1 + LONG_RATIO) * usual_ns and longest_ns - usual_ns >= DEVIATIONS * deviation_ns
    return usual_ns if is_long else None


def _look(series: StepSeries, places: QuietPlaces, at: _Place, before_ns: float) -> RareLongStep:
    """Return a long step with its owner, and where that was seen."""
    found = _judge(series, at, before_ns)
    step = found.step
    if found.owner >= 0 and places.waits(step, found.owner):
        found = found._replace(owner=UNKNOWN, part="", owned_ns=0.0, cpu_ns=None)
    owner = places.find_owner(step, series.ranks) if found.owner < 0 else None
    if owner is not None:
        found = _give(series, at, found, owner)
    if len(series.ranks) == 1:  # nobody waits for it
        found = _give(series, at, found, series.ranks[0])._replace(owner=UNKNOWN, owned_ns=0.0)
    are_alike = found.owner == EVERYBODY or len(series.ranks) == 1
    seen = places.find_any(step) if are_alike else places.find_work(step, found.owner)
    found = found._replace(is_seen=places.is_seen(step))
    return found if seen is None else found._replace(line=seen.line, call=seen.call)


def _give(series: StepSeries, at: _Place, found: RareLongStep, rank: int) -> RareLongStep:
    """Return a long step of a rank for which the others were seen to wait: all of it is the rank's, in its longest
    phase.
    """
    row, around = at.row + series.earlier_count, at.around + series.earlier_count
    excess_ns = {name: _excess_of(values, row, around) for name, values in series.phases_ns.items()}
    column = series.ranks.index(rank)
    return _describe(series, at, found.before_ns, _Owned(column, _find_longest(excess_ns, column), at.excess_ns))


def _judge(series: StepSeries, at: _Place, before_ns: float) -> RareLongStep:
    """Return a long step with its owner, by the times of its phases."""
    row, around = at.row + series.earlier_count, at.around + series.earlier_count
    excess_ns = {name: _excess_of(values, row, around) for name, values in series.phases_ns.items()}
    least_ns = HOLDS_RATIO * at.excess_ns
    own = _find_by_own_time(series, row, around, excess_ns, least_ns)
    if own is not None:
        return _describe(series, at, before_ns, own)
    may_wait = {WAITS_IN} if series.handover_ns is None else {WAITS_IN, _FORWARD}
    waiting = _find_waiting(series, row, excess_ns, least_ns, at)
    owner, part = _find_owner({**excess_ns, **waiting}, least_ns, may_wait)
    is_told = np.any([values >= least_ns for values in excess_ns.values()], axis=0)
    is_untold = (_excess_of(series.step_ns, row, around) >= least_ns) & ~is_told
    if owner >= 0 and (is_untold.any() or _may_have_waited(series, row, owner, least_ns)):
        owner, part = UNKNOWN, ""
    owned_ns = 0.0
    if owner != UNKNOWN:
        held_ns = excess_ns[part] if owner == EVERYBODY else excess_ns[part][[owner]]
        owned_ns = float(np.nanmax(held_ns))
    return _describe(series, at, before_ns, _Owned(owner, part, owned_ns))


def _find_by_own_time(
    series: StepSeries, row: int, around: Ints, excess_ns: Mapping[str, Floats], least_ns: float
) -> _Owned | None:
    """Return whose a long step is by the ranks' own times, and the phase of it that is longest beyond usual; None where
    these are not known in it and around it, or no rank or several hold it.
    """
    own_ns = _excess_of(series.own_ns, row, around)
    if np.isnan(own_ns).any() or len(own_ns) < 2:  # noqa: PLR2004 - nobody to compare with
        return None
    holders = np.flatnonzero(own_ns >= least_ns)
    if len(holders) != 1:
        return None
    owner = int(holders[0])
    return _Owned(owner, _find_longest(excess_ns, owner), float(own_ns[owner]))


def _find_longest(excess_ns: Mapping[str, Floats], column: int) -> str:
    """Return the phase that is longest beyond usual on a column; empty where none is known."""
    held_ns = {name: float(values[column]) for name, values in excess_ns.items() if not np.isnan(values[column])}
    return max(held_ns, key=lambda name: held_ns[name], default="")


def _describe(series: StepSeries, at: _Place, before_ns: float, owned: _Owned) -> RareLongStep:
    """Return the long step of an owner."""
    owner = owned.column
    row, cpu_ns = at.row + series.earlier_count, None
    if owner >= 0:
        used_ns = float(series.cpu_ns[row, owner])
        cpu_ns = None if np.isnan(used_ns) else used_ns
        owner = series.ranks[owner]
    owned_ns = min(at.excess_ns, owned.ns)
    return RareLongStep(
        int(series.steps[row]), owner, owned.part, at.excess_ns, owned_ns, before_ns, at.usual_ns, cpu_ns
    )


def _find_waiting(
    series: StepSeries, row: int, excess_ns: Mapping[str, Floats], least_ns: float, at: _Place
) -> Mapping[str, Floats]:
    """Return the excess in `other` without the ranks that wait there for their devices, and so for another rank; empty
    where that is not so.
    """
    if _ANYWHERE not in excess_ns:
        return {}
    held_ns = excess_ns[_ANYWHERE]
    holders = np.flatnonzero(held_ns >= least_ns)
    is_of_some = 1 < len(holders) < len(series.ranks)
    if not is_of_some or np.ptp(held_ns[holders]) > SAME_RATIO * at.excess_ns:
        return {}
    usual_ns = series.phases_ns[_ANYWHERE][row : row + 1][0][holders] - held_ns[holders]
    if float(np.median(usual_ns)) < WAITS_RATIO * at.usual_ns:
        return {}
    left_ns = held_ns.copy()
    left_ns[holders] = 0.0
    return {_ANYWHERE: left_ns}


def _may_have_waited(series: StepSeries, row: int, owner: int, least_ns: float) -> bool:
    """Return whether a column may have waited `least_ns` in a step: it was ahead of another one by as much after the
    step before, or that, or what others did in this step, is not known.
    """
    ranks = len(series.ranks)
    if np.count_nonzero(~np.isnan(series.step_ns[row])) < MOST_RANKS * ranks:
        return True
    if row == 0 or series.steps[row - 1] != series.steps[row] - 1:
        return True
    before_ns = series.step_ns[row - 1]
    return not float(np.fmax.reduce(before_ns)) - float(before_ns[owner]) < least_ns  # not a number: not known


def _find_owner(excess_ns: Mapping[str, Floats], least_ns: float, may_wait: Collection[str]) -> tuple[int, str]:
    """Return whose a long step is, a column, UNKNOWN or EVERYBODY, and the phase that holds it: the earliest one that
    is longer by `least_ns` on any rank decides. `excess_ns`: of each phase, shape (ranks,); in those of `may_wait`
    ranks wait for each other.
    """
    holders = {name: np.flatnonzero(excess_ns[name] >= least_ns) for name in _in_order(excess_ns)}
    first = next((name for name, columns in holders.items() if len(columns)), None)
    if first is None:
        return UNKNOWN, ""
    count, ranks = len(holders[first]), len(excess_ns[first])
    if count == 1 < ranks and first not in may_wait and _is_first(int(holders[first][0]), first, holders):
        return int(holders[first][0]), first
    if count >= MOST_RANKS * ranks and first not in {_FORWARD, WAITS_IN}:
        return EVERYBODY, first
    return UNKNOWN, ""


def _is_first(column: int, part: str, holders: Mapping[str, Ints]) -> bool:
    """Return whether what the other ranks hold surely comes after the only rank that holds `part`."""
    others = {name: int(np.count_nonzero(columns != column)) for name, columns in holders.items()}
    held = {name for name, count in others.items() if count}
    if part == CHECKPOINT:
        held -= {CHECKPOINT_WAIT}
    if part in PHASES:
        return held <= {name for name in PHASES if name != _ANYWHERE}
    return not held or (held == {WAITS_IN} and others[WAITS_IN] > 1)


def _excess_of(values: Cells, row: int, around: Ints) -> Floats:
    """Return by how much a value of each rank is above its median around it, shape (ranks,); NaN where not known."""
    there = values[around]
    known = ~np.isnan(there)
    usual = np.full(there.shape[1], np.nan)
    whole = known.all(axis=0)
    usual[whole] = np.median(there[:, whole], axis=0)
    for column in np.flatnonzero(~whole & known.any(axis=0)).tolist():
        usual[column] = np.median(there[known[:, column], column])
    return np.asarray(values[row : row + 1][0] - usual)


def _in_order(phases_ns: Mapping[str, object]) -> tuple[str, ...]:
    """Return the names of phases in the order of a step: the loader's, those of the user, the others."""
    own = sorted(name for name in phases_ns if name not in PHASES)
    return tuple(name for name in (PHASES[0], *own, *_LAST_PHASES) if name in phases_ns)
