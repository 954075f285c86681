"""Find the next step boundary that must be processed on the training thread, for profiler windows and the CPU clock."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from rankscope.agent.steps.cpu_time_sampling import CpuTimeSampling


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


class InlineSteps:
    """The boundaries of all inline parts and of the CPU clock together.

    >>> steps = InlineSteps(CpuTimeSampling(), ())
    >>> steps.next_boundary(7)
    NextBoundary(step=8, runs_inline=False)
    """

    def __init__(self, cpu_sampling: CpuTimeSampling, parts: Sequence[InlinePart]) -> None:
        self.cpu_sampling = cpu_sampling
        self._parts = parts

    def next_boundary(self, step: int) -> NextBoundary:
        """Return the first boundary after this step."""
        clock_step = found = self.cpu_sampling.find_next(step)
        runs_inline = False
        for part in self._parts:
            wanted = part.find_next(step)
            found, runs_inline = min(found, wanted), runs_inline or wanted <= clock_step
        return NextBoundary(found, runs_inline)
