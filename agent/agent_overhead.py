"""What the agent itself costs, by part, and what follows from it: the governor is asked, windows and samplers obey.

All times are CPU times of threads of ours or of the training thread while it ran our code, added up as if they all
delayed training: an upper bound, since the agent thread mostly finds a core of its own. ZeroMQ's own thread, which
writes to the socket, is not in it, nor is what operators take longer while a full window records them, about 1 us each.
The processes that reduce full windows run beside training with less weight: what they took is told, and not governed.
"""

import time
from collections.abc import Mapping
from typing import Any, Protocol

from rankscope.agent.governor import (
    AGENT_THREAD,
    DROP_ORDER,
    DROP_ORDER_WITHOUT_WINDOWS,
    FREQUENT_REPORTS,
    FULL_WINDOWS,
    GPU_SAMPLES,
    HOST_SAMPLES,
    LIGHT_WINDOWS,
    STEP_HOOKS,
    Governor,
)
from rankscope.agent.profiler.window_plan import WindowPlan
from rankscope.agent.sample.loop import SampleLoop
from rankscope.measure.records import AgentCost

WINDOW_CHILDREN = "window_children"
DEVICE_TIMES = "device_times"
SAMPLERS = {GPU_SAMPLES: "gpu", HOST_SAMPLES: "host"}
"""The governor's parts, and the loop's names of them."""


class TimeSpent(Protocol):
    """A part that knows what it has cost the training thread."""

    @property
    def spent_ns(self) -> int:
        """So far, in all."""
        ...


class Beside(Protocol):
    """What spends time in processes beside the training process."""

    @property
    def child_cpu_ns(self) -> int:
        """CPU time so far."""
        ...


class WindowsCost(Protocol):
    """What beginning and ending windows has cost the training thread so far."""

    full_spent_ns: int
    light_spent_ns: int


class AgentOverhead:
    """Driven by the agent thread, whose time it counts."""

    def __init__(
        self,
        overhead_ratio_max: float,
        plan: WindowPlan,
        samples: SampleLoop[Any],
        *,
        hooks: TimeSpent,
        windows: WindowsCost | None,
        timers: TimeSpent | None,
        children: Beside,
        started_ns: int,
    ) -> None:
        self._governor = Governor(overhead_ratio_max, DROP_ORDER if windows is not None else DROP_ORDER_WITHOUT_WINDOWS)
        self._hooks = hooks
        self._windows = windows
        self._timers = timers
        self._plan = plan
        self._samples = samples
        self._children = children
        self._started_ns = started_ns
        self._reduced_ns = {True: 0, False: 0}
        self.reports_less_often = False
        """Whether reports are to come less often."""

    def overhead_ratio(self, cost: AgentCost, now_ns: int) -> float:
        """What of the cost was spent in this process, over the time since the start."""
        own_ns = sum(spent_ns for part, spent_ns in cost.part_ns.items() if part != WINDOW_CHILDREN)
        return own_ns / max(1, now_ns - self._started_ns)

    def note_reduction(self, cost_ns: int, *, full: bool) -> None:
        """A window was reduced on the agent thread."""
        self._reduced_ns[full] += cost_ns

    def govern(self, now_ns: int) -> AgentCost:
        """Decide what runs from now on, and tell what was spent. To be called on the agent thread."""
        spent_ns = self._spent_ns()
        allowance = self._governor.decide(spent_ns, now_ns - self._started_ns)
        self._plan.allow(allowance)
        self._samples.sample_less_often(frozenset(SAMPLERS[part] for part in allowance.dropped & SAMPLERS.keys()))
        self.reports_less_often = FREQUENT_REPORTS in allowance.dropped
        dropped = allowance.dropped | self._plan.dropped
        return AgentCost(
            part_ns={**spent_ns, WINDOW_CHILDREN: self._children.child_cpu_ns},
            dropped={part: part in dropped for part, *_ in self._governor.order},
            full_stretch_ratio=self._plan.full_stretch_ratio,
            light_stretch_ratio=self._plan.light_stretch_ratio,
            changes=self._governor.changes,
        )

    def _spent_ns(self) -> Mapping[str, int]:
        windows = self._windows
        counts = self._samples.counts
        samples_ns = {part: counts[name].cpu_ns for part, name in SAMPLERS.items() if name in counts}
        return {
            STEP_HOOKS: self._hooks.spent_ns,
            DEVICE_TIMES: self._timers.spent_ns if self._timers is not None else 0,
            LIGHT_WINDOWS: self._reduced_ns[False] + (windows.light_spent_ns if windows is not None else 0),
            FULL_WINDOWS: self._reduced_ns[True] + (windows.full_spent_ns if windows is not None else 0),
            AGENT_THREAD: max(0, time.thread_time_ns() - sum(self._reduced_ns.values()) - sum(samples_ns.values())),
            **samples_ns,
        }
