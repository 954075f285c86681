"""Match simple steps in a list of hook events: one batch, one backward, one step of the only optimizer, in that order.

The state machine of `step_timer.py` defines what a step is. This does the same for many simple steps at once, at a
tenth of the cost; `tests/properties/test_event_buffer_laws.py` holds that both give the same records. All other events
are left to the state machine.

    data begins    data ends    backward    backward ends    optimizer    optimizer ends    data begins
      0    data      1  forward   2  backward   3   other      4 optimizer   5    other        6 = 0 of the next
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rankscope.agent.steps.step_run import EVENTS_PER_STEP, StepRun
from rankscope.agent.steps.step_timer import StepTimer


class HookEvents(NamedTuple):
    """The events that hooks write, as bound methods of a StepTimer. Made once, so that `is` compares them."""

    data_begin: Callable[..., None]
    data_end: Callable[..., None]
    backward_begin: Callable[..., None]
    backward_end: Callable[..., None]
    optimizer_begin: Callable[..., None]
    optimizer_end: Callable[..., None]
    clock_read: Callable[..., None]

    @classmethod
    def of(cls, timer: StepTimer) -> "HookEvents":
        """Return the events of this timer."""
        return cls(*(getattr(timer, name) for name in cls._fields))


class SimpleStepMatcher:
    """Pass simple steps to the timer as one run. `match` may be called right after `data_begin`."""

    def __init__(self, timer: StepTimer, events: HookEvents) -> None:
        self._timer = timer
        self._pattern = [
            events.data_end,
            events.backward_begin,
            events.backward_end,
            events.optimizer_begin,
            events.optimizer_end,
            events.data_begin,
        ]

    def match(
        self, events: list[Any], times_ns: Sequence[int], arguments: Sequence[tuple[Any, ...]], first: int, end: int
    ) -> int:
        """Pass the simple steps in the events from `first` to `end` to the timer; return how many events they had."""
        optimizer = self._timer.simple_step_optimizer
        if optimizer is None:
            return 0
        count = self._count_simple_steps(events, arguments, first, end, optimizer)
        if not count:
            return 0
        last = first + EVENTS_PER_STEP * count
        sizes = [fetched[2] for fetched in arguments[first:last:EVENTS_PER_STEP]]
        self._timer.add_simple_steps(StepRun(self._timer.step, times_ns[first - 1 : last], sizes))
        return EVENTS_PER_STEP * count

    def _count_simple_steps(
        self, events: list[Any], arguments: Sequence[tuple[Any, ...]], first: int, end: int, optimizer: int
    ) -> int:
        """Return how many simple steps of that optimizer follow each other from `first` on."""
        count = 0
        for at in range(first, end - EVENTS_PER_STEP + 1, EVENTS_PER_STEP):
            fetched, stepped, asked = arguments[at], arguments[at + 3], arguments[at + 5]
            is_simple = events[at : at + EVENTS_PER_STEP] == self._pattern and fetched[0] and stepped[0] == optimizer
            if not (is_simple and asked[0]):
                break
            count += 1
        return count
