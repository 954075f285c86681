"""A finished profiler window -> collectives with group and sequence, and the breakdown of each step.

Runs on the agent thread. Reading an activity costs about 2 us with the GIL held, so they are read in short batches
with the GIL let go in between.
"""

import json
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rankscope.agent.probe.collectives import FlightEntry, count_enqueued
from rankscope.agent.probe.kineto_windows import RawWindow
from rankscope.measure import intervals
from rankscope.measure.breakdown import break_down
from rankscope.measure.communication import ENQUEUE_PREFIX, HOST_PREFIXES, POINT_TO_POINT_OPS, input_bytes
from rankscope.measure.records import CollectiveRecord, GroupInfo, StepRecord, WindowBreakdown

BATCH_EVENTS = 250
"""About 0.5 ms with the GIL held."""


class Activity(NamedTuple):
    """One activity that Kineto recorded on the CPU, on the host clock."""

    name: str
    is_operator: bool
    start_host_ns: int
    duration_ns: int
    thread: int
    metadata: str


class ReducedWindow(NamedTuple):
    """What a window tells. `covered_steps` are the first and last step all of whose collectives are in it, if any."""

    collectives: list[CollectiveRecord]
    breakdowns: list[WindowBreakdown]
    covered_steps: tuple[int, int] | None


class GroupSource:
    """Where groups and sequences are looked up: `collectives.py` for the real ones."""

    def __init__(
        self,
        read_groups: Callable[[], dict[str, GroupInfo]],
        read_entries: Callable[[], tuple[list[FlightEntry], dict[int, tuple[str, str]]]],
    ) -> None:
        self.read_groups = read_groups
        self.read_entries = read_entries


class WindowReduction:
    """Reduces one rank's windows, one after the other, and remembers which thread works for which process group.

    A window of more than `events_max` events is skipped and counted: a part of it would pass for idle time.
    """

    def __init__(self, source: GroupSource, *, events_max: int, yield_gil: Callable[[], None] | None = None) -> None:
        self._source = source
        self._events_max = events_max
        self._yield_gil = yield_gil or (lambda: time.sleep(0))
        self._group_of_thread: dict[int, int] = {}
        self._torch_name_of_group: dict[int, str] = {}
        self._known_groups: dict[str, GroupInfo] = {}
        self.windows_too_large = 0
        self.collectives_unplaced = 0

    def reduce(self, window: RawWindow) -> ReducedWindow:
        """Everything the window tells about its steps."""
        found = window.result.trace_activities() if window.steps else ()
        self.windows_too_large += len(found) > self._events_max
        if not window.steps or len(found) > self._events_max:
            return ReducedWindow([], [], None)
        activities = list(self._read_activities(window, found))
        communication = sorted(
            (found for found in activities if found.name.startswith(HOST_PREFIXES)),
            key=lambda found: found.start_host_ns,
        )
        breakdowns = _break_down_steps(window.steps, activities, communication) if window.full else []
        collectives = self._place(window, communication)
        if collectives is None:
            return ReducedWindow([], breakdowns, None)
        return ReducedWindow(collectives, breakdowns, (window.steps[0].step, window.steps[-1].step))

    # -- reading ------------------------------------------------------------------------------------------------------

    def _read_activities(self, window: RawWindow, found: Sequence[Any]) -> Iterator[Activity]:
        for index, activity in enumerate(found):
            if index % BATCH_EVENTS == BATCH_EVENTS - 1:
                self._yield_gil()
            read = _read_activity(activity, window)
            if read is not None:
                yield read

    # -- groups and sequences -----------------------------------------------------------------------------------------

    def _place(self, window: RawWindow, communication: list[Activity]) -> list[CollectiveRecord] | None:
        """The collectives that began within the window's steps; None when some cannot be given their group, since then
        the steps have not been seen whole.
        """
        enqueued = count_enqueued(window.enqueued_before, window.enqueued_after)
        counted = [found for found in communication if _op(found) not in POINT_TO_POINT_OPS]
        self._learn_threads(counted, enqueued)
        groups = self._find_groups(enqueued)
        strangers = [found for found in counted if self._group_of_thread.get(found.thread) not in groups]
        if strangers:
            self.collectives_unplaced += len(counted)
            return None
        starts_ns = [step.start_host_ns for step in window.steps]
        records = []
        for number, (first, last) in enqueued.items():
            mine = [found for found in counted if self._group_of_thread[found.thread] == number]
            complete = len(mine) == last - first + 1
            for index, found in enumerate(mine):
                step = _step_at(window.steps, starts_ns, found.start_host_ns)
                if step is not None:
                    records.append(_to_record(step, found, groups[number], first + index if complete else None))
        return records

    def _learn_threads(self, counted: list[Activity], enqueued: Mapping[int, tuple[int, int]]) -> None:
        """Each process group has worker threads of its own, which stay. Learnt once, the cheap status is enough."""
        if all(found.thread in self._group_of_thread for found in counted) or not enqueued:
            return
        if len(enqueued) == 1:
            self._group_of_thread.update((found.thread, next(iter(enqueued))) for found in counted)
            return
        entries = self._read_entries()
        wanted = [e for e in entries if e.group_number in enqueued and _within(e.sequence, enqueued[e.group_number])]
        if [entry.op for entry in wanted] != [_op(found) for found in counted]:
            return
        pairs = {(found.thread, entry.group_number) for found, entry in zip(counted, wanted, strict=True)}
        # Two groups' operations may begin in another order than they were enqueued in: then a thread has two groups.
        learnt = dict(pairs)
        if len(learnt) == len(pairs) and all(self._group_of_thread.get(t, g) == g for t, g in pairs):
            self._group_of_thread.update(learnt)

    def _find_groups(self, enqueued: Mapping[int, tuple[int, int]]) -> dict[int, GroupInfo]:
        """The process group behind each of torch's group numbers. Remembered: the last windows are reduced when the
        script has destroyed its groups already.
        """
        self._known_groups.update(self._source.read_groups())
        if len(self._known_groups) == 1 and len(enqueued) == 1:
            self._torch_name_of_group.setdefault(next(iter(enqueued)), next(iter(self._known_groups)))
        if any(number not in self._torch_name_of_group for number in enqueued):
            self._read_entries()
        found = {number: self._known_groups.get(self._torch_name_of_group.get(number, "")) for number in enqueued}
        return {number: group for number, group in found.items() if group is not None}

    def _read_entries(self) -> list[FlightEntry]:
        entries, names = self._source.read_entries()
        self._torch_name_of_group.update((number, name) for number, (name, _) in names.items())
        return entries


