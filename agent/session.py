"""ASSEMBLY: builds and connects the parts of the agent in one rank, and stops them.

    training thread: TorchHooks -> StepTimer -> DeviceTimers (where there is a GPU) -> ring of StepRecords;
                     at boundaries WindowScheduler -> ring of RawWindows
    agent thread:    rings + samplers -> ReportBuilder -> ResendBuffer -> Sender, once every report_interval_s
    connect thread:  finds or starts the collector, then ends

Nothing here raises into the script or waits for the network. The exit of the process waits at most `drain_s` for
acknowledgements; if no collector was ever reached it waits only for a connection begun less than a second ago.
"""

import atexit
import contextlib
import os
import platform
import sys
import threading
from collections.abc import Callable, Mapping
from time import monotonic_ns
from types import TracebackType
from typing import TYPE_CHECKING

from rankscope.agent.agent_thread import AgentThread, Probes
from rankscope.agent.capture.stacks import find_raised_line
from rankscope.agent.collector_address import CollectorAddress, read_address
from rankscope.agent.config import AgentConfig
from rankscope.agent.guard import Guard, describe, log_line
from rankscope.agent.identity import read_identity
from rankscope.agent.once_per_node import log_once_per_node
from rankscope.agent.profiler.process_groups import GroupProgress
from rankscope.agent.profiler.torch_profiler import TorchProfiler, is_current_stream_capturing
from rankscope.agent.profiler.window_plan import WindowPlan
from rankscope.agent.profiler.window_scheduler import RawWindow, WindowScheduler
from rankscope.agent.report.builder import ScriptEnd
from rankscope.agent.sample.torch_device import TrainingDevice
from rankscope.agent.shutdown.gloo_drain import drain_gloo_threads
from rankscope.agent.shutdown.torch_call_gate import TorchCallGate
from rankscope.agent.steps.batch_size import UNKNOWN, BatchSize, to_size
from rankscope.agent.steps.device_timers import DeviceTimers, TimingPlan, find_cuda
from rankscope.agent.steps.event_buffer import PART as STEP_HOOKS
from rankscope.agent.steps.event_buffer import HookEventBuffer
from rankscope.agent.steps.graph_captures import GraphCaptures
from rankscope.agent.steps.open_ranges import OpenRanges
from rankscope.agent.steps.ring import Ring
from rankscope.agent.steps.step_boundaries import NextBoundary, StepBoundaries
from rankscope.agent.steps.step_timer import StepTimer
from rankscope.agent.steps.throughput import Throughput, ThroughputMeter, describe_throughput
from rankscope.agent.steps.torch_hooks import TorchHooks, torch_version
from rankscope.measure import __version__
from rankscope.measure.clock import SystemClock
from rankscope.measure.errors import RankscopeError
from rankscope.measure.messages import Hello
from rankscope.measure.records import StepRecord
from rankscope.measure.units import s_to_ns

if TYPE_CHECKING:
    from rankscope.agent.embedded import EmbeddedCollector

DEVICE = "device"
DEVICE_TIMES_SHARE = 0.2
"""Budget of device times as a share of `overhead_ratio_max`, in addition to it: 0.1 % of training by default."""
BATCH_SIZES = "batch_sizes"
RAW_WINDOWS_MAX = 4
"""Largest number of windows waiting for the agent thread; one of 50 steps holds up to about 1 MB."""


