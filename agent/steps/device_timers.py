"""Measure the device times of a step's phases with CUDA events, recorded where the hooks read the host clock.

    host      hook event --- forward ----- hook event --- backward ----- hook event      StepTimer: charges, by host ns
    stream    event 0                      event 1                       event 2         here: one CUDA event for each
    device    ---------- forward ---------|----------- backward ---------|               elapsed_time(0, i), later

A CUDA event is a mark in the current stream; the device stores the time when it reaches it. So the time between two
marks is the device's work on that stream and the gaps in it. Other streams (communication) count only as far as this
one waits for them. Nothing here ever waits for the device: only `record()`, `query()`, and `elapsed_time()` of events
that are known to be complete. The record of a timed step is held back until its device times are known, and the records
after it with it, `RECORDS_WAITING_MAX` at most.

While a CUDA graph is being captured a query, on any stream, would invalidate the capture, and an event recorded into it
would never have a time. So a step within which `GraphCaptures` reports one has no device times, and held records are
queried later.

An event costs 5 to 13 us on an H200, so not every step is timed: TimingPlan selects them, the same on every rank.
"""

from collections import deque
from collections.abc import Callable, Sequence
from threading import get_ident
from time import monotonic_ns
from typing import Any

import msgspec

from rankscope.agent.guard import Guard
from rankscope.agent.steps.backward_tails import BackwardTails, Tail, find_obstacle, read_tail_ns
from rankscope.agent.steps.event_pool import EventPool
from rankscope.agent.steps.graph_captures import GraphCaptures
from rankscope.agent.steps.timing_plan import TimingPlan
from rankscope.measure.records import StepRecord
from rankscope.measure.units import NS_PER_MS

PART = "device_times"

EVENTS_MAX = 512
"""CUDA events in existence at once: a timed step of 64 micro batches has about 260. Where all are in use a step is not
timed."""

RECORDS_WAITING_MAX = 32
"""Records held back for device times. The host of a training that never waits for its device is ahead by the device's
queue of a thousand launches: by one or two steps of an ordinary model, by a dozen of one with few and large layers."""

QUERY_INTERVAL_NS = 50 * NS_PER_MS
"""Time between queries within a step: the record of a long step must not wait for the end of the next one."""

CAPTURE = "capture"
STREAM_CHANGED = "stream_changed"
POOL_EMPTY = "pool_empty"
NOT_READY = "not_ready"
OTHER_THREAD = "other_thread"
NO_EVENT = "no_event"
ERROR = "error"


