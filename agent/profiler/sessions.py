"""The two users of the profiler on the training thread of one rank: windows, and captures of whole steps; and torch's
timing of collectives where its effect is measured, which comes before windows.

One session at a time. A capture goes before a window: for the windows it is a profiler of the script.
"""

from collections.abc import Callable, Mapping
from threading import get_ident
from typing import Final

from rankscope.agent.captures.trace_captures import TraceCaptures
from rankscope.agent.captures.trace_recording import ANOTHER_THREAD, TraceRecording
from rankscope.agent.config import MEASURED, AgentConfig
from rankscope.agent.guard import Guard, describe
from rankscope.agent.once_per_node import log_once_per_node
from rankscope.agent.profiler import measured_timing
from rankscope.agent.profiler.measured_timing import MeasuredTiming
from rankscope.agent.profiler.nccl_timing import TIMING_VARIABLE, find_obstacle
from rankscope.agent.profiler.session_thread import NextCall, ThreadEnds
from rankscope.agent.profiler.torch_profiler import ScriptInterruptError, pause
from rankscope.agent.profiler.window_scheduler import PART, WindowScheduler
from rankscope.agent.profiler.windows import ProfilerWindows, make_comparison
from rankscope.agent.steps.graph_captures import GraphCaptures
from rankscope.measure.identity import RankIdentity
from rankscope.measure.records import StepRecord

NOT_WATCHED: Final = (
    "no profiler windows with the collectives of gloo, so no waiting in them and no ratio of communication: whether "
    "they are over cannot be known here (torch before 2.11 does not name gloo's threads, or /proc does not show "
    "their system calls), and a window that ended before would corrupt memory (docs/torch.md)"
)
CHANGING_THREADS: Final = (
    "no more profiler windows, so no waiting in collectives and no ratio of communication: training changes its thread "
    "again and again, and torch's profiler records the one that begins it. Steps are measured all the same"
)
OTHER_THREAD_WAIT_S: Final = 0.1
"""Time for which the end of the agent waits until another thread has ended a session. A thread that trains has mostly
done so; one that waits for work never does."""


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
        self._has_logged_timing = self._has_logged_graph = self._has_logged_gloo = self._has_logged_threads = False
        self._thread_ends = ThreadEnds(lambda: self.close(must_end=True))
        self._asked: NextCall | None = None

    def _settle(self, limit_s: float) -> bool:
        try:
            return self.windows.ranges.collectives.settle(limit_s, pause)
        except ScriptInterruptError as stop:
            self._guard.hold(stop.error)  # the capture goes on, and ends at the next boundary
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

    def on_boundary(self, step: int, *, is_settled: bool = True) -> None:
        """Begin or end what is due at the begin of this step. Nothing begins where training has not `is_settled` on
        this thread.
        """
        if not is_settled:
            self.leave()
            if self.traces is not None:
                self.traces.recording.refuse(step, ANOTHER_THREAD)
            return
        self._thread_ends.watch()
        timing = self.timing
        if timing is not None:
            self._guarded(lambda: timing.on_boundary(step))
        self.windows.on_boundary(step)
        if self.traces is not None:
            self.traces.recording.on_boundary(step)
        self._ask_other_thread()

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
        scheduler = self.windows.scheduler
        if scheduler is not None and scheduler.has_given_up and not self._has_logged_threads:
            self._has_logged_threads = True
            log_once_per_node(CHANGING_THREADS, self._environment, topic="threads")
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
        except BaseException as error:  # noqa: BLE001 - a change in torch's internals must not lose steps
            self._guard.record(measured_timing.PART, error)
            if self.timing is not None:
                self.timing.give_up(f"of an error in the agent ({describe(error)})")

    def close(self, *, must_end: bool = False) -> None:
        """End what records, if this is its thread; where collectives are not over at once, only if it `must_end`."""
        if self.traces is not None:
            self.traces.recording.close(must_end=must_end)
        self.windows.close(must_end=must_end)
        if must_end and self._find_other_thread() is None:
            self.windows.ranges.collectives.end()
            self._take_back()

    def leave(self) -> None:
        """End what records on this thread, and discard what records on another one, which is to end it."""
        self.close()
        for part in self._parts:
            part.leave()
        self._ask_other_thread()

    def stop(self) -> None:
        """End what records, for good. A session of another thread is ended there: at the next call of what trains, or
        at the end of that thread. One that waits for work when the process exits is left: it does no harm.
        """
        if self.windows.scheduler is not None:
            self.windows.scheduler.stop()
        self.close(must_end=True)
        self._ask_other_thread()
        if self._find_other_thread() is not None:
            for part in self._parts:
                part.wait_until_off(OTHER_THREAD_WAIT_S)

    @property
    def _parts(self) -> list[WindowScheduler | TraceRecording]:
        """What has sessions."""
        recording = None if self.traces is None else self.traces.recording
        return [part for part in (self.windows.scheduler, recording) if part is not None]

    def _find_other_thread(self) -> int | None:
        """Return another thread than this one that has a session, None if there is none."""
        threads = (part.thread for part in self._parts)
        return next((thread for thread in threads if thread not in (None, get_ident())), None)

    def _ask_other_thread(self) -> None:
        """Let another thread that has a session end it as soon as it trains again."""
        thread = self._find_other_thread()
        if thread is None:
            self._take_back()
        elif self._asked is None:
            self._asked = NextCall(thread, self._close_asked)
            try:
                self._asked.install()
            except BaseException as error:  # noqa: BLE001 - it is ended at the end of its thread
                self._asked.remove()
                self._guard.record(PART, error)

    def _take_back(self) -> None:
        """Ask no more: the session has ended, also without the question, as at the end of its thread."""
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.remove()

    def _close_asked(self) -> None:
        self.close(must_end=True)
        self._guard.raise_held()
