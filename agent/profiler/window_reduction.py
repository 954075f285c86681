"""Reduce a finished profiler window to collectives with group and sequence, and a breakdown of each step.

Runs on the agent thread. A light window is reduced here; a full one is read here (`window_reading.py`) and broken down
in a process of its own (`reduction_process.py`), so that its results come a little later.

Of a collective of a group on the host that part counts as exposed in which nothing shows that the training thread was
at work:

    [max(start of c, latest start of any collective, or end of a backward's own work, before the end of c), end of c)

At a start the thread has just enqueued a collective, or had done so before: a group's worker threads, two of gloo,
begin what waits in their queue only when they have ended another one. So the ends of backwards count too
(`steps/backward_ends.py`); with DDP the thread waits behind those alone.
"""

import json
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

from rankscope.agent.late_imports import LATE_IMPORTS
from rankscope.agent.profiler.line_samples import LineSamples
from rankscope.agent.profiler.process_groups import (
    DEVICE_NUMBERS_FROM,
    UNRECORDED_NUMBERS_FROM,
    FlightEntry,
    count_enqueued,
)
from rankscope.agent.profiler.reduce_window import DeviceCollective, StepBounds, WindowAnswer, WindowRequest
from rankscope.agent.profiler.reduced_window import EMPTY_WINDOW, ReducedWindow
from rankscope.agent.profiler.reduction_process import PENDING_ANSWERS_MAX, ReductionProcesses
from rankscope.agent.profiler.window_reading import HostRange, read_window
from rankscope.agent.steps.host_transfers import WaitedTransfer
from rankscope.measure.communication import POINT_TO_POINT_OPS, input_bytes, is_on_host
from rankscope.measure.records import CollectiveRecord, GroupInfo, StepRecord
from rankscope.measure.window_columns import WindowColumns

if TYPE_CHECKING:
    from rankscope.agent.profiler.enqueuing_threads import EnqueuingThreads, Sequences
    from rankscope.agent.profiler.line_sampler import WindowLines
    from rankscope.agent.profiler.window_scheduler import RawWindow

TOO_LARGE = "events_max"
NOT_SAVED = "not_saved"
LOST = "collectives_lost"
OF_OTHER_THREADS = "collectives_of_other_threads"
STEPS_CUT = "steps_cut"
TIMES_IMPOSSIBLE = "times_impossible"
LINES_CUT = "lines_cut"
TRANSFERS_UNKNOWN = "transfers_unknown"


class GroupSource:
    """The source of groups and sequences: `process_groups.py` outside of tests; of the transfers between two host
    times, None where they are not known: `host_transfers.py`; and of the ends of backwards between two host times:
    `backward_ends.py`.
    """

    def __init__(
        self,
        read_groups: Callable[[], dict[str, GroupInfo]],
        read_entries: Callable[[], tuple[list[FlightEntry], dict[int, tuple[str, str]]]],
        read_transfers: Callable[[int, int], list[WaitedTransfer] | None] = lambda _begin, _end: None,
        read_backward_ends: Callable[[int, int], list[int]] = lambda _begin, _end: [],
    ) -> None:
        self.read_groups = read_groups
        self.read_entries = read_entries
        self.read_transfers = read_transfers
        self.read_backward_ends = read_backward_ends


class _HostCommunication(NamedTuple):
    """The communication of the host in a window: the recorded ranges of collectives, whether there were ranges of
    transfers too, what the training thread enqueued in each group, the recorder's entries of that where they are known
    already, how many of these operations have no range, and the steps known to be complete.
    """

    collectives: Sequence[HostRange]
    has_transfers: bool
    enqueued: "Sequences"
    entries: Sequence[FlightEntry] | None
    lost: int
    whole: Sequence[StepRecord]


