"""Of which steps the CPU time is measured: at their begin and end the thread's CPU clock is read."""

from typing import Final

from rankscope.agent.steps.step_intervals import nearest_power
from rankscope.measure.units import NS_PER_MS

DISTANCE_NS: Final = 800 * NS_PER_MS
"""The clock is read twice in this distance, which takes 20 to 40 us each amid training: 0.01 % of the time. Steps that
take half as long as this are all measured."""
DISTANCE_STEPS_MAX: Final = 64
"""However short the steps: among the last 64 one has its CPU time, which tells why a rank is slow."""


class CpuTimeSampling:
    """One step in 2^n is measured: it begins with a look at the clock, and so does the one after it. Pure: step times
    in, steps out.

    Ranks in step with each other have the same n; else the steps of the larger are among those of the smaller. They
    move on by one every DISTANCE_STEPS_MAX steps, so that a rank that is slow every fourth step is not always seen in
    the same three others.

    >>> clocked = CpuTimeSampling()
    >>> clocked.learn_step(60_000_000)
    >>> clocked.distance_steps, [clocked.find_next(step) for step in (15, 16, 17, 48)]
    (16, [16, 17, 32, 49])
    >>> clocked.find_next(49)
    79
    """

    def __init__(self) -> None:
        self.distance_steps = 1

    def learn_step(self, step_ns: int) -> None:
        """The present step time."""
        wanted = min(DISTANCE_STEPS_MAX, DISTANCE_NS / max(1, step_ns))
        self.distance_steps = nearest_power(wanted, self.distance_steps)

    def find_next(self, step: int) -> int:
        """The first step after this one that begins with a look at the clock."""
        if self.is_measured(step):
            return step + 1
        found = self._find_measured(step + 1)
        block_end = (step + 1) // DISTANCE_STEPS_MAX * DISTANCE_STEPS_MAX + DISTANCE_STEPS_MAX
        return found if found < block_end else self._find_measured(block_end)

    def is_measured(self, step: int) -> bool:
        """Whether the clock is read at its begin and at its end."""
        return (step + step // DISTANCE_STEPS_MAX) % self.distance_steps == 0

    def _find_measured(self, step: int) -> int:
        """This step, or the first one after it that would be measured if there were no more blocks."""
        return step + -(step + step // DISTANCE_STEPS_MAX) % self.distance_steps