class _Timing(msgspec.Struct):
    """A step that is timed: its CUDA events by host ns, and the charges of StepTimer, in order."""

    step: int
    thread: int
    stream: Any
    start: Any
    events: dict[int, Any] = msgspec.field(default_factory=dict)
    charges: list[tuple[int, str]] = msgspec.field(default_factory=list)
    costs_ns: list[int] = msgspec.field(default_factory=list)
    last: Any = None
    skip: str | None = None
    tails: Sequence[Tail] = ()
    has_tail: bool = False

    @property
    def all_events(self) -> list[Any]:
        """Its CUDA events, to be used again."""
        of_tails = [tail.event for tail in self.tails if tail.event is not None]
        start = [] if self.start is None else [self.start]
        return [*self.events.values(), *start, *of_tails]

    @property
    def marks_cost_ns(self) -> int:
        """The cost of its marks, each at the median, since one may have blocked or lost its core."""
        return sorted(self.costs_ns)[(len(self.costs_ns) - 1) // 2] * len(self.costs_ns)


class DeviceTimers:
    """Time steps on the device, on the training thread. `on_record` gets every record passed in, in order.

    `cuda` is torch.cuda or a stand-in. No error leaves this class: the first one is counted and ends all timing, since
    a wrong call of CUDA must not be repeated. `skipped` counts the steps that were due and not timed, by reason.
    `spent_ns` is an estimate: a mark that blocks because the device's queue is full counts like the others, since the
    next launch of the training would have blocked instead. `tails` measures the tails of backwards in a process that
    `has_peers`.
    """

    def __init__(
        self,
        cuda: Any,
        plan: TimingPlan,
        guard: Guard,
        on_record: Callable[[StepRecord], None],
        *,
        captures: GraphCaptures | None = None,
        has_peers: Callable[[], bool] = lambda: False,
        read_clock_ns: Callable[[], int] = monotonic_ns,
        events_max: int = EVENTS_MAX,
        records_waiting_max: int = RECORDS_WAITING_MAX,
    ) -> None:
        self._cuda = cuda
        self.plan = plan
        self._guard = guard
        self._on_record = on_record
        self._captures = captures or GraphCaptures(cuda.is_current_stream_capturing)
        self._read_clock_ns = read_clock_ns
        self._pool = EventPool(cuda, events_max)
        self.tails = BackwardTails(
            cuda,
            self._pool,
            guard,
            self._captures,
            self._fail,
            has_peers=has_peers,
            read_clock_ns=read_clock_ns,
        )
        self._records_waiting_max = records_waiting_max
        self._timing: _Timing | None = None
        self._waiting: deque[tuple[StepRecord, _Timing | None]] = deque()
        self._queried_ns = 0
        self._is_off = False
        self.skipped: dict[str, int] = {}
        self.spent_ns = 0

    @property
    def records_waiting(self) -> int:
        """The number of records held back, for device times or behind such a record."""
        return len(self._waiting)

    @property
    def is_idle(self) -> bool:
        """Whether no step is being timed and no record held back, so that `on_record` may be called on any thread."""
        return self._timing is None and not self._waiting

    def find_next(self, step: int) -> int:
        """Return the first step after this one whose begin must be processed inline, or this one's end."""
        return step + 1 if self._timing is not None else self.plan.find_next(step)

    # -- called by StepTimer and the hooks ----------------------------------------------------------------------------

    def read_event_ns(self) -> int:
        """Return the time of a hook event by the host clock; within a timed step also mark the stream."""
        now_ns = self._read_clock_ns()
        if self._timing is not None:
            self._mark(self._timing, now_ns)
        elif self._waiting and now_ns - self._queried_ns >= QUERY_INTERVAL_NS:
            self._release_records(now_ns)
        return now_ns

    def on_boundary(self, step: int) -> None:
        """Begin to time this step, which begins now, if it is due."""
        if self._is_off or not self.plan.is_due(step):
            return
        try:
            if self._cuda.is_initialized():  # any other call would initialize CUDA
                self._begin(step)
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the training script
            self._fail(error)

    def on_charge(self, now_ns: int, phase: str) -> None:
        """Record that StepTimer has charged the time up to `now_ns` to the phase."""
        if self._timing is not None:
            self._timing.charges.append((now_ns, phase))

    def on_pause(self) -> None:
        """Discard the timing of the step that had begun, since an evaluation begins. It is not counted in `skipped`."""
        timing, self._timing = self._timing, None
        if timing is not None:
            _, timing.tails = self.tails.end_step()
            self._pool.release(timing.stream, timing.all_events)

    def on_record(self, record: StepRecord) -> None:
        """Pass the record of a finished step on, or hold it back for its device times or behind such a record."""
        timing = self._timing
        if timing is not None and timing.step == record.step:
            self._timing = None
            timing = self._finish_timing(timing, record)
        else:
            timing = None
        if timing is None and not self._waiting:
            self._on_record(record)
            return
        self._waiting.append((record, timing))
        self._release_records(self._read_clock_ns())

    def close(self) -> None:
        """End all timing and release the held records, with their device times where they are known by now."""
        self.on_pause()
        if self._waiting:
            self._release_records(self._read_clock_ns())
        self._is_off = True
        self._flush(NOT_READY)

    # -- a step that is timed -----------------------------------------------------------------------------------------

    def _begin(self, step: int) -> None:
        self.on_pause()
        begin_ns = self._read_clock_ns()
        timing = _Timing(step, get_ident(), None, None)
        if self._captures.is_open():
            timing.skip = CAPTURE
        else:
            timing.stream = self._cuda.current_stream()
            timing.start = self._pool.record(timing.stream)
            timing.skip = POOL_EMPTY if timing.start is None else None
            self.tails.begin_step(timing.stream)
        timing.costs_ns.append(self._read_clock_ns() - begin_ns)
        self._timing = timing

    def _mark(self, timing: _Timing, now_ns: int) -> None:
        if timing.skip is not None or now_ns in timing.events:
            return
        try:
            timing.skip = self._find_obstacle(timing)
            if timing.skip is None:
                event = self._pool.record(timing.stream)
                if event is None:
                    timing.skip = POOL_EMPTY
                else:
                    timing.events[now_ns] = event
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(error)
        timing.costs_ns.append(self._read_clock_ns() - now_ns)

    def _find_obstacle(self, timing: _Timing) -> str | None:
        if get_ident() != timing.thread:
            return OTHER_THREAD
        if self._captures.is_open():
            return CAPTURE
        if self._cuda.current_stream() != timing.stream:
            return STREAM_CHANGED  # times of two streams are not comparable
        return None

    def _finish_timing(self, timing: _Timing, record: StepRecord) -> _Timing | None:
        """Return the timing of the finished step, cut to its end; None when the step is skipped."""
        was_due, timing.tails = self.tails.end_step()
        timing.costs_ns += [cost_ns for tail in timing.tails for cost_ns in tail.costs_ns]
        self.spent_ns += timing.marks_cost_ns
        timing.charges = [charge for charge in timing.charges if charge[0] <= record.end_host_ns]
        if timing.skip is None and not all(now_ns in timing.events for now_ns, _ in timing.charges):
            timing.skip = NO_EVENT
        if timing.skip is not None:
            self._skip(timing, timing.skip)
            return None
        timing.last = timing.events[timing.charges[-1][0]] if timing.charges else timing.start
        obstacle = find_obstacle(timing.tails, timing.events, record.backwards) if was_due else None
        if obstacle is not None:
            self.tails.skip(obstacle)
        timing.has_tail = was_due and obstacle is None
        return timing

    # -- held records -------------------------------------------------------------------------------------------------

    def _release_records(self, now_ns: int) -> None:
        """Pass on the records that need not be held back any more."""
        self._queried_ns = now_ns
        try:
            while self._waiting:
                record, timing = self._waiting[0]
                if timing is not None:
                    obstacle = self._find_delay(timing)
                    if obstacle is None:
                        record = self._resolve(record, timing)
                    elif len(self._waiting) <= self._records_waiting_max:
                        break
                    else:
                        self._skip(timing, obstacle)
                self._waiting.popleft()
                self._on_record(record)
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(error)
        self.spent_ns += self._read_clock_ns() - now_ns

    def _find_delay(self, timing: _Timing) -> str | None:
        """Return why the device times cannot be read now; None when they can."""
        if get_ident() != timing.thread:
            return OTHER_THREAD
        if self._captures.is_open():
            return CAPTURE
        return None if timing.last.query() else NOT_READY

    def _resolve(self, record: StepRecord, timing: _Timing) -> StepRecord:
        """Return the record with its device times. Each charge ends where the next begins, so they sum to the step."""
        begin_ns = self._read_clock_ns()
        phases_ns = dict.fromkeys(record.phases_ns, 0)
        at_ns = 0
        for charged_ns, phase in timing.charges:
            until_ns = round(timing.start.elapsed_time(timing.events[charged_ns]) * NS_PER_MS)
            phases_ns[phase] = phases_ns.get(phase, 0) + until_ns - at_ns
            at_ns = until_ns
        tail_ns = read_tail_ns(timing.tails, timing.events) if timing.has_tail else None
        self._pool.release(timing.stream, timing.all_events)
        self.plan.learn_cost(timing.marks_cost_ns + self._read_clock_ns() - begin_ns)
        return msgspec.structs.replace(record, device_phases_ns=phases_ns, device_tail_ns=tail_ns)

    def _flush(self, reason: str) -> None:
        while self._waiting:
            record, timing = self._waiting.popleft()
            if timing is not None:
                self._skip(timing, reason)
            self._on_record(record)

    def _skip(self, timing: _Timing, reason: str) -> None:
        self.skipped[reason] = self.skipped.get(reason, 0) + 1
        self._pool.release(timing.stream, timing.all_events)

    def _fail(self, error: Exception) -> None:
        self._guard.record(PART, error)
        self._is_off = True
        if self._timing is not None:
            self.skipped[ERROR] = self.skipped.get(ERROR, 0) + 1
            self._timing = None
        self.tails.end_step()
        self._flush(ERROR)
