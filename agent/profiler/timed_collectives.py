"""Read a device's collectives between windows from the flight recorder, if it times them (TORCH_NCCL_ENABLE_TIMING=1).

The recorder keeps its last entries (2,000 by default), and reading one holds the GIL for 15 to 30 us. So they are read
seldom, and cover the last steps before: those whose first collective is still in the recorder and whose collectives all
have a duration. A collective's start is when it was enqueued, since the recorder has no begin of its kernel.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from rankscope.agent.profiler.process_groups import TimedEntry
from rankscope.agent.profiler.reduced_window import ReducedWindow
from rankscope.measure.records import CollectiveRecord, GroupInfo, StepRecord
from rankscope.measure.units import NS_PER_S

INTERVAL_NS = 20 * NS_PER_S
COST_SHARE_MAX = 0.0025
"""Largest share of the time that reading the recorder may take: the default share of each kind of window."""
STEPS_MAX = 1024
"""Steps kept until the recorder is read. Earlier ones are not covered."""


class TimedCollectives:
    """Assign the recorder's entries to the steps they were enqueued in. `unplaced` counts the entries of the steps in
    which the group or duration of an entry is not known.
    """

    def __init__(
        self,
        read_entries: Callable[[], list[TimedEntry]],
        read_groups: Callable[[], Mapping[str, GroupInfo]],
        *,
        monotonic_ns: Callable[[], int],
        thread_cpu_ns: Callable[[], int],
    ) -> None:
        self._read_entries = read_entries
        self._read_groups = read_groups
        self._monotonic_ns = monotonic_ns
        self._thread_cpu_ns = thread_cpu_ns
        self._steps: deque[StepRecord] = deque(maxlen=STEPS_MAX)
        self._next_ns = 0
        self.unplaced = 0

    def add_steps(self, steps: Sequence[StepRecord], wall_minus_host_ns: int) -> list[ReducedWindow]:
        """Add finished steps, and return the collectives of those that are known by now; mostly none."""
        self._steps.extend(steps)
        now_ns = self._monotonic_ns()
        if now_ns < self._next_ns or not self._steps:
            return []
        begin_ns = self._thread_cpu_ns()
        entries = self._read_entries()
        cost_ns = self._thread_cpu_ns() - begin_ns
        self._next_ns = now_ns + max(INTERVAL_NS, round(cost_ns / COST_SHARE_MAX))
        return self._place(entries, wall_minus_host_ns)

    def _place(self, entries: Sequence[TimedEntry], wall_minus_host_ns: int) -> list[ReducedWindow]:
        whole = self._pop_whole_steps(entries, wall_minus_host_ns)
        groups = self._read_groups() if whole else {}
        created_ns = [entry.created_wall_ns - wall_minus_host_ns for entry in entries]
        found: dict[int, list[CollectiveRecord]] = {}
        for step in whole:
            first, last = (bisect_left(created_ns, bound_ns) for bound_ns in (step.start_host_ns, step.end_host_ns))
            records = [
                _to_record(step.step, entry, groups, enqueued_ns)
                for entry, enqueued_ns in zip(entries[first:last], created_ns[first:last], strict=True)
            ]
            if None not in records:
                found[step.step] = [record for record in records if record is not None]
            else:
                self.unplaced += len(records)
        return _join(found)

    def _pop_whole_steps(self, entries: Sequence[TimedEntry], wall_minus_host_ns: int) -> list[StepRecord]:
        """Remove and return the steps all of whose collectives are in the recorder; earlier ones are dropped."""
        if not entries:
            return []
        known_from_ns = entries[0].created_wall_ns - wall_minus_host_ns
        unfinished_ns = next((entry.created_wall_ns for entry in entries if not entry.is_over), None)
        whole = []
        while self._steps:
            step = self._steps[0]
            if unfinished_ns is not None and step.end_host_ns > unfinished_ns - wall_minus_host_ns:
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
