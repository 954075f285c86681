"""The two users of the profiler on the training thread of one rank: windows, and captures of whole steps.

One session at a time. A capture goes before a window: for the windows it is a profiler of the script.
"""

from collections.abc import Callable, Mapping

from rankscope.agent.captures.trace_captures import TraceCaptures
from rankscope.agent.config import AgentConfig
from rankscope.agent.guard import Guard
from rankscope.agent.profiler.window_scheduler import WindowScheduler
from rankscope.agent.profiler.windows import ProfilerWindows
from rankscope.agent.steps.graph_captures import GraphCaptures
from rankscope.measure.identity import RankIdentity


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
        self.traces = TraceCaptures(config, identity, environment, guard, graphs) if has_captures else None
        """The captures; None without a folder for them, where the collector may not order any."""

    @property
    def inline_parts(self) -> list[WindowScheduler | TraceCaptures]:
        """What acts at step boundaries."""
        return [part for part in (self.windows.scheduler, self.traces) if part is not None]

    @property
    def spent_ns(self) -> int:
        """CPU time of both on the training thread so far."""
        return self.windows.spent_ns + (0 if self.traces is None else self.traces.training_ns)

    def on_boundary(self, step: int) -> None:
        """Begin or end what is due at the begin of this step."""
        self.windows.on_boundary(step)
        if self.traces is not None:
            self.traces.recording.on_boundary(step)

    def on_profiler(self, begins: bool) -> None:  # noqa: FBT001 - an event, not an option
        """Handle the begin or the end of a session of torch's profiler, on any thread: of the script, or a capture.
        Returns when a session of ours that is in its way is off.
        """
        if self.traces is not None:
            self.traces.recording.on_script_profiler(begins=begins)
        self.windows.on_user_profiler(begins)

    def close(self) -> None:
        """End what records, if this is its thread."""
        if self.traces is not None:
            self.traces.recording.close()
        self.windows.close()
