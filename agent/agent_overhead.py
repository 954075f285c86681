"""Measures the CPU time of the agent by part, and applies the governor's decision to windows, samplers and reports.

The times are those of agent threads, and of the training thread while it ran agent code, added up as if all of them
delayed training: an upper bound, since the agent thread mostly has a free core. The slowdown of operators that a window
records is estimated from their number. Not included is ZeroMQ's I/O thread. The processes that analyze full windows run
at low priority: their CPU time is reported but not governed. How long steps take because CUPTI is attached is no CPU
time of the agent; `profiler/window_effect.py` measures it by the steps themselves.
"""

import enum
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from rankscope.agent.governor import (
    AGENT_THREAD,
    COLLECTIVE_TIMES,
    DROP_ORDER,
    DROP_ORDER_WITHOUT_WINDOWS,
    FREQUENT_REPORTS,
    FULL_WINDOWS,
    GPU_SAMPLES,
    HOST_SAMPLES,
    LIGHT_WINDOWS,
    LINE_SAMPLES,
    STEP_HOOKS,
    Governor,
)
from rankscope.agent.sample.loop import SampleLoop
from rankscope.agent.steps.first_graph import AWAITS_GRAPH
from rankscope.measure.records import AgentCost

if TYPE_CHECKING:
    from rankscope.agent.profiler.window_effect import WindowEffect
    from rankscope.agent.profiler.window_plan import WindowPlan

WINDOW_CHILDREN = "window_children"
CAPTURES = "captures"
NOT_GOVERNED = frozenset({WINDOW_CHILDREN, CAPTURES})
"""Parts that the budget does not limit: processes of their own, and traces that the user has asked for."""
DEVICE_TIMES = "device_times"
NCCL_TIMING = "nccl_timing"
SAMPLERS = {GPU_SAMPLES: ("gpu",), HOST_SAMPLES: ("host", "node")}
"""The names of samplers in the sample loop, by the governor's parts. That of the machine is in one rank a node only."""


class TimeSpent(Protocol):
    """A part that measures its own CPU time."""

    @property
    def spent_ns(self) -> int:
        """CPU time so far."""
        ...


class ReductionCost(Protocol):
    """The CPU time of reducing windows so far: on the agent thread by kind, and in child processes; and the estimated
    slowdown of the steps that they recorded. `timed`: that of reading collectives between them, None before the first.
    """

    @property
    def timed(self) -> "TimedCost | None":
        """Of the collectives of a device between windows."""
        ...

    full_reduced_ns: int
    light_reduced_ns: int
    full_recording_ns: int
    light_recording_ns: int

    @property
    def child_cpu_ns(self) -> int:
        """CPU time of the child processes."""
        ...


class TimedCost(Protocol):
    """The cost of reading collectives between windows so far: on the agent thread, and outside; and the estimated cost
    of their timing by torch, which cannot be changed any more.
    """

    thread_ns: int

    @property
    def is_used(self) -> bool:
        """Whether a reading has been begun."""
        ...

    @property
    def outside_ns(self) -> int:
        """Time of others for this rank."""
        ...

    @property
    def is_held(self) -> bool:
        """Whether the budget allows no reading."""
        ...

    @property
    def timing_ns(self) -> int | None:
        """Cost of the timing; None where collectives are not timed, or the job itself has them timed."""
        ...

    def allow(self, share: float, budget_left_ns: int) -> None:
        """Set the share of time that reading may take from now on, and what is left of the budget."""
        ...


class TimingCost(Protocol):
    """What torch's timing of collectives has done to the steps, where that is measured; as `MeasuredTiming`."""

    @property
    def state(self) -> enum.Enum:
        """How far the comparison is."""
        ...

    @property
    def ratio(self) -> float | None:
        """How much longer steps became, as a share; None: not known."""
        ...

    @property
    def slowed_ns(self) -> int:
        """The time by which steps have become longer so far, if they have measurably."""
        ...


class CapturesCost(Protocol):
    """The CPU time of captures so far: on the training thread, of writing them on the agent thread, and of the
    processes that upload them.
    """

    @property
    def written_ns(self) -> int:
        """Of writing files on the agent thread."""
        ...

    @property
    def upload_ns(self) -> int:
        """Of the processes that upload files."""
        ...

    @property
    def training_ns(self) -> int:
        """Of those on the training thread."""
        ...


class WindowsCost(Protocol):
    """The CPU time of beginning and ending windows on the training thread so far."""

    full_spent_ns: int
    light_spent_ns: int


