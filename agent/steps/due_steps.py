"""Which steps must not begin unseen: where a part acts at the very begin, and where the CPU clock is read."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from rankscope.agent.steps.cpu_time_sampling import CpuTimeSampling


class Due(NamedTuple):
    """A step that must not begin unseen. `is_live`: others act at its very begin; else only the CPU clock is read."""

    step: int
    is_live: bool


class InlinePart(Protocol):
    """What begins and ends something of its own where steps begin."""

    def find_next(self, step: int) -> int:
        """The first step after this one at whose begin it may have something to do."""
        ...


class DueSteps:
    """Those of all parts together.

    >>> steps = DueSteps(CpuTimeSampling(), ())
    >>> steps.find(7)
    Due(step=8, is_live=False)
    """

    def __init__(self, clocked: CpuTimeSampling, parts: Sequence[InlinePart]) -> None:
        self.clocked = clocked
        self._parts = parts

    def find(self, step: int) -> Due:
        """The first one after this step."""
        clocked = found = self.clocked.find_next(step)
        is_live = False
        for part in self._parts:
            wanted = part.find_next(step)
            found, is_live = min(found, wanted), is_live or wanted <= clocked
        return Due(found, is_live)
