"""Keep how long the steps of an attempt took, so that a cost can be held against the time that it is of. Pure.

The times are cumulative, one value a step; of more than POINTS_MAX every second one of the older half is left out, and
what lies between two is spread evenly.
"""

from typing import Final

import numpy as np

from rankscope.collector.detect.view import RunView
from rankscope.collector.steps.step_series import Floats, Ints

POINTS_MAX: Final = 4096


class StepClock:
    """How long the steps took up to each of them."""

    def __init__(self) -> None:
        self._steps: Ints = np.array([-1], dtype=np.int64)
        self._passed_ns: Floats = np.zeros(1)

    def see(self, view: RunView) -> None:
        """Add the steps that are new. A step takes the mean of its times, else the longest that is known; one of which
        no rank has reported as long as the next one of which some have.
        """
        if not view.series.ranks:
            return
        took_ns = np.where(np.isnan(view.mean_ns), view.longest_ns, view.mean_ns)
        rows = np.flatnonzero((view.series.steps > self._steps[-1]) & ~np.isnan(took_ns))
        if not len(rows):
            return
        steps = view.series.steps[rows]
        passed_ns = self._passed_ns[-1] + np.cumsum(took_ns[rows] * np.diff(steps, prepend=self._steps[-1]))
        self._steps = np.concatenate([self._steps, steps])
        self._passed_ns = np.concatenate([self._passed_ns, passed_ns])
        if len(self._steps) > POINTS_MAX:
            kept = np.ones(len(self._steps), dtype=bool)
            kept[1 : len(kept) // 2 : 2] = False
            self._steps, self._passed_ns = self._steps[kept], self._passed_ns[kept]

    def took_ns(self, since_step: int) -> float:
        """Return how long the steps took from one on to the last."""
        return float(self._passed_ns[-1] - np.interp(since_step - 1, self._steps, self._passed_ns))
