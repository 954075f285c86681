"""Measures a device's collectives between windows by the flight recorder: their durations, if it times them
(`nccl_timing.py`), else when some of them were enqueued (`step_entries.py`).

The recorder keeps its last entries (2,000 by default), and a dump always has all of them. So it is read as often as its
ring fills, as far as the cost allows. A reading has the last steps before it: those whose first collective is still in
the ring and whose collectives are all over. Earlier ones are counted and left out. Example: with 20 collectives a step
the ring has the last 100 steps; if the cost allows a reading every 500, these 100 are known, and 400 are left out.

A collective's start is when it was enqueued, since the recorder has no begin of its work. So it is not known how much
of it was exposed; and point-to-point operations, those of a coalesced group and those on the host are missing. The
results are durations, sizes and sequence numbers of these collectives (`timed_steps`), and make no step covered.

Without durations a step is known once it has ended, since nothing more will be known of its collectives.

Entries are assigned to steps by the wall clock, as it was when each step was reported. Where that clock was set
meanwhile the steps are left out, and counted.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Protocol

from rankscope.agent.captures.timed_entries import RecorderReading
from rankscope.agent.profiler.nccl_timing import COST_NS, RING_ENTRIES
from rankscope.agent.profiler.reduced_window import ReducedWindow
from rankscope.agent.profiler.step_entries import (
    StepEntries,
    WaitingStep,
    find_durations,
    find_enqueues,
    find_ranges,
    lacks_durations,
)
from rankscope.measure.clock import OFFSET_ERROR_NS
from rankscope.measure.enqueues import choose, find_chosen_max, pack_enqueues
from rankscope.measure.records import CollectiveRecord, GroupInfo, StepRecord
from rankscope.measure.units import NS_PER_MS, NS_PER_S

INTERVAL_NS_MIN = 2 * NS_PER_S
"""Shortest interval of readings, above the time until the sidecar has parsed one."""
INTERVAL_NS_MAX = 20 * NS_PER_S
RING_SHARE = 0.8
"""Part of the time in which the ring is filled after which it is read again."""
COST_SHARE = 0.0025
"""Largest share of the time that readings may take until the governor sets it: the default share of each kind of
window."""
STEPS_MAX = 1024
"""Steps kept until the recorder is read. Earlier ones are left out."""
IN_WINDOWS_MAX = 4 * STEPS_MAX
"""Steps of windows that are remembered, so that window and recorder do not report the same collective twice."""
CLOCK_MOVED_NS = NS_PER_MS
"""From so much on, between two reports, the wall clock was set: drift and slewing change it by less in a second."""

NOT_PLACED = "timed_unplaced"
TOO_OLD = "timed_too_old"
CLOCK_SET = "timed_clock_set"


class EntrySource(Protocol):
    """What reads the recorder: `sidecar/recorder_reader.py`."""

    server_ns: int
    """Time that others than this thread have needed so far."""
    skipped: dict[str, int]

    def request(self, since_wall_ns: int) -> bool:
        """Begin to read the collectives since then; return whether anything was begun, also if it failed."""
        ...

    def collect(self) -> RecorderReading | None:
        """Return a finished reading, once."""
        ...


class TimedCollectives:
    """Assign the recorder's entries to the steps they were enqueued in.

    `timing_is_ours` returns whether it is the agent that has torch time them, `timed_from_step` the first step that has
    durations, 0 if all have.
    """

    def __init__(
        self,
        source: EntrySource,
        read_groups: Callable[[], Mapping[str, GroupInfo]],
        *,
        monotonic_ns: Callable[[], int],
        thread_cpu_ns: Callable[[], int],
        ring_entries: int = RING_ENTRIES,
        timing_is_ours: Callable[[], bool] = lambda: True,
        timed_from_step: Callable[[], int] = lambda: 0,
    ) -> None:
        self._source = source
        self._read_groups = read_groups
        self._monotonic_ns = monotonic_ns
        self._thread_cpu_ns = thread_cpu_ns
        self._ring_entries = ring_entries
        self._timing_is_ours = timing_is_ours
        self._timed_from_step = timed_from_step
        self._steps: deque[WaitingStep] = deque()
        self._in_windows: deque[int] = deque(maxlen=IN_WINDOWS_MAX)
        self._wall_minus_host_ns: int | None = None
        self._wall_moved_ns = 0
        self._requested_ns: int | None = None
        self._first_ns: int | None = None
        self._spent_before_ns = 0
        self._cost_ns = 0
        self._ring_ns = INTERVAL_NS_MAX
        self._share = COST_SHARE
        self._budget_left_ns: int | None = None
        self._recorded: int | None = None
        self._recorded_before = 0
        self._parsing_ns = 0
        self._skipped: dict[str, int] = {}
        self.thread_ns = 0
        """CPU time on the agent thread so far."""

    @property
    def outside_ns(self) -> int:
        """Time of torch's server and the sidecar for this rank so far."""
        return self._source.server_ns + self._parsing_ns

    @property
    def is_used(self) -> bool:
        """Whether a reading has been begun."""
        return self._requested_ns is not None

    @property
    def timing_ns(self) -> int | None:
        """Estimated time by which torch's timing has delayed training so far; None before the first reading, and where
        the job itself has asked for it.
        """
        if self._recorded is None or not self._timing_is_ours():
            return None
        return COST_NS * (self._recorded - self._recorded_before)

    @property
    def is_held(self) -> bool:
        """Whether the budget allows no reading."""
        return self._share <= 0 or (self._budget_left_ns is not None and self._cost_ns > self._budget_left_ns)

    @property
    def skipped(self) -> dict[str, int]:
        """The readings without a result, and the steps and collectives left out, by reason."""
        return {**self._source.skipped, **self._skipped}

    def allow(self, share: float, budget_left_ns: int) -> None:
        """Set the share of time that readings may take, and what is left of the budget."""
        self._share, self._budget_left_ns = share, budget_left_ns

    def leave_to_window(self, steps: Sequence[StepRecord]) -> None:
        """Leave these steps out: a finished window has their collectives."""
        self._in_windows.extend(record.step for record in steps)

    def add_steps(
        self,
        steps: Sequence[StepRecord],
        wall_minus_host_ns: int,
        *,
        window_from_step: int | None = None,
        last: bool = False,
    ) -> list[ReducedWindow]:
        """Add finished steps, and return the collectives of those that are known by now; mostly none. Steps from
        `window_from_step` on wait until their window has ended. With the last report nothing is read any more, since
        the answer would come too late.
        """
        begin_ns = self._thread_cpu_ns()
        try:
            self._keep([one for one in steps if one.step >= self._timed_from_step()], wall_minus_host_ns)
            if self._steps and not last and self._is_due():
                self._request(self._steps[0].start_wall_ns)
            reading = self._source.collect()
            if reading is not None:
                self._learn(reading)
            return [] if reading is None else self._place(reading, window_from_step)
        finally:  # a reading that fails has its cost too
            self.thread_ns += self._thread_cpu_ns() - begin_ns
            self._cost_ns = self.thread_ns + self.outside_ns - self._spent_before_ns

    def _keep(self, steps: Sequence[StepRecord], wall_minus_host_ns: int) -> None:
        before_ns, self._wall_minus_host_ns = self._wall_minus_host_ns, wall_minus_host_ns
        for one in steps:
            start_wall_ns = one.start_host_ns + wall_minus_host_ns
            self._steps.append(
                WaitingStep(one.step, start_wall_ns, start_wall_ns + one.duration_ns, wall_minus_host_ns)
            )
        moved_ns = 0 if before_ns is None else abs(wall_minus_host_ns - before_ns)
        if moved_ns > CLOCK_MOVED_NS:
            self._drop(len(self._steps), CLOCK_SET)
        else:
            self._wall_moved_ns = max(self._wall_moved_ns, moved_ns)
        self._drop(len(self._steps) - STEPS_MAX, TOO_OLD)

    def _drop(self, count: int, reason: str) -> None:
        """Drop the oldest steps."""
        for _ in range(count):
            self._steps.popleft()
        self._count(reason, max(0, count))

    def _count(self, reason: str, count: int) -> None:
        if count:
            self._skipped[reason] = self._skipped.get(reason, 0) + count

    def _request(self, since_wall_ns: int) -> None:
        before = self._requested_ns, self._spent_before_ns
        # Also if it fails: then the next one waits as its cost demands.
        self._requested_ns, self._spent_before_ns = self._monotonic_ns(), self.thread_ns + self.outside_ns
        if not self._source.request(since_wall_ns):
            self._requested_ns, self._spent_before_ns = before
        elif self._first_ns is None:
            self._first_ns = self._requested_ns

    def _is_due(self) -> bool:
        if self._requested_ns is None or self.is_held:
            return not self.is_held
        age_ns = 0 if self._first_ns is None else self._requested_ns - self._first_ns  # a short run has readings too
        wanted_ns = min(INTERVAL_NS_MAX, self._ring_ns, age_ns)
        interval_ns = max(INTERVAL_NS_MIN, wanted_ns, round(self._cost_ns / self._share))
        return self._monotonic_ns() - self._requested_ns >= interval_ns

    def _learn(self, reading: RecorderReading) -> None:
        self._parsing_ns += reading.cpu_ns
        if self._recorded is None and self._timed_from_step():
            self._recorded_before = max(0, reading.recorded - len(reading.entries))
        self._recorded = max(reading.recorded, self._recorded or 0)
        if not reading.ring_entries:
            self._ring_ns = INTERVAL_NS_MIN  # an empty ring says nothing, and costs little
        elif reading.ring_entries > 1 and reading.ring_ns > 0:
            full = max(self._ring_entries, reading.ring_entries) / reading.ring_entries
            self._ring_ns = round(RING_SHARE * full * reading.ring_ns)

    def _place(self, reading: RecorderReading, window_from_step: int | None) -> list[ReducedWindow]:
        created_ns = [entry.created_wall_ns for entry in reading.entries]
        if any(earlier > later for earlier, later in pairwise(created_ns)):
            self._drop(len(self._steps), CLOCK_SET)
            return []
        is_untimed = lacks_durations(reading.entries)
        whole = self._pop_whole_steps(reading, window_from_step, is_untimed=is_untimed)
        groups = self._read_groups() if whole else {}
        found = []
        for step in whole:
            first, last = (bisect_left(created_ns, bound_ns) for bound_ns in (step.start_wall_ns, step.end_wall_ns))
            found.append(StepEntries(step, reading.entries[first:last]))
        return self._report_enqueues(found, groups) if is_untimed else self._report_durations(found, groups)

    def _report_durations(self, steps: Sequence[StepEntries], groups: Mapping[str, GroupInfo]) -> list[ReducedWindow]:
        found: dict[int, list[CollectiveRecord]] = {}
        for step, entries in steps:
            known = find_durations(step, entries, groups)
            self._count(NOT_PLACED, len(entries) - len(known))
            found[step.step] = known  # also if there are none: other ranks may have some in this step
        return [
            ReducedWindow([record for step in range(a, b + 1) for record in found[step]], [], None, timed_steps=(a, b))
            for a, b in find_ranges(found)
        ]

    def _report_enqueues(self, steps: Sequence[StepEntries], groups: Mapping[str, GroupInfo]) -> list[ReducedWindow]:
        if not steps:
            return []
        found, unknown = find_enqueues(steps, groups)
        self._count(NOT_PLACED, unknown)
        error_ns, self._wall_moved_ns = self._wall_moved_ns + OFFSET_ERROR_NS, 0
        ranges = find_ranges(one.step.step for one in steps)
        chosen = choose(found, find_chosen_max(max((len(one.ranks) for one in groups.values()), default=1)))
        return [ReducedWindow([], [], None, enqueues=pack_enqueues(chosen, ranges, wall_error_ns=error_ns))]

    def _pop_whole_steps(
        self, reading: RecorderReading, window_from_step: int | None, *, is_untimed: bool
    ) -> list[WaitingStep]:
        """Remove and return the steps all of whose collectives are in the reading and in no window; earlier ones are
        dropped.
        """
        if not reading.entries:
            return []
        is_overwritten = reading.recorded > reading.ring_entries
        known_from_ns = reading.entries[0].created_wall_ns if is_overwritten else 0
        unfinished = (entry.created_wall_ns for entry in reading.entries if not (entry.is_over or is_untimed))
        known_until_ns = min(next(unfinished, reading.taken_wall_ns), reading.taken_wall_ns)
        in_windows = frozenset(self._in_windows)
        whole = []
        while self._steps:
            step = self._steps[0]
            if step.end_wall_ns > known_until_ns or (window_from_step is not None and step.step >= window_from_step):
                break
            self._steps.popleft()
            if step.step in in_windows:
                continue
            if step.start_wall_ns >= known_from_ns:
                whole.append(step)
            else:
                self._count(TOO_OLD, 1)
        return whole
