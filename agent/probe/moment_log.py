"""What the hooks have seen and the state machine has not yet: a moment is three entries in a list, and many are gone
through in one go.

Amid training each Python call of ours costs microseconds, since torch has pushed our code out of the caches; in one go
with others a moment costs a fifth of that (`tests/benchmarks/results/moments.md`). What must not come late is the
boundary at which a window begins or ends, or the CPU clock is read. So the log knows how many more optimizer steps
must end before such a boundary can come, and until then the training thread writes and does nothing else:

    training thread    write write write write ... write | live: goes through all, the last moment is now | write ...
    agent thread       before each report goes through what is there, also when training stands still

Steps found by the agent thread, or behind a live moment, have no CPU time and begin no window; all else is the same.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import main_thread
from time import thread_time_ns
from typing import Any, Final

from rankscope.agent.guard import Guard
from rankscope.agent.probe.moment_meter import MomentMeter
from rankscope.agent.probe.plain_steps import Events, PlainSteps
from rankscope.agent.probe.steps import StepTimer

PART: Final = "step_hooks"
FIELDS: Final = 3
"""Entries of a moment: the StepTimer's method, the host ns, the method's further arguments."""
MOMENTS_MAX: Final = 1024
"""Moments that may lie in the log: 16 steps of ten micro batches. In a loop that never steps an optimizer they are gone
through when there are more."""


TURN_S_MAX: Final = 0.005
"""Training waits no longer for the agent thread to be through, which takes 0.3 ms for a second of steps of 10 ms; what
was to be live is then late, and missed."""


class MomentLog:
    """Hands moments to a StepTimer, in order. The hooks write into `entries` themselves, on the thread `thread`, and
    count `ends_left` down at each end of an optimizer step; at 0 the next moment that may end a step must be live.

    `find_next_live` says, for a step, which one after it must begin live; by default each. `read_elsewhere_ns` is what
    of the time in here others count as theirs, `may_be_late` whether records may be made on another thread now.
    """

    def __init__(
        self,
        timer: StepTimer,
        guard: Guard,
        find_next_live: Callable[[int], int] | None = None,
        read_elsewhere_ns: Callable[[], int] = lambda: 0,
        may_be_late: Callable[[], bool] = lambda: True,
    ) -> None:
        self._timer = timer
        self._guard = guard
        self._find_next_live = find_next_live or (lambda step: step + 1)
        self._read_elsewhere_ns = read_elsewhere_ns
        self._may_be_late = may_be_late
        self._turn = threading.RLock()  # a signal handler of the script may fetch a batch right inside
        self._taken = 0
        self._meter = MomentMeter()
        self.events = Events.of(timer)
        self._plain_steps = PlainSteps(timer, self.events)
        self.entries: list[Any] = []
        self.thread: int | None = main_thread().ident
        self.thread_is_sure = False
        self.ends_left = 0

    @property
    def moments(self) -> int:
        """How many moments there were."""
        return self._taken + len(self.entries) // FIELDS

    @property
    def spent_ns(self) -> int:
        """What they have cost the training thread so far. For one other thread to ask."""
        return self._meter.spent_ns(self.moments)

    def catch_up_live(self, now_ns: int) -> None:
        """Go through all, on the training thread; the last one has come just now, and was written down by `now_ns`."""
        came_ns = self.entries[-2:-1]  # the agent thread may have taken it this very moment
        seen_ns = now_ns - came_ns[0] if came_ns else None
        begin_ns = thread_time_ns()
        if not self._turn.acquire(timeout=TURN_S_MAX):
            return
        try:
            elsewhere_ns = self._read_elsewhere_ns()
            self._go_through(live=True)
            self._look_ahead()
            spent_ns = thread_time_ns() - begin_ns - (self._read_elsewhere_ns() - elsewhere_ns)
            self._meter.note(seen_ns, spent_ns)
        finally:
            self._turn.release()

    def catch_up_late(self) -> None:
        """Go through what the training thread has left, on another thread."""
        if not self.entries or not self._turn.acquire(blocking=False):
            return
        try:
            if self._may_be_late():
                self._go_through(live=False)
        finally:
            self._turn.release()

    @contextmanager
    def caught_up(self) -> Iterator[None]:
        """Within it the StepTimer has had all moments and may be called directly, for what happens just then."""
        with self._turn:
            self._go_through(live=False)
            yield
            self._look_ahead()

    def renew_turn(self) -> None:
        """In a forked child: the thread whose turn it was has not come along."""
        self._turn = threading.RLock()

    def _go_through(self, *, live: bool) -> None:
        entries = self.entries
        count = len(entries) // FIELDS
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
        data_begin, take_plain = self.events.data_begin, self._plain_steps.take
        at = 0
        while at < count:
            event = events[at]
            self._tell(event, times_ns[at], arguments[at])
            at += 1
            if event is data_begin:
                at += take_plain(events, times_ns, arguments, at, count)

    def _tell(self, event: Callable[..., None], now_ns: int, arguments: tuple[object, ...]) -> None:
        if not self._guard.is_off(PART):
            try:
                event(now_ns, *arguments)
            except Exception as error:  # noqa: BLE001 - nothing of ours may reach the training script
                self._guard.record(PART, error)

    def _look_ahead(self) -> None:
        try:
            self.ends_left = self._timer.count_ends_until(self._find_next_live(self._timer.step))
        except Exception as error:  # noqa: BLE001 - as above
            self.ends_left = 0
            self._guard.record(PART, error)
