"""What the time of a run went into, stretch by stretch since this collector knows it. Pure, exact and bounded.

Every rank reports what it has counted so far: a stretch is the difference of two pictures, summed over the ranks. Once
there are as many stretches as there may be, neighbours are added up: a long run has fewer, longer ones, and none is
lost.
"""

from collections.abc import Collection, Iterable, Mapping
from operator import attrgetter
from typing import Final

import msgspec

from rankscope.collector.runs.snapshot import Snapshot
from rankscope.measure.records import Totals

STRETCHES_MAX: Final = 360
"""More are not told apart on a screen; of a run about 200 KB."""
STRETCH_S_MIN: Final = 2.0
"""A report comes every second or so: shorter stretches would show when it came."""
RANKS_PER_SECOND: Final = 512
"""To unpack what a rank has counted and add it up takes 5 us: at so many of them for each second of a stretch it is
0.3 % of one core."""


class TimeSlice(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of time (s since 1970), all ranks together. `step_ns` is the time in finished steps, of which
    `phases_ns` are parts; `window_ns` that in profiled windows, of which the others are (docs/definitions.md section
    1): (compute - overlap) + overlap + exposed_communication + copy + idle = window.
    """

    begin_wall_s: float
    end_wall_s: float
    steps: int = 0
    step_ns: int = 0
    phases_ns: Mapping[str, int] = {}
    window_ns: int = 0
    compute_ns: int = 0
    overlap_ns: int = 0
    exposed_communication_ns: int = 0
    copy_ns: int = 0
    idle_ns: int = 0


SUMMED: Final = {
    name: attrgetter(name)
    for name in (
        "steps", "step_ns", "window_ns", "compute_ns", "overlap_ns", "exposed_communication_ns", "copy_ns", "idle_ns",
    )
}  # fmt: skip
"""Fields that a stretch and Totals have in common and that add up, besides the phases."""


class RunTimeBreakdown:
    """The stretches of one run. Of one thread."""

    def __init__(self, stretches_max: int = STRETCHES_MAX) -> None:
        self._stretches_max = stretches_max
        self._stretches: tuple[TimeSlice, ...] = ()
        self._stretch_s = STRETCH_S_MIN
        self._counted: Mapping[str, Totals] = {}
        self._taken_wall_s: float | None = None

    @property
    def stretches(self) -> tuple[TimeSlice, ...]:
        """Oldest first."""
        return self._stretches

    def is_due(self, size: int, wall_s: float) -> bool:
        """Whether it is time to take in what the ranks of the run, so many, have counted."""
        taken_wall_s = self._taken_wall_s
        pause_s = max(self._stretch_s, size / RANKS_PER_SECOND)
        return taken_wall_s is None or not 0.0 <= wall_s - taken_wall_s < pause_s

    def take(self, counted: Mapping[str, Totals], wall_s: float) -> None:
        """Take in what each life has counted by now. What it had counted before it was first seen is in no stretch."""
        begin_wall_s, before, now = self._taken_wall_s, self._counted, counted
        self._taken_wall_s, self._counted = wall_s, counted
        if begin_wall_s is None:
            return
        if now.keys() != before.keys():
            now = {life: totals for life, totals in now.items() if life in before}
            before = {life: before[life] for life in now}
        stretch = _subtract(begin_wall_s, wall_s, now.values(), before.values())
        if not stretch.step_ns and not stretch.window_ns:
            return
        self._stretches = (*self._stretches, stretch)
        if len(self._stretches) > self._stretches_max:
            self._stretches = tuple(_join_neighbours(self._stretches))
            self._stretch_s *= 2


class Shares:
    """Those of all runs that are known at the moment. Written by one thread, read by any."""

    def __init__(self) -> None:
        self._runs: dict[str, RunTimeBreakdown] = {}

    def take(self, snapshot: Snapshot) -> None:
        """The runs as they are now, each when it is time for it; of those that are not among them nothing is kept. It
        costs next to nothing while no run is due.
        """
        known: dict[str, RunTimeBreakdown] = {}
        for run, size in snapshot.sizes.items():
            shares = known[run] = self._runs.get(run) or RunTimeBreakdown()
            if shares.is_due(size, snapshot.wall_s):
                shares.take(snapshot.read_totals(run), snapshot.wall_s)
        self._runs = known

    def of(self, run: str) -> tuple[TimeSlice, ...]:
        """The stretches of a run, oldest first; none of a run that is not known."""
        found = self._runs.get(run)
        return () if found is None else found.stretches


def _subtract(begin_wall_s: float, end_wall_s: float, now: Collection[Totals], before: Collection[Totals]) -> TimeSlice:
    """What the same lives have counted since."""
    spent = _sum_phases(now)
    for phase, spent_ns in _sum_phases(before).items():
        spent[phase] = spent.get(phase, 0) - spent_ns
    sums = {name: sum(map(read, now)) - sum(map(read, before)) for name, read in SUMMED.items()}
    return TimeSlice(begin_wall_s=begin_wall_s, end_wall_s=end_wall_s, phases_ns=spent, **sums)


def _sum_phases(totals: Iterable[Totals]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for one in totals:
        for phase, spent_ns in one.phases_ns.items():
            sums[phase] = sums.get(phase, 0) + spent_ns
    return sums


def _join_neighbours(stretches: tuple[TimeSlice, ...]) -> Iterable[TimeSlice]:
    for first in range(0, len(stretches), 2):
        pair = stretches[first : first + 2]
        names = {phase for one in pair for phase in one.phases_ns}
        yield TimeSlice(
            begin_wall_s=pair[0].begin_wall_s,
            end_wall_s=pair[-1].end_wall_s,
            phases_ns={phase: sum(one.phases_ns.get(phase, 0) for one in pair) for phase in sorted(names)},
            **{name: sum(map(read, pair)) for name, read in SUMMED.items()},
        )