def _within(sequence: int, bounds: tuple[int, int]) -> bool:
    return bounds[0] <= sequence <= bounds[1]


def _step_at(steps: Sequence[StepRecord], starts_ns: Sequence[int], host_ns: int) -> int | None:
    """The step in which a moment lies; None outside all steps, as in an evaluation."""
    position = bisect_right(starts_ns, host_ns) - 1
    return steps[position].step if position >= 0 and host_ns < steps[position].end_host_ns else None


def _op(activity: Activity) -> str:
    return activity.name.partition(":")[2]


def _read_activity(activity: Any, window: RawWindow) -> Activity | None:
    name = activity.name()
    is_communication = name.startswith(HOST_PREFIXES)
    is_operator = window.full and not is_communication and activity.type() == "cpu_op"
    if not is_communication and not is_operator:
        return None
    metadata = activity.metadata_json() if is_communication and not window.full else ""
    start_host_ns = activity.timestamp() - window.wall_minus_host_ns
    return Activity(name, is_operator, start_host_ns, activity.duration(), activity.resource_id(), metadata)


def _to_record(step: int, found: Activity, group: GroupInfo, sequence: int | None) -> CollectiveRecord:
    op = _op(found)
    size_bytes = parse_bytes(found.metadata)
    if op == "all_gather" and size_bytes is not None:
        size_bytes *= len(group.ranks)  # nccl-tests counts the gathered size; the operator's input is one rank's part
    return CollectiveRecord(
        step=step,
        group=group.label,
        op=op,
        start_host_ns=found.start_host_ns,
        duration_ns=found.duration_ns,
        sequence=sequence,
        bytes=size_bytes,
    )


def parse_bytes(metadata: str) -> int | None:
    """The size of an operation's inputs from Kineto's metadata, None when it does not tell.

    >>> parse_bytes('"Input type": ["float"], "Input Dims": [[131584]]')
    526336
    """
    try:
        fields = json.loads(f"{{{metadata}}}")
        return input_bytes(fields["Input type"], fields["Input Dims"])
    except (ValueError, KeyError, TypeError):
        return None


# -- the breakdown of a full window -----------------------------------------------------------------------------------


def _break_down_steps(
    steps: tuple[StepRecord, ...], activities: list[Activity], communication: list[Activity]
) -> list[WindowBreakdown]:
    """On the CPU the operators on the threads that run the model are the compute, and the backend's ranges on its own
    threads the communication. `c10d::` operators only enqueue. Point-to-point ranges are on the thread that called.
    """
    worker_threads = {found.thread for found in communication if _op(found) not in POINT_TO_POINT_OPS}
    operators = [
        found
        for found in activities
        if found.is_operator and found.thread not in worker_threads and not found.name.startswith(ENQUEUE_PREFIX)
    ]
    compute = _to_intervals(operators)
    starts_of_top = _starts_of_top(operators)
    return [
        break_down(
            compute,
            _to_intervals(communication),
            intervals.EMPTY,
            start_ns=step.start_host_ns,
            end_ns=step.end_host_ns,
            first_step=step.step,
            step_count=1,
            operator_count=int(
                np.count_nonzero((starts_of_top >= step.start_host_ns) & (starts_of_top < step.end_host_ns))
            ),
        )
        for step in steps
    ]


def _to_intervals(activities: list[Activity]) -> intervals.Intervals:
    if not activities:
        return intervals.EMPTY
    return intervals.from_starts([a.start_host_ns for a in activities], [a.duration_ns for a in activities])


def _starts_of_top(operators: list[Activity]) -> intervals.Intervals:
    """When each operator began that no other operator of its thread encloses."""
    starts = []
    reached_ns: dict[int, int] = {}
    for found in sorted(operators, key=lambda o: (o.start_host_ns, -o.duration_ns)):
        if found.start_host_ns >= reached_ns.get(found.thread, found.start_host_ns):
            starts.append(found.start_host_ns)
            reached_ns[found.thread] = found.start_host_ns + found.duration_ns
    return np.array(starts, dtype=np.int64)
