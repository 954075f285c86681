"""The profiler windows of one rank on its training thread: their plan, their scheduler, and those that are finished."""

from collections.abc import Callable, Mapping
from typing import Final

from rankscope.agent.captures.script_files import ScriptFiles
from rankscope.agent.captures.thread_sampler import ThreadSampler
from rankscope.agent.captures.thread_sampler import find_obstacle as find_obstacle_to_samples
from rankscope.agent.config import ALWAYS, GOVERNED, MEASURED, OFF, ON_DEMAND, AgentConfig
from rankscope.agent.guard import Guard
from rankscope.agent.once_per_node import log_once_per_node
from rankscope.agent.profiler.line_sampler import LineSampler
from rankscope.agent.profiler.nccl_timing import (
    RING_ENTRIES,
    describe_timing,
    find_ring_entries,
    is_set_by_agent,
    is_timing,
)
from rankscope.agent.profiler.process_groups import GroupProgress
from rankscope.agent.profiler.torch_profiler import TorchProfiler
from rankscope.agent.profiler.window_effect import SLOWDOWN_MIN, EffectState, WindowEffect, describe_ratio
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


_FIRST_STATES: Final = {
    GOVERNED: EffectState.REFERENCE, ON_DEMAND: EffectState.ON_DEMAND, OFF: EffectState.ENDED
}  # fmt: skip


def make_effect(config: AgentConfig) -> WindowEffect | None:
    """Return what governs the windows of a device by the setting `device_windows`; None: nothing does."""
    if config.device_windows == ALWAYS:
        return None
    state = _FIRST_STATES[config.device_windows]
    slowdown_min = max(SLOWDOWN_MIN, config.overhead_ratio_max)
    return WindowEffect(warmup_steps=config.warmup_steps, slowdown_min=slowdown_min, state=state)


def make_comparison(config: AgentConfig) -> WindowEffect:
    """Return what compares steps with those before something that is no window of the device."""
    return WindowEffect(warmup_steps=config.warmup_steps, slowdown_min=max(SLOWDOWN_MIN, config.overhead_ratio_max))


