"""Steps of a plain loop, taken together: one batch, one backward, one step of the only optimizer, in that order.

The state machine of `steps.py` says what they are; here it is said once for such a step as a whole, at a third of the
cost, and `tests/properties/test_moment_log_laws.py` holds that both say the same. Anything else is left to it.

    data begins    data ends    backward    backward ends    optimizer    optimizer ends    data begins
      0    data      1  forward   2  backward   3   other      4 optimizer   5    other        6 = 0 of the next
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from rankscope.agent.probe.steps import StepTimer
from rankscope.measure.records import StepRecord

MOMENTS: Final = 6
"""Of a plain step, after the one at which it begins."""


class Events(NamedTuple):
    """The moments that hooks write down, as the StepTimer's methods. Made once: equal ones are then the same object."""

    data_begin: Callable[..., None]
    data_end: Callable[..., None]
    backward_begin: Callable[..., None]
    backward_end: Callable[..., None]
    optimizer_begin: Callable[..., None]
    optimizer_end: Callable[..., None]

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
        pattern, step = self._pattern, self._timer.step
        at, begin_ns = first, times_ns[first - 1]
        records = []
        while at + MOMENTS <= end and events[at : at + MOMENTS] == pattern:
            fetched, stepped, asked = arguments[at], arguments[at + 3], arguments[at + 5]
            if not (fetched[0] and stepped[0] == optimizer and asked[0]):
                break
            data_ns, forward_ns, backward_ns, between_ns, optimizer_ns, end_ns = times_ns[at : at + MOMENTS]
            size = fetched[2]
            records.append(
                StepRecord(
                    step=step,
                    start_host_ns=begin_ns,
                    duration_ns=end_ns - begin_ns,
                    phases_ns={
                        "data": data_ns - begin_ns,
                        "forward": forward_ns - data_ns,
                        "backward": backward_ns - forward_ns,
                        "optimizer": optimizer_ns - between_ns,
                        "other": between_ns - backward_ns + end_ns - optimizer_ns,
                    },
                    batches=1,
                    backwards=1,
                    samples=size.samples,
                    tokens=size.tokens,
                )
            )
            step, begin_ns, at = step + 1, end_ns, at + MOMENTS
        if records:
            self._timer.add_plain_steps(records)
        return at - first