class Session:
    """The agent in one process, from start to stop. Create it with `Session.start`."""

    def __init__(self, config: AgentConfig, environment: Mapping[str, str]) -> None:
        self._config = config
        self._environment = environment
        self._pid = os.getpid()
        self._clock = SystemClock()
        self.identity = read_identity(environment, config.run, config.node)
        self._guard = Guard(config.error_budget, self._on_part_off)
        self._throughput = ThroughputMeter(config.warmup_steps)
        self._steps: Ring[StepRecord] = Ring(config.ring_steps_max)
        self._raw_windows: Ring[RawWindow] = Ring(RAW_WINDOWS_MAX)
        self._captures = GraphCaptures(is_current_stream_capturing)
        self._progress = GroupProgress(self.identity.world_size, self._captures, environment)
        self._plan = WindowPlan(
            warmup_steps=config.warmup_steps,
            collective_window_ns=s_to_ns(config.collective_window_s),
            full_window_interval_ns=s_to_ns(config.full_window_interval_s),
            full_window_steps=config.full_window_steps,
            overhead_ratio_max=config.overhead_ratio_max,
        )
        self._ranges = OpenRanges()
        self._windows = self._make_windows()
        timers = self._device_timers = self._make_device_timers()
        self._read_event_ns = monotonic_ns if timers is None else timers.read_event_ns
        self._boundaries = StepBoundaries([part for part in (self._windows, timers) if part is not None])
        self._timer = self._make_timer()
        self._hooks = TorchHooks(
            self._timer,
            self._guard,
            self._on_user_profiler,
            self._ranges,
            device_timers=timers,
            captures=self._captures,
            buffer=self._make_event_buffer(),
        )
        self._stopping = threading.Event()
        self._gate = TorchCallGate()
        self._device = TrainingDevice()
        probes = Probes(
            self._steps,
            self._raw_windows,
            self._windows,
            self._plan,
            self._hooks,
            self._progress,
            self._device,
            self._captures,
            timers,
            lambda: self._steps_made,
            self._boundaries,
        )
        self._reporter = AgentThread(
            config, self.identity, self._guard, probes, clock=self._clock, make_hello=self._make_hello
        )
        self._connecting = threading.Thread(target=self._connect, name="rankscope-connect", daemon=True)
        self._embedded: EmbeddedCollector | None = None
        self._end = ScriptEnd("finished")
        self._previous_excepthook = sys.excepthook
        self._evaluations = 0
        self._steps_made = 0
        self.is_running = False

    def _make_timer(self) -> StepTimer:
        timers = self._device_timers
        return StepTimer(
            self._on_record,
            self._on_boundary,
            self._on_pause,
            on_charge=None if timers is None else timers.on_charge,
            phases_max=self._config.phases_max,
            read_clock_ns=self._read_event_ns,
        )

    def _make_event_buffer(self) -> HookEventBuffer:
        timers = self._device_timers
        return HookEventBuffer(
            self._timer,
            self._guard,
            self._find_boundary,
            self._read_other_cost_ns,
            lambda: timers is None or timers.is_idle,
        )

    @classmethod
    def start(cls, config: AgentConfig, environment: Mapping[str, str]) -> "Session | None":
        """Start to measure this process; return None when it is disabled. Raise if a part cannot be started."""
        if not config.enabled:
            return None
        session = cls(config, environment)
        session._begin()
        return session

    # -- the user's calls ---------------------------------------------------------------------------------------------

    def end_step(self, samples: int | None, tokens: int | None) -> None:
        """Implement `rankscope.agent.step()`."""
        self._call(self._timer.end_step, self._to_size(samples, tokens))

    def set_batch_size(self, samples: int | None, tokens: int | None) -> None:
        """Implement `rankscope.agent.batch()`. Ignored in an evaluation, and while gradients are off."""
        if self._hooks.gradients_are_on() and not self._evaluations:
            self._call(self._timer.set_batch_size, self._to_size(samples, tokens))

    def begin_evaluation(self) -> None:
        """Begin `with rankscope.agent.evaluation():`. A nested one changes nothing."""
        self._evaluations += 1
        if self._evaluations == 1 and self.is_running:
            self._call(self._timer.evaluation_begin)
            self._hooks.pause()

    def end_evaluation(self) -> None:
        """End `with rankscope.agent.evaluation():`."""
        if not self._evaluations:  # it began before the agent was started
            return
        self._evaluations -= 1
        if not self._evaluations and self.is_running:
            self._hooks.resume()
            self._call(self._timer.evaluation_end)

    def use_explicit_steps(self) -> None:
        """End steps only at `end_step`, as a framework's callback calls it, until `resume_auto_steps`."""
        self._call(self._timer.begin_explicit_steps)

    def resume_auto_steps(self) -> None:
        """Detect steps again, after the framework's training has ended."""
        self._call(self._timer.end_explicit_steps)

    def find_throughput(self, last_steps: int | None) -> Throughput | None:
        """Implement `rankscope.agent.throughput()`."""
        try:
            self._hooks.catch_up()
            return self._throughput.find(last_steps)
        except Exception as error:  # noqa: BLE001 - no error of the agent may reach the training script
            self._guard.record("user_calls", error)
            return None

    def begin_phase(self, name: str) -> None:
        """Begin `with rankscope.agent.phase(name):`."""
        self._call(self._timer.phase_begin, name)

    def end_phase(self) -> None:
        """End `with rankscope.agent.phase(name):`."""
        self._call(self._timer.phase_end)

    def _to_size(self, samples: object, tokens: object) -> BatchSize:
        try:
            return to_size(samples, tokens)
        except Exception as error:  # noqa: BLE001 - objects of the user may fail in any way
            self._guard.record(BATCH_SIZES, error)
            return UNKNOWN

    def note_exit(self, code: object) -> None:
        """Record that the script ended by SystemExit; None and 0 mean success, text means 1, as for the interpreter."""
        status = code if isinstance(code, int) else int(code is not None)
        self._end = ScriptEnd("failed" if status else "finished", "SystemExit" if status else "", status)

    def note_error(self, error: BaseException) -> None:
        """Record that the script ended by an uncaught exception."""
        if os.getpid() == self._pid:
            interrupted = isinstance(error, KeyboardInterrupt)
            reason = "interrupted" if interrupted else "failed"
            self._end = ScriptEnd(reason, describe(error)[:512], 1, find_raised_line(error))

    def stop(self, reason: str | None = None) -> None:
        """Deliver the remaining reports and stop. Do nothing in a forked child and the second time."""
        if not self.is_running or os.getpid() != self._pid:
            return
        self.is_running = False
        self._hooks.remove()
        if sys.excepthook == self._note_exception:
            sys.excepthook = self._previous_excepthook
        self._finish_measuring()
        self._log_throughput()
        self._stopping.set()
        if self._config.collector:  # the address is known; the thread may not have run yet
            self._connecting.join(self._config.drain_s)
        self._reporter.stop(self._end if reason is None else ScriptEnd(reason))
        self._gate.shut(self._config.drain_s)
        drain_gloo_threads()
        if self._embedded is not None:
            self._embedded.wait(self._config.drain_s)
        atexit.unregister(self.stop)

    # -- begin and end ------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._hooks.install()
        self.is_running = True
        atexit.register(self.stop)
        os.register_at_fork(before=self._end_window, after_in_child=self._on_fork)
        sys.excepthook = self._note_exception
        self._reporter.start()
        self._connecting.start()

    def _make_hello(self, first_sequence: int) -> Hello:
        return Hello(
            identity=self.identity,
            first_sequence=first_sequence,
            host_ns=self._clock.monotonic_ns(),
            wall_ns=self._clock.wall_ns(),
            report_interval_ns=s_to_ns(self._config.report_interval_s),
            agent_version=__version__,
            python_version=platform.python_version(),
            torch_version=torch_version(),
        )

    def _finish_measuring(self) -> None:
        try:
            self._hooks.catch_up()
            self._timer.finish()
        except Exception as error:  # noqa: BLE001 - the process is ending; the rest is still delivered
            self._guard.record("stop", error)
        self._end_measurements()

    def _log_throughput(self) -> None:
        if not self._config.throughput_summary or self.identity.rank != 0:
            return
        try:
            text = describe_throughput(self._throughput, rank=self.identity.rank, world_size=self.identity.world_size)
            if text:
                log_line(text)
        except Exception as error:  # noqa: BLE001
            self._guard.record("stop", error)

    def _on_fork(self) -> None:
        """Stop measuring in a forked child, which has neither the threads nor the sockets."""
        self.is_running = False
        with contextlib.suppress(Exception):
            self._hooks.buffer.reset_lock()
            self._hooks.remove()

    def _note_exception(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self.note_error(error)
        self._previous_excepthook(kind, error, trace)

    # -- finding the collector ----------------------------------------------------------------------------------------

    def _connect(self) -> None:
        try:
            configured = read_address(self._config, self.identity.run)
            address = configured or self._find_embedded()
            if address is not None:
                self._reporter.connect(address, is_configured=configured is not None)
        except RankscopeError as error:
            log_line(f"{error}; training continues without it")
        except Exception as error:  # noqa: BLE001
            self._guard.record("connect", error)

    def _find_embedded(self) -> CollectorAddress | None:
        # Imported only if no collector is configured, and on this thread, to keep the start short.
        from rankscope.agent.embedded import EmbeddedCollector, Rendezvous  # noqa: PLC0415

        rendezvous = Rendezvous(self.identity, self._environment, self._stopping, self._gate)
        if self.identity.rank != 0:
            return rendezvous.find() if rendezvous.is_possible else None
        local_world = self._environment.get("LOCAL_WORLD_SIZE", "1")
        one_machine = local_world == str(self.identity.world_size)
        self._embedded = EmbeddedCollector.start(
            one_machine=one_machine,
            metrics_port=self._config.embedded_metrics_port,
            summary=self._config.embedded_summary,
        )
        log_line(
            f"watching run {self.identity.run!r}: {self._embedded.metrics_url}{self._embedded.describe_port_change()}"
        )
        here = self._embedded.address
        if rendezvous.is_possible and self.identity.world_size > 1:
            port = here.endpoint.rpartition(":")[2]
            rendezvous.publish(CollectorAddress(f"tcp://{rendezvous.master_address}:{port}", here.keys))
        return here

    # -- what the training thread calls -------------------------------------------------------------------------------

    def _make_device_timers(self) -> DeviceTimers | None:
        """Return None without any cost if torch has no GPU or device times are switched off."""
        cuda = find_cuda() if self._config.device_times else None
        if cuda is None:
            return None
        share = DEVICE_TIMES_SHARE * self._config.overhead_ratio_max
        plan = TimingPlan(warmup_steps=self._config.warmup_steps, overhead_ratio_max=share)
        return DeviceTimers(cuda, plan, self._guard, self._steps.append, captures=self._captures)

    def _make_windows(self) -> WindowScheduler | None:
        if not (self._config.collective_windows or self._config.full_windows):
            return None
        try:
            profiler = TorchProfiler.find(self._ranges)
        except RankscopeError as error:
            text = f"no profiler windows, so no collectives and no compute ratio: {error}"
            log_once_per_node(text, self._environment)
            return None
        return WindowScheduler(
            profiler,
            self._plan,
            self._guard,
            self._on_window,
            self._progress.read_enqueued,
            light=self._config.collective_windows,
            full=self._config.full_windows,
            is_capturing=self._captures.is_open,
            light_is_useful=lambda: self._progress.communicates_on_host or not profiler.sees_device,
            find_resident_bytes=lambda: self._reporter.find_resident_bytes(),  # noqa: PLW0108 - created later
        )

    def _on_record(self, record: StepRecord) -> None:
        self._steps_made += 1
        self._throughput.add(record)
        if self._device_timers is None:
            self._steps.append(record)
        else:
            self._device_timers.on_record(record)
        if self._windows is not None:
            self._windows.on_step(record)

    def _observe_device(self) -> None:
        if not self._guard.is_off(DEVICE):
            try:
                self._device.observe()
            except Exception as error:  # noqa: BLE001 - an unknown GPU must not lose steps
                self._guard.record(DEVICE, error)

    def _find_boundary(self, step: int) -> NextBoundary:
        self._observe_device()
        return self._boundaries.next_boundary(step)

    def _read_other_cost_ns(self) -> int:
        """Return the CPU time of windows and device times so far, which they measure themselves."""
        windows, timers = self._windows, self._device_timers
        spent_ns = 0 if windows is None else windows.full_spent_ns + windows.light_spent_ns
        return spent_ns if timers is None else spent_ns + timers.spent_ns

    def _on_boundary(self, step: int) -> None:
        if self._device_timers is not None:
            self._device_timers.on_boundary(step)
        if self._windows is not None:
            self._windows.on_boundary(step)

    def _end_window(self) -> None:
        if self._windows is not None:
            self._windows.close()

    def _on_pause(self) -> None:
        if self._device_timers is not None:
            self._device_timers.on_pause()
        self._end_window()

    def _end_measurements(self) -> None:
        if self._device_timers is not None:
            self._device_timers.close()
        self._end_window()

    def _on_part_off(self, part: str) -> None:
        """End running measurements: without hook events no boundary would end them or flush waiting records."""
        if part == STEP_HOOKS:
            self._end_measurements()

    def _on_window(self, window: RawWindow) -> bool:
        if len(self._raw_windows) >= RAW_WINDOWS_MAX:
            return False
        self._raw_windows.append(window)
        return True

    def _on_user_profiler(self, begins: bool) -> None:  # noqa: FBT001
        if self._windows is not None:
            self._windows.on_user_profiler(begins)

    def _call(self, event: Callable[..., None], *arguments: object) -> None:
        if self._guard.is_off("user_calls") or not self.is_running:
            return
        try:
            with self._hooks.buffer.flushed():
                event(self._read_event_ns(), *arguments)
        except Exception as error:  # noqa: BLE001
            self._guard.record("user_calls", error)
