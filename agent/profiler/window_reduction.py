"""A finished profiler window -> collectives with group and sequence, and the breakdown of each step.

Runs on the agent thread. What a light window tells is placed here; a full one is read here (`window_reading.py`) and
broken down in a process of its own (`reduction_process.py`), so that what it tells comes a little later.
"""

import json
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

from rankscope.agent.profiler.kineto_events import SessionEvents, read_saved
from rankscope.agent.profiler.process_groups import DEVICE_NUMBERS_FROM, FlightEntry, count_enqueued
from rankscope.agent.profiler.reduce_window import DeviceCollective, StepBounds, WindowAnswer, WindowRequest
from rankscope.agent.profiler.reduced_window import EMPTY_WINDOW, ReducedWindow
from rankscope.agent.profiler.reduction_process import PENDING_ANSWERS_MAX, ReductionProcesses
from rankscope.agent.profiler.window_reading import HostRange, read_window
from rankscope.agent.profiler.window_scheduler import RawWindow
from rankscope.measure.communication import POINT_TO_POINT_OPS, input_bytes
from rankscope.measure.records import CollectiveRecord, GroupInfo, StepRecord
from rankscope.measure.window_columns import WindowColumns

TOO_LARGE = "events_max"
NOT_SAVED = "not_saved"
LOST = "collectives_lost"
STEPS_CUT = "steps_cut"


class GroupSource:
    """Where groups and sequences are looked up: `process_groups.py` for the real ones."""

    def __init__(
        self,
        read_groups: Callable[[], dict[str, GroupInfo]],
        read_entries: Callable[[], tuple[list[FlightEntry], dict[int, tuple[str, str]]]],
    ) -> None:
        self.read_groups = read_groups
        self.read_entries = read_entries


class _Host(NamedTuple):
    """What the host itself communicated in a window: the ranges that are there, the first and last sequence that each
    group enqueued by its number, how many of these operations are not there, and the steps known to have all of theirs.
    """

    communication: Sequence[HostRange]
    enqueued: Mapping[int, tuple[int, int]]
    lost: int
    whole: Sequence[StepRecord]


