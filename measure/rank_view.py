"""One trace with what every table needs of it: device work and its launches, communication, steps, nesting.

Everything is computed at most once, when it is first asked for.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rankscope.measure import communication
from rankscope.measure.intervals import EMPTY, Intervals, union
from rankscope.measure.kineto import LAUNCHES, NONE, Category, Codes, Ints, KinetoTrace
from rankscope.measure.nesting import OUTSIDE, Nesting, nest

Bools = npt.NDArray[np.bool_]

STEP_NAME = re.compile(r"ProfilerStep#?\s*(\d{1,18})$")
"""A number of more digits is no step's: it does not fit into 64 bits."""
_LAUNCHES_WORK = re.compile(r"^(?:cuda|cu|hip)\w*Launch")
"""Calls that put a kernel or a graph of them on a stream."""
CPU_TYPE: Final = 0
"""torch's DeviceType::CPU; its events carry device -1."""
LOST_LAUNCHES_SHARE_MAX = 0.05
"""Share of a step's launches without work up to which its idle time is judged. Of 12,246 launches in the traces of
devices in tests/traces none is without work."""


class Step(NamedTuple):
    """Profiler step: its number, its own start and end, and the start of the next one (the last: its end)."""

    number: int
    start_ns: int
    end_ns: int
    next_start_ns: int


@dataclass(frozen=True, slots=True)
class TraceWork:
    """The device work of a trace as columns of equal length, by start."""

    row: Ints
    name: npt.NDArray[np.int32]
    start_ns: Ints
    end_ns: Ints
    is_kernel: Bools
    is_communication: Bools
    device: Ints
    stream: Ints

    def __len__(self) -> int:
        """Return the number of pieces of work."""
        return len(self.row)


class HostRanges:
    """The ranges of a trace that are on the host, as rows of its events: operators, steps, those of backends."""

    def __init__(self, trace: KinetoTrace) -> None:
        self._trace = trace
        self._events = trace.events

    def nest_rows(self, rows: Ints) -> Nesting:
        """Nest these rows; the result's indices count within them."""
        events = self._events
        return nest(events.thread[rows], events.start_ns[rows], events.end_ns[rows])

    @cached_property
    def operator_rows(self) -> Ints:
        """Return the rows of operators on the host, without the steps' own ranges, which old traces list among them."""
        rows = self._trace.rows(Category.CPU_OP)
        return rows[~np.isin(rows, self.step_rows)]

    @cached_property
    def step_rows(self) -> Ints:
        """The ranges of the profiler's steps on the host."""
        rows = self._trace.rows(Category.ANNOTATION, Category.CPU_OP)
        return rows[self._trace.names_like(lambda name: STEP_NAME.match(name) is not None)[self._events.name[rows]]]

    @cached_property
    def operators(self) -> Nesting:
        """Return the nesting of the operators; its indices are those of `operator_rows`."""
        return self.nest_rows(self.operator_rows)

    def find_operators(self, threads: Codes, times_ns: Ints) -> Ints:
        """Return the row of the innermost operator that is open on each thread at its time; NONE where none is."""
        # OUTSIDE, -1, is the last place.
        return np.append(self.operator_rows, NONE)[self.operators.find_innermost(threads, times_ns)]

    def find_callers(self, calls: Ints) -> Ints:
        """Return the row of the innermost operator around each of these rows; NONE where none is, and for NONE."""
        found = np.full(len(calls), NONE, dtype=np.int64)
        known = calls != NONE
        found[known] = self.find_operators(self._events.thread[calls[known]], self._events.start_ns[calls[known]])
        return found

    @cached_property
    def frame_rows(self) -> Ints:
        """Return the rows of Python's frames; none unless the trace was recorded with stacks."""
        return self._trace.rows(Category.PYTHON)

    @cached_property
    def frames(self) -> Nesting:
        """Return the nesting of Python's frames; its indices are those of `frame_rows`."""
        return self.nest_rows(self.frame_rows)

    @cached_property
    def backend_rows(self) -> Ints:
        """The rows of the ranges of communication backends on the host."""
        rows = self._trace.rows(Category.ANNOTATION, Category.CPU_OP)
        return rows[self._trace.names_like(communication.is_backend_range)[self._events.name[rows]]]

    @cached_property
    def backend_ranges(self) -> Nesting:
        """Return the nesting of these ranges; its indices are those of `backend_rows`."""
        return self.nest_rows(self.backend_rows)

    @cached_property
    def communication_rows(self) -> Ints:
        """Ranges of backends that communicate on the CPU."""
        is_host = self._trace.names_like(lambda name: name.startswith(communication.HOST_PREFIXES))
        return self.backend_rows[is_host[self._events.name[self.backend_rows]]]

    @cached_property
    def compute_rows(self) -> Ints:
        """Return the operators on threads that run the model.

        Excluded are a backend's own threads, where its ranges are, and operators that only enqueue work for a backend.
        Point-to-point ranges are on the thread that called.
        """
        is_call = self._trace.names_like(
            lambda name: communication.find_operation(name) in communication.POINT_TO_POINT_OPS
        )
        ranges = self.communication_rows
        workers = self._events.thread[ranges[~is_call[self._events.name[ranges]]]]
        enqueues = self._trace.names_like(
            lambda name: name.startswith((communication.ENQUEUE_PREFIX, *communication.RANGE_PREFIXES))
        )
        rows = self.operator_rows
        selected = ~np.isin(self._events.thread[rows], workers) & ~enqueues[self._events.name[rows]]
        return rows[selected]


