"""Choose the steps whose CPU time is measured: the thread's CPU clock is read at their begin and end."""

from typing import Final

from rankscope.agent.steps.step_intervals import nearest_power
from rankscope.measure.units import NS_PER_MS

SAMPLING_INTERVAL_NS: Final = 800 * NS_PER_MS
"""The clock is read twice per interval; a read takes 20 to 40 us during training, so this is 0.01 % of the time. Steps
of half this length and more are all measured."""
SAMPLING_INTERVAL_STEPS_MAX: Final = 64
"""Even of the shortest steps one in 64 has its CPU time, which shows why a rank is slow."""


class CpuTimeSampling:
    """Measure one step in 2^n: the CPU clock is read where it begins and where the next one begins. Pure.

    Ranks with the same step time have the same n; otherwise the measured steps of the larger n are among those of the
    smaller. The measured steps shift by one every SAMPLING_INTERVAL_STEPS_MAX steps, so that a rank that is slow in
    every fourth step is not always measured in the other three.

    >>> sampling = CpuTimeSampling()
    >>> sampling.learn_step(60_000_000)
    >>> sampling.interval_steps, [sampling.find_next(step) for step in (15, 16, 17, 48)]
    (16, [16, 17, 32, 49])
    >>> sampling.find_next(49)
    79
    """

    def __init__(self) -> None:
        self.interval_steps = 1

    def learn_step(self, step_ns: int) -> None:
        """Set the present step time."""
        wanted = min(SAMPLING_INTERVAL_STEPS_MAX, SAMPLING_INTERVAL_NS / max(1, step_ns))
        self.interval_steps = nearest_power(wanted, self.interval_steps)

    def find_next(self, step: int) -> int:
        """Return the first step after this one at whose begin the clock is read."""
        if self.is_measured(step):
            return step + 1
        found = self._find_measured(step + 1)
        block_end = (
            step + 1
        ) // SAMPLING_INTERVAL_STEPS_MAX * SAMPLING_INTERVAL_STEPS_MAX + SAMPLING_INTERVAL_STEPS_MAX
        return found if found < block_end else self._find_measured(block_end)

    def is_measured(self, step: int) -> bool:
        """Return whether the clock is read at the begin and at the end of this step."""
        return (step + step // SAMPLING_INTERVAL_STEPS_MAX) % self.interval_steps == 0

    def _find_measured(self, step: int) -> int:
        """Return the first measured step from this one on, as if its block of steps did not end."""
        return step + -(step + step // SAMPLING_INTERVAL_STEPS_MAX) % self.interval_steps