class WindowReduction:
    """Reduces one rank's windows, one after the other, and remembers which thread works for which process group.

    A window of more than `events_max` events is skipped and counted: a part of it would pass for idle time.
    """

    def __init__(
        self,
        source: GroupSource,
        children: ReductionProcesses,
        *,
        events_max: int,
        yield_gil: Callable[[], None] | None = None,
    ) -> None:
        self._source = source
        self._children = children
        self._events_max = events_max
        self._yield_gil = yield_gil or (lambda: time.sleep(0))
        self._group_of_thread: dict[int, int] = {}
        self._torch_name_of_group: dict[int, str] = {}
        self._known_groups: dict[str, GroupInfo] = {}
        self._of_host: dict[int, list[CollectiveRecord] | None] = {}
        self._skipped: dict[str, int] = {}
        self.light_events_a_step: float | None = None
        """What the last light window has recorded, whatever it was of; None before the first."""

    @property
    def skipped(self) -> dict[str, int]:
        """How many windows, steps and collectives were not used, by reason."""
        return {**self._skipped, **self._children.failed}

    @property
    def windows_too_large(self) -> int:
        """How many windows had more events than may be read."""
        return self._skipped.get(TOO_LARGE, 0)

    @property
    def child_cpu_ns(self) -> int:
        """The CPU time of the processes that have broken windows down."""
        return self._children.cpu_ns

    def reduce(self, window: RawWindow) -> ReducedWindow:
        """What can be told of the window at once; the breakdown of a full one comes with `collect`."""
        if not window.steps:
            return EMPTY_WINDOW
        found = window.result.trace_activities()
        if not window.full:
            self.light_events_a_step = len(found) / len(window.steps)
        if len(found) > self._events_max:
            self._count(TOO_LARGE)
            return EMPTY_WINDOW
        read = read_window(window, found, self._yield_gil)
        host = _look_at_host(window, read.ranges)
        if host.lost:
            self._count(LOST, host.lost)
        if read.columns is not None and not self._submit(window, read.columns, host.whole):
            return EMPTY_WINDOW
        placed = self._place(window, host)
        if window.on_device:
            # All collectives of a step are told together, when it is known which steps are whole.
            bounds = window.steps[0].step, window.steps[-1].step
            self._of_host[bounds[0]] = placed.collectives if placed.covered_steps == bounds else None
            while len(self._of_host) > PENDING_ANSWERS_MAX:
                del self._of_host[min(self._of_host)]
            return EMPTY_WINDOW
        return placed

    def _submit(self, window: RawWindow, columns: WindowColumns, whole: Sequence[StepRecord]) -> bool:
        """Have a full window broken down; whether that can be. A step on the host that lacks a communication would pass
        for one without; a device's is told by its kernels.
        """
        if not window.on_device and len(whole) < len(window.steps):
            self._count(STEPS_CUT, len(window.steps) - len(whole))
            window = window._replace(steps=whole)
        try:
            if window.steps:
                self._children.submit(make_request(window, columns))
        except OSError:
            self._count(NOT_SAVED)
            return False
        return True

    def collect(self) -> list[ReducedWindow]:
        """What the full windows tell that have been broken down since. Never waits."""
        return [self._take(answer) for answer in self._children.collect()]

    def finish(self) -> list[ReducedWindow]:
        """What the full windows tell that have not been collected; those not broken down yet are now, right here."""
        return [self._take(answer) for answer in self._children.finish()]

    def _count(self, reason: str, count: int = 1) -> None:
        self._skipped[reason] = self._skipped.get(reason, 0) + count

    # -- on a device --------------------------------------------------------------------------------------------------

    def _take(self, answer: WindowAnswer) -> ReducedWindow:
        if answer.steps_cut:
            self._count(STEPS_CUT, answer.steps_cut)
        breakdowns = list(answer.breakdowns)
        if not answer.on_device:
            return ReducedWindow([], breakdowns, None)
        of_host = self._of_host.get(answer.first_step)
        # Answers come in the windows' order: those of earlier windows that are not here have failed.
        self._of_host = {first: found for first, found in self._of_host.items() if first > answer.first_step}
        of_device = self._name_groups(answer.collectives)
        if of_host is None or of_device is None:
            return ReducedWindow([], breakdowns, None)
        steps = [found.first_step for found in breakdowns]
        records = [record for record in of_host if record.step in steps] + of_device
        in_a_row = bool(steps) and steps[-1] - steps[0] == len(steps) - 1
        return ReducedWindow(records, breakdowns, (steps[0], steps[-1]) if in_a_row else None)

    def _name_groups(self, found: Sequence[DeviceCollective]) -> list[CollectiveRecord] | None:
        """As `_place`: None when some cannot be given their group. What is point to point is not waited for on every
        member, so that one without a group is only left out.
        """
        self._known_groups.update(self._source.read_groups() if found else {})
        records = []
        for one in found:
            group = self._find_group_of(one)
            if group is None and one.op in POINT_TO_POINT_OPS:
                continue
            if group is None:
                self._count("collectives_unplaced", len(found))
                return None
            records.append(
                CollectiveRecord(
                    step=one.step,
                    group=group.label,
                    op=one.op,
                    start_host_ns=one.start_host_ns,
                    duration_ns=one.duration_ns,
                    sequence=one.sequence,
                    bytes=one.bytes,
                    exposed_ns=one.exposed_ns,
                )
            )
        return records

    def _find_group_of(self, found: DeviceCollective) -> GroupInfo | None:
        """By torch's own name of it. A replayed graph does not tell: with one group there is no doubt."""
        if found.group_name is None and len(self._known_groups) == 1:
            return next(iter(self._known_groups.values()))
        return self._known_groups.get(found.group_name or "")

    # -- groups and sequences -----------------------------------------------------------------------------------------

    def _place(self, window: RawWindow, host: _Host) -> ReducedWindow:
        """The collectives that began within the window's steps. Nothing when one cannot be given its group, since then
        no step is known to have been seen whole.
        """
        counted = [found for found in host.communication if _op(found) not in POINT_TO_POINT_OPS]
        self._learn_threads(counted, host.enqueued)
        groups = self._find_groups(host.enqueued)
        strangers = [found for found in counted if self._group_of_thread.get(found.thread) not in groups]
        if strangers:
            self._count("collectives_unplaced", len(counted))
            return EMPTY_WINDOW
        whole = [record.step for record in host.whole]
        starts_ns = [step.start_host_ns for step in window.steps]
        records = []
        for number, (first, last) in host.enqueued.items():
            mine = [found for found in counted if self._group_of_thread[found.thread] == number]
            missing = last - first + 1 - len(mine)
            for index, found in enumerate(mine):
                step = _step_at(window.steps, starts_ns, found.start_host_ns)
                if step is not None:
                    is_known = missing == 0 or (missing == host.lost and step in whole)
                    records.append(_to_record(step, found, groups[number], first + index if is_known else None))
        return ReducedWindow(records, [], (whole[0], whole[-1]) if whole else None)

    def _learn_threads(self, counted: list[HostRange], enqueued: Mapping[int, tuple[int, int]]) -> None:
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


