"""The two users of the profiler on the training thread of one rank: windows, and captures of whole steps; and torch's
timing of collectives where its effect is measured, which comes before windows.

One session at a time. A capture goes before a window: for the windows it is a profiler of the script.
"""

from collections.abc import Callable, Mapping
from typing import Final

from rankscope.agent.captures.trace_captures import TraceCaptures
from rankscope.agent.config import MEASURED, AgentConfig
from rankscope.agent.guard import Guard, describe
from rankscope.agent.once_per_node import log_once_per_node
from rankscope.agent.profiler import measured_timing
from rankscope.agent.profiler.measured_timing import MeasuredTiming
from rankscope.agent.profiler.nccl_timing import TIMING_VARIABLE, find_obstacle
from rankscope.agent.profiler.torch_profiler import ScriptInterruptError, pause
from rankscope.agent.profiler.window_scheduler import WindowScheduler
from rankscope.agent.profiler.windows import ProfilerWindows, make_comparison
from rankscope.agent.steps.graph_captures import GraphCaptures
from rankscope.measure.identity import RankIdentity
from rankscope.measure.records import StepRecord

NOT_WATCHED: Final = (
    "no profiler windows with the collectives of gloo, so no waiting in them and no ratio of communication: whether "
    "they are over cannot be known here (torch before 2.11 does not name gloo's threads, or /proc does not show "
    "their system calls), and a window that ended before would corrupt memory (docs/torch.md)"
)


class ProfilerSessions:
    """The windows and the captures of one rank; both may be switched off.

    `find_resident_bytes` returns the resident memory of the process, None if it cannot be read.
    """

    def __init__(
        self,
        config: AgentConfig,
        identity: RankIdentity,
        environment: Mapping[str, str],
        guard: Guard,
        graphs: GraphCaptures,
        *,
        find_resident_bytes: Callable[[], int | None],
    ) -> None:
        self.windows = ProfilerWindows(
            config, identity, environment, guard, graphs, find_resident_bytes=find_resident_bytes
        )
        has_captures = bool(config.capture_folder) or config.capture_orders
        self.traces = (
            TraceCaptures(config, identity, environment, guard, graphs, settle=self._settle) if has_captures else None
        )
        """The captures; None without a folder for them, where the collector may not order any."""
        self._guard, self._environment, self._graphs = guard, environment, graphs
        is_measured = config.nccl_timing == MEASURED and TIMING_VARIABLE not in environment
        self.timing = self._make_timing(config) if is_measured else None
        """None unless `nccl_timing` is `measured` and the job has not decided by the variable."""
        self._has_logged_timing = self._has_logged_graph = self._has_logged_gloo = False

    def _settle(self, limit_s: float) -> bool:
        try:
            return self.windows.ranges.collectives.settle(limit_s, pause)
        except ScriptInterruptError as stop:
            self.windows.interrupt = stop.error  # the capture goes on, and ends at the next boundary
            return False

    def _make_timing(self, config: AgentConfig) -> MeasuredTiming:
        windows, environment, graphs = self.windows, self._environment, self._graphs

        def find_any_obstacle() -> str | None:
            if graphs.begun:
                return "the process has a CUDA graph, whose collectives are in no flight recorder"
            return find_obstacle(environment)

        return MeasuredTiming(
            lambda: make_comparison(config),
            windows.progress.find_nccl,
            windows.scheduler,
            find_obstacle=find_any_obstacle,
            may_switch=lambda: not graphs.is_open(),
            on_timed=self._read_times,
        )

    def _read_times(self, from_step: int) -> None:
        """Let durations be read from this step on: the agent has switched timing on."""
        self.windows.timing_is_ours, self.windows.timed_from_step = True, from_step
        self.windows.progress.allow_reading()

    @property
    def inline_parts(self) -> list[WindowScheduler | TraceCaptures | MeasuredTiming]:
        """What acts at step boundaries."""
        return [part for part in (self.windows.scheduler, self.traces, self.timing) if part is not None]

    @property
    def spent_ns(self) -> int:
        """CPU time of both on the training thread so far."""
        return self.windows.spent_ns + (0 if self.traces is None else self.traces.training_ns)

    def on_step(self, record: StepRecord) -> None:
        """Add a finished step; called before `on_boundary`."""
        timing = self.timing
        if timing is not None:
            self._guarded(lambda: timing.on_step(record.step, record.duration_ns))
        self.windows.on_step(record)

    def on_boundary(self, step: int) -> None:
        """Begin or end what is due at the begin of this step."""
        timing = self.timing
        if timing is not None:
            self._guarded(lambda: timing.on_boundary(step))
        self.windows.on_boundary(step)
        if self.traces is not None:
            self.traces.recording.on_boundary(step)

    def on_profiler(self, begins: bool) -> None:  # noqa: FBT001 - an event, not an option
        """Handle the begin or the end of a session of torch's profiler, on any thread: of the script, or a capture.
        Returns when a session of ours that is in its way is off.
        """
        if self.traces is not None:
            self.traces.recording.on_script_profiler(begins=begins)
        timing = self.timing
        if timing is not None:
            self._guarded(lambda: timing.on_profiler(begins))
        self.windows.on_user_profiler(begins)

    def log(self) -> None:
        """Log once on each node what windows and timing have done to the steps, and what windows cannot have. For the
        agent thread.
        """
        self.windows.log_effect()
        if self.windows.ranges.collectives.were_left_out and not self._has_logged_gloo:
            self._has_logged_gloo = True
            log_once_per_node(NOT_WATCHED, self._environment, topic="gloo")
        text = None if self._has_logged_graph else self._graphs.first_graph.describe()
        if text is not None:
            self._has_logged_graph = True
            log_once_per_node(text, self._environment, topic="cuda_graphs")
        text = None if self.timing is None or self._has_logged_timing else self.timing.describe()
        if text is not None:
            self._has_logged_timing = True
            log_once_per_node(text, self._environment, topic=measured_timing.PART)

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - a change in torch's internals must not lose steps
            self._guard.record(measured_timing.PART, error)
            if self.timing is not None:
                self.timing.give_up(f"of an error in the agent ({describe(error)})")

    def close(self, *, must_end: bool = False) -> None:
        """End what records, if this is its thread; where collectives are not over at once, only if it `must_end`."""
        if self.traces is not None:
            self.traces.recording.close(must_end=must_end)
        self.windows.close(must_end=must_end)
        if must_end:
            self.windows.ranges.collectives.end()
