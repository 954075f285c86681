"""Assembles what runs on the training thread.

    TorchHooks -> HookEventBuffer -> StepTimer -> DeviceTimers (where there is a GPU) -> ring of step records
    at boundaries ProfilerWindows -> ring of finished windows

The agent thread drains the two rings. Nothing here raises into the script or waits for the network.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Mapping
from threading import get_ident
from typing import TYPE_CHECKING, Any

from rankscope.agent.captures.worker_page import WorkerPage
from rankscope.agent.config import NO, AgentConfig
from rankscope.agent.guard import Guard
from rankscope.agent.late_imports import LATE_IMPORTS
from rankscope.agent.profiler.sessions import ProfilerSessions
from rankscope.agent.sample.torch_device import TrainingDevice, find_cuda, is_current_stream_capturing
from rankscope.agent.steps import event_buffer, host_transfers, saves
from rankscope.agent.steps.backward_clock import BackwardClock
from rankscope.agent.steps.early_events import SETTLED_STEPS
from rankscope.agent.steps.graph_captures import GraphCaptures
from rankscope.agent.steps.host_transfers import HostTransfers
from rankscope.agent.steps.ring import Ring
from rankscope.agent.steps.saves import Saves
from rankscope.agent.steps.step_boundaries import FaultPart, NextBoundary, StepBoundaries
from rankscope.agent.steps.step_timer import StepTimer
from rankscope.agent.steps.throughput import ThroughputMeter
from rankscope.agent.steps.torch_hooks import TorchHooks
from rankscope.measure.identity import RankIdentity
from rankscope.measure.records import LayerTimes, PipelineSchedule, StepRecord
from rankscope.measure.units import NS_PER_MS

if TYPE_CHECKING:
    from rankscope.agent.captures.trace_captures import TraceCaptures
    from rankscope.agent.steps.backward_ends import BackwardEnds
    from rankscope.agent.steps.device_timers import DeviceTimers
    from rankscope.agent.steps.layer_timers import LayerTimers
    from rankscope.agent.steps.pipeline_schedules import PipelineSchedules

DEVICE = "device"
DEVICE_TIMES_SHARE = 0.2
"""Budget of device times as a share of `overhead_ratio_max`, in addition to it: 0.1 % of training by default."""
PIPELINES = {"torch.distributed.pipelining.schedules", "megatron.core.parallel_state"}
COUNTS_MAX = 8
"""Attempts at a consistent count of step records, which fails while the training thread moves one between places."""
LAYERS_SOUGHT = (1, 1024)
"""Steps after the warm-up from which on repeated blocks are looked for: each time costs as much as several windows."""
LAYERS_COST_NS = 80 * NS_PER_MS
"""Cost of looking for them, twice what was measured: the budget since the start pays for it, not its head start, which
is for windows. At the default that is after 16 s."""


class TrainingThread:
    """What runs on the training thread of one process.

    `find_resident_bytes` returns the resident memory of the process, None if it cannot be read. `on_step` is called
    with each finished step, in order. `fault` is what this rank does to itself on purpose.
    """

    def __init__(
        self,
        config: AgentConfig,
        identity: RankIdentity,
        environment: Mapping[str, str],
        guard: Guard,
        device: TrainingDevice,
        *,
        find_resident_bytes: Callable[[], int | None],
        on_step: Callable[[StepRecord], object] = lambda _record: None,
        fault: FaultPart | None = None,
    ) -> None:
        self._config = config
        self._guard = guard
        self.device = device
        self._on_step = on_step
        self._fault = fault
        self._records_made = 0
        self._thread = self._settled_from_step = 0
        self.is_measured = False
        """Whether the hooks are installed, in this process."""
        self.throughput = ThroughputMeter(config.warmup_steps)
        self.steps: Ring[StepRecord] = Ring(config.ring_steps_max)
        """The finished step records, for the agent thread."""
        self.captures = GraphCaptures(is_current_stream_capturing, NO if find_cuda() is None else config.cuda_graphs)
        self.sessions = ProfilerSessions(
            config, identity, environment, guard, self.captures, find_resident_bytes=find_resident_bytes
        )
        self.windows = self.sessions.windows
        self.device_timers = self._make_device_timers()
        """None if torch has no GPU, or device times are switched off."""
        self.read_event_ns = time.monotonic_ns if self.device_timers is None else self.device_timers.read_event_ns
        self.sessions.inline_parts += [part for part in (self.device_timers, fault) if part is not None]
        self._timers: list[Any] = [] if self.device_timers is None else [self.device_timers]
        self._boundaries = StepBoundaries(self.sessions.inline_parts)
        # A thread that waits for a GPU may spin, and then its CPU time says nothing.
        self._backward_clock = BackwardClock() if self.device_timers is None else None
        self.timer = self._make_timer()
        self.backward_ends = self._make_backward_ends()
        """None where no window would have them."""
        self.hooks = TorchHooks(
            self.timer,
            guard,
            self.sessions.on_profiler,
            self.windows.ranges,
            device_timers=self.device_timers,
            backward_ends=self.backward_ends,
            captures=self.captures,
            buffer=self._make_event_buffer(),
            on_move=self._on_move,
            backward_clock=self._backward_clock,
        )
        self.workers = self._make_worker_page()
        """How workers of data loaders learn of orders; None where nothing is sampled."""
        self.transfers = HostTransfers(guard, lambda: self.hooks.buffer.thread)
        is_user = self.windows.sampling.files.is_user
        self.saves = Saves(guard, self.hooks.buffer, self.timer.user, is_user, self.read_event_ns)
        self._pipelines: PipelineSchedules | None = None
        self._layers: LayerTimers | None = None
        self._looks_at_steps = [config.warmup_steps + step for step in LAYERS_SOUGHT if config.layer_times]
        guard.on_off = self._on_part_off

    @property
    def traces(self) -> "TraceCaptures | None":
        """The captures; None before the first order, where there is no folder for them."""
        return self.sessions.traces

    @property
    def spent_ns(self) -> int:
        """The cost of the hooks to the training thread so far. Only one other thread may ask."""
        clock_ns = 0 if self._backward_clock is None else self._backward_clock.spent_ns
        ends_ns = 0 if self.backward_ends is None else self.backward_ends.spent_ns
        layers_ns = 0 if self._layers is None else self._layers.spent_ns
        parts_ns = ends_ns + clock_ns + layers_ns + self.transfers.spent_ns + self.saves.spent_ns
        return self.hooks.buffer.spent_ns + parts_ns

    def start(self) -> None:
        """Begin to measure."""
        if self._fault is not None:
            self._fault.install_inside(lambda: self.hooks.buffer.thread)
        self.hooks.install()
        if self._fault is not None:
            self._fault.install_outside()
        self.transfers.install()
        self.saves.install()
        if self.workers is not None:
            self.workers.install()
        self.is_measured = True

    def stop(self) -> None:
        """Finish the last step, and stop measuring."""
        self.is_measured = False
        if self._fault is not None:
            self._fault.remove_outside()
        self.hooks.remove()
        if self._fault is not None:
            self._fault.remove_inside()
        try:
            self.hooks.catch_up()
            self.timer.finish()
        except BaseException as error:  # noqa: BLE001 - the process is ending; the rest is still delivered
            self._guard.record("stop", error)
        self._end_measurements()
        self.transfers.remove()
        self.saves.remove()
        if self.workers is not None:
            self.workers.remove()

    def stop_in_child(self) -> None:
        """Stop measuring in a forked child, which has neither the threads nor the sockets."""
        self.is_measured = False
        with contextlib.suppress(Exception):
            self.hooks.buffer.reset_lock()
            self.hooks.remove()
            self.transfers.remove()
            self.saves.remove()

    def _on_part_off(self, part: str) -> None:
        """End running measurements: without hook events no boundary would end them or flush waiting records."""
        if part == event_buffer.PART:
            self._end_measurements()
        if part == host_transfers.PART:
            self.transfers.remove()
        if part == saves.PART:
            self.saves.remove()

    # -- for the agent thread -----------------------------------------------------------------------------------------

    def count_events(self) -> int | None:
        """Return the number of hook events so far; None when the hooks are switched off."""
        return None if self._guard.is_off(event_buffer.PART) else self.hooks.event_count

    def read_pipeline(self) -> PipelineSchedule | None:
        """Return the pipeline that torch's schedules or Megatron announce; None without one."""
        if self._pipelines is None and self.is_measured and sys.modules.keys() & PIPELINES:
            with LATE_IMPORTS:
                from rankscope.agent.steps.pipeline_schedules import PipelineSchedules  # noqa: PLC0415 - see above
            self._pipelines = PipelineSchedules(self._guard)
        return None if self._pipelines is None else self._pipelines.read(is_last=not self.is_measured)

    def read_layers(self) -> LayerTimes | None:
        """Return the times of the model's repeated blocks, where they are new; None else."""
        try:
            layers, at = self._layers, self._looks_at_steps
            budget_ns = self._config.overhead_ratio_max * self.windows.plan.allowance.elapsed_ns
            is_due = at and self._records_made >= at[0] and budget_ns >= LAYERS_COST_NS
            if is_due and self.is_measured and (layers is None or layers.is_gone):
                del at[0]
                self._find_layers()
            return None if self._layers is None else self._layers.take(is_last=not self.is_measured)
        except Exception as error:  # noqa: BLE001 - modules are the script's and torch's
            self._guard.record("layer_times", error)
            return None

    def _find_layers(self) -> None:
        with LATE_IMPORTS:
            from rankscope.agent.steps.module_containers import find_containers  # noqa: PLC0415 - after the first steps
        if containers := find_containers():
            with LATE_IMPORTS:
                from rankscope.agent.steps.layer_timers import make_layer_timers  # noqa: PLC0415 - such models only
            if found := make_layer_timers(containers, self._config, self._guard, self.hooks.buffer, self.captures):
                if self._layers is not None:
                    self._layers.close()  # blocks that are still there may have hooks
                    found.spent_ns += self._layers.spent_ns
                for parts in (self._timers, self.sessions.inline_parts):
                    parts[:] = [*(one for one in parts if one is not self._layers), found]
                self._layers = found

    def learn_step_time(self, step_ns: int, step: int) -> None:
        """Set the present step time, as of this step. How often steps are measured more closely follows from it."""
        self.windows.plan.learn_step(step_ns, step)
        self._boundaries.learn_step(step_ns)
        for timers in self._timers:
            timers.plan.learn_step(step_ns)

    def count_records(self, reported: int) -> tuple[int, int, int]:
        """Return consistent counts of records made, overwritten and buffered: made = reported + the other two."""
        made = overwritten = buffered = 0
        for _ in range(COUNTS_MAX):
            made, overwritten = self._records_made, self.steps.overwritten
            buffered = len(self.steps) + (0 if self.device_timers is None else self.device_timers.records_waiting)
            if made == reported + overwritten + buffered:
                break
            time.sleep(0)  # let the training thread run first
        return made, overwritten, buffered

    # -- step records -------------------------------------------------------------------------------------------------

    def _make_worker_page(self) -> WorkerPage | None:
        if not self.windows.sampling.obstacle:
            with contextlib.suppress(OSError):  # no memory
                return WorkerPage(self.windows.sampling)
        return None

    def _make_timer(self) -> StepTimer:
        timers = self.device_timers
        return StepTimer(
            self._on_record,
            self._on_boundary,
            self._on_pause,
            on_charge=None if timers is None else timers.on_charge,
            phases_max=self._config.phases_max,
            read_clock_ns=self.read_event_ns,
        )

    def _make_event_buffer(self) -> event_buffer.HookEventBuffer:
        timers = self.device_timers
        return event_buffer.HookEventBuffer(
            self.timer,
            self._guard,
            self._find_boundary,
            self._read_other_cost_ns,
            lambda: timers is None or timers.is_idle,
        )

    def _make_backward_ends(self) -> "BackwardEnds | None":
        if self.windows.scheduler is None or self.device_timers is not None:
            return None
        from rankscope.agent.steps.backward_ends import BackwardEnds  # noqa: PLC0415 - only with windows

        return BackwardEnds(self._guard, is_recording=self.windows.records_hosts)

    def _make_device_timers(self) -> "DeviceTimers | None":
        """Return None without any cost if torch has no GPU or device times are switched off."""
        cuda = find_cuda() if self._config.device_times else None
        if cuda is None:
            return None
        from rankscope.agent.profiler.process_groups import has_peers  # noqa: PLC0415 - only with a device
        from rankscope.agent.steps.device_timers import DeviceTimers  # noqa: PLC0415
        from rankscope.agent.steps.timing_plan import TimingPlan  # noqa: PLC0415

        share = DEVICE_TIMES_SHARE * self._config.overhead_ratio_max
        plan = TimingPlan(warmup_steps=self._config.warmup_steps, overhead_ratio_max=share)
        return DeviceTimers(cuda, plan, self._guard, self.steps.append, captures=self.captures, has_peers=has_peers)

    def _on_record(self, record: StepRecord) -> None:
        self._records_made += 1
        self.throughput.add(record)
        self._on_step(record)
        if self._backward_clock is not None:
            self._backward_clock.learn_step(record.duration_ns, record.backwards)
        if self.device_timers is None:
            self.steps.append(record)
        else:
            self.device_timers.on_record(record)
        self.sessions.on_step(record)

    # -- step boundaries ----------------------------------------------------------------------------------------------

    def _find_boundary(self, step: int) -> NextBoundary:
        self._observe_device()
        return self._boundaries.next_boundary(step)

    def _observe_device(self) -> None:
        if not self._guard.is_off(DEVICE):
            try:
                self.device.observe()
            except BaseException as error:  # noqa: BLE001 - an unknown GPU must not lose steps
                self._guard.record(DEVICE, error)

    def _read_other_cost_ns(self) -> int:
        """Return the CPU time of windows and device times so far, which they measure themselves."""
        return self.sessions.spent_ns + sum(int(timers.spent_ns) for timers in self._timers)

    def _on_boundary(self, step: int) -> None:
        for timers in self._timers:
            timers.on_boundary(step)
        self.windows.tensors = self.hooks.tensors
        self.sessions.on_boundary(step, is_settled=self._has_settled(step))
        if self._fault is not None:
            self._fault.on_boundary(step)

    def _has_settled(self, step: int) -> bool:
        """Return whether the boundaries have been on this thread long enough: a session ends on the thread on which it
        begins, and a training that goes from thread to thread may not come back to it.
        """
        thread = get_ident()
        if thread != self._thread:
            self._settled_from_step = step + SETTLED_STEPS if self._thread else step
            self._thread = thread
        return step >= self._settled_from_step

    def _on_move(self) -> None:
        """Another thread trains now: what records on the one before has nothing of the steps that follow."""
        self._settled_from_step = self.timer.step + SETTLED_STEPS
        self.sessions.leave()

    def _on_pause(self) -> None:
        for timers in self._timers:
            timers.on_pause()
        self.sessions.close()

    def _end_measurements(self) -> None:
        for timers in self._timers:
            timers.close()
        self.sessions.stop()
