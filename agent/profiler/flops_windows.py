"""Choose the full windows that are recorded with shapes, from which the FLOPs of a step are counted.

Shapes make a full window twice as costly on a CPU, and five times on a device, and all ranks of a synchronous run wait
for one that is in such a window. So ranks have them at the same steps, each for itself: at the one chosen
(`step_intervals.py`) of as many steps as there were before, later of each REFRESH_TIMES intervals, since a size of the
batch that is not known may have changed unseen; and of each interval while the batch has had another size for
CHANGED_STEPS steps. Whether this rank has recorded one before makes no difference, else one that could not pay for it
would have it alone, at the next such step. What a window costs is known after the first one without shapes.
"""

from collections.abc import Sequence
from typing import Final

from rankscope.agent.profiler.window_plan import WindowPlan, full_interval_at
from rankscope.agent.steps.step_intervals import UNKNOWN_STEPS, find_next_chosen, is_chosen, nearest_power
from rankscope.measure.records import StepRecord

COST_TIMES: Final = 3
"""How often the cost of a full window must be left in the budget for one with shapes: measured 2.0 times, for
end, reading and recording (`bench/results/flops-windows.md`)."""
COST_TIMES_ON_DEVICE: Final = 6
"""The same on a device, where a full window without shapes has no operators, or not the backward's own: measured 5.0
times (`bench/results/gpu-nvidia-h200.md`)."""
CHANGED_STEPS: Final = 16
"""Steps in a row with another size of the batch after which it has changed. The last batch of an epoch is one step."""
REFRESH_TIMES: Final = 12
"""After so many intervals FLOPs are counted again, whatever is known of the batch: with the default an hour, rounded up
to a power of two of steps."""


class FlopsWindows:
    """Decide on the training thread whether the next full window is one with shapes. The `plan` knows the step time."""

    def __init__(self, interval_ns: int, plan: WindowPlan) -> None:
        self._interval_ns = interval_ns
        self._plan = plan
        self._changed_interval_steps = self._refresh_interval_steps = UNKNOWN_STEPS
        self._size: tuple[int | None, int | None] = (None, None)
        self._steps_of_size = 0
        self._usual_size: tuple[int | None, int | None] = (None, None)
        self._recorded_size: tuple[int | None, int | None] | None = None

    @property
    def has_changed(self) -> bool:
        """Whether the batch has had another size for CHANGED_STEPS steps since the last window with shapes, and has not
        had that window's own size again for as long.
        """
        return self._recorded_size is not None and self._usual_size != self._recorded_size

    def on_step(self, record: StepRecord) -> None:
        """Add a finished step."""
        size = record.samples, record.tokens
        self._steps_of_size = self._steps_of_size + 1 if size == self._size else 1
        self._size = size
        if self._steps_of_size >= CHANGED_STEPS:
            self._usual_size = size

    def is_due(self, step: int) -> bool:
        """Return whether a full window that begins with this step should have shapes.

        Of two ranks with different step times the steps of one are a subset of the other's, as of all full windows.
        """
        since = step - self._plan.warmup_steps
        if since < 0:
            return False
        self._learn_step_time()
        interval = self._changed_interval_steps if self.has_changed else self._refresh_interval_steps
        return is_chosen(since, full_interval_at(since, interval))

    def find_next(self, step: int) -> int:
        """Return a step after this one before which no window with shapes is due."""
        since = step - self._plan.warmup_steps
        if since < 0:
            return self._plan.warmup_steps
        self._learn_step_time()
        interval = full_interval_at(since, self._changed_interval_steps)
        return self._plan.warmup_steps + find_next_chosen(since, interval)

    def on_recorded(self, steps: Sequence[StepRecord]) -> None:
        """A window of these steps was recorded with shapes, whether or not FLOPs can be counted from it."""
        self._recorded_size = (steps[0].samples, steps[0].tokens) if steps else self._usual_size
        self._usual_size = self._recorded_size

    def _learn_step_time(self) -> None:
        if self._plan.step_ns is not None:
            wanted = self._interval_ns / self._plan.step_ns
            self._changed_interval_steps = nearest_power(wanted, self._changed_interval_steps)
            self._refresh_interval_steps = nearest_power(REFRESH_TIMES * wanted, self._refresh_interval_steps)
