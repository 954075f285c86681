"""What the hooks have seen and the state machine has not yet: a moment is three entries in a list, and many are gone
through in one go.

Amid training each Python call of ours costs microseconds, since torch has pushed our code out of the caches; in one go
with others a moment costs a fifth of that (`tests/benchmarks/results/moments.md`). What must not come late is the
boundary at which a window begins or ends. So the log knows how many more optimizer steps must end before such a
boundary can come, and until then the training thread writes and does nothing else:

    training thread    write write write write ... write | live: goes through all, the last moment is now | write ...
    agent thread       before each report goes through what is there, also when training stands still

Steps found by the agent thread, or behind a live moment, begin no window; all else is the same. The thread's CPU clock
says only now what it says now. At boundaries at which it alone is wanted it is read and written down like a moment,
just before the one that the step begins with: going through all is left to the agent thread then, too.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import main_thread
from time import monotonic_ns, thread_time_ns
from typing import Any, Final

from rankscope.agent.guard import Guard
from rankscope.agent.steps.due_steps import Due
from rankscope.agent.steps.moment_meter import HookCostMeter
from rankscope.agent.steps.plain_steps import Events, PlainSteps
from rankscope.agent.steps.step_timer import StepTimer

PART: Final = "step_hooks"
FIELDS: Final = 3
"""Entries of a moment: the StepTimer's method, the host ns, the method's further arguments."""
MOMENTS_MAX: Final = 4096
"""Moments that may lie in the log: 4 s of steps of 6 ms. When there are more, as in a loop that never steps an
optimizer, the training thread goes through them."""
TURN_MOMENTS: Final = 512
"""So many the agent thread goes through at a time, 0.2 ms: training that wants to go on meanwhile waits for it."""
LOOK_NS_MAX: Final = 200_000
"""A look at the clock that seems to take longer lost its core meanwhile."""
TURN_S_MAX: Final = 0.005
"""Training waits no longer for the agent thread to be through; what was to be live is then late, and missed."""


class HookEventBuffer:
    """Hands moments to a StepTimer, in order. The hooks write into `entries` themselves, on the thread `thread`, and
    count `ends_left` down at each end of an optimizer step; at 0 the next moment that may end a step is due.

    `find_due` says which step after a given one is due next; by default each, live. It is called by the training thread
    only. `read_elsewhere_ns` is what of the time in here others count as theirs, `may_be_late` whether records may be
    made on another thread now.
    """

    def __init__(
        self,
        timer: StepTimer,
        guard: Guard,
        find_due: Callable[[int], Due] | None = None,
        read_elsewhere_ns: Callable[[], int] = lambda: 0,
        may_be_late: Callable[[], bool] = lambda: True,
        *,
        read_cpu_ns: Callable[[], int] = thread_time_ns,
    ) -> None:
        self._timer = timer
        self._guard = guard
        self._find_due = find_due or (lambda step: Due(step + 1, is_live=True))
        self._read_elsewhere_ns = read_elsewhere_ns
        self._may_be_late = may_be_late
        self._read_cpu_ns = read_cpu_ns
        self._turn = threading.RLock()  # a signal handler of the script may fetch a batch right inside
        self._taken = 0
        self._meter = HookCostMeter()
        self.events = Events.of(timer)
        self._plain_steps = PlainSteps(timer, self.events)
        self._due_step = 0
        self._due_is_live = True
        self.entries: list[Any] = []
        self.thread: int | None = main_thread().ident
        self.thread_is_sure = False
        self.ends_left = 0
        self.in_backward = False
        """Whether that thread is inside a backward."""
        self.stepped_in_backward = False
        """Whether a hook of this backward has stepped an optimizer."""

    @property
    def moments(self) -> int:
        """How many moments there were."""
        return self._taken + len(self.entries) // FIELDS

    @property
    def spent_ns(self) -> int:
        """What they have cost the training thread so far. For one other thread to ask."""
        return self._meter.spent_ns(self.moments)

    # -- the training thread ------------------------------------------------------------------------------------------

    def end_when_due(self, now_ns: int) -> None:
        """The last optimizer step before what is due has ended, which was written down by `now_ns`."""
        came_ns = self.entries[-2:-1]  # the agent thread may have taken it this very moment
        if came_ns:
            self._meter.note_written(now_ns - came_ns[0])
        if not self._timer.ends_at_batch:
            self.catch_up_live()

    def fetch_when_due(self, now_ns: int, arguments: tuple[object, ...]) -> None:
        """A batch is asked for, by the event `data_begin` with these arguments, and what is due may be due with it."""
        event = self.events.data_begin
        if self._due_is_live:
            self.entries.extend((event, now_ns, arguments))
            self.catch_up_live()
            return
        clock = self._read_cpu_ns(), self._due_step
        self.entries.extend((self.events.clock_read, now_ns, clock, event, now_ns, arguments))
        self._look_on()
        self._meter.note_gone_through(min(monotonic_ns() - now_ns, LOOK_NS_MAX))

    def note_end_of_data(self) -> None:
        """A loader has no more: what comes next may be an evaluation, or its end."""
        self._let_all_be_live()

    def catch_up_live(self) -> None:
        """Go through all; the last moment is of now."""
        begin_ns = thread_time_ns()
        if not self._turn.acquire(timeout=TURN_S_MAX):
            return
        try:
            elsewhere_ns = self._read_elsewhere_ns()
            self._go_through(live=True)
            self._look_ahead()
            spent_ns = thread_time_ns() - begin_ns - (self._read_elsewhere_ns() - elsewhere_ns)
            self._meter.note_gone_through(spent_ns)
        finally:
            self._turn.release()

    @contextmanager
    def caught_up(self) -> Iterator[None]:
        """Within it the StepTimer has had all moments and may be called directly, for what happens just then."""
        with self._turn:
            self._go_through(live=False)
            yield
            self._look_ahead()

    # -- another thread -----------------------------------------------------------------------------------------------

    def catch_up_late(self) -> None:
        """Go through what the training thread has left, on another thread, which gives way to it again and again."""
        left = self.moments - self._taken
        while left > 0 and self._turn.acquire(blocking=False):
            try:
                if not self._may_be_late():
                    return
                self._go_through(live=False, moments_max=TURN_MOMENTS)
            finally:
                self._turn.release()
            left -= TURN_MOMENTS
            if left > 0:
                time.sleep(0)  # whoever waits for the interpreter gets it

    def renew_turn(self) -> None:
        """In a forked child: the thread whose turn it was has not come along."""
        self._turn = threading.RLock()

    # -- any of them --------------------------------------------------------------------------------------------------

    def _go_through(self, *, live: bool, moments_max: int | None = None) -> None:
        entries = self.entries
        count = len(entries) // FIELDS
        if moments_max is not None:
            count = min(count, moments_max)
        taken = entries[: FIELDS * count]
        del entries[: FIELDS * count]
        self._taken += count
        late_count = count - 1 if live else count
        self._timer.is_live = False
        try:
            self._play(taken, late_count)
        finally:
            self._timer.is_live = True
        if live and count:
            self._tell(*taken[-FIELDS:])

    def _play(self, taken: list[Any], count: int) -> None:
        events, times_ns, arguments = (taken[field::FIELDS] for field in range(FIELDS))
        data_begin, clock_read, take_plain = self.events.data_begin, self.events.clock_read, self._plain_steps.take
        at, due_step = 0, None
        while at < count:
            event = events[at]
            self._tell(event, times_ns[at], arguments[at])
            at += 1
            if event is clock_read:
                due_step = arguments[at - 1][1]
            elif event is data_begin:
                if due_step is not None and due_step != self._timer.step:
                    self._let_all_be_live()  # the loop has changed, and the log has lost count
                due_step = None
                at += take_plain(events, times_ns, arguments, at, count)

    def _tell(self, event: Callable[..., None], now_ns: int, arguments: tuple[object, ...]) -> None:
        if not self._guard.is_off(PART):
            try:
                event(now_ns, *arguments)
            except Exception as error:  # noqa: BLE001 - nothing of ours may reach the training script
                self._guard.record(PART, error)

    def _look_ahead(self) -> None:
        """All has been gone through. Only where one optimizer step is one step can it be known without when to look."""
        try:
            due = self._find_due(self._timer.step)
            self._due_step, self._due_is_live = due.step, due.is_live or not self._timer.has_plain_cycle
            self.ends_left = self._timer.count_ends_until(due.step)
        except Exception as error:  # noqa: BLE001 - as above
            self._let_all_be_live()
            self._guard.record(PART, error)

    def _look_on(self) -> None:
        """The step that was due begins now, as far as is known."""
        try:
            due = self._find_due(self._due_step)
            self.ends_left = due.step - self._due_step
            self._due_step, self._due_is_live = due
        except Exception as error:  # noqa: BLE001 - as above
            self._let_all_be_live()
            self._guard.record(PART, error)

    def _let_all_be_live(self) -> None:
        """It is not known what is due: each moment that may end a step, until one has been gone through."""
        self._due_is_live, self.ends_left = True, 0
