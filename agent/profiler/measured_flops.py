"""Pass the FLOPs that windows with shapes have measured on to the count of FLOPs, or the reason why there are none."""

from collections.abc import Sequence
from typing import Final

from rankscope.agent.governor import FULL_WINDOWS
from rankscope.agent.profiler.reduced_window import ReducedWindow
from rankscope.agent.profiler.windows import ProfilerWindows
from rankscope.agent.steps.model_flops import ModelFlops
from rankscope.measure.records import WindowFlops

_CURE: Final = "rankscope.model_flops() declares those of the model"
SWITCHED_OFF: Final = f"measure_flops is false; {_CURE}"
NO_WINDOWS: Final = (
    "FLOPs are measured in full windows, and this rank has none (full_windows is false, or torch has no usable "
    f"profiler); {_CURE}"
)
ENDED: Final = (
    f"FLOPs are measured in full windows, and those of the GPU have ended or are off (device_windows); {_CURE}"
)
NOT_YET_OF_HOST: Final = (
    "FLOPs have not been measured yet: without windows of the GPU they are counted from operators of the host, as soon "
    f"as overhead_ratio_max allows to record these; {_CURE} at once"
)
GRAPHS: Final = f"windows of the GPU are off or have ended, and the operators in a CUDA graph are not recorded; {_CURE}"
SLOWED: Final = f"steps became longer after operators of the host were recorded, so they are recorded no more; {_CURE}"
DROPPED: Final = f"FLOPs are measured in full windows, which are off to stay within overhead_ratio_max; {_CURE}"
NOT_YET: Final = (
    "FLOPs have not been measured yet: a full window after the first one does it, as soon as overhead_ratio_max "
    f"allows; {_CURE} at once"
)
BATCH_CHANGED: Final = "the batch size differs from that of step {step}, in which FLOPs were measured"
MEASURED_AGAIN: Final = (
    "they are measured again at the next step at which all ranks may (flops_interval_s), if overhead_ratio_max allows"
)


class MeasuredFlops:
    """The latest measurement of one rank, on its agent thread. It holds while the batch has the size that it had."""

    def __init__(self, flops: ModelFlops, windows: ProfilerWindows) -> None:
        self._flops = flops
        self._windows = windows
        self._latest: WindowFlops | None = None

    def update(self, reduced: Sequence[ReducedWindow]) -> None:
        """Add the results since the last call."""
        for window in reduced:
            self._latest = window.flops or self._latest
        found, reason = self._latest, self._find_reason()
        if reason is not None or found is None or found.model_flops is None or found.executed_flops is None:
            self._flops.clear_measured(reason or NOT_YET)
        else:
            self._flops.set_measured(
                found.model_flops, found.executed_flops, found.number_types, is_upper_bound=found.is_upper_bound
            )

    def _find_reason(self) -> str | None:
        """Return why no measurement holds now, None where one does."""
        if self._latest is None:
            return self._find_obstacle() or (NOT_YET_OF_HOST if self._is_of_host else NOT_YET)
        if self._latest.reason is not None:
            return self._latest.reason
        scheduler = self._windows.scheduler
        if scheduler is not None and scheduler.flops is not None and scheduler.flops.has_changed:
            obstacle = self._find_obstacle()
            changed = BATCH_CHANGED.format(step=self._latest.first_step)
            return f"{changed}; {obstacle or MEASURED_AGAIN}"
        return None

    @property
    def _is_of_host(self) -> bool:
        scheduler = self._windows.scheduler
        operators = None if scheduler is None else scheduler.operators
        return operators is not None and operators.replaces_windows

    def _find_obstacle(self) -> str | None:
        """Return why there will be no window with shapes, None where nothing is known to prevent one."""
        if not self._windows.measures_flops:
            return SWITCHED_OFF
        if self._windows.scheduler is None or self._windows.scheduler.flops is None:
            return NO_WINDOWS
        operators = self._windows.scheduler.operators
        if operators is not None and operators.replaces_windows:
            return GRAPHS if operators.has_graphs() else SLOWED if operators.has_slowed else None
        effect = self._windows.find_effect()
        if effect is not None and not (effect.allows_windows or effect.is_open):
            return ENDED
        return DROPPED if FULL_WINDOWS in self._windows.plan.dropped else None
