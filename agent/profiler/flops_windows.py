"""Choose the full windows that are recorded with shapes, from which the FLOPs of a step are counted.

Shapes make a full window twice as costly on a CPU, and five times on a device, and FLOPs of a step change only
with its batch. So of one rank these windows have shapes: the first one that the budget pays for, another one once the
batch has had another size for CHANGED_STEPS steps, and one every REFRESH_TIMES intervals, since a size that is not
known may have changed unseen. Between two there is at least the interval. What a window costs is known after the first
one without shapes.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final

from rankscope.measure.records import StepRecord

COST_TIMES: Final = 3
"""How often the cost of a full window must be left in the budget for one with shapes: measured 2.0 times, for
end, reading and recording (`tests/benchmarks/results/flops-windows.md`)."""
COST_TIMES_ON_DEVICE: Final = 6
"""The same on a device, where a full window without shapes has no operators, or not the backward's own: measured 5.0
times (`tests/benchmarks/results/gpu-nvidia-h200.md`)."""
CHANGED_STEPS: Final = 16
"""Steps in a row with another size of the batch after which it has changed. The last batch of an epoch is one step."""
REFRESH_TIMES: Final = 12
"""After so many intervals FLOPs are counted again, whatever is known of the batch: with the default once an hour."""


class FlopsWindows:
    """Decide on the training thread whether the next full window is one with shapes."""

    def __init__(self, interval_ns: int, monotonic_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._interval_ns = interval_ns
        self._monotonic_ns = monotonic_ns
        self._size: tuple[int | None, int | None] = (None, None)
        self._steps_of_size = 0
        self._usual_size: tuple[int | None, int | None] = (None, None)
        self._recorded_size: tuple[int | None, int | None] = (None, None)
        self._recorded_ns: int | None = None

    @property
    def has_changed(self) -> bool:
        """Whether the batch has had another size for CHANGED_STEPS steps since the last window with shapes, and has not
        had that window's own size again for as long.
        """
        return self._recorded_ns is not None and self._usual_size != self._recorded_size

    def on_step(self, record: StepRecord) -> None:
        """Add a finished step."""
        size = record.samples, record.tokens
        self._steps_of_size = self._steps_of_size + 1 if size == self._size else 1
        self._size = size
        if self._steps_of_size >= CHANGED_STEPS:
            self._usual_size = size

    def is_due(self) -> bool:
        """Return whether a full window that begins now should have shapes."""
        if self._recorded_ns is None:
            return True
        age_ns = self._monotonic_ns() - self._recorded_ns
        return age_ns >= self._interval_ns and (self.has_changed or age_ns >= REFRESH_TIMES * self._interval_ns)

    def on_recorded(self, steps: Sequence[StepRecord]) -> None:
        """A window of these steps was recorded with shapes, whether or not FLOPs can be counted from it."""
        self._recorded_ns = self._monotonic_ns()
        if steps:
            self._recorded_size = steps[0].samples, steps[0].tokens
        self._usual_size = self._recorded_size