def describe_effect(effect: WindowEffect) -> str:
    """Return what was seen of windows that have ended, in a line for the log, and what can be done.

    >>> effect = WindowEffect(warmup_steps=4)
    >>> effect.attached_ratio, effect.detached_ratio = 0.336, -0.002
    >>> describe_effect(effect).partition(": ")[2].partition(". Compute")[0]  # doctest: +NORMALIZE_WHITESPACE
    'after the first one steps were 34 % longer than before it. Since CUPTI was detached they have been as long as
    before it'
    """
    slower = f"after the first one steps were {describe_ratio(effect.attached_ratio or 0.0)}"
    if effect.detached_ratio is None:
        since = (
            "Whether the profiler library that it has loaded (CUPTI on NVIDIA) is the cause could not be tested, and "
            "it stays loaded until the process ends"
        )
    else:
        since = f"Since CUPTI was detached they have been {describe_ratio(effect.detached_ratio)}"
    return (
        f"this rank takes no more full profiler windows: {slower}. {since}. Compute, communication and idle ratios are "
        "absent from now on. RANKSCOPE_DEVICE_WINDOWS=always keeps the windows, on_demand has ratios of captured steps "
        "only, off never begins a window (docs/cost.md)"
    )


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
        self.ranges.collectives.has_gloo = lambda: self.progress.has_gloo
        self.finished: Ring[RawWindow] = Ring(RAW_WINDOWS_MAX)
        """Finished windows, for the agent thread."""
        # With `measured`, nothing is read before torch times collectives: the reading would explain longer steps too.
        is_measured_first = config.nccl_timing == MEASURED and not is_timing(environment)
        is_recorder_read = config.nccl_timing != OFF and not is_measured_first
        self.progress = GroupProgress(identity.world_size, captures, environment if is_recorder_read else None)
        self.ring_entries = find_ring_entries(environment) or RING_ENTRIES
        """Entries of torch's flight recorder."""
        self.timing_is_ours = is_set_by_agent(environment)
        """Whether torch times collectives because of the agent."""
        self.timed_from_step = 0
        """The first step whose collectives have durations that may be read, 0 if all have (`measured_timing.py`)."""
        self.plan = WindowPlan(
            warmup_steps=config.warmup_steps,
            collective_window_ns=s_to_ns(config.collective_window_s),
            full_window_interval_ns=s_to_ns(config.full_window_interval_s),
            full_window_steps=config.full_window_steps,
            overhead_ratio_max=config.overhead_ratio_max,
        )
        self.graphs_seen: bool | None = None
        """Whether a window had the launch of a CUDA graph; None before the first that had a device's work."""
        self.effect = make_effect(config)
        """None if windows of a device are to be there however much longer steps are."""
        self._captures = captures
        self._environment = environment
        self._has_logged_effect = self._has_logged_timing = False
        self._profiler = profiler = self._find_profiler(config, environment)
        self.measures_flops = config.measure_flops
        self.scheduler: WindowScheduler | None = None
        """None if there are no windows."""
        self.files = ScriptFiles(environment)
        self.sampler = self._make_sampler(guard) if config.line_samples else None
        """What looks where threads are; None if it is switched off, or frames cannot be read."""
        self._samples_windows = False
        if profiler is not None:
            self._samples_windows = profiler.knows_devices and config.full_windows
            self.scheduler = WindowScheduler(
                profiler,
                self.plan,
                guard,
                self._keep,
                self.progress.read_enqueued,
                light=config.collective_windows,
                full=config.full_windows,
                is_capturing=captures.is_open,
                light_is_useful=lambda: (
                    self.ranges.collectives.may_be_recorded
                    and (self.progress.communicates_on_host or not profiler.sees_device)
                ),
                find_resident_bytes=find_resident_bytes,
                effect=self.effect if profiler.knows_devices else None,
                may_detach=self._may_detach,
                first_graph=captures.first_graph,
                sampler=(
                    LineSampler(self.sampler, self.files)
                    if self._samples_windows and self.sampler is not None
                    else None
                ),
                flops_interval_ns=s_to_ns(config.flops_interval_s) if config.measure_flops else None,
                operators_effect=make_comparison(config),
                has_graphs=lambda: captures.begun > 0 or bool(self.graphs_seen),
            )

    def start_sampler(self) -> None:
        """Start the thread that finds source lines, if windows may want it: a window does not wait for its start."""
        if self.sampler is not None and self._samples_windows:
            self.sampler.start()

    def close_sampler(self) -> None:
        """End that thread."""
        if self.sampler is not None:
            self.sampler.close()

    def find_effect(self) -> WindowEffect | None:
        """Return what governs the windows of the device in use; None where nothing does, and without one: windows of a
        CPU go on whatever `device_windows` says.
        """
        has_device = self._profiler is not None and self._profiler.sees_device
        return self.effect if has_device else None

    @property
    def reduces_captures(self) -> bool:
        """Whether the ratios of the device in use come from captures."""
        effect = self.find_effect()
        return effect is not None and effect.state is EffectState.ON_DEMAND

    def log_effect(self) -> None:
        """Log once on each node that the windows of a GPU have ended, if steps were longer. For the agent thread."""
        effect = self.effect
        if effect is None or self._has_logged_effect or effect.state is not EffectState.ENDED:
            return
        self._has_logged_effect = True
        if effect.attached_ratio is not None:
            log_once_per_node(describe_effect(effect), self._environment, topic="device_windows")

    def log_timing(self) -> None:
        """Log once on each node that collectives are timed, and what it costs, or that they are not, and what is read
        instead. For the agent thread.
        """
        if not self._has_logged_timing:
            self._has_logged_timing = True
            log_once_per_node(describe_timing(self._environment), self._environment, topic="nccl_timing")

    def _may_detach(self) -> bool | None:
        """Return whether CUPTI may be detached: not where the process has a CUDA graph, since that ends in a crash.
        None: no window has been read yet that would show graphs which torch does not know of.
        """
        if self._captures.begun or self._profiler is None or not self._profiler.can_detach:
            return False
        return None if self.graphs_seen is None else not self.graphs_seen

    def _find_profiler(self, config: AgentConfig, environment: Mapping[str, str]) -> TorchProfiler | None:
        if not (config.collective_windows or config.full_windows):
            return None
        try:
            return TorchProfiler.find(self.ranges, self._captures.run_between)
        except RankscopeError as error:
            text = f"no profiler windows, so no collectives and no compute ratio: {error}"
            log_once_per_node(text, environment)
            return None

    def _make_sampler(self, guard: Guard) -> ThreadSampler | None:
        obstacle = find_obstacle_to_samples()
        if obstacle:
            log_once_per_node(f"no source lines: {obstacle}", self._environment)
            return None
        return ThreadSampler(guard)

    def _keep(self, window: RawWindow) -> bool:
        if len(self.finished) >= RAW_WINDOWS_MAX:
            return False
        self.finished.append(window)
        return True

    @property
    def open_from_step(self) -> int | None:
        """The first step of the window that is running or being passed on, if any of its steps has ended."""
        return None if self.scheduler is None else self.scheduler.open_from_step

    def records_hosts(self) -> bool:
        """Return whether a window is open in a process that communicates on the host."""
        return self.scheduler is not None and self.scheduler.thread is not None and self.progress.communicates_on_host

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

    @property
    def user_profiler_is_on(self) -> bool:
        """Whether a profiler of the user or a capture records, on any thread; False without windows."""
        return self.scheduler is not None and self.scheduler.user_profiler_is_on

    def on_user_profiler(self, begins: bool) -> None:  # noqa: FBT001 - an event, not an option
        """Handle the begin or the end of the user's profiler, on any thread. Return when ours is off."""
        if self.scheduler is not None:
            self.scheduler.on_user_profiler(begins)

    def close(self, *, must_end: bool = False) -> None:
        """End the running window, if this is its thread, and pass it on."""
        if self.scheduler is not None:
            self.scheduler.close(must_end=must_end)
