"""Break down the time of a run into slices since this collector knows it. Pure, exact and bounded.

Every rank reports cumulative totals: a slice is the difference of two snapshots, summed over the ranks. At the maximum
number of slices neighbors are merged, so a long run has fewer, longer slices.
"""

from collections.abc import Collection, Iterable, Mapping
from operator import attrgetter
from typing import Final

import msgspec

from rankscope.collector.runs.snapshot import Snapshot
from rankscope.measure.records import Totals

SLICES_MAX: Final = 360
"""Slices of a run, about 200 KB; a screen shows no more."""
SLICE_S_MIN: Final = 2.0
"""Shortest slice. A report arrives every second or so: shorter slices would show its arrival."""
RANKS_PER_SECOND: Final = 512
"""Ranks summed per second of a slice. Unpacking and adding the totals of a rank takes 5 us, so this is 0.3 % of one
core."""


class TimeSlice(msgspec.Struct, frozen=True, kw_only=True):
    """A slice of time (s since 1970), all ranks together. `step_ns` is the time in finished steps, of which
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
"""Fields that TimeSlice and Totals share and that add up, besides the phases."""


class RunTimeBreakdown:
    """The slices of one run. Not thread-safe."""

    def __init__(self, slices_max: int = SLICES_MAX) -> None:
        self._slices_max = slices_max
        self._slices: tuple[TimeSlice, ...] = ()
        self._slice_s = SLICE_S_MIN
        self._counted: Mapping[str, Totals] = {}
        self._recorded_wall_s: float | None = None

    @property
    def slices(self) -> tuple[TimeSlice, ...]:
        """Oldest first."""
        return self._slices

    def is_due(self, size: int, wall_s: float) -> bool:
        """Return whether to record the totals of the run, with `size` ranks, again."""
        recorded_wall_s = self._recorded_wall_s
        pause_s = max(self._slice_s, size / RANKS_PER_SECOND)
        return recorded_wall_s is None or not 0.0 <= wall_s - recorded_wall_s < pause_s

    def record(self, counted: Mapping[str, Totals], wall_s: float) -> None:
        """Record the totals of each rank process. Totals before its first record are in no slice."""
        begin_wall_s, before, now = self._recorded_wall_s, self._counted, counted
        self._recorded_wall_s, self._counted = wall_s, counted
        if begin_wall_s is None:
            return
        if now.keys() != before.keys():
            now = {process: totals for process, totals in now.items() if process in before}
            before = {process: before[process] for process in now}
        time_slice = _subtract(begin_wall_s, wall_s, now.values(), before.values())
        if not time_slice.step_ns and not time_slice.window_ns:
            return
        self._slices = (*self._slices, time_slice)
        if len(self._slices) > self._slices_max:
            self._slices = tuple(_join_neighbors(self._slices))
            self._slice_s *= 2


class Shares:
    """The time slices of all known runs. Written by one thread, read by any."""

    def __init__(self) -> None:
        self._runs: dict[str, RunTimeBreakdown] = {}

    def record(self, snapshot: Snapshot) -> None:
        """Record each run of the snapshot that is due, and forget the other runs."""
        known: dict[str, RunTimeBreakdown] = {}
        for run, size in snapshot.sizes.items():
            shares = known[run] = self._runs.get(run) or RunTimeBreakdown()
            if shares.is_due(size, snapshot.wall_s):
                shares.record(snapshot.read_totals(run), snapshot.wall_s)
        self._runs = known

    def of(self, run: str) -> tuple[TimeSlice, ...]:
        """Return the slices of a run, oldest first; empty for an unknown run."""
        found = self._runs.get(run)
        return () if found is None else found.slices


def _subtract(begin_wall_s: float, end_wall_s: float, now: Collection[Totals], before: Collection[Totals]) -> TimeSlice:
    """Return the difference of the totals of the same rank processes."""
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


def _join_neighbors(slices: tuple[TimeSlice, ...]) -> Iterable[TimeSlice]:
    for first in range(0, len(slices), 2):
        pair = slices[first : first + 2]
        names = {phase for one in pair for phase in one.phases_ns}
        yield TimeSlice(
            begin_wall_s=pair[0].begin_wall_s,
            end_wall_s=pair[-1].end_wall_s,
            phases_ns={phase: sum(one.phases_ns.get(phase, 0) for one in pair) for phase in sorted(names)},
            **{name: sum(map(read, pair)) for name, read in SUMMED.items()},
        )