class AgentOverhead:
    """The overhead of one process. Used on the agent thread, whose CPU time it counts."""

    def __init__(
        self,
        overhead_ratio_max: float,
        plan: "WindowPlan",
        samples: SampleLoop[Any],
        *,
        hooks: TimeSpent,
        windows: WindowsCost | None,
        timers: TimeSpent | None,
        reduction: ReductionCost,
        captures: CapturesCost | None = None,
        started_ns: int,
        find_effect: "Callable[[], WindowEffect | None]" = lambda: None,
        awaits_graph: Callable[[], bool] = lambda: False,
        timing: TimingCost | None = None,
        read_lines_ns: Callable[[], int] = lambda: 0,
    ) -> None:
        self._governor = Governor(overhead_ratio_max, DROP_ORDER if windows is not None else DROP_ORDER_WITHOUT_WINDOWS)
        self._hooks = hooks
        self._windows = windows
        self._timers = timers
        self._plan = plan
        self._samples = samples
        self._reduction = reduction
        self._captures = captures
        self._find_effect = find_effect
        self._awaits_graph = awaits_graph
        self._timing = timing
        self._read_lines_ns = read_lines_ns
        self._started_ns = started_ns
        self.reports_less_often = False
        """True if reports are to be sent less often."""

    def overhead_ratio(self, cost: AgentCost, now_ns: int) -> float:
        """Return the CPU time of the agent in this process as a share of the time since its start, without what the
        budget does not limit.
        """
        own_ns = sum(spent_ns for part, spent_ns in cost.part_ns.items() if part not in NOT_GOVERNED)
        return own_ns / max(1, now_ns - self._started_ns)

    def govern(self, now_ns: int) -> AgentCost:
        """Decide which parts run from now on, and return what was spent. Call it on the agent thread."""
        spent_ns = self._spent_ns()
        allowance = self._governor.decide(spent_ns, now_ns - self._started_ns)
        self._plan.allow(allowance)
        timed = self._reduction.timed
        if timed is not None:
            timed.allow(allowance.windows_ratio / 2, allowance.budget_left_ns)
        self._samples.sample_less_often(
            frozenset(name for part in allowance.dropped & SAMPLERS.keys() for name in SAMPLERS[part])
        )
        self.reports_less_often = FREQUENT_REPORTS in allowance.dropped
        dropped = allowance.dropped | self._plan.dropped
        not_governed_ns = {WINDOW_CHILDREN: self._reduction.child_cpu_ns}
        is_dropped = {part: part in dropped for part, *_ in self._governor.order}
        timing_ns, effect, timing = self._find_timing_ns(), self._find_effect(), self._timing
        if self._captures is not None:
            captures = self._captures
            not_governed_ns[CAPTURES] = captures.training_ns + captures.written_ns + captures.upload_ns
        if timing_ns is not None:
            not_governed_ns[NCCL_TIMING] = timing_ns
        if timed is not None and timed.is_used:
            is_dropped[COLLECTIVE_TIMES] = timed.is_held
        return AgentCost(
            part_ns={**spent_ns, **not_governed_ns},
            dropped=is_dropped,
            full_stretch_ratio=self._plan.full_stretch_ratio,
            light_stretch_ratio=self._plan.light_stretch_ratio,
            changes=self._governor.changes,
            attached_ratio=None if effect is None else effect.attached_ratio,
            detached_ratio=None if effect is None else effect.detached_ratio,
            window_effect=self._find_state(effect),
            timing_ratio=None if timing is None else timing.ratio,
            timing_effect="" if timing is None else timing.state.value,
        )

    def _find_state(self, effect: "WindowEffect | None") -> str:
        may_begin = effect is None or effect.allows_windows or effect.is_open
        if may_begin and self._awaits_graph():
            return AWAITS_GRAPH
        return "" if effect is None else effect.state.value

    def _find_timing_ns(self) -> int | None:
        """Return what torch's timing of collectives has cost: as estimated, or as measured by the steps if that is more
        and counts as slowing.
        """
        estimated_ns = None if self._reduction.timed is None else self._reduction.timed.timing_ns
        measured_ns = 0 if self._timing is None else self._timing.slowed_ns
        return max(estimated_ns or 0, measured_ns) if measured_ns else estimated_ns

    def _spent_ns(self) -> Mapping[str, int]:
        full_ns, light_ns = self._reduction.full_reduced_ns, self._reduction.light_reduced_ns
        full_recording_ns, light_recording_ns = self._reduction.full_recording_ns, self._reduction.light_recording_ns
        windows = self._windows
        counts = self._samples.counts
        samples_ns = {
            part: sum(counts[name].cpu_ns for name in names if name in counts)
            for part, names in SAMPLERS.items()
            if not counts.keys().isdisjoint(names)
        }
        timed = self._reduction.timed
        timed_ns = 0 if timed is None else timed.thread_ns
        written_ns = 0 if self._captures is None else self._captures.written_ns
        others_ns = full_ns + light_ns + timed_ns + written_ns + sum(samples_ns.values())
        return {
            STEP_HOOKS: self._hooks.spent_ns,
            DEVICE_TIMES: self._timers.spent_ns if self._timers is not None else 0,
            LIGHT_WINDOWS: light_ns + light_recording_ns + (windows.light_spent_ns if windows is not None else 0),
            FULL_WINDOWS: full_ns + full_recording_ns + (windows.full_spent_ns if windows is not None else 0),
            AGENT_THREAD: max(0, time.thread_time_ns() - others_ns),
            **({COLLECTIVE_TIMES: timed_ns + timed.outside_ns} if timed is not None and timed.is_used else {}),
            # In place of windows, which these displace.
            **({LINE_SAMPLES: lines_ns} if (lines_ns := self._read_lines_ns()) else {}),
            **samples_ns,
        }
