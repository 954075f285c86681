"""The profiler windows of one rank on its training thread: their plan, their scheduler, and those that are finished."""

from collections.abc import Callable, Mapping

from rankscope.agent.config import AgentConfig
from rankscope.agent.guard import Guard
from rankscope.agent.once_per_node import log_once_per_node
from rankscope.agent.profiler.process_groups import GroupProgress
from rankscope.agent.profiler.torch_profiler import TorchProfiler
from rankscope.agent.profiler.window_plan import WindowPlan
from rankscope.agent.profiler.window_scheduler import RawWindow, WindowScheduler
from rankscope.agent.steps.graph_captures import GraphCaptures
from rankscope.agent.steps.open_ranges import OpenRanges
from rankscope.agent.steps.ring import Ring
from rankscope.measure.errors import RankscopeError
from rankscope.measure.identity import RankIdentity
from rankscope.measure.records import StepRecord
from rankscope.measure.units import s_to_ns

RAW_WINDOWS_MAX = 4
"""Largest number of windows waiting for the agent thread; one of 50 steps holds up to about 1 MB."""


class ProfilerWindows:
    """The windows of one rank; without any if they are switched off or torch has no profiler that they could use.

    `find_resident_bytes` returns the resident memory of the process, None if it cannot be read.
    """

    def __init__(
        self,
        config: AgentConfig,
        identity: RankIdentity,
        environment: Mapping[str, str],
        guard: Guard,
        captures: GraphCaptures,
        *,
        find_resident_bytes: Callable[[], int | None],
    ) -> None:
        self.ranges = OpenRanges()
        self.finished: Ring[RawWindow] = Ring(RAW_WINDOWS_MAX)
        """Finished windows, for the agent thread."""
        self.progress = GroupProgress(identity.world_size, captures, environment)
        self.plan = WindowPlan(
            warmup_steps=config.warmup_steps,
            collective_window_ns=s_to_ns(config.collective_window_s),
            full_window_interval_ns=s_to_ns(config.full_window_interval_s),
            full_window_steps=config.full_window_steps,
            overhead_ratio_max=config.overhead_ratio_max,
        )
        profiler = self._find_profiler(config, environment)
        self.scheduler: WindowScheduler | None = None
        """None if there are no windows."""
        if profiler is not None:
            self.scheduler = WindowScheduler(
                profiler,
                self.plan,
                guard,
                self._keep,
                self.progress.read_enqueued,
                light=config.collective_windows,
                full=config.full_windows,
                is_capturing=captures.is_open,
                light_is_useful=lambda: self.progress.communicates_on_host or not profiler.sees_device,
                find_resident_bytes=find_resident_bytes,
            )

    def _find_profiler(self, config: AgentConfig, environment: Mapping[str, str]) -> TorchProfiler | None:
        if not (config.collective_windows or config.full_windows):
            return None
        try:
            return TorchProfiler.find(self.ranges)
        except RankscopeError as error:
            text = f"no profiler windows, so no collectives and no compute ratio: {error}"
            log_once_per_node(text, environment)
            return None

    def _keep(self, window: RawWindow) -> bool:
        if len(self.finished) >= RAW_WINDOWS_MAX:
            return False
        self.finished.append(window)
        return True

    @property
    def spent_ns(self) -> int:
        """CPU time of beginning and ending windows on the training thread so far."""
        return 0 if self.scheduler is None else self.scheduler.full_spent_ns + self.scheduler.light_spent_ns

    @property
    def skipped(self) -> Mapping[str, int]:
        """The number of windows not taken, by reason."""
        return {} if self.scheduler is None else self.scheduler.skipped

    def on_step(self, record: StepRecord) -> None:
        """Add a finished step; called before `on_boundary`."""
        if self.scheduler is not None:
            self.scheduler.on_step(record)

    def on_boundary(self, step: int) -> None:
        """Begin or end a window at the begin of this step, if that is due."""
        if self.scheduler is not None:
            self.scheduler.on_boundary(step)

    def on_user_profiler(self, begins: bool) -> None:  # noqa: FBT001 - an event, not an option
        """Handle the begin or the end of the user's profiler, on any thread. Return when ours is off."""
        if self.scheduler is not None:
            self.scheduler.on_user_profiler(begins)

    def close(self) -> None:
        """End the running window, if this is its thread, and pass it on."""
        if self.scheduler is not None:
            self.scheduler.close()
