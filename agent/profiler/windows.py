"""The profiler windows of one rank on its training thread: their plan, their scheduler, and those that are finished.

What begins and ends windows is imported at the start, where there are to be windows, and else not at all.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from rankscope.agent.captures.sampling import Sampling
from rankscope.agent.config import MEASURED, OFF, AgentConfig
from rankscope.agent.guard import Guard
from rankscope.agent.once_per_node import log_once_per_node
from rankscope.agent.profiler.nccl_timing import (
    RING_ENTRIES,
    describe_timing,
    find_ring_entries,
    is_set_by_agent,
    is_timing,
)
from rankscope.agent.profiler.process_groups import GroupProgress
from rankscope.agent.profiler.window_plan import WindowPlan
from rankscope.agent.steps.graph_captures import GraphCaptures
from rankscope.agent.steps.open_ranges import OpenRanges
from rankscope.agent.steps.ring import Ring
from rankscope.measure.errors import RankscopeError
from rankscope.measure.identity import RankIdentity
from rankscope.measure.records import StepRecord
from rankscope.measure.units import s_to_ns

if TYPE_CHECKING:
    from rankscope.agent.profiler.line_sampler import LineSampler
    from rankscope.agent.profiler.torch_profiler import TorchProfiler
    from rankscope.agent.profiler.window_effect import WindowEffect
    from rankscope.agent.profiler.window_kinds import WindowKind
    from rankscope.agent.profiler.window_scheduler import RawWindow, WindowScheduler

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
            events_max=config.window_events_max,
        )
        self.tensors = 0
        """Tensors that an optimizer of the script updates in a step; 0: not known."""
        self.graphs_seen: bool | None = None
        """Whether a window had the launch of a CUDA graph; None before the first that had a device's work."""
        self.effect: WindowEffect | None = None
        """None if windows of a device are to be there however much longer steps are, and where there are none."""
        self._captures = captures
        self._find_resident_bytes = find_resident_bytes
        self._environment = environment
        self._has_logged_effect = self._has_logged_timing = False
        self.measures_flops = config.measure_flops
        self.sampling = Sampling(environment, guard, is_wanted=config.line_samples)
        """What looks where threads are."""
        if self.sampling.interpreter_obstacle:
            log_once_per_node(f"no source lines: {self.sampling.interpreter_obstacle}", environment)
        self._samples_windows = False
        self._profiler: TorchProfiler | None = None
        self.scheduler: WindowScheduler | None = None
        """None if there are no windows."""
        if config.collective_windows or config.full_windows:
            self._begin_windows(config, guard)

    def _begin_windows(self, config: AgentConfig, guard: Guard) -> None:
        """Import and make what begins and ends windows, if torch has a profiler that they can use."""
        from rankscope.agent.profiler.device_gate import DeviceGate  # noqa: PLC0415 - see above
        from rankscope.agent.profiler.flops_windows import FlopsWindows  # noqa: PLC0415 - see above
        from rankscope.agent.profiler.step_size import StepSize  # noqa: PLC0415 - see above
        from rankscope.agent.profiler.window_scheduler import WindowScheduler  # noqa: PLC0415 - see above

        self._profiler = profiler = self._find_profiler()
        if profiler is None:
            return
        has_flops = config.measure_flops and config.full_windows
        flops = FlopsWindows(s_to_ns(config.flops_interval_s), self.plan) if has_flops else None
        operators = None
        if profiler.knows_devices:
            from rankscope.agent.profiler.effect_settings import make_comparison, make_effect  # noqa: PLC0415 - as above
            from rankscope.agent.profiler.operator_gate import OperatorGate  # noqa: PLC0415 - as above

            self.effect, own_effect = make_effect(config), make_comparison(config)
            operators = OperatorGate(profiler, self.plan, flops, self, device_effect=self.effect, own_effect=own_effect)
        self._samples_windows = profiler.knows_devices and config.full_windows
        self.scheduler = WindowScheduler(
            profiler,
            self.plan,
            guard,
            self,
            devices=DeviceGate(profiler, self.plan, self.effect, self, first_graph=self._captures.first_graph),
            operators=operators,
            gates=(self,),
            flops=flops,
            sampler=self._make_line_sampler() if self._samples_windows else None,
            size=StepSize(profiler.count_nodes, lambda: self.tensors),
            light=config.collective_windows,
            full=config.full_windows,
        )

    # -- for the scheduler and its gates, on the training thread ------------------------------------------------------

    def may_begin(self, _step: int, kind: "WindowKind") -> str | None:
        """Return that a light window is of no use, where it is not, or that a range of C++ is in the way; that
        is not counted. Where all communication is on a device, its backend's ranges only span the enqueueing.
        """
        if not self.ranges.may_begin:
            return ""
        if kind.value != "light" or self._profiler is None:
            return None
        is_useful = self.progress.communicates_on_host or not self._profiler.sees_device
        return None if is_useful and self.ranges.collectives.may_be_recorded else ""

    def keep(self, window: "RawWindow") -> bool:
        """Keep a finished window for the agent thread; return False if there is no room for it."""
        if len(self.finished) >= RAW_WINDOWS_MAX:
            return False
        self.finished.append(window)
        return True

    def read_enqueued(self) -> dict[int, int]:
        """Return the sequence number of the last collective of each process group."""
        return self.progress.read_enqueued()

    def find_resident_bytes(self) -> int | None:
        """Return the resident memory of the process; None: not known."""
        return self._find_resident_bytes()

    def is_capturing(self) -> bool:
        """Return whether a CUDA graph is being captured."""
        return self._captures.is_open()

    def may_detach(self) -> bool | None:
        """Return whether CUPTI may be detached: not where the process has a CUDA graph, since that ends in a crash.
        None: no window has been read yet that would show graphs which torch does not know of.
        """
        if self._captures.begun or self._profiler is None or not self._profiler.can_detach:
            return False
        return None if self.graphs_seen is None else not self.graphs_seen

    def has_graphs(self) -> bool:
        """Return whether the process has a CUDA graph, as far as is known."""
        return self._captures.begun > 0 or bool(self.graphs_seen)

    # -----------------------------------------------------------------------------------------------------------------

    def _make_line_sampler(self) -> "LineSampler | None":
        sampler = self.sampling.find_sampler()
        if sampler is None:
            return None
        from rankscope.agent.profiler.line_sampler import LineSampler  # noqa: PLC0415 - see above

        return LineSampler(sampler, self.sampling.files)

    def start_sampler(self) -> None:
        """Start the thread that finds source lines, if windows may want it: a window does not wait for its start."""
        sampler = self.sampling.find_sampler() if self._samples_windows else None
        if sampler is not None:
            sampler.start()

    def find_effect(self) -> "WindowEffect | None":
        """Return what governs the windows of the device in use; None where nothing does, and without one: windows of a
        CPU go on whatever `device_windows` says.
        """
        has_device = self._profiler is not None and self._profiler.sees_device
        return self.effect if has_device else None

    @property
    def reduces_captures(self) -> bool:
        """Whether the ratios of the device in use come from captures."""
        effect = self.find_effect()
        return effect is not None and effect.is_on_demand

    def log_effect(self) -> None:
        """Log once on each node that the windows of a GPU have ended, if steps were longer. For the agent thread."""
        effect = self.effect
        if effect is None or self._has_logged_effect or not effect.has_ended:
            return
        self._has_logged_effect = True
        if effect.attached_ratio is not None:
            from rankscope.agent.profiler.effect_settings import describe_effect  # noqa: PLC0415 - imported by now

            log_once_per_node(describe_effect(effect), self._environment, topic="device_windows")

    def log_timing(self) -> None:
        """Log once on each node that collectives are timed, and what it costs, or that they are not, and what is read
        instead. For the agent thread.
        """
        if not self._has_logged_timing:
            self._has_logged_timing = True
            log_once_per_node(describe_timing(self._environment), self._environment, topic="nccl_timing")

    def _find_profiler(self) -> "TorchProfiler | None":
        from rankscope.agent.profiler.torch_profiler import TorchProfiler  # noqa: PLC0415 - see above

        try:
            return TorchProfiler.find(self.ranges, self._captures.run_between)
        except RankscopeError as error:
            text = f"no profiler windows, so no collectives and no compute ratio: {error}"
            log_once_per_node(text, self._environment)
            return None

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
