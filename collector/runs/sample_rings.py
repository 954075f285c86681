"""Keep the last samples of one rank in packed form. Pure.

    256 pauses of the garbage collector      as objects 32 KB a rank, here 2.5
    32 CPU times, waits for a core, and the time at each    10 KB, here 1.8
    32 counts of torch's allocator           20 KB, here 4
    32 breakdowns of full windows            13 KB, here 3
    256 frames compiled after the first steps    0.1 KB each with the guard that failed
    16 samples of the machine, one rank a node    with eight network ports 60 KB, here 10

Python's garbage collector does not traverse packed samples.
"""

import math
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, Final, Generic, TypeVar, overload

import msgspec

from rankscope.collector.detect.blocking_calls import add_synchronizations
from rankscope.collector.detect.machine_growth import NodeCounts
from rankscope.collector.detect.view import AllocatorCounts, TimeCount
from rankscope.collector.invariants import require
from rankscope.collector.runs.level_ring import LevelRing
from rankscope.collector.runs.report_fields import HostTimes, ReportFields
from rankscope.measure.bounds import NUMBER_MAX
from rankscope.measure.records import (
    Compilations,
    CompiledFrame,
    HostCopies,
    WindowBreakdown,
    WindowSynchronizations,
)

T = TypeVar("T")

BREAKDOWNS_KEPT: Final = 32
SYNCHRONIZATIONS_KEPT: Final = 8
"""Windows whose blocking calls are kept: with one call of one kind each 0.1 KB, with the most 2 KB and more."""
GC_PAUSES_KEPT: Final = 256
ALLOCATOR_COUNTS_KEPT: Final = 32
ALLOCATOR_COUNTS_FIRST: Final = 4
"""Of the first 8 s, of which the last ones are no start-up any more."""
NODE_COUNTS_KEPT: Final = 16
"""Of the last 160 s: an agent samples its machine every 10 s."""
COMPILED_KEPT: Final = 256
COMPILED_FROM_STEP: Final = 3
"""Detection reads no earlier step: what all runs compile there takes no room."""
HOST_TIMES_KEPT: Final = 32
"""Of the last 64 s: an agent samples its process every 2 s."""
LEFT_SHARE: Final = 0.25
"""Times dropped at once, over those kept: each time all others are moved."""

_ENCODER: Final = msgspec.msgpack.Encoder()


class PackedRing(Sequence[T], Generic[T]):
    """The last `kept` samples of one kind, packed, and among them the `first` ones: what is usual for a rank is known
    by these for ever. `decoder` is shared by all rings of the kind.
    """

    def __init__(self, decoder: "msgspec.msgpack.Decoder[T]", kept: int, *, first: int = 0) -> None:
        self._decoder = decoder
        self._kept = kept
        self._first = first
        self._packed: list[bytes] = []  # an empty deque has room for 64 already, which is 0.6 KB

    def append(self, sample: T) -> None:
        """Add a sample; beyond `kept` the oldest is dropped."""
        if self.is_full:
            del self._packed[self._first]
        self._packed.append(_ENCODER.encode(sample))

    @property
    def is_full(self) -> bool:
        """Whether the next sample replaces the oldest."""
        return len(self._packed) == self._kept

    def __iter__(self) -> Iterator[T]:
        return map(self._decoder.decode, tuple(self._packed))

    def __len__(self) -> int:
        return len(self._packed)

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[T]: ...
    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, slice):
            return tuple(self)[place]
        return self._decoder.decode(self._packed[place])