class WindowReduction:
    """Reduce the windows of one rank, one after the other, and keep which thread works for which process group.

    A window of more than `events_max` events is skipped and counted: unread events would count as idle time.
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
        self._enqueuing: EnqueuingThreads | None = None
        """From the first window on in which counts differ."""
        self._group_of_thread: dict[int, int] = {}
        self._torch_name_of_group: dict[int, str] = {}
        self._known_groups: dict[str, GroupInfo] = {}
        self._host_collectives: dict[int, list[CollectiveRecord] | None] = {}
        self._skipped: dict[str, int] = {}
        self.events_recorded = 0
        """The activities of all windows so far, of any kind."""
        self.launches_graphs: bool | None = None
        """Whether any window of a device had the launch of a CUDA graph; None before the first with a device's work."""
        self.light_events_a_step: float | None = None
        """The activities per step in the last light window, of any kind; None before the first."""
        self.full_events_a_step: float | None = None
        """The same of the last full window."""

    @property
    def skipped(self) -> dict[str, int]:
        """The windows, steps and collectives not used, by reason, and the windows of which some lines are missing."""
        return {**self._skipped, **self._children.failed}

    @property
    def windows_too_large(self) -> int:
        """The number of windows with more events than may be read."""
        return self._skipped.get(TOO_LARGE, 0)

    @property
    def child_cpu_ns(self) -> int:
        """The CPU time of the child processes."""
        return self._children.cpu_ns

    def reduce(self, window: "RawWindow") -> ReducedWindow:
        """Return the results that are known at once; the breakdown of a full window comes with `collect`."""
        if not window.steps:
            return EMPTY_WINDOW
        found = window.result.trace_activities()
        self._learn_events(window, len(found))
        if len(found) > self._events_max:
            self._count(TOO_LARGE)
            return EMPTY_WINDOW
        if window.lines is not None and window.lines.is_cut:
            self._count(LINES_CUT)
        read = read_window(window, found, self._yield_gil)
        if window.host_only:  # which has FLOPs only
            self._submit(window, read.columns or WindowColumns(), window.steps)
            return EMPTY_WINDOW
        host = self._match_host(window, read.ranges)
        if host.lost:
            self._count(LOST, host.lost)
        if read.columns is not None and not self._submit(window, read.columns, host.whole):
            return EMPTY_WINDOW
        placed = self._place(window, host)
        if window.on_device:
            # All collectives of a step are returned together, when it is known which steps are complete.
            bounds = window.steps[0].step, window.steps[-1].step
            self._host_collectives[bounds[0]] = placed.collectives if placed.covered_steps == bounds else None
            while len(self._host_collectives) > PENDING_ANSWERS_MAX:
                del self._host_collectives[min(self._host_collectives)]
            return EMPTY_WINDOW
        return placed

    def _learn_events(self, window: "RawWindow", count: int) -> None:
        self.events_recorded += count
        if window.full and not window.has_shapes:
            self.full_events_a_step = count / len(window.steps)
        elif not window.full:
            self.light_events_a_step = count / len(window.steps)

    def _submit(self, window: "RawWindow", columns: WindowColumns, whole: Sequence[StepRecord]) -> bool:
        """Submit a full window for its breakdown; return False if its data cannot be written. On the host a step that
        lacks a communication is left out, since it would count as one without; a device's has its kernels.
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

    def submit_captured(self, trace: bytes, steps: Sequence[StepRecord], wall_minus_host_ns: int) -> None:
        """Submit steps of a capture on a device, with its compressed trace file, for their breakdown. The last step
        only bounds the one before, as in a window.
        """
        if steps:
            self._children.submit(make_captured_request(trace, steps, wall_minus_host_ns))

    def collect(self) -> list[ReducedWindow]:
        """Return the results of full windows since the last call. Never waits."""
        return [self._to_reduced_window(answer)._replace(flops=answer.flops) for answer in self._children.collect()]

    def finish(self) -> list[ReducedWindow]:
        """Return the results of all full windows not collected yet; those not broken down yet are computed here."""
        return [self._to_reduced_window(answer)._replace(flops=answer.flops) for answer in self._children.finish()]

    def _count(self, reason: str, count: int = 1) -> None:
        self._skipped[reason] = self._skipped.get(reason, 0) + count

    # -- on a device --------------------------------------------------------------------------------------------------

    def _to_reduced_window(self, answer: WindowAnswer) -> ReducedWindow:
        if answer.steps_cut:
            self._count(STEPS_CUT, answer.steps_cut)
        if answer.has_impossible_times:
            self._count(TIMES_IMPOSSIBLE)
        if answer.launches_graphs is not None:
            self.launches_graphs = bool(self.launches_graphs) or answer.launches_graphs
        breakdowns = list(answer.breakdowns)
        if not answer.on_device:
            return ReducedWindow([], breakdowns, None)
        of_host = self._host_collectives.get(answer.first_step)
        # Answers come in the order of the windows: those of earlier ones that are missing have failed.
        self._host_collectives = {
            first: found for first, found in self._host_collectives.items() if first > answer.first_step
        }
        of_device = self._name_groups(answer.collectives)
        if of_host is None or of_device is None:
            return ReducedWindow([], breakdowns, None, answer.synchronizations)
        steps = [found.first_step for found in breakdowns]
        records = [record for record in of_host if record.step in steps] + of_device
        in_a_row = bool(steps) and steps[-1] - steps[0] == len(steps) - 1
        covered = (steps[0], steps[-1]) if in_a_row else None
        return ReducedWindow(records, breakdowns, covered, answer.synchronizations)

    def _name_groups(self, found: Sequence[DeviceCollective]) -> list[CollectiveRecord] | None:
        """Return the collectives with their groups; None when one has none. Point-to-point operations are not waited
        for by every member, so that one without a group is only left out.
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
        """Return the group by torch's name. A replayed graph has no name: then a single group is the one."""
        if found.group_name is None and len(self._known_groups) == 1:
            return next(iter(self._known_groups.values()))
        return self._known_groups.get(found.group_name or "")

    # -- groups and sequences -----------------------------------------------------------------------------------------

    def _match_host(self, window: "RawWindow", communication: Sequence[HostRange]) -> _HostCommunication:
        before, after = window.enqueued_before, window.enqueued_after
        # A recorder has groups from their first collective on: those only sent in before were counted without it.
        are_comparable = all(number < UNRECORDED_NUMBERS_FROM for number in before.keys() - after.keys())
        counted = count_enqueued(before, after) if are_comparable else {}
        enqueued = {
            number: range(first, last + 1) for number, (first, last) in counted.items() if number < DEVICE_NUMBERS_FROM
        }
        collectives = [found for found in communication if _op(found) not in POINT_TO_POINT_OPS]
        own, others, entries = self._find_own(window.thread, enqueued, len(collectives))
        if others:
            self._count(OF_OTHER_THREADS, others)
        # gloo's counters count transfers too.
        lost = max(0, sum(map(len, own.values())) - len(communication))
        whole = _find_steps_before(window.steps, communication, lost) if lost else window.steps
        has_transfers = len(collectives) < len(communication)
        return _HostCommunication(collectives, has_transfers, own, entries, lost, whole)

    def _find_own(
        self, thread: int | None, enqueued: "Sequences", recorded: int
    ) -> "tuple[Sequences, int, Sequence[FlightEntry] | None]":
        """Return the collectives of this thread as `EnqueuingThreads.find_own`, which most jobs do not need. All that
        are not other threads' alone are its own where as many have ranges, or it is not known which thread it is.
        """
        alone = () if self._enqueuing is None else self._enqueuing.others_alone
        own = {number: found for number, found in enqueued.items() if number not in alone}
        count = sum(map(len, own.values()))
        if thread is None or recorded == count:
            return own, sum(map(len, enqueued.values())) - count, None
        if self._enqueuing is None:
            with LATE_IMPORTS:
                from rankscope.agent.profiler.enqueuing_threads import EnqueuingThreads  # noqa: PLC0415 - see above
            self._enqueuing = EnqueuingThreads()
        return self._enqueuing.find_own(thread, enqueued, own, recorded, self._read_entries)

    def _place(self, window: "RawWindow", host: _HostCommunication) -> ReducedWindow:
        """Return the collectives that began within the window's steps. EMPTY_WINDOW when one has no known group, since
        then no step is known to be complete.
        """
        counted = host.collectives
        self._learn_threads(counted, host.enqueued, host.entries)
        groups = self._find_groups(host.enqueued)
        unknown = [found for found in counted if self._group_of_thread.get(found.thread) not in groups]
        if unknown:
            self._count("collectives_unplaced", len(counted))
            return EMPTY_WINDOW
        transfers = self._place_transfers(window, has_ranges=host.has_transfers)
        if transfers is None:
            return EMPTY_WINDOW
        whole = [record.step for record in host.whole]
        starts_ns = [step.start_host_ns for step in window.steps]
        at_work_ns = self._source.read_backward_ends(starts_ns[0], window.steps[-1].end_host_ns)
        at_work_ns += [one.start_host_ns for one in counted] + [one.start_host_ns for one in transfers]
        at_work_ns.sort()
        records = []
        for number, sequences in host.enqueued.items():
            mine = [found for found in counted if self._group_of_thread[found.thread] == number]
            missing = len(sequences) - len(mine)
            for index, found in enumerate(mine):
                step = _step_at(window.steps, starts_ns, found.start_host_ns)
                if step is not None:
                    is_known = missing == 0 or (missing == host.lost and step in whole)
                    sequence = sequences[index] if is_known else None
                    records.append(_to_record(step, found, groups[number], sequence, at_work_ns))
        return ReducedWindow(records + transfers, [], (whole[0], whole[-1]) if whole else None)

    def _place_transfers(self, window: "RawWindow", *, has_ranges: bool) -> list[CollectiveRecord] | None:
        """Return the sends and receives that were waited for within the window's steps, each in the step of its wait;
        None, and count it, if some are not known: their waiting would count as work.
        """
        starts_ns = [step.start_host_ns for step in window.steps]
        found = self._source.read_transfers(starts_ns[0], window.steps[-1].end_host_ns)
        if found is None:
            if has_ranges:
                self._count(TRANSFERS_UNKNOWN)
            return None if has_ranges else []
        records = []
        for one in found:
            group = self._known_groups.get(one.transfer.group)
            step = _step_at(window.steps, starts_ns, one.wait_host_ns)
            if group is None:
                self._count(TRANSFERS_UNKNOWN)
                return None
            if step is not None:
                records.append(_to_transfer_record(step, one, group))
        return records

    def _learn_threads(
        self, counted: Sequence[HostRange], enqueued: "Sequences", entries: Sequence[FlightEntry] | None
    ) -> None:
        """Learn the worker threads of each process group, which stay. Known once, the cheap status is enough."""
        if all(found.thread in self._group_of_thread for found in counted) or not enqueued:
            return
        if len(enqueued) == 1:
            self._group_of_thread.update((found.thread, next(iter(enqueued))) for found in counted)
            return
        entries = self._read_entries() if entries is None else entries
        wanted = [one for one in entries if one.sequence in enqueued.get(one.group_number, ())]
        if [entry.op for entry in wanted] != [_op(found) for found in counted]:
            return
        pairs = {(found.thread, entry.group_number) for found, entry in zip(counted, wanted, strict=True)}
        # Operations of two groups may begin in another order than they were enqueued: then a thread has two groups.
        learned = dict(pairs)
        if len(learned) == len(pairs) and all(self._group_of_thread.get(t, g) == g for t, g in pairs):
            self._group_of_thread.update(learned)

    def _find_groups(self, enqueued: "Sequences") -> dict[int, GroupInfo]:
        """Return the process group of each of torch's group numbers. Kept, since the last windows are reduced after the
        script has destroyed its groups.
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


def make_request(window: "RawWindow", columns: WindowColumns) -> WindowRequest:
    """Return the input of the child: the columns, or the trace file of a device's window where torch has its data only
    there. Raises OSError when that cannot be written.
    """
    is_in_file = (window.on_device or window.has_shapes) and getattr(window.result, "is_in_file", False)
    return WindowRequest(
        columns=WindowColumns() if is_in_file else columns,
        saved=_read_saved(window.result) if is_in_file else b"",
        steps=_bound(window.steps),
        wall_minus_host_ns=window.wall_minus_host_ns,
        on_device=window.on_device,
        lines=LineSamples() if window.lines is None else _pack_lines(window.lines),
        counts_flops=window.has_shapes,
        host_only=window.host_only,
    )


def _read_saved(result: Any) -> bytes:
    from rankscope.agent.profiler.kineto_events import read_saved  # noqa: PLC0415 - torch before 2.13: it is imported

    return read_saved(result)


def make_captured_request(trace: bytes, steps: Sequence[StepRecord], wall_minus_host_ns: int) -> WindowRequest:
    """Return the input of the child for steps of a capture with this trace file."""
    return WindowRequest(
        columns=WindowColumns(),
        saved=trace,
        steps=_bound(steps),
        wall_minus_host_ns=wall_minus_host_ns,
        on_device=True,
    )


def _bound(steps: Sequence[StepRecord]) -> tuple[StepBounds, ...]:
    return tuple(StepBounds(one.step, one.start_host_ns, one.end_host_ns) for one in steps)


def _pack_lines(found: "WindowLines") -> LineSamples:
    places = found.places[:]  # the sampler may be adding a last one
    lines = found.lines
    return LineSamples(
        times_host_ns=found.times_host_ns[: len(places)].tobytes(),
        places=places.tobytes(),
        lines=tuple(line.describe() for line in lines),
        in_backward=tuple(line.in_backward for line in lines),
        threads=found.threads,
    )


def _step_at(steps: Sequence[StepRecord], starts_ns: Sequence[int], host_ns: int) -> int | None:
    """Return the step at this host time; None outside all steps, as in an evaluation."""
    position = bisect_right(starts_ns, host_ns) - 1
    return steps[position].step if position >= 0 and host_ns < steps[position].end_host_ns else None


def _find_steps_before(
    steps: Sequence[StepRecord], communication: Sequence[HostRange], lost: int
) -> Sequence[StepRecord]:
    """Return the steps before the first one that lacks an operation, when `lost` are missing.

    Up to torch 2.12 gloo ends its range after training has proceeded, so that the last range of one in ten windows is
    missing. If adding the missing ones makes all steps alike, it is known which steps lack them.
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


