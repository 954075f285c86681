"""Runs the agent thread, which builds a report from hooks and samplers every interval and sends it.

Until a collector is found, reports wait in the bounded resend buffer.
"""

import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from rankscope.agent.agent_overhead import AgentOverhead
from rankscope.agent.collector_address import CollectorAddress
from rankscope.agent.config import AgentConfig
from rankscope.agent.guard import Guard, log_line
from rankscope.agent.once_per_node import log_once_per_node
from rankscope.agent.profiler.malloc_trim import MallocTrim, find_malloc_trim
from rankscope.agent.profiler.process_groups import GroupProgress
from rankscope.agent.profiler.reduced_window import EMPTY_WINDOW, ReducedWindow
from rankscope.agent.profiler.timed_collectives import TimedCollectives
from rankscope.agent.profiler.window_plan import WindowPlan
from rankscope.agent.profiler.window_scheduler import PART as WINDOWS
from rankscope.agent.profiler.window_scheduler import RawWindow, WindowScheduler
from rankscope.agent.report.builder import Interval, ReportBuilder, ScriptEnd
from rankscope.agent.report.collector_notices import CollectorNotices, Delivered
from rankscope.agent.report.sender import Sender
from rankscope.agent.report.spill import Spill
from rankscope.agent.sample.host import GcMeter, HostSampler
from rankscope.agent.sample.loop import SampleLoop
from rankscope.agent.sample.nvml import NvmlSampler
from rankscope.agent.sample.torch_device import TrainingDevice, is_built_for_amd
from rankscope.agent.sample.torch_memory import TorchMemorySampler
from rankscope.agent.steps.device_timers import DeviceTimers, find_cuda
from rankscope.agent.steps.event_buffer import PART as STEP_HOOKS
from rankscope.agent.steps.graph_captures import GraphCaptures
from rankscope.agent.steps.ring import Ring
from rankscope.agent.steps.step_boundaries import StepBoundaries
from rankscope.agent.steps.stepless import SteplessNotice
from rankscope.agent.steps.torch_hooks import TorchHooks
from rankscope.agent.watchdog import Watchdog
from rankscope.measure.clock import Clock
from rankscope.measure.codec import encode
from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import Hello, Message
from rankscope.measure.records import GroupInfo, Losses, StepRecord
from rankscope.measure.units import s_to_ns
from rankscope.uplink.delivery import Delivery
from rankscope.uplink.reconnect import draw_first_delay_ns
from rankscope.uplink.resend_buffer import ResendBuffer

if TYPE_CHECKING:
    from rankscope.agent.profiler.window_reduction import WindowReduction
    from rankscope.agent.sample.amd import AmdSampler

PART = "agent_thread"
GROUPS = "groups"
SPILL = "spill"
DEMANDS = "collector_demands"
"""Name in the losses of requests that the collector made too often and that were ignored."""
STEP_TIMES_KEPT = 64
STEPS_MIN = 4
IDLE_WAIT_S = 0.5
RARE_REPORTS_TIMES = 4
RARE_REPORTS_S_MAX = 4.0
"""Longest interval of rarer reports. Each report writes a heartbeat: after 10 s without one the sidecar considers the
rank frozen, and after 15 s the collector considers it silent by default."""
COUNTS_MAX = 8
"""Attempts at a consistent count of step records, which fails while the training thread moves one between places."""


class Probes(NamedTuple):
    """The sources of measurements that the training thread fills."""

    steps: Ring[StepRecord]
    raw_windows: Ring[RawWindow]
    windows: WindowScheduler | None
    plan: WindowPlan
    hooks: TorchHooks
    progress: GroupProgress
    device: TrainingDevice
    captures: GraphCaptures
    device_timers: DeviceTimers | None = None
    read_steps_made: Callable[[], int] = lambda: 0
    """Returns the number of records that the training thread has made; each goes to `device_timers` or `steps`."""
    boundaries: StepBoundaries = StepBoundaries()


