"""Count the steps of a run by their duration, in classes for a histogram of Prometheus. Pure.

Ten classes a decade from 1 ms to 100 s: neighboring bounds differ by 26 %, so a quantile that is interpolated within a
class is off by an eighth at most, and a ratio of two of them tells 1.5 from 1. 51 bounds are 53 series a run.
"""

from typing import Final, NamedTuple

import numpy as np

from rankscope.collector.invariants import require
from rankscope.collector.steps.step_series import Floats, Ints
from rankscope.measure.units import NS_PER_S

CLASSES_PER_DECADE: Final = 10
_LOWEST_DECADE, _HIGHEST_DECADE = -3, 2
BOUNDS_S: Final = tuple(
    float(f"{10 ** (place / CLASSES_PER_DECADE):.3g}")
    for place in range(_LOWEST_DECADE * CLASSES_PER_DECADE, _HIGHEST_DECADE * CLASSES_PER_DECADE + 1)
)
"""Largest duration of each class but the last, in seconds: 0.001, 0.00126, 0.00158, 0.002 ... 79.4, 100."""
_BOUNDS_NS: Final = np.array(BOUNDS_S) * NS_PER_S


class StepDurations(NamedTuple):
    """How many steps lasted at most each of BOUNDS_S, and how many there were; and the seconds of all."""

    at_most: tuple[int, ...] = (0,) * len(BOUNDS_S)
    steps: int = 0
    sum_s: float = 0.0


class StepHistogram:
    """The durations of the steps of one attempt. A step counts once, when no rank is likely to report it any more."""

    def __init__(self) -> None:
        #: The last step that was looked at; -1 before any. Only grows.
        self.last_step = -1
        self._counts = np.zeros(len(BOUNDS_S) + 1, dtype=np.int64)
        self._sum_ns = 0.0

    def add(self, steps: Ints, step_ns: Floats) -> None:
        """Add the steps after the last one, in order, shape (n,) both; those whose duration is NaN are left out."""
        fresh = steps > self.last_step
        known_ns = step_ns[fresh & ~np.isnan(step_ns)]
        self._counts += np.bincount(np.searchsorted(_BOUNDS_NS, known_ns), minlength=len(self._counts))
        self._sum_ns += float(known_ns.sum())
        self.last_step = int(steps[fresh].max(initial=self.last_step))

    def read(self) -> StepDurations:
        """Return what was counted so far."""
        up_to = np.cumsum(self._counts).tolist()
        return StepDurations(tuple(up_to[:-1]), up_to[-1], self._sum_ns / NS_PER_S)

    def validate(self) -> None:
        """Raise InvariantError where an invariant does not hold; tests call it after events."""
        require(bool((self._counts >= 0).all()) and self._sum_ns >= 0.0, "negative counts of steps")
