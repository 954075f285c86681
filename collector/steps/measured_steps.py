"""Decide from the distance of measured steps whether measurements still come, or something stands in. Pure."""

from typing import Final

import numpy as np

from rankscope.collector.steps.step_series import Floats
from rankscope.measure.units import NS_PER_S

STAND_IN_STEPS: Final = 64
"""Steps without a profiler window after which phases stand in for the own time. The stand-in is noisier, so not
before."""
STAND_IN_NS: Final = 60 * NS_PER_S
"""Once there was a window, phases stand in only when the steps since the last measured one take longer than this, and
are also more than the steps kept and than twice the longest distance so far. Distances grow by doubling, and a verdict
must not alternate between measured own times and phases."""


class WindowDistance:
    """Distance in steps between the measured steps of one attempt. `is_watched`: whether any rank has had a window.
    `longest`: the most steps from one measured step to the next so far.
    """

    def __init__(self) -> None:
        self.is_watched = False
        self.longest = 0
        self._first_step: int | None = None
        self._last_measured: int | None = None

    def start_at(self, step: int) -> None:
        """Record the first reported step; later calls change nothing."""
        if self._first_step is None:
            self._first_step = step

    def record_measured(self, first_step: int, last_step: int) -> None:
        """Record that waiting is known from the first to the last of these steps; ranges come in any order."""
        if self._last_measured is not None:
            self.longest = max(self.longest, first_step - self._last_measured)
            last_step = max(last_step, self._last_measured)
        self._last_measured = last_step

    def steps_behind(self, latest_step: int) -> int:
        """Return the number of steps since the last measured one, or since the first step where none was measured."""
        since = self._last_measured if self._last_measured is not None else self._first_step
        return 0 if since is None else latest_step - since

    def is_measured(self, latest_step: int, steps_kept: int, step_ns: Floats) -> bool:
        """Return whether waiting is measured, as far as is known; `step_ns` are the durations of the last steps."""
        behind = self.steps_behind(latest_step)
        if not self.is_watched:
            return behind < STAND_IN_STEPS
        if behind <= max(steps_kept, 2 * self.longest):
            return True
        last_ns = step_ns[-STAND_IN_STEPS:]
        last_ns = last_ns[~np.isnan(last_ns)]
        return not len(last_ns) or behind * float(np.median(last_ns)) <= STAND_IN_NS
