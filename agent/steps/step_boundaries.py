"""Find the next step boundary at which the training thread has more to do than to write an event.

Two things can only be done there and then: a profiler window, or the timing of a step on the device, begins or ends,
and the CPU clock of the thread is read, at the begin and at the end of the steps whose CPU time is measured.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from rankscope.agent.steps.step_intervals import find_next_chosen, is_chosen, nearest_power
from rankscope.measure.units import NS_PER_MS

CPU_TIME_INTERVAL_NS: Final = 800 * NS_PER_MS
"""The clock is read twice per interval; a read takes 20 to 40 us during training, so this is 0.01 % of the time. Steps
of half this length and more are all measured."""
CPU_TIME_INTERVAL_STEPS_MAX: Final = 64
"""Even of the shortest steps one in 64 has its CPU time, which shows why a rank is slow."""

ALL_MEASURED_STEPS: Final = 2
"""Interval in steps up to which all are measured: one of two is read at both ends, and so at every boundary."""


class NextBoundary(NamedTuple):
    """A step at whose begin the training thread has something to do.

    `runs_inline`: all events are processed there, and parts of the agent act. Otherwise only the CPU clock is read.
    """

    step: int
    runs_inline: bool


class InlinePart(Protocol):
    """A part of the agent that acts at step boundaries, on the training thread."""

    def find_next(self, step: int) -> int:
        """Return the first step after this one at whose begin the part may act."""
        ...


class FaultPart(InlinePart, Protocol):
    """The part that disturbs the rank on purpose; `InjectedFault` is the only one. Its hooks are around the agent's."""

    def install_inside(self, find_thread: Callable[[], int | None]) -> None:
        """Install the hook that must be inside of the agent's own. `find_thread` returns the training thread's id."""
        ...

    def install_outside(self) -> None:
        """Install the hook that must be outside of the agent's own."""
        ...

    def remove_outside(self) -> None:
        """Remove the hook outside, and end the fault."""
        ...

    def remove_inside(self) -> None:
        """Remove the hook inside."""
        ...

    def on_boundary(self, step: int) -> None:
        """Begin or end the fault at the begin of this step."""
        ...


class StepBoundaries:
    """The boundaries of all inline parts and of the CPU clock together. Pure.

    Of each block of 2^n steps one has its CPU time measured, chosen pseudo-randomly (`step_intervals.py`): what happens
    every 9th step, say, never falls between the measured ones for good. Ranks with the same step time have the same n;
    otherwise the measured steps of the larger n are among those of the smaller.

    >>> boundaries = StepBoundaries()
    >>> boundaries.next_boundary(7)
    NextBoundary(step=8, runs_inline=False)
    >>> boundaries.learn_step(60_000_000)
    >>> boundaries.cpu_time_interval_steps, [boundaries.next_boundary(step).step for step in (15, 24, 25, 33)]
    (16, [24, 25, 33, 34])
    """

    def __init__(self, parts: Sequence[InlinePart] = ()) -> None:
        self._parts = parts
        self.cpu_time_interval_steps = 1

    def learn_step(self, step_ns: int) -> None:
        """Set the present step time."""
        wanted = min(CPU_TIME_INTERVAL_STEPS_MAX, CPU_TIME_INTERVAL_NS / max(1, step_ns))
        self.cpu_time_interval_steps = nearest_power(wanted, self.cpu_time_interval_steps)

    def next_boundary(self, step: int) -> NextBoundary:
        """Return the first boundary after this step."""
        clock_step = self._find_clock_step(step)
        part_steps = [part.find_next(step) for part in self._parts]
        found = min(clock_step, *part_steps) if part_steps else clock_step
        return NextBoundary(found, runs_inline=found in part_steps)

    def measures_cpu_time(self, step: int) -> bool:
        """Return whether the clock is read at the begin and at the end of this step."""
        interval_steps = self.cpu_time_interval_steps
        return interval_steps <= ALL_MEASURED_STEPS or is_chosen(step, interval_steps)

    def _find_clock_step(self, step: int) -> int:
        """Return the first step after this one at whose begin the clock is read."""
        return step + 1 if self.measures_cpu_time(step) else find_next_chosen(step, self.cpu_time_interval_steps)