class AgentThread:
    """The agent thread. `connect` and `stop` may be called from other threads."""

    def __init__(
        self,
        config: AgentConfig,
        identity: RankIdentity,
        guard: Guard,
        probes: Probes,
        *,
        clock: Clock,
        make_hello: Callable[[int], Hello],
    ) -> None:
        self._config = config
        self._identity = identity
        self._guard = guard
        self._probes = probes
        self._clock = clock
        self._builder = ReportBuilder(identity.rank)
        self._spill = self._make_spill(make_hello) if config.spill_dir else None
        self._buffer = ResendBuffer(config.resend_reports_max, config.resend_bytes_max, self._spill)
        self._delivery = Delivery(self._buffer, random.Random(identity.boot_id))  # noqa: S311 - spreads connects, no secret
        self._make_hello = make_hello
        self._groups: Mapping[str, GroupInfo] = {}
        self._groups_wanted = False
        self._sender = Sender(self._delivery, clock, identity.boot_id, self._introduce)
        self._timed = TimedCollectives(
            probes.progress.read_timed_entries,
            probes.progress.find_groups,
            monotonic_ns=clock.monotonic_ns,
            thread_cpu_ns=time.thread_time_ns,
        )
        self._gc_meter = GcMeter()
        self._host = HostSampler(clock, self._gc_meter)
        self._devices = self._make_devices()
        self._samples = self._make_samples()
        self._cost = AgentOverhead(
            config.overhead_ratio_max,
            probes.plan,
            self._samples,
            hooks=probes.hooks.buffer,
            windows=probes.windows,
            timers=probes.device_timers,
            children=self,
            started_ns=clock.monotonic_ns(),
        )
        self._watchdog = Watchdog(
            config,
            identity,
            guard,
            clock,
            find_groups=lambda: self._groups,
            count_events=self._count_events,
            captures=probes.captures,
        )
        self._heap_relief = MallocTrim(find_malloc_trim())
        self._stepless = SteplessNotice(identity)
        self._reduction: WindowReduction | None = None
        """None before the first window."""
        self._step_times_ns: list[int] = []
        self._address: CollectorAddress | None = None
        self._open_due_ns = 0
        self._stopping = threading.Event()
        self._end = ScriptEnd("finished")
        self._refusal_logged = self._spill_logged = False
        self._notices: CollectorNotices | None = None
        self._thread = threading.Thread(target=self._run, name="rankscope-agent", daemon=True)

    def _begin_reduction(self) -> "WindowReduction":
        # Imported with the first window, on the agent thread: it takes 20 to 40 ms and some MiB.
        from rankscope.agent.profiler.reduction_process import ReductionProcesses  # noqa: PLC0415
        from rankscope.agent.profiler.window_reduction import GroupSource, WindowReduction  # noqa: PLC0415

        source = GroupSource(self._probes.progress.find_groups, self._probes.progress.read_entries)
        return WindowReduction(source, ReductionProcesses(), events_max=self._config.window_events_max)

    @property
    def child_cpu_ns(self) -> int:
        """CPU time of the processes that analyze windows. For the agent thread."""
        return 0 if self._reduction is None else self._reduction.child_cpu_ns

    def find_resident_bytes(self) -> int | None:
        """Return the resident memory of this process, None if it cannot be read. For the training thread."""
        return self._host.find_resident_bytes()

    def _make_devices(self) -> "NvmlSampler | AmdSampler":
        device = self._probes.device
        if not is_built_for_amd():
            return NvmlSampler(self._clock, device.uuid)
        from rankscope.agent.sample.amd import AmdSampler  # noqa: PLC0415 - only for AMD GPUs, to keep the start short

        return AmdSampler(self._clock, device.seen)

    def _make_spill(self, make_hello: Callable[[int], Hello]) -> Spill:
        config, boot_id = self._config, self._identity.boot_id
        return Spill(config.spill_dir, boot_id, lambda: encode(make_hello(1)), config.spill_bytes_max)

    def _make_samples(self) -> SampleLoop[Any]:
        samplers: dict[str, Callable[[], Any]] = {"host": self._host.sample}
        if self._config.gpu:
            samplers["gpu"] = self._devices.sample
        cuda = find_cuda()
        if cuda is not None:
            samplers["torch_memory"] = TorchMemorySampler(self._clock, self._probes.device.seen, cuda).sample
        # A slow sampler is no news for the user: not logged.
        return SampleLoop(
            samplers,
            self._clock,
            s_to_ns(self._config.sample_interval_s),
            self._guard.record,
            on_notice=lambda _text: None,
        )

    def start(self) -> None:
        """Start reporting."""
        self._gc_meter.install()
        self._watchdog.start()
        self._thread.start()

    def connect(self, address: CollectorAddress, *, is_configured: bool = False) -> None:
        """Connect to the collector. If it is a configured one, rank 0 logs whether it is reached."""
        if is_configured and self._identity.rank == 0:
            self._notices = CollectorNotices(self._identity.run, address.endpoint, self._clock.monotonic_ns())
        chance = random.Random(self._identity.boot_id)  # noqa: S311 - as above
        delay_ns = draw_first_delay_ns(self._identity.world_size, chance)
        self._open_due_ns = self._clock.monotonic_ns() + delay_ns
        self._address = address
        self._sender.wake()
        self._watchdog.set_collector(address)

    def stop(self, end: ScriptEnd) -> None:
        """Send the last report and a goodbye; wait at most `drain_s` for the acknowledgement."""
        self._gc_meter.remove()
        self._end = end
        self._stopping.set()
        self._sender.wake()
        self._thread.join(self._config.drain_s + 2 * IDLE_WAIT_S)

    # -- the agent thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        next_report_ns = self._clock.monotonic_ns() + self._find_interval_ns()
        while not self._stopping.is_set() and not self._guard.is_off(PART):
            try:
                self._open_when_found()
                self._sender.exchange(self._find_wake_ns(next_report_ns))
                if self._clock.monotonic_ns() >= next_report_ns:
                    interval_ns = self._find_interval_ns()
                    next_report_ns += interval_ns * (1 + (self._clock.monotonic_ns() - next_report_ns) // interval_ns)
                    self._report()
                self._log_refusal()
                self._log_connection()
                self._check_spill()
            except Exception as error:  # noqa: BLE001 - no error of the agent may reach the training script
                self._note(error)
                self._stopping.wait(IDLE_WAIT_S)
        if not self._stopping.is_set():
            self._end = ScriptEnd("stopped", f"{PART} is switched off after too many errors")
        self._finish()

    def _finish(self) -> None:
        is_acknowledged = False
        try:
            self._report_last()
            self._push(self._builder.build_goodbye(self._end), step_count=0)
            self._open_when_found(at_once=True)
            is_acknowledged = self._sender.drain(self._clock.monotonic_ns() + s_to_ns(self._config.drain_s))
            self._log_delivery()
        except Exception as error:  # noqa: BLE001
            self._guard.record(PART, error)
        finally:
            self._watchdog.stop(self._end.exit_code, is_acknowledged=is_acknowledged)
            self._sender.close()
            if self._spill is not None:
                self._spill.close()
            self._devices.close()
            self._host.close()

    def _report_last(self) -> None:
        """Build the last report; the goodbye is sent even if this fails."""
        try:
            self._report(last=True)
        except Exception as error:  # noqa: BLE001
            self._note(error)

    def _note(self, error: Exception) -> None:
        """Count an error, and reuse the sequence number of the message that it prevented."""
        self._guard.record(PART, error)
        self._builder.set_last_sequence(self._buffer.last_sequence)

    def _open_when_found(self, *, at_once: bool = False) -> None:
        if self._address is not None and (at_once or self._clock.monotonic_ns() >= self._open_due_ns):
            address, self._address = self._address, None
            self._sender.open(address.endpoint, address.keys)

    def _find_interval_ns(self) -> int:
        interval_s = self._config.report_interval_s
        if self._cost.reports_less_often:
            interval_s = max(interval_s, min(RARE_REPORTS_TIMES * interval_s, RARE_REPORTS_S_MAX))
        return s_to_ns(interval_s)

    def _find_wake_ns(self, next_report_ns: int) -> int:
        return next_report_ns if self._address is None else min(next_report_ns, self._open_due_ns)

    def _log_refusal(self) -> None:
        refusal = self._sender.refused
        if refusal is not None and not self._refusal_logged:
            self._refusal_logged = True
            who = f"rank {self._identity.rank} ({refusal.reason})"
            text = f"the collector refuses {who}: {refusal.detail} Training continues without it."
            log_once_per_node(text, os.environ, topic=f"refused: {refusal.reason}")

    def _log_connection(self) -> None:
        if self._notices is None:
            return
        text = self._notices.update(
            self._clock.monotonic_ns(),
            is_connected=self._sender.connected,
            is_refused=self._sender.refused is not None,
            metrics_url=self._sender.metrics_url,
        )
        if text is not None:
            log_line(text)

    def _log_delivery(self) -> None:
        """Log how many reports were delivered, also to a collector that was never reached."""
        self._log_refusal()
        if self._notices is not None:
            self._notices.update(
                self._clock.monotonic_ns(),
                is_connected=self._delivery.ever_welcomed,
                is_refused=False,
                metrics_url=self._sender.metrics_url,
            )
            unacknowledged = len(self._buffer) + self._buffer.reports_dropped
            spill_dir = "" if self._spill is None or self._spill.failures else self._config.spill_dir
            log_line(self._notices.summarize(Delivered(self._buffer.last_sequence, unacknowledged, spill_dir)))

    def _check_spill(self) -> None:
        """Log the first failure of the spill; pass its folder to the sidecar, which delivers orphaned reports."""
        if self._spill is None:
            return
        if self._spill.failures and not self._spill_logged:
            self._spill_logged = True
            log_line(f"reports cannot be written to spill_dir ({self._spill.problem}); they are kept in memory only")
        if self._spill.folder:
            self._watchdog.set_spill_folder(self._spill.folder)

    def _introduce(self, first_sequence: int) -> Hello:
        # A collector that has just been started lacks the report with the process groups.
        self._groups_wanted = True
        return self._make_hello(first_sequence)

    # -- one report ---------------------------------------------------------------------------------------------------

    def _report(self, *, last: bool = False) -> None:
        now_ns = self._clock.monotonic_ns()
        if last:
            self._samples.run_all(now_ns)  # so that short runs have samples, and long ones the final state
        elif self._samples.due(now_ns):
            self._samples.run(now_ns)
        self._probes.hooks.buffer.flush_deferred()
        stepless = self._stepless.find(now_ns, self._probes.hooks.backwards_without_end, last=last)
        if stepless:
            log_line(stepless)
        windows = self._reduce_all(self._probes.raw_windows.drain())
        if self._reduction is not None:
            windows += self._collect(self._reduction.finish if last else self._reduction.collect)
        steps = self._probes.steps.drain()
        cost = self._cost.govern(now_ns)
        self._learn(steps)
        observed = self._watchdog.observe(now_ns, steps)
        if self._probes.progress.times_collectives:
            wall_minus_host_ns = self._clock.wall_ns() - self._clock.monotonic_ns()
            windows += self._collect(lambda: self._timed.add_steps(steps, wall_minus_host_ns))
        groups = self._read_groups()
        interval = Interval(
            steps=steps,
            collectives=[record for window in windows for record in window.collectives],
            covered_steps=[window.covered_steps for window in windows if window.covered_steps is not None],
            breakdowns=[breakdown for window in windows for breakdown in window.breakdowns],
            host=self._samples.latest.get("host"),
            devices=self._samples.latest.get("gpu") or (),
            allocator=self._samples.latest.get("torch_memory"),
            groups=groups,
            # Last, so that the final report includes its own errors.
            losses=self._losses(reported=self._builder.totals.steps + len(steps)),
            overhead_ratio=self._cost.overhead_ratio(cost, now_ns),
            cost=cost,
            progress=observed.progress,
            stalled_since_host_ns=observed.stalled_since_host_ns,
            stall=observed.stall,
        )
        if self._groups_wanted:
            self._builder.resend_groups()
            self._groups_wanted = False
        self._push(self._builder.build(interval, now_ns), step_count=len(steps))

    def _read_groups(self) -> Mapping[str, GroupInfo]:
        if not self._guard.is_off(GROUPS):
            try:
                self._groups = self._probes.progress.find_groups()
            except Exception as error:  # noqa: BLE001 - a change in torch's internals must not lose steps
                self._guard.record(GROUPS, error)
        return self._groups

    def _count_events(self) -> int | None:
        return None if self._guard.is_off(STEP_HOOKS) else self._probes.hooks.event_count

    def _push(self, message: Message, *, step_count: int) -> None:
        self._sender.push(message.sequence, encode(message), step_count)  # type: ignore[attr-defined]

    def _reduce_all(self, raw_windows: list[RawWindow]) -> list[ReducedWindow]:
        if not raw_windows:
            return []
        resident_bytes, full = raw_windows[-1].resident_before_bytes, raw_windows[-1].full
        reduced = []
        while raw_windows:  # each is released with its Kineto data before the next
            reduced.append(self._reduce(raw_windows.pop(0)))
        begin_ns = time.thread_time_ns()
        self._heap_relief.after_window(resident_bytes)
        self._cost.note_reduction(time.thread_time_ns() - begin_ns, full=full)
        return reduced

    def _reduce(self, window: RawWindow) -> ReducedWindow:
        if self._reduction is None:
            self._reduction = self._begin_reduction()  # imports are not charged to the first window
        reduction = self._reduction
        begin_ns = time.thread_time_ns()
        too_large_before = reduction.windows_too_large
        try:
            return reduction.reduce(window)
        except Exception as error:  # noqa: BLE001 - an unreadable window must not lose steps
            self._guard.record(WINDOWS, error)
            return EMPTY_WINDOW
        finally:
            if reduction.windows_too_large > too_large_before:
                self._probes.plan.learn_too_large(full=window.full)
            self._learn_cost(window, time.thread_time_ns() - begin_ns, reduction.light_events_a_step)

    def _collect(self, answers: Callable[[], list[ReducedWindow]]) -> list[ReducedWindow]:
        try:
            return answers()
        except Exception as error:  # noqa: BLE001 - as above
            self._guard.record(WINDOWS, error)
            return []

    def _learn_cost(self, window: RawWindow, reduction_ns: int, light_events_a_step: float | None) -> None:
        self._cost.note_reduction(reduction_ns, full=window.full)
        cost_ns = reduction_ns + window.training_cost_ns
        if window.full:
            self._probes.plan.learn_full(cost_ns)
        else:
            self._probes.plan.learn_light(cost_ns, len(window.steps), light_events_a_step)

    def _learn(self, steps: list[StepRecord]) -> None:
        """Update the typical step time, without warm-up steps, from which window intervals follow."""
        warm = [record.duration_ns for record in steps if record.step >= self._config.warmup_steps]
        self._step_times_ns = (self._step_times_ns + warm)[-STEP_TIMES_KEPT:]
        if len(self._step_times_ns) >= STEPS_MIN:
            step_ns = _median_ns(self._step_times_ns)
            self._probes.plan.learn_step(step_ns)
            self._probes.boundaries.learn_step(step_ns)
            if self._probes.device_timers is not None:
                self._probes.device_timers.plan.learn_step(step_ns)

    def _count_steps(self, reported: int) -> tuple[int, int, int]:
        """Return consistent counts of records made, overwritten and buffered: made = reported + the other two."""
        probes, timers = self._probes, self._probes.device_timers
        made = overwritten = buffered = 0
        for _ in range(COUNTS_MAX):
            made, overwritten = probes.read_steps_made(), probes.steps.overwritten
            buffered = len(probes.steps) + (timers.records_waiting if timers is not None else 0)
            if made == reported + overwritten + buffered:
                break
            time.sleep(0)  # let the training thread run first
        return made, overwritten, buffered

    def _losses(self, reported: int) -> Losses:
        made, overwritten, buffered = self._count_steps(reported)
        skipped = dict(self._probes.windows.skipped) if self._probes.windows is not None else {}
        if self._reduction is not None:
            skipped.update(self._reduction.skipped)
        if self._timed.unplaced:
            skipped["timed_unplaced"] = self._timed.unplaced
        timers = self._probes.device_timers
        failures = 0 if self._spill is None else self._spill.failures
        counted = {SPILL: failures, DEMANDS: self._sender.demands_ignored}
        return Losses(
            steps_overwritten=overwritten,
            steps_dropped_in_reports=self._buffer.steps_dropped,
            reports_dropped=self._buffer.reports_dropped,
            windows_skipped=skipped,
            errors=self._guard.errors | {part: count for part, count in counted.items() if count},
            device_timings_skipped=dict(timers.skipped) if timers is not None else {},
            steps_made=made,
            steps_buffered=buffered,
        )


def _median_ns(times_ns: list[int]) -> int:
    """Return the lower median, without the import of `statistics`, which takes 20 ms."""
    return sorted(times_ns)[(len(times_ns) - 1) // 2]
