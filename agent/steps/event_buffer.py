"""Buffer the hook events of the training thread and pass them to the step timer in batches.

An event is three entries in a list. Each Python call of ours costs microseconds during training, since torch has
evicted our code from the caches; processed together with others an event costs a fifth of that. Only the boundary at
which a profiler window begins or ends cannot be deferred. So the buffer knows how many more optimizer steps must end
before such a boundary can come (`step_boundaries.py`), and until then the training thread only writes:

    training thread    write write write write ... write | inline: process all, the last event is now | write ...
    agent thread       before each report: process what is there, also while training hangs

Profiler windows can start only at a step boundary processed inline, on the training thread. At boundaries where only
the CPU clock is wanted, it is read and written with the event that begins the step; processing is then left to the
agent thread, too.

What the hooks cost
-------------------
Writing an event costs 0.3 us in a bare loop and several times that during training, where torch has evicted our code
from the caches. The cost differs between machines and loops, so a constant would be wrong: some events time themselves.
Processing events takes longer; the thread's CPU clock is read before and after it.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident, main_thread
from time import monotonic_ns, thread_time_ns
from typing import Any, Final

from rankscope.agent.guard import Guard, is_of_script
from rankscope.agent.steps.step_boundaries import NextBoundary
from rankscope.agent.steps.step_timer import StepTimer

PART: Final = "step_hooks"
FIELDS: Final = 3
"""Entries of an event: the method that handles it, mostly of the StepTimer, the host ns, its further arguments."""
BUFFERED_EVENTS_MAX: Final = 4096
"""Events kept in the buffer: 4 s of steps of 6 ms. Beyond it, as in a loop that never steps an optimizer, the training
thread processes them."""
BATCH_EVENTS: Final = 512
"""Events that the agent thread processes at a time, in 0.4 ms: the training thread may wait for it meanwhile."""
CLOCK_READ_NS_MAX: Final = 200_000
"""The longest time that is counted for reading the clock: a thread that takes longer has lost its core."""
LOCK_WAIT_S_MAX: Final = 0.005
"""The longest time that the training thread waits for the agent thread. After it the boundary is deferred, so no window
begins there."""
FLUSHED_WAIT_S_MAX: Final = 0.1
"""The longest time that a call, or another thread that trains, waits for it."""

TIMED_EVENTS_MAX: Final = 64
WRITE_NS_MAX: Final = 20_000
"""Longer writes are not counted: the thread lost its core during them."""
WRITE_COST_FACTOR: Final = 3
"""The timed write is only a part of the cost of an event: it includes neither the call before the clock is read, nor
the cache misses of torch's own code afterwards. Loops with and without hooks differ by 2.6 times the timed writes
(`bench/moments.py`)."""
PROCESSING_COST_FACTOR: Final = 2
"""Processing events, or reading the clock, costs torch once more the time it takes: 1.2 to 2.1 times the measured time,
by the same comparison."""
EVENT_NS_ASSUMED: Final = 4_000
"""The cost of an event before the first was timed."""


class HookCostMeter:
    """Estimate the cost of all hook events from a few timed ones, and add the time of processing them.

    The training thread records; one other thread reads `spent_ns`.

    >>> meter = HookCostMeter()
    >>> meter.spent_ns(10) == 10 * EVENT_NS_ASSUMED
    True
    >>> meter.record_write(500)
    >>> meter.record_processing(30_000)
    >>> meter.spent_ns(20) - meter.spent_ns(20), meter.event_ns
    (0, 1500)
    """

    def __init__(self) -> None:
        self._timed_ns: deque[int] = deque(maxlen=TIMED_EVENTS_MAX)
        self._counted = 0
        self._written_ns = 0
        self._processed_ns = 0

    def record_write(self, took_ns: int) -> None:
        """Record the time of writing one event."""
        if took_ns <= WRITE_NS_MAX:
            self._timed_ns.append(took_ns)

    def record_processing(self, took_ns: int) -> None:
        """Record the time of processing events, or of reading the CPU clock, on the training thread."""
        self._processed_ns += PROCESSING_COST_FACTOR * max(0, took_ns)

    def spent_ns(self, events: int) -> int:
        """Return the cost of all `events` so far. New ones are counted at the present mean, and keep that cost."""
        self._written_ns += max(0, events - self._counted) * self.event_ns
        self._counted = max(events, self._counted)
        return self._written_ns + self._processed_ns

    @property
    def event_ns(self) -> int:
        """The mean cost of writing one of the last events."""
        timed_ns = list(self._timed_ns)
        return WRITE_COST_FACTOR * sum(timed_ns) // len(timed_ns) if timed_ns else EVENT_NS_ASSUMED


class HookEventBuffer:
    """Pass events to a StepTimer, in order. The hooks append to `entries` themselves, on the thread `thread`, and
    decrement `optimizer_steps_until_flush` at each end of an optimizer step; at 0 the next event that may end a step is
    processed inline.

    `find_boundary` returns the next boundary after a given step, by default that of the next step, inline; only the
    training thread calls it. `read_other_cost_ns` returns the part of the time spent in here that other parts count as
    their cost, `may_defer` whether records may be made on another thread now, and the guard what
    a signal handler of the script has raised meanwhile, which the script then gets from the hook.
    """

    def __init__(
        self,
        timer: StepTimer,
        guard: Guard,
        find_boundary: Callable[[int], NextBoundary] | None = None,
        read_other_cost_ns: Callable[[], int] = lambda: 0,
        may_defer: Callable[[], bool] = lambda: True,
        *,
        read_cpu_ns: Callable[[], int] = thread_time_ns,
    ) -> None:
        self._timer = timer
        self._guard = guard
        self._find_boundary = find_boundary or (lambda step: NextBoundary(step + 1, runs_inline=True))
        self._read_other_cost_ns = read_other_cost_ns
        self._may_defer = may_defer
        self._read_cpu_ns = read_cpu_ns
        self._lock = threading.RLock()  # a signal handler of the script may fetch a batch right inside
        self._processed = self._removed = 0
        self._meter = HookCostMeter()
        self._boundary_step = 0
        self._boundary_runs_inline = True
        self.entries: list[Any] = []
        self.thread: int | None = main_thread().ident
        self.thread_is_confirmed = False
        """Whether `thread` alone is listened to, whatever others do."""
        self.interrupted = 0
        """Events that a signal handler of the script has interrupted: their step may be counted with the next one."""
        self.optimizer_steps_until_flush = 0
        self.in_backward = False
        """Whether that thread is inside a backward."""
        self.calls_open = 0
        """Calls of torch's that have begun on that thread and not ended; more where an exception may have left some."""
        self.stepped_in_backward = False
        """Whether a hook of this backward has stepped an optimizer."""
        self.before_optimizer: Callable[[], None] | None = None
        """Called on that thread where an optimizer begins to step."""

    @property
    def event_count(self) -> int:
        """The number of events so far."""
        return self._removed + len(self.entries) // FIELDS

    @property
    def spent_ns(self) -> int:
        """The cost of all events to the training thread so far. Only one other thread may ask."""
        return self._meter.spent_ns(self.event_count)

    # -- the training thread ------------------------------------------------------------------------------------------

    def on_last_optimizer_end(self, now_ns: int) -> None:
        """Handle the end of the last optimizer step before the boundary. Its event has been written by `now_ns`."""
        event_ns = self.entries[-2:-1]  # empty when the agent thread has just taken the event
        if event_ns:
            self._meter.record_write(now_ns - event_ns[0])
        if not self._timer.ends_at_batch:
            self.flush_inline()

    def on_boundary_fetch(self, now_ns: int) -> None:
        """Handle the request of a batch, with gradients on, where the boundary may come. Raises as `flush_inline`."""
        if self._boundary_runs_inline:
            self.entries.extend((self._timer.data_begin, now_ns, (True,)))
            self.flush_inline()
            return
        self.entries.extend((self._begin_measured_step, now_ns, (self._read_cpu_ns(), self._boundary_step)))
        self._plan_next_boundary()
        self._meter.record_processing(min(monotonic_ns() - now_ns, CLOCK_READ_NS_MAX))
        self._guard.raise_held()

    def on_loader_exhausted(self) -> None:
        """Handle the end of a loader: an evaluation may follow, or end here."""
        self._flush_every_event()

    def flush_inline(self) -> None:
        """Process all events; the last one happens now. Raises what a signal handler of the script raised meanwhile."""
        begin_ns = thread_time_ns()
        is_nested = self._lock._is_owned()  # type: ignore[attr-defined]
        try:
            if not self._lock.acquire(timeout=LOCK_WAIT_S_MAX):
                return
            other_ns = self._read_other_cost_ns()
            self._process(inline=True)
            self._plan_flush()
            spent_ns = thread_time_ns() - begin_ns - (self._read_other_cost_ns() - other_ns)
            self._meter.record_processing(spent_ns)
        except BaseException as error:  # noqa: BLE001 - nothing of ours may reach the training script
            self._record(error)
        finally:
            while True:
                try:  # an interruption may come before it is known that the lock was acquired, and here
                    if is_nested or self._lock._is_owned():  # type: ignore[attr-defined]
                        self._lock.release()
                    break
                except BaseException as error:  # noqa: BLE001 - a lock that stays would keep the other thread out
                    self._record(error)
        self._guard.raise_held()

    @contextmanager
    def flushed(self) -> Iterator[None]:
        """Process all events; within the context the StepTimer may be called directly, for what happens now. Raises
        TimeoutError where another thread keeps them: one that an exception of the script has interrupted amid this.
        """
        if not self._lock.acquire(timeout=FLUSHED_WAIT_S_MAX):
            raise TimeoutError("another thread has not ended what it does with the events of the hooks")
        try:
            self._process(inline=False)
            yield
            self._plan_flush()
        finally:
            self._lock.release()

    # -- another thread -----------------------------------------------------------------------------------------------

    def flush_deferred(self) -> None:
        """Process the events of the training thread on another one, in batches that let it continue in between."""
        left = self.event_count - self._processed
        while left > 0 and self._lock.acquire(blocking=False):
            try:
                if not self._may_defer():
                    return
                self._process(inline=False, events_max=BATCH_EVENTS)
            finally:
                self._lock.release()
            left -= BATCH_EVENTS
            if left > 0:
                time.sleep(0)  # yields the GIL

    def reset_lock(self) -> None:
        """Replace the lock, in a forked child: the thread that held it does not exist there."""
        self._lock = threading.RLock()

    # -- any of them --------------------------------------------------------------------------------------------------

    def add(self, handle: Callable[..., None], now_ns: int, *arguments: object) -> None:
        """Add an event of another part, in the order of time, from any thread: `handle` is called with the time and the
        arguments when the events before it have been processed. It is none that may begin or end a step.
        """
        if not self._guard.is_off(PART):
            self.entries.extend((handle, now_ns, arguments))

    def _process(self, *, inline: bool, events_max: int | None = None) -> None:
        """Handle each event once, also where a signal handler raises, or trains, amid another one."""
        end = self.event_count if events_max is None else min(self.event_count, self._processed + events_max)
        self._timer.recorder.is_inline = False
        try:
            while not self._handle_until(end - inline):
                pass
        finally:
            self._timer.recorder.is_inline = True
        if inline:
            self._handle_until(end)
        handled = self._processed - self._removed
        del self.entries[: FIELDS * handled]
        self._removed += handled

    def _handle_until(self, end: int) -> bool:
        """Handle the events before this number. Return False, and leave the others, when that was interrupted."""
        entries = self.entries
        try:
            while self._processed < end:
                place = FIELDS * (self._processed - self._removed)
                self._processed += 1
                self._dispatch(*entries[place : place + FIELDS])
        except BaseException as error:  # noqa: BLE001 - between two of them
            self._record(error)
            return False
        return True

    def _begin_measured_step(self, now_ns: int, cpu_ns: int, step: int) -> None:
        """Replay the request of a batch at which the CPU clock was read, since `step` was planned to begin there."""
        self._timer.data_begin(now_ns, True, cpu_ns)  # noqa: FBT003 - as the hooks write it
        if self._timer.step != step:
            self._flush_every_event()  # the loop has changed, and the planned boundary is wrong

    def _dispatch(self, event: Callable[..., None], now_ns: int, arguments: tuple[object, ...]) -> None:
        if not self._guard.is_off(PART):
            try:
                event(now_ns, *arguments)
            except BaseException as error:  # noqa: BLE001 - nothing of ours may reach the training script
                self._record(error)

    def _record(self, error: BaseException) -> None:
        """Note what has kept an event from being handled: it may be the end of a call that has begun."""
        if get_ident() == self.thread:
            self.calls_open += 1
            self.interrupted += is_of_script(error)
        self._guard.record(PART, error)

    def _plan_flush(self) -> None:
        """Plan the next boundary; all events are processed. Without processing them it can be found only in loops where
        each step has one optimizer step.
        """
        try:
            boundary = self._find_boundary(self._timer.step)
            self._boundary_step = boundary.step
            self._boundary_runs_inline = boundary.runs_inline or not self._timer.has_simple_cycle
            self.optimizer_steps_until_flush = self._timer.count_optimizer_steps_until(boundary.step)
        except BaseException as error:  # noqa: BLE001 - as above
            self._flush_every_event()
            self._guard.record(PART, error)

    def _plan_next_boundary(self) -> None:
        """Plan the boundary after the present one, at which the planned step is assumed to begin."""
        try:
            boundary = self._find_boundary(self._boundary_step)
            self.optimizer_steps_until_flush = boundary.step - self._boundary_step
            self._boundary_step, self._boundary_runs_inline = boundary
        except BaseException as error:  # noqa: BLE001 - as above
            self._flush_every_event()
            self._guard.record(PART, error)

    def _flush_every_event(self) -> None:
        """Process each event that may end a step inline, until one has been: the next boundary is not known."""
        self._boundary_runs_inline, self.optimizer_steps_until_flush = True, 0