class RankView:
    """A trace and what is derived from it, lazily."""

    def __init__(
        self,
        trace: KinetoTrace,
        steps: tuple[int | None, int | None] | None = None,
        *,
        has_unknown_device: bool = False,
        communication_kernels: re.Pattern[str] | None = None,
    ) -> None:
        """Keep the steps of a range. With `has_unknown_device` operators do not stand in for the work of a device.
        Kernels in whose names `communication_kernels` is found communicate too.
        """
        self._communication_kernels = communication_kernels
        self.trace = trace
        self.events = trace.events
        self.host = HostRanges(trace)
        self.has_unknown_device = has_unknown_device
        self._range = steps or (None, None)

    # -- the device ---------------------------------------------------------------------------------------------------

    @cached_property
    def has_device(self) -> bool:
        """Return whether anything ran on a device."""
        return len(self.trace.device_work.row) > 0

    @cached_property
    def work(self) -> TraceWork:
        """Return the kernels, copies and memsets of the trace."""
        found, events = self.trace.device_work, self.events
        row = found.row
        is_kernel = events.category[row] == Category.KERNEL
        return TraceWork(
            row=row,
            name=events.name[row],
            start_ns=events.start_ns[row],
            end_ns=events.end_ns[row],
            is_kernel=is_kernel,
            is_communication=is_kernel & self._says_communication(row),
            device=found.device,
            stream=found.stream,
        )

    def _says_communication(self, row: Ints) -> Bools:
        by_name = self.trace.names_like(communication.is_communication_kernel)[self.events.name[row]]
        if self._communication_kernels is not None:
            by_name = by_name | self.trace.names_like(self._communication_kernels.search)[self.events.name[row]]
        described = np.zeros(len(self.events), dtype=bool)
        described[list(self.trace.collectives)] = True
        return by_name | described[row]

    @cached_property
    def launch(self) -> Ints:
        """For each device work the row of the runtime or driver call that launched it, NONE when it is not there."""
        calls = self.trace.rows(*LAUNCHES)
        return self._match(calls, self.events.correlation[self.work.row], self.events.correlation[calls])

    @cached_property
    def lost_launch_rows(self) -> Ints:
        """Return the rows of calls that launched kernels of which the trace has none: the profiler has lost their work.
        None on a CPU, and where no work is tied to its launch.
        """
        calls = self.trace.rows_named(self.trace.rows(*LAUNCHES), _LAUNCHES_WORK.match)
        if not self.has_device or not (self.launch != NONE).any():
            return calls[:0]
        keys = self.events.correlation[calls]
        is_lost: Bools = (keys != NONE) & ~np.isin(keys, self.events.correlation[self.work.row])
        return calls[is_lost]

    @cached_property
    def launch_count(self) -> int:
        """Return the number of calls that launched kernels."""
        return len(self.trace.rows_named(self.trace.rows(*LAUNCHES), _LAUNCHES_WORK.match))

    @property
    def has_lost_work(self) -> bool:
        """Return whether more than LOST_LAUNCHES_SHARE_MAX of all launches have no work."""
        return len(self.lost_launch_rows) > LOST_LAUNCHES_SHARE_MAX * self.launch_count

    @cached_property
    def steps_with_lost_work(self) -> dict[int, int]:
        """Return the steps of whose launches more than LOST_LAUNCHES_SHARE_MAX have no work, with their number: the
        device was not idle when it seems to be.
        """
        calls = self.trace.rows_named(self.trace.rows(*LAUNCHES), _LAUNCHES_WORK.match)
        launched = Counter(self.find_step_numbers(self.events.start_ns[calls]))
        lost = Counter(self.find_step_numbers(self.events.start_ns[self.lost_launch_rows]))
        return {
            number: count
            for number, count in lost.items()
            if number is not None and count > LOST_LAUNCHES_SHARE_MAX * launched[number]
        }

    @cached_property
    def work_by_call(self) -> tuple[Ints, Ints]:
        """The places in `work` whose launch is in the trace, by the start of that call, and these starts."""
        places = np.flatnonzero(self.launch != NONE)
        call_ns = self.events.start_ns[self.launch[places]]
        order = np.argsort(call_ns, kind="stable")
        return places[order], call_ns[order]

    @cached_property
    def unit_starts_ns(self) -> Ints:
        """Return the starts (ns) of all kernels, or without a device of the outermost operators, ascending."""
        if self.has_device:
            return self.work.start_ns[self.work.is_kernel]
        top = self.host.operator_rows[self.host.operators.depth == 0]
        selected: Ints = np.intersect1d(top, self.host.compute_rows, assume_unique=True)
        return self.events.start_ns[selected]

    def _match(self, rows: Ints, wanted: Ints, keys: Ints) -> Ints:
        """Return the first of the rows that has the wanted key."""
        known = keys != NONE
        rows, keys = rows[known], keys[known]
        if len(rows) == 0:
            return np.full(len(wanted), NONE, dtype=np.int64)
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        place = np.minimum(np.searchsorted(keys, wanted, side="left"), len(keys) - 1)
        return np.where((keys[place] == wanted) & (wanted != NONE), rows[order][place], NONE)

    @cached_property
    def launching_range(self) -> Ints:
        """For each communication kernel (by its place in `work`) the row of the innermost range of its backend that was
        open where it was launched, NONE otherwise.
        """
        found = np.full(len(self.work), NONE, dtype=np.int64)
        kernels = np.flatnonzero(self.work.is_communication & (self.launch != NONE))
        call = self.launch[kernels]
        inside = self.host.backend_ranges.find_innermost(self.events.thread[call], self.events.start_ns[call])
        known = inside != OUTSIDE
        found[kernels[known]] = self.host.backend_rows[inside[known]]
        return found

    # -- memory -------------------------------------------------------------------------------------------------------

    @cached_property
    def allocators(self) -> list[tuple[int | None, Ints]]:
        """Return the device of each allocator, None for the CPU, which is the first, and its events."""
        memory = self.trace.memory
        pairs = sorted(set(zip(memory.device_type.tolist(), memory.device.tolist(), strict=True)))
        return [
            (
                None if kind == CPU_TYPE else device,
                np.flatnonzero((memory.device_type == kind) & (memory.device == device)),
            )
            for kind, device in pairs
        ]

    # -- the host -----------------------------------------------------------------------------------------------------

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """Return the chosen ones of the profiler's steps, by start."""
        return self.find_steps(*self._range)

    def find_steps(self, first: int | None, end: int | None) -> tuple[Step, ...]:
        """Return the steps, chosen or not, from one number up to, not including, another, by start; None: no limit."""
        return tuple(
            step
            for step in self.all_steps
            if (first is None or step.number >= first) and (end is None or step.number < end)
        )

    @cached_property
    def all_steps(self) -> tuple[Step, ...]:
        """Return the profiler's steps by start. Of a number that occurs twice (several threads may record it) the first
        counts.
        """
        numbers = {code: int(m.group(1)) for code, name in enumerate(self.trace.names) if (m := STEP_NAME.match(name))}
        first: dict[int, tuple[int, int]] = {}
        for code, start_ns, end_ns in self._step_ranges():
            first.setdefault(numbers[code], (start_ns, end_ns))
        found = sorted((start, end, number) for number, (start, end) in first.items())
        starts = [start for start, _, _ in found[1:]] + [found[-1][1]] if found else []
        return tuple(
            Step(number, start, end, following) for (start, end, number), following in zip(found, starts, strict=True)
        )

    @cached_property
    def repeated_step_count(self) -> int:
        """Return how many ranges have the number of an earlier step that had ended: no step of another thread."""
        ended_ns: dict[int, int] = {}
        repeated = 0
        for code, start_ns, end_ns in self._step_ranges():
            if code in ended_ns and start_ns >= ended_ns[code]:
                repeated += 1
            ended_ns.setdefault(code, end_ns)
        return repeated

    def _step_ranges(self) -> list[tuple[int, int, int]]:
        """Return the code of the name, the start and the end of each range of a step, in ns."""
        rows = self.host.step_rows
        start_ns = self.events.start_ns[rows]
        columns = (self.events.name[rows], start_ns, start_ns + self.events.duration_ns[rows])
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def find_step_numbers(self, times_ns: Ints) -> list[int | None]:
        """Return the number of the chosen step in which each time lies, None outside of them."""
        return [None if number == NONE else number for number in _find_numbers(self.steps, times_ns).tolist()]

    def number_steps(self, times_ns: Ints) -> Ints:
        """Return the number of the step in which each time lies, chosen or not, NONE outside of the steps."""
        return _find_numbers(self.all_steps, times_ns)

    # -- the sets of time ---------------------------------------------------------------------------------------------

    def intervals_of(self, rows: Ints) -> Intervals:
        """Return the raw intervals (ns) of these rows."""
        return np.stack([self.events.start_ns[rows], self.events.end_ns[rows]], axis=1) if len(rows) else EMPTY

    @cached_property
    def compute(self) -> Intervals:
        """Raw intervals of computing: kernels, or, without a device, operators on the threads that run the model."""
        if self.has_device:
            return self._of_work(self.work.is_kernel & ~self.work.is_communication)
        if self.has_unknown_device:
            return EMPTY
        return self.intervals_of(self.host.compute_rows)

    @cached_property
    def communication(self) -> Intervals:
        """Raw intervals of communicating: kernels, or, without a device, the ranges of a backend on the CPU."""
        if self.has_device:
            return self._of_work(self.work.is_communication)
        if self.has_unknown_device:
            return EMPTY
        return self.intervals_of(self.host.communication_rows)

    @cached_property
    def copies(self) -> Intervals:
        """Raw intervals of copying and setting memory on a device."""
        return self._of_work(~self.work.is_kernel) if self.has_device else EMPTY

    @cached_property
    def sets(self) -> tuple[Intervals, Intervals, Intervals]:
        """The same three as sets: computing, communicating, copying."""
        compute, communicating, copies = map(union, (self.compute, self.communication, self.copies))
        return compute, communicating, copies

    def _of_work(self, mask: Bools) -> Intervals:
        return np.stack([self.work.start_ns[mask], self.work.end_ns[mask]], axis=1)

    @cached_property
    def bounds_ns(self) -> tuple[int, int] | None:
        """From the start of the first work to the end of the last; None when there is none."""
        found = [raw for raw in (self.compute, self.communication, self.copies) if len(raw)]
        if not found:
            return None
        return min(int(raw[:, 0].min()) for raw in found), max(int(raw[:, 1].max()) for raw in found)

    @cached_property
    def origin_ns(self) -> int:
        """Return the start of the first event, from which starts in the report count.

        The profiler's own span is excluded, and so are allocations unless there is nothing else.
        """
        starts_ns = self.events.start_ns[self.events.category != Category.SPAN]
        if len(starts_ns) == 0:
            starts_ns = self.trace.memory.time_ns
        return int(starts_ns.min()) if len(starts_ns) else 0


def _find_numbers(steps: Sequence[Step], times_ns: Ints) -> Ints:
    """Return the number of the step in which each time lies, NONE outside of these."""
    if not steps:
        return np.full(len(times_ns), NONE, dtype=np.int64)
    number, start_ns, _, end_ns = np.array(steps, dtype=np.int64).T
    place = np.searchsorted(start_ns, times_ns, side="right") - 1
    return np.where((place >= 0) & (times_ns < end_ns[place]), number[place], NONE)