class TimeRing(Sequence[TimeCount]):
    """The last `kept` counts of a time: steps and times alternately, relative to the first ones. Mostly 32 bits are
    enough; where the time exceeds 2 s in all, 64 are used.
    """

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._left_at_once = math.ceil(LEFT_SHARE * kept)
        self._numbers_max = 2 * (kept + self._left_at_once)
        self._steps = self._counted_ns = 0
        self._numbers = array("i")

    def append(self, steps: int, counted_ns: int) -> None:
        """Add a count of `counted_ns` after `steps` steps."""
        if not self._numbers:
            self._steps, self._counted_ns = steps, counted_ns
        more = steps - self._steps, counted_ns - self._counted_ns
        try:
            self._numbers.extend(more)
        except OverflowError:
            del self._numbers[len(self._numbers) // 2 * 2 :]  # the first of the two may have had room
            self._numbers = array("q", [*self._numbers, *more])
        if len(self._numbers) >= self._numbers_max:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Drop the oldest counts, and make the others relative to the first that stays."""
        numbers = self._numbers[2 * self._left_at_once :].tolist()
        steps, counted_ns = numbers[:2]
        self._steps, self._counted_ns = self._steps + steps, self._counted_ns + counted_ns
        numbers[::2] = [number - steps for number in numbers[::2]]
        numbers[1::2] = [number - counted_ns for number in numbers[1::2]]
        try:
            self._numbers = array("i", numbers)
        except OverflowError:
            self._numbers = array("q", numbers)

    def __iter__(self) -> Iterator[TimeCount]:
        numbers = self._numbers[len(self._numbers) - 2 * len(self) :].tolist()
        steps, counted_ns = self._steps, self._counted_ns
        return map(TimeCount, [steps + one for one in numbers[::2]], [counted_ns + one for one in numbers[1::2]])

    def __len__(self) -> int:
        return min(self._kept, len(self._numbers) // 2)

    @overload
    def __getitem__(self, place: int) -> TimeCount: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[TimeCount]: ...
    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, slice):
            return tuple(self)[place]
        if not -len(self) <= place < len(self):
            raise IndexError(place)
        first = len(self._numbers) - 2 * (len(self) - place % len(self))
        return TimeCount(self._steps + self._numbers[first], self._counted_ns + self._numbers[first + 1])


_BREAKDOWNS: Final = msgspec.msgpack.Decoder(WindowBreakdown)
_SUMMED: Final = (
    "step_count", "window_ns", "compute_ns", "communication_ns", "overlap_ns", "exposed_communication_ns", "copy_ns",
    "idle_ns",
)  # fmt: skip


def _limit(value: int) -> int:
    """Return a sum within 64 bits, so that it can be encoded, whatever numbers a rank has sent."""
    return max(-NUMBER_MAX, min(NUMBER_MAX, value))


class BreakdownRing(PackedRing[WindowBreakdown]):
    """The last `kept` breakdowns, and their running sum."""

    def __init__(self, kept: int) -> None:
        super().__init__(_BREAKDOWNS, kept)
        self._sums = dict.fromkeys(_SUMMED, 0)
        self._copies = dict.fromkeys(HostCopies.__struct_fields__, 0)
        self._operators = self._without_operators = self._without_copies = 0

    def append(self, sample: WindowBreakdown) -> None:
        """Add a breakdown; beyond `kept` the oldest is dropped."""
        if self.is_full:
            self._count(self[0], -1)
        self._count(sample, 1)
        super().append(sample)

    @property
    def sum(self) -> WindowBreakdown | None:
        """All of them as one window, whose parts still sum to it. None while there is none."""
        if not len(self):
            return None
        return WindowBreakdown(
            first_step=self[0].first_step,
            operator_count=None if self._without_operators else _limit(self._operators),
            host_copies=None
            if self._without_copies
            else HostCopies(**{name: _limit(value) for name, value in self._copies.items()}),
            **{name: _limit(value) for name, value in self._sums.items()},
        )

    def _count(self, sample: WindowBreakdown, sign: int) -> None:
        for name in _SUMMED:
            self._sums[name] += sign * getattr(sample, name)
        if sample.operator_count is None:
            self._without_operators += sign
        else:
            self._operators += sign * sample.operator_count
        if sample.host_copies is None:
            self._without_copies += sign
            return
        for name in self._copies:
            self._copies[name] += sign * getattr(sample.host_copies, name)


_SYNCHRONIZATIONS: Final = msgspec.msgpack.Decoder(WindowSynchronizations)
_ALLOCATORS: Final = msgspec.msgpack.Decoder(AllocatorCounts)
_MACHINES: Final = msgspec.msgpack.Decoder(NodeCounts)
_COMPILED: Final = msgspec.msgpack.Decoder(CompiledFrame)


class SynchronizationRing(PackedRing[WindowSynchronizations]):
    """The last `kept` windows with blocking calls, and their sum."""

    def __init__(self, kept: int) -> None:
        super().__init__(_SYNCHRONIZATIONS, kept)
        #: All of them as one window. None while there is none.
        self.sum: WindowSynchronizations | None = None

    def append(self, sample: WindowSynchronizations) -> None:
        """Add a window; beyond `kept` the oldest is dropped."""
        super().append(sample)
        self.sum = add_synchronizations(self)


class RankSamples:
    """The last samples of one rank process that a detection pass reads several of. Written by Attempt only."""

    def __init__(self) -> None:
        #: At most BREAKDOWNS_KEPT, oldest first; of captures on demand those of the last one.
        self.breakdowns = BreakdownRing(BREAKDOWNS_KEPT)
        #: At most SYNCHRONIZATIONS_KEPT, oldest first.
        self.synchronizations = SynchronizationRing(SYNCHRONIZATIONS_KEPT)
        #: The first ones, and at most ALLOCATOR_COUNTS_KEPT with them, oldest first.
        self.allocators = PackedRing(_ALLOCATORS, ALLOCATOR_COUNTS_KEPT, first=ALLOCATOR_COUNTS_FIRST)
        #: At most GC_PAUSES_KEPT, oldest first.
        self.gc_pauses = TimeRing(GC_PAUSES_KEPT)
        #: At most HOST_TIMES_KEPT each, oldest first: CPU time of the process, waits of its main thread for a CPU and
        #: for block I/O.
        self.process_cpu, self.core_waits = TimeRing(HOST_TIMES_KEPT), TimeRing(HOST_TIMES_KEPT)
        self.block_io = TimeRing(HOST_TIMES_KEPT)
        #: The time by the host's clock at these samples.
        self.host_clock = TimeRing(HOST_TIMES_KEPT)
        # Reports repeat the last sample until there is another, and have more steps by then.
        self._host_sampled_ns: int | None = None
        self._allocator_sampled_ns: int | None = None
        #: Its resident memory since its begin.
        self.resident = LevelRing()
        #: What torch.compile compiled from COMPILED_FROM_STEP on, at most COMPILED_KEPT, oldest first; None where torch
        #: does not tell.
        self.compiled: PackedRing[CompiledFrame] | None = None
        #: At most NODE_COUNTS_KEPT, oldest first; empty in all ranks of a node but one.
        self.machines = PackedRing(_MACHINES, NODE_COUNTS_KEPT)

    def record(self, report: ReportFields) -> None:
        """Add the samples of a report, each after the steps reported by then."""
        for window in report.breakdowns:
            if report.on_demand and not self._follows(window):
                self.breakdowns = BreakdownRing(BREAKDOWNS_KEPT)
            self.breakdowns.append(window)
        for waits in report.synchronizations:
            if report.on_demand:
                self.synchronizations = SynchronizationRing(SYNCHRONIZATIONS_KEPT)
            self.synchronizations.append(waits)
        if report.allocator is not None and report.allocator.host_ns != self._allocator_sampled_ns:
            self._allocator_sampled_ns = report.allocator.host_ns
            self.allocators.append(AllocatorCounts(report.step_totals.reported, report.allocator))
        if report.host_times is not None:
            self._record_host(report.step_totals.reported, report.host_times)
        if report.compilations is not None:
            self._record_compiled(report.compilations)
        if report.node is not None:
            self.machines.append(NodeCounts(report.step_totals.reported, report.node))

    def _record_compiled(self, seen: Compilations) -> None:
        if self.compiled is None:
            self.compiled = PackedRing(_COMPILED, COMPILED_KEPT)
        for one in seen.frames:
            if one.step >= COMPILED_FROM_STEP:
                self.compiled.append(one)

    def _follows(self, window: WindowBreakdown) -> bool:
        """Return whether a breakdown is of the step after the last one. Any time may lie between two captures, of which
        only the last one counts.
        """
        if not len(self.breakdowns):
            return True
        last = self.breakdowns[-1]
        return window.first_step == last.first_step + last.step_count

    def _record_host(self, steps: int, times: HostTimes) -> None:
        """Add the times of a host sample, unless an earlier report has had it."""
        if times.host_ns == self._host_sampled_ns:
            return
        self._host_sampled_ns = times.host_ns
        if times.resident_bytes is not None:
            self.resident.append(steps, times.host_ns, times.resident_bytes)
        if not steps:  # from here to the next sample are imports and the making of the model, too
            return
        self.host_clock.append(steps, times.host_ns)
        if times.cpu_ns is not None:
            self.process_cpu.append(steps, times.cpu_ns)
        if times.run_queue_wait_ns is not None:
            self.core_waits.append(steps, times.run_queue_wait_ns)
        if times.block_io_wait_ns is not None:
            self.block_io.append(steps, times.block_io_wait_ns)
        if times.gc_pause_ns is not None:
            self.gc_pauses.append(steps, times.gc_pause_ns)

    def validate(self) -> None:
        """Raise InvariantError where an invariant does not hold; tests call it after events."""
        self.resident.validate()
        kept = len(self.breakdowns) <= BREAKDOWNS_KEPT and len(self.allocators) <= ALLOCATOR_COUNTS_KEPT
        kept = kept and len(self.synchronizations) <= SYNCHRONIZATIONS_KEPT
        kept = kept and len(self.machines) <= NODE_COUNTS_KEPT and len(self.compiled or ()) <= COMPILED_KEPT
        kept = (
            kept
            and max(map(len, (self.process_cpu, self.core_waits, self.block_io, self.host_clock))) <= HOST_TIMES_KEPT
        )
        require(kept and len(self.gc_pauses) <= GC_PAUSES_KEPT, "too many samples are kept")
