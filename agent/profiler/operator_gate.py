"""Decide when the operators of the host are recorded for FLOPs, because the windows of its device are off or over.

That is a session without CUPTI (`host_operators.py`) of a few steps, at the steps that `flops_windows.py` names.
The steps after the first one are compared with those before it, as those between windows of a device are: if they have
become longer there is no second session.
"""

from typing import TYPE_CHECKING, Final

from rankscope.agent.governor import FULL_WINDOWS
from rankscope.agent.profiler.device_gate import DeviceProfiler
from rankscope.agent.profiler.flops_windows import FlopsWindows
from rankscope.agent.profiler.window_kinds import ProcessGraphs
from rankscope.agent.profiler.window_plan import WindowPlan
from rankscope.measure.records import StepRecord

if TYPE_CHECKING:
    from rankscope.agent.profiler.window_effect import WindowEffect

STEPS: Final = 2
OPERATOR_NS: Final = 25_000
"""Twice what was measured (`bench/results/host-operators.md`)."""
COST_ASSUMED_NS: Final = STEPS * 3_000 * OPERATOR_NS
"""Least cost assumed until one session has been measured."""


class OperatorGate:
    """The decisions about sessions of one rank, at step boundaries. None is due without `flops`, nor while the process
    has `graphs`: of what a CUDA graph replays the host has no operators.
    """

    def __init__(
        self,
        profiler: DeviceProfiler,
        plan: WindowPlan,
        flops: FlopsWindows | None,
        graphs: ProcessGraphs,
        *,
        device_effect: "WindowEffect | None",
        own_effect: "WindowEffect | None",
    ) -> None:
        self._profiler = profiler
        self._plan = plan
        self._flops = flops
        self._device_effect = device_effect
        self.effect = own_effect
        self._graphs = graphs
        self._measured_ns: int | None = None

    @property
    def replaces_windows(self) -> bool:
        """Whether FLOPs come from the operators of the host now: the device in use has no windows, or no more."""
        if self._flops is None or self.effect is None or self._device_effect is None:
            return False
        are_off = not (self._device_effect.allows_windows or self._device_effect.is_open)
        is_wanted = (are_off or self._plan.full_has_ended) and self._profiler.sees_device
        return is_wanted and self._profiler.records_operators  # last: with the first question its code is imported

    @property
    def has_slowed(self) -> bool:
        """Whether steps have become longer since the first session, so that there is no second one."""
        return self.effect is not None and self.effect.has_ended

    def has_graphs(self) -> bool:
        """Return whether the process has a CUDA graph."""
        return self._graphs.has_graphs()

    def begins(self, step: int) -> bool:
        """Return whether a session begins with this step: never before the warm-up and the reference after it."""
        is_ready = self.effect is not None and (self.effect.is_ready or self.effect.is_kept)
        if not is_ready or self._flops is None or not self._flops.is_due(step) or not self._is_paid_for:
            return False
        return self.replaces_windows and not self.has_graphs()

    @property
    def _is_paid_for(self) -> bool:
        allowance, expected_ns = self._plan.allowance, self._measured_ns or COST_ASSUMED_NS
        is_paid = expected_ns <= allowance.budget_left_ns
        estimated_ns = round(STEPS * self._plan.events_a_step * OPERATOR_NS)
        if self._measured_ns is None and estimated_ns > COST_ASSUMED_NS:
            is_paid = self._plan.pays_first(estimated_ns)
        return FULL_WINDOWS not in allowance.dropped and is_paid

    def find_next(self, step: int, unknown: int) -> int:
        """Return the first step after this one at which a session may begin or be decided on; `unknown` if not yet."""
        if self.effect is None or self._flops is None or self.has_slowed or not self.replaces_windows:
            return unknown
        due = self._flops.find_next(step)
        is_compared = self.effect.is_open and not self.effect.is_ready
        return min(due, step + self.effect.steps_left) if is_compared else due

    def on_step(self, record: StepRecord, *, in_window: bool) -> None:
        """Add a finished step, which a session or another profiler has recorded or not."""
        if self.effect is not None and self.effect.is_open and self.replaces_windows:
            self.effect.on_step(record.step, record.duration_ns, in_window=in_window)
            if self.effect.is_slower:
                self.effect.end()

    def on_session_end(self) -> None:
        """A session has ended."""
        if self.effect is not None:
            self.effect.on_attached()

    def learn(self, cost_ns: int) -> None:
        """Record the cost of a session, of all threads together."""
        self._measured_ns = cost_ns
