"""Which steps begin live: at the very moment, with the CPU clock read, instead of being found a little later."""

import itertools
from typing import Final

from rankscope.agent.probe.window_plan import nearest_power
from rankscope.measure.units import NS_PER_MS

DISTANCE_NS: Final = 800 * NS_PER_MS
"""A live step costs two looks at the state machine with cold caches, up to 200 us each amid training on a busy machine:
in this distance 0.05 % of the time, a tenth of what the agent may cost. Steps that take half as long as this all begin
live."""
DISTANCE_WITHOUT_WINDOWS_NS: Final = 4 * DISTANCE_NS
"""Where no windows are taken the agent may cost a fifth of that (`agent/governor.py`), and a report comes every 4 s."""
DISTANCE_STEPS_MAX: Final = 64
"""However short the steps: among the last 64 one has its CPU time, which tells why a rank is slow."""


class LiveSteps:
    """One step in 2^n begins live and so does the one after it, which gives the first its CPU time. Pure: step times
    in, steps out.

    Ranks in step with each other have the same n; else the steps of the larger are among those of the smaller. They
    move on by one every DISTANCE_STEPS_MAX steps, so that a rank that is slow every fourth step is not always seen in
    the same three others.

    >>> live = LiveSteps()
    >>> live.learn_step(60_000_000)
    >>> live.distance_steps, [live.find_next(step) for step in (15, 16, 17, 48)]
    (16, [16, 17, 32, 49])
    >>> live.find_next(49)
    79
    """

    def __init__(self, distance_ns: int = DISTANCE_NS) -> None:
        self._distance_ns = distance_ns
        self.distance_steps = 1

    def learn_step(self, step_ns: int) -> None:
        """The present step time."""
        wanted = min(DISTANCE_STEPS_MAX, self._distance_ns / max(1, step_ns))
        self.distance_steps = nearest_power(wanted, self.distance_steps)

    def find_next(self, step: int) -> int:
        """The first step after this one that begins live."""
        if self.is_measured(step):
            return step + 1
        return next(filter(self.is_measured, itertools.count(step + 1)))

    def is_measured(self, step: int) -> bool:
        """Whether the step begins and ends live, so that its CPU time is known."""
        return (step + step // DISTANCE_STEPS_MAX) % self.distance_steps == 0
