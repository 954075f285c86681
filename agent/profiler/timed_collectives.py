"""Measures a device's collectives between windows by the flight recorder, if it times them (`nccl_timing.py`).

The recorder keeps its last entries (2,000 by default), and a dump always has all of them. So it is read as often as its
ring fills, as far as the cost allows. A reading covers the last steps before: those whose first collective is still in
the ring and whose collectives all have a duration. A collective's start is when it was enqueued, since the recorder has
no begin of its kernel.

Collectives of groups that communicate on the host have no durations there. Steps in which there were any are not
covered; between two reports of the rank it is only known whether there were any.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Protocol

from rankscope.agent.capture.timed_entries import Reading, TimedEntry
from rankscope.agent.profiler.nccl_timing import COST_NS, RING_ENTRIES
from rankscope.agent.profiler.reduced_window import ReducedWindow
from rankscope.measure.records import CollectiveRecord, GroupInfo, StepRecord
from rankscope.measure.units import NS_PER_S

INTERVAL_NS_MIN = 2 * NS_PER_S
"""Shortest interval of readings, above the time until the sidecar has parsed one."""
INTERVAL_NS_MAX = 20 * NS_PER_S
RING_SHARE = 0.8
"""Part of the time in which the ring is filled after which it is read again."""
COST_SHARE = 0.0025
"""Largest share of the time that readings may take until the governor sets it: the default share of each kind of
window."""
STEPS_MAX = 1024
"""Steps kept until the recorder is read. Earlier ones are not covered."""
ON_HOST_MAX = 64
"""Intervals with communication on the host that are remembered."""
COVERED_MAX = 4 * STEPS_MAX
"""Covered steps that are remembered, so that window and recorder do not report the same collective twice."""


class EntrySource(Protocol):
    """What reads the recorder: `sidecar/recorder_reader.py`."""

    server_ns: int
    """Time that others than this thread have needed so far."""
    skipped: dict[str, int]

    def request(self, since_wall_ns: int) -> None:
        """Begin to read the collectives since then."""
        ...

    def collect(self) -> Reading | None:
        """Return a finished reading, once."""
        ...


class TimedCollectives:
    """Assign the recorder's entries to the steps they were enqueued in. `unplaced` counts the entries of the steps in
    which the group or duration of an entry is not known.
    """

    def __init__(
        self,
        source: EntrySource,
        read_groups: Callable[[], Mapping[str, GroupInfo]],
        count_on_host: Callable[[], int],
        *,
        monotonic_ns: Callable[[], int],
        thread_cpu_ns: Callable[[], int],
        ring_entries: int = RING_ENTRIES,
    ) -> None:
        self._source = source
        self._read_groups = read_groups
        self._count_on_host = count_on_host
        self._counted_on_host, self._counted_ns = 0, 0
        self._on_host: deque[tuple[int, int]] = deque()
        self._monotonic_ns = monotonic_ns
        self._thread_cpu_ns = thread_cpu_ns
        self._ring_entries = ring_entries
        self._steps: deque[StepRecord] = deque(maxlen=STEPS_MAX)
        self._covered: deque[int] = deque(maxlen=COVERED_MAX)
        self._requested_ns: int | None = None
        self._first_ns: int | None = None
        self._spent_before_ns = 0
        self._cost_ns = 0
        self._ring_ns = INTERVAL_NS_MAX
        self._share = COST_SHARE
        self._budget_left_ns: int | None = None
        self._recorded: int | None = None
        self._parsing_ns = 0
        self.thread_ns = 0
        """CPU time on the agent thread so far."""
        self.unplaced = 0
        self.steps_on_host = 0
        """Steps not covered since there was communication on the host."""

    @property
    def outside_ns(self) -> int:
        """Time of torch's server and the sidecar for this rank so far."""
        return self._source.server_ns + self._parsing_ns

    @property
    def timing_ns(self) -> int | None:
        """Estimated time by which torch's timing has delayed training so far; None before the first reading."""
        return None if self._recorded is None else COST_NS * self._recorded

    @property
    def is_held(self) -> bool:
        """Whether the budget allows no reading."""
        return self._share <= 0 or (self._budget_left_ns is not None and self._cost_ns > self._budget_left_ns)

    @property
    def skipped(self) -> dict[str, int]:
        """The collectives not assigned to steps, and the readings without a result, by reason."""
        own = {"timed_unplaced": self.unplaced, "timed_on_host": self.steps_on_host}
        return {**self._source.skipped, **{reason: count for reason, count in own.items() if count}}

    def allow(self, share: float, budget_left_ns: int) -> None:
        """Set the share of time that readings may take, and what is left of the budget."""
        self._share, self._budget_left_ns = share, budget_left_ns

    def claim(self, first_step: int, last_step: int) -> bool:
        """Reserve these steps for the window that has their collectives; return False if one was covered before."""
        if any(first_step <= step <= last_step for step in self._covered):
            return False
        self._covered.extend(range(first_step, last_step + 1))
        return True

    def add_steps(
        self, steps: Sequence[StepRecord], wall_minus_host_ns: int, *, last: bool = False
    ) -> list[ReducedWindow]:
        """Add finished steps, and return the collectives of those that are known by now; mostly none. With the last
        report nothing is read any more, since the answer would come too late.
        """
        self._steps.extend(steps)
        begin_ns = self._thread_cpu_ns()
        self._find_host_communication()
        if self._steps and not last and self._is_due():
            self._requested_ns = self._monotonic_ns()
            self._first_ns = self._requested_ns if self._first_ns is None else self._first_ns
            self._spent_before_ns = self.thread_ns + self.outside_ns
            self._source.request(self._steps[0].start_host_ns + wall_minus_host_ns)
        reading = self._source.collect()
        found = [] if reading is None else self._place(reading, wall_minus_host_ns)
        self.thread_ns += self._thread_cpu_ns() - begin_ns
        if reading is not None:
            self._learn(reading)
        return found

    def _find_host_communication(self) -> None:
        """Note the time since the last call if there was communication on the host in it."""
        now_ns, count = self._monotonic_ns(), self._count_on_host()
        if count != self._counted_on_host:
            begin_ns = self._counted_ns
            if self._on_host and self._on_host[-1][1] == begin_ns:
                begin_ns = self._on_host.pop()[0]
            self._on_host.append((begin_ns, now_ns))
            if len(self._on_host) > ON_HOST_MAX:  # what lies between the two oldest is not known any more
                first, second = self._on_host.popleft(), self._on_host.popleft()
                self._on_host.appendleft((first[0], second[1]))
        self._counted_on_host, self._counted_ns = count, now_ns

    def _is_due(self) -> bool:
        if self._requested_ns is None or self._first_ns is None or self.is_held:
            return not self.is_held
        age_ns = self._requested_ns - self._first_ns  # a short run has readings too
        wanted_ns = min(INTERVAL_NS_MAX, self._ring_ns, age_ns)
        interval_ns = max(INTERVAL_NS_MIN, wanted_ns, round(self._cost_ns / self._share))
        return self._monotonic_ns() - self._requested_ns >= interval_ns

    def _learn(self, reading: Reading) -> None:
        self._parsing_ns += reading.cpu_ns
        self._cost_ns = self.thread_ns + self.outside_ns - self._spent_before_ns
        self._recorded = max(reading.recorded, self._recorded or 0)
        if not reading.ring_entries:
            self._ring_ns = INTERVAL_NS_MIN  # an empty ring says nothing, and costs little
        elif reading.ring_entries > 1 and reading.ring_ns > 0:
            full = max(self._ring_entries, reading.ring_entries) / reading.ring_entries
            self._ring_ns = round(RING_SHARE * full * reading.ring_ns)

    def _place(self, reading: Reading, wall_minus_host_ns: int) -> list[ReducedWindow]:
        entries = reading.entries
        whole = self._pop_whole_steps(reading, wall_minus_host_ns)
        groups = self._read_groups() if whole else {}
        created_ns = [entry.created_wall_ns - wall_minus_host_ns for entry in entries]
        found: dict[int, list[CollectiveRecord]] = {}
        for step in self._leave_out(whole):
            first, last = (bisect_left(created_ns, bound_ns) for bound_ns in (step.start_host_ns, step.end_host_ns))
            records = [
                _to_record(step.step, entry, groups, enqueued_ns)
                for entry, enqueued_ns in zip(entries[first:last], created_ns[first:last], strict=True)
            ]
            if None not in records:
                found[step.step] = [record for record in records if record is not None]
            else:
                self.unplaced += len(records)
        self._covered.extend(found)
        return _join(found)

    def _leave_out(self, steps: Sequence[StepRecord]) -> list[StepRecord]:
        """Return the steps that no window has covered and in which there was no communication on the host."""
        known = frozenset(self._covered)
        left = []
        for step in steps:
            if any(begin_ns < step.end_host_ns and step.start_host_ns < end_ns for begin_ns, end_ns in self._on_host):
                self.steps_on_host += 1
            elif step.step not in known:
                left.append(step)
        return left

    def _pop_whole_steps(self, reading: Reading, wall_minus_host_ns: int) -> list[StepRecord]:
        """Remove and return the steps all of whose collectives are in the reading; earlier ones are dropped."""
        if not reading.entries:
            return []
        known_from_ns = reading.entries[0].created_wall_ns - wall_minus_host_ns
        unfinished = (entry.created_wall_ns for entry in reading.entries if not entry.is_over)
        known_until_ns = min(next(unfinished, reading.taken_wall_ns), reading.taken_wall_ns) - wall_minus_host_ns
        whole = []
        while self._steps:
            step = self._steps[0]
            if step.end_host_ns > known_until_ns:
                break
            self._steps.popleft()
            if step.start_host_ns >= known_from_ns:
                whole.append(step)
        return whole


def _to_record(
    step: int, entry: TimedEntry, groups: Mapping[str, GroupInfo], enqueued_host_ns: int
) -> CollectiveRecord | None:
    group = groups.get(entry.group_name)
    if group is None or entry.duration_ns is None:
        return None
    return CollectiveRecord(
        step=step,
        group=group.label,
        op=entry.op,
        start_host_ns=enqueued_host_ns,
        duration_ns=entry.duration_ns,
        sequence=entry.sequence,
        bytes=entry.bytes,
    )


def _join(found: Mapping[int, list[CollectiveRecord]]) -> list[ReducedWindow]:
    """Join consecutive steps into one result."""
    steps = sorted(found)
    cuts = [0, *(i for i, (one, other) in enumerate(pairwise(steps), start=1) if other != one + 1), len(steps)]
    return [
        ReducedWindow([record for step in steps[a:b] for record in found[step]], [], (steps[a], steps[b - 1]))
        for a, b in pairwise(cuts)
        if a < b
    ]