def _to_record(
    step: int, found: HostRange, group: GroupInfo, sequence: int | None, at_work_ns: Sequence[int]
) -> CollectiveRecord:
    op = _op(found)
    size_bytes = parse_bytes(found.metadata)
    if op == "all_gather" and size_bytes is not None:
        size_bytes *= len(group.ranks)  # nccl-tests counts the gathered size; the operator's input is one rank's part
    end_ns = found.start_host_ns + found.duration_ns
    before = bisect_left(at_work_ns, end_ns)
    since_ns = max([found.start_host_ns, *at_work_ns[before - 1 : before]])
    return CollectiveRecord(
        step=step,
        group=group.label,
        op=op,
        start_host_ns=found.start_host_ns,
        duration_ns=found.duration_ns,
        sequence=sequence,
        bytes=size_bytes,
        exposed_ns=end_ns - since_ns if is_on_host(group.backend) else None,
    )


def _to_transfer_record(step: int, found: WaitedTransfer, group: GroupInfo) -> CollectiveRecord:
    """Return a transfer, from its begin to the end of the wait for it. The script did nothing else while it waited."""
    return CollectiveRecord(
        step=step,
        group=group.label,
        op=found.transfer.op,
        start_host_ns=found.transfer.start_host_ns,
        duration_ns=found.end_host_ns - found.transfer.start_host_ns,
        bytes=found.transfer.bytes,
        exposed_ns=found.end_host_ns - found.wait_host_ns,
    )


def parse_bytes(metadata: str) -> int | None:
    """Return the bytes of an operation's inputs from Kineto's metadata, None when it has none.

    >>> parse_bytes('"Input type": ["float"], "Input Dims": [[131584]]')
    526336
    """
    try:
        fields = json.loads(f"{{{metadata}}}")
        return input_bytes(fields["Input type"], fields["Input Dims"])
    except (ValueError, KeyError, TypeError):
        return None
