"""Read the CPU clock of the training thread around backward, where that costs little. Pure but for the clocks.

Between both a thread that trains on a CPU computes, or waits for other ranks, and then uses no CPU: so the collector
knows each rank's own time in every step (`collector/steps/host_own_times.py`). The clock is a system call: 1 to 4 us
in the virtual machine in which that was measured, and within training twice that, since torch has evicted our code from
the caches. So it is read while both reads are a small share of the mean step; where steps are shorter, ranks are told
apart by profiler windows only.
"""

from collections.abc import Callable
from time import monotonic_ns, thread_time_ns
from typing import Final

READS: Final = 2
"""Of a backward; most steps have one."""
COST_SHARE_MAX: Final = 0.001
"""Share of the mean step that reads may cost: a fifth of the default budget."""
WITHIN_TRAINING: Final = 2
"""A read within training takes this many times as long as one in a loop, in the median (2.0 of 1,500 steps of 6 ms)."""
STEPS_AVERAGED: Final = 128
TIMED: Final = 5
"""Reads that are timed; the fastest counts, since the others may have lost their core."""


class BackwardClock:
    """Whether the clock is read, and what the reads have cost. `read_ns` is the clock, None while it is not read."""

    def __init__(
        self, read_cpu_ns: Callable[[], int] = thread_time_ns, read_clock_ns: Callable[[], int] = monotonic_ns
    ) -> None:
        self._read_cpu_ns = read_cpu_ns
        self._read_clock_ns = read_clock_ns
        self._steps = 0
        self._step_ns = 0.0
        self._cost_ns = 0
        self.spent_ns = 0
        """The cost of all reads so far, as far as steps have ended."""
        self.read_ns: Callable[[], int] | None = None

    def learn_step(self, duration_ns: int, backwards: int) -> None:
        """Take account of a step that has ended, with so many backwards."""
        if self.read_ns is not None:
            self.spent_ns += READS * backwards * self._cost_ns
        self._steps += 1
        self._step_ns += (duration_ns - self._step_ns) / min(self._steps, STEPS_AVERAGED)
        if not self._cost_ns:
            self._cost_ns = WITHIN_TRAINING * min(self._time_read() for _ in range(TIMED))
        is_cheap = READS * max(1, backwards) * self._cost_ns <= COST_SHARE_MAX * self._step_ns
        self.read_ns = self._read_cpu_ns if is_cheap else None

    def _time_read(self) -> int:
        began_ns = self._read_clock_ns()
        self._read_cpu_ns()
        return max(1, self._read_clock_ns() - began_ns)
