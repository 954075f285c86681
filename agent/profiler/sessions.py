"""The two users of the profiler on the training thread of one rank: windows, and captures of whole steps; and torch's
timing of collectives where its effect is measured, which comes before windows.

One session at a time. A capture goes before a window: for the windows it is a profiler of the script.

Captures are made with a folder for them, or with the first order of the collector (`open_traces`), while training runs.
"""

import threading
from collections.abc import Callable, Mapping
from threading import get_ident
from typing import TYPE_CHECKING, Final

from rankscope.agent.config import MEASURED, AgentConfig
from rankscope.agent.guard import CAPTURES, WINDOWS, Guard, ScriptInterruptError, describe, pause
from rankscope.agent.late_imports import LATE_IMPORTS
from rankscope.agent.once_per_node import log_once_per_node
from rankscope.agent.profiler.nccl_timing import NCCL_TIMING, TIMING_VARIABLE, find_obstacle
from rankscope.agent.profiler.session_thread import NextCall, ThreadEnds
from rankscope.agent.profiler.windows import ProfilerWindows
from rankscope.agent.steps.graph_captures import GraphCaptures
from rankscope.agent.steps.step_boundaries import InlinePart
from rankscope.measure.identity import RankIdentity
from rankscope.measure.records import StepRecord

if TYPE_CHECKING:
    from rankscope.agent.captures.trace_captures import TraceCaptures
    from rankscope.agent.captures.trace_recording import TraceRecording
    from rankscope.agent.profiler.measured_timing import MeasuredTiming
    from rankscope.agent.profiler.window_scheduler import WindowScheduler

NOT_WATCHED: Final = (
    "no profiler windows with the collectives of gloo, so no waiting in them and no ratio of communication: whether "
    "they are over cannot be known here (torch before 2.11 does not name gloo's threads, or /proc does not show "
    "their system calls), and a window that ended before would corrupt memory (docs/torch.md)"
)
CHANGING_THREADS: Final = (
    "no more profiler windows, so no waiting in collectives and no ratio of communication: training changes its thread "
    "again and again, and torch's profiler records the one that begins it. Steps are measured all the same"
)
IN_RANGE: Final = "compiled code or an autograd.Function that a session before has recorded was still running"
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
        self._config, self._identity = config, identity
        self._guard, self._environment, self._graphs = guard, environment, graphs
        self._script_profilers = 0
        self._counting = threading.RLock()  # a signal handler of the script may start a profiler right inside
        self.inline_parts: list[InlinePart] = []
        """What acts at step boundaries. Captures are added with the first order, on the agent thread."""
        self.has_captures = bool(config.capture_folder) or config.capture_orders
        """Whether the settings allow any."""
        self.traces: TraceCaptures | None = None
        """The captures; None before the first order, where there is no folder for them."""
        is_measured = config.nccl_timing == MEASURED and TIMING_VARIABLE not in environment
        self.timing = self._make_timing(config) if is_measured else None
        """None unless `nccl_timing` is `measured` and the job has not decided by the variable."""
        self._has_logged_timing = self._has_logged_graph = self._has_logged_gloo = self._has_logged_threads = False
        self._thread_ends = ThreadEnds(lambda: self.close(must_end=True))
        self._asked: NextCall | None = None
        self.inline_parts += [part for part in (self.windows.scheduler, self.timing) if part is not None]
        if config.capture_folder:
            self.open_traces()

    def open_traces(self) -> "TraceCaptures | None":
        """Return the captures, made if they have not been; None where the settings allow none. At the start, and for
        the agent thread.
        """
        if self.traces is not None or not self.has_captures:
            return self.traces
        with LATE_IMPORTS:
            from rankscope.agent.captures.trace_captures import TraceCaptures  # noqa: PLC0415 - see above

        with self._counting:
            self.traces = TraceCaptures(
                self._config,
                self._identity,
                self._environment,
                self._guard,
                self._graphs,
                settle=self._settle,
                script_profilers=self._script_profilers,
            )
            self.inline_parts.append(self.traces)
        return self.traces

    def _settle(self, limit_s: float) -> bool:
        try:
            return self.windows.ranges.collectives.settle(limit_s, pause)
        except ScriptInterruptError as stop:
            self._guard.hold(stop.error)  # the capture goes on, and ends at the next boundary
            return False

    def _make_timing(self, config: AgentConfig) -> "MeasuredTiming":
        from rankscope.agent.profiler.effect_settings import make_comparison  # noqa: PLC0415 - only with `measured`
        from rankscope.agent.profiler.measured_timing import MeasuredTiming  # noqa: PLC0415

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
    def spent_ns(self) -> int:
        """CPU time of both on the training thread so far."""
        return self.windows.spent_ns + self.training_ns

    @property
    def training_ns(self) -> int:
        """CPU time of captures on the training thread so far."""
        return 0 if self.traces is None else self.traces.training_ns

    @property
    def written_ns(self) -> int:
        """CPU time of writing captures on the agent thread so far."""
        return 0 if self.traces is None else self.traces.written_ns

    @property
    def upload_ns(self) -> int:
        """CPU time of the processes that upload captures so far."""
        return 0 if self.traces is None else self.traces.upload_ns

    def switch_off(self) -> None:
        """End what records at its next boundary, and begin nothing more."""
        for part in (WINDOWS, CAPTURES):
            self._guard.switch_off(part)

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
                self.traces.refuse_on_another_thread(step)
            return
        self._thread_ends.watch()
        timing = self.timing
        if timing is not None:
            self._guarded(lambda: timing.on_boundary(step))
        self.windows.on_boundary(step)
        if self.traces is not None:
            recording = self.traces.recording
            if recording.thread is None and recording.find_next(step - 1) == step:
                self.windows.close(must_end=True)  # what it has recorded may be in the way
                if not self.windows.ranges.may_begin:
                    recording.refuse(step, IN_RANGE)
            recording.on_boundary(step)
        self._ask_other_thread()

    def on_profiler(self, begins: bool) -> None:  # noqa: FBT001 - an event, not an option
        """Handle the begin or the end of a session of torch's profiler, on any thread: of the script, or a capture.
        Returns when a session of ours that is in its way is off.
        """
        with self._counting:  # captures that are just being made must know of it
            self._script_profilers = max(0, self._script_profilers + (1 if begins else -1))
            traces = self.traces
        if traces is not None:
            traces.recording.on_script_profiler(begins=begins)
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
            log_once_per_node(text, self._environment, topic=NCCL_TIMING)

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except BaseException as error:  # noqa: BLE001 - a change in torch's internals must not lose steps
            self._guard.record(NCCL_TIMING, error)
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
    def _parts(self) -> "list[WindowScheduler | TraceRecording]":
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
                self._guard.record(WINDOWS, error)

    def _take_back(self) -> None:
        """Ask no more: the session has ended, also without the question, as at the end of its thread."""
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.remove()

    def _close_asked(self) -> None:
        self.close(must_end=True)
        self._guard.raise_held()