def make_request(window: RawWindow, columns: WindowColumns) -> WindowRequest:
    """What the child is given: the columns, or the file of a device's window where torch tells it only there. Raises
    OSError when that cannot be written.
    """
    is_in_file = window.on_device and isinstance(window.result, SessionEvents)
    return WindowRequest(
        columns=WindowColumns() if is_in_file else columns,
        saved=read_saved(window.result) if is_in_file else b"",
        steps=tuple(StepBounds(s.step, s.start_host_ns, s.end_host_ns) for s in window.steps),
        wall_minus_host_ns=window.wall_minus_host_ns,
        on_device=window.on_device,
    )


def _within(sequence: int, bounds: tuple[int, int]) -> bool:
    return bounds[0] <= sequence <= bounds[1]


def _step_at(steps: Sequence[StepRecord], starts_ns: Sequence[int], host_ns: int) -> int | None:
    """The step in which a moment lies; None outside all steps, as in an evaluation."""
    position = bisect_right(starts_ns, host_ns) - 1
    return steps[position].step if position >= 0 and host_ns < steps[position].end_host_ns else None


def _look_at_host(window: RawWindow, communication: Sequence[HostRange]) -> _Host:
    counted = count_enqueued(window.enqueued_before, window.enqueued_after)
    enqueued = {number: bounds for number, bounds in counted.items() if number < DEVICE_NUMBERS_FROM}
    lost = max(0, sum(last - first + 1 for first, last in enqueued.values()) - len(communication))
    whole = _find_steps_before(window.steps, communication, lost) if lost else window.steps
    return _Host(communication, enqueued, lost, whole)


def _find_steps_before(
    steps: Sequence[StepRecord], communication: Sequence[HostRange], lost: int
) -> Sequence[StepRecord]:
    """The steps before the first one that lacks an operation, when so many are lost.

    Up to torch 2.12 gloo ends its range after it has let training go on, so that the last range of a window is missing
    in one of ten. Where the missing ones just make all steps alike it is known which steps lack them.
    """
    starts_ns = [step.start_host_ns for step in steps]
    steps_of = [_step_at(steps, starts_ns, found.start_host_ns) for found in communication]
    counts = [steps_of.count(record.step) for record in steps]
    fullest = max(counts)
    if sum(fullest - count for count in counts) != lost:
        return ()
    return [record for record, _ in takewhile(lambda pair: pair[1] == fullest, zip(steps, counts, strict=True))]


def _op(activity: HostRange) -> str:
    return activity.name.partition(":")[2]


def _to_record(step: int, found: HostRange, group: GroupInfo, sequence: int | None) -> CollectiveRecord:
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
