"""Steps of a plain loop, taken together: one batch, one backward, one step of the only optimizer, in that order.

The state machine of `step_timer.py` says what they are; here it is said once for such a step as a whole, at a tenth of
the cost, and `tests/properties/test_moment_log_laws.py` holds that both say the same. Anything else is left to it.

    data begins    data ends    backward    backward ends    optimizer    optimizer ends    data begins
      0    data      1  forward   2  backward   3   other      4 optimizer   5    other        6 = 0 of the next
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rankscope.agent.steps.step_run import MOMENTS, StepRun
from rankscope.agent.steps.step_timer import StepTimer


class Events(NamedTuple):
    """The moments that hooks write down, as the StepTimer's methods. Made once: equal ones are then the same object."""

    data_begin: Callable[..., None]
    data_end: Callable[..., None]
    backward_begin: Callable[..., None]
    backward_end: Callable[..., None]
    optimizer_begin: Callable[..., None]
    optimizer_end: Callable[..., None]
    clock_read: Callable[..., None]

    @classmethod
    def of(cls, timer: StepTimer) -> "Events":
        """Those of this timer."""
        return cls(*(getattr(timer, name) for name in cls._fields))


class PlainSteps:
    """Takes plain steps out of many moments. `take` may be called right after `data_begin`."""

    def __init__(self, timer: StepTimer, events: Events) -> None:
        self._timer = timer
        self._pattern = [
            events.data_end,
            events.backward_begin,
            events.backward_end,
            events.optimizer_begin,
            events.optimizer_end,
            events.data_begin,
        ]

    def take(
        self, events: list[Any], times_ns: Sequence[int], arguments: Sequence[tuple[Any, ...]], first: int, end: int
    ) -> int:
        """Let the timer have the plain steps of the moments from `first` to `end`; the number of moments taken."""
        optimizer = self._timer.plain_optimizer
        if optimizer is None:
            return 0
        count = self._count_plain(events, arguments, first, end, optimizer)
        if not count:
            return 0
        last = first + MOMENTS * count
        sizes = [fetched[2] for fetched in arguments[first:last:MOMENTS]]
        self._timer.add_plain_steps(StepRun(self._timer.step, times_ns[first - 1 : last], sizes))
        return MOMENTS * count

    def _count_plain(
        self, events: list[Any], arguments: Sequence[tuple[Any, ...]], first: int, end: int, optimizer: int
    ) -> int:
        """How many plain steps of that optimizer follow each other from `first` on."""
        count = 0
        for at in range(first, end - MOMENTS + 1, MOMENTS):
            fetched, stepped, asked = arguments[at], arguments[at + 3], arguments[at + 5]
            is_plain = events[at : at + MOMENTS] == self._pattern and fetched[0] and stepped[0] == optimizer
            if not (is_plain and asked[0]):
                break
            count += 1
        return count
