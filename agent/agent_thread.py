"""Assembles what runs on the agent thread, which sends a report of its rank every report_interval_s.

rings of the training thread + samplers + watchdog -> ReportBuilder -> Outbox
"""

import math
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from rankscope.agent.agent_overhead import AgentOverhead
from rankscope.agent.collector_address import CollectorAddress
from rankscope.agent.collector_orders import CollectorOrders
from rankscope.agent.config import AgentConfig
from rankscope.agent.green_threads import find_patched
from rankscope.agent.guard import CAPTURES, LINE_SAMPLES, Guard, log_line
from rankscope.agent.late_imports import LATE_IMPORTS
from rankscope.agent.own_thread import OwnThread
from rankscope.agent.profiler.window_results import WindowResults
from rankscope.agent.reporting.builder import Interval, ReportBuilder, ScriptEnd
from rankscope.agent.reporting.outbox import Outbox
from rankscope.agent.sample.rank_samples import MemoryWatch, RankSamplers
from rankscope.agent.steps.early_events import LoopNotice
from rankscope.agent.steps.user_steps import SteplessNotice
from rankscope.agent.training_thread import TrainingThread
from rankscope.agent.watchdog import Watchdog
from rankscope.measure.clock import Clock
from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import Hello
from rankscope.measure.records import GroupInfo, Losses, StepRecord
from rankscope.measure.stalls import QuietPlace
from rankscope.measure.units import s_to_ns

if TYPE_CHECKING:
    from rankscope.agent.captures.quiet_steps import QuietSteps
    from rankscope.agent.sidecar.recorder_reader import RecorderReader

PART = "agent_thread"
GROUPS = "groups"
STALL_RATIO, STALL_NS_MIN = 2.0, 200_000_000  # times a usual step, and how much longer
STEP_TIMES_KEPT = 64
STEPS_MIN = 4
IDLE_WAIT_S = 0.5
SAMPLER_S_MAX = 1.0
"""Longest wait for the sampler of lines to end: it sleeps for some ms, and may wait for a CPU."""
RARE_REPORTS_TIMES = 4
RARE_REPORTS_S_MAX = 4.0
"""Longest interval of rarer reports. Each report writes a heartbeat: after 10 s without one the sidecar considers the
rank frozen, and after 15 s the collector considers it silent by default."""


class AgentThread:
    """The agent thread. `connect`, `stop` and `outbox.read_report` may be called from other threads."""

    def __init__(
        self,
        config: AgentConfig,
        identity: RankIdentity,
        guard: Guard,
        training: TrainingThread,
        samples: RankSamplers,
        *,
        clock: Clock,
        make_hello: Callable[[int], Hello],
    ) -> None:
        self._config = config
        self._identity = identity
        self._guard = guard
        self._training = training
        self._samples = samples
        self._clock = clock
        self._make_hello = make_hello
        self._builder = ReportBuilder(identity.rank)
        self._orders = CollectorOrders(
            training.sessions,
            training.workers,
            guard,
            config,
            find_step=lambda: training.timer.step,
            find_thread=lambda: training.hooks.buffer.thread,
        )
        self.outbox = Outbox(
            config,
            identity,
            clock,
            make_hello=make_hello,
            introduce=self._introduce,
            on_order=self._orders.handle,
        )
        self._groups: Mapping[str, GroupInfo] = {}
        self._groups_wanted = False
        self._window_results = self._make_window_results()
        self._cost = self._make_overhead()
        self._watchdog = self._make_watchdog(identity)
        self._stepless = SteplessNotice(identity)
        self._loop = LoopNotice(identity.rank)
        self._step_times_ns: list[int] = []
        self._quiet: QuietSteps | None = None  # until a step has been long
        self._stopping = threading.Event()
        self._end = ScriptEnd("finished")
        self._thread = OwnThread(target=self._run, name="rankscope-agent", daemon=True)

    def _make_window_results(self) -> WindowResults:
        config, training = self._config, self._training
        return WindowResults(
            training.windows,
            self._guard,
            self._clock,
            self._make_recorder_reader,
            events_max=config.window_events_max,
            communication_kernels=config.communication_kernels,
            read_transfers=training.transfers.find_between,
            read_backward_ends=None if training.backward_ends is None else training.backward_ends.find_between,
            flops=self._samples.flops,
        )

    def _make_recorder_reader(self) -> "RecorderReader":
        from rankscope.agent.sidecar.recorder_reader import RecorderReader  # noqa: PLC0415 - only for NCCL

        training = self._training
        find_place, dump = lambda: self._watchdog.recorder_place, training.windows.progress.dump_devices
        return RecorderReader(training.captures, find_place, dump, self._clock)

    def _make_overhead(self) -> AgentOverhead:
        training, windows = self._training, self._training.windows
        return AgentOverhead(
            self._config.overhead_ratio_max,
            windows.plan,
            self._samples.loop,
            hooks=training,
            windows=windows.scheduler,
            timers=training.device_timers,
            reduction=self._window_results,
            captures=training.sessions if training.sessions.has_captures else None,
            started_ns=self._clock.monotonic_ns(),
            find_effect=windows.find_effect,
            awaits_graph=lambda: training.captures.first_graph.is_waiting,
            timing=training.sessions.timing,
            read_lines_ns=lambda: self._orders.spent_ns + (0 if self._quiet is None else self._quiet.cpu_ns),
        )

    def _make_watchdog(self, identity: RankIdentity) -> Watchdog:
        training = self._training
        return Watchdog(
            self._config,
            identity,
            self._guard,
            self._clock,
            find_groups=lambda: self._groups,
            count_events=training.count_events,
            captures=training.captures,
        )

    def start(self) -> None:
        """Start reporting. Raises RuntimeError, with nothing started, when there can be no thread."""
        self._samples.start()
        timer, buffer = self._training.timer, self._training.hooks.buffer
        self._samples.watch_memory(MemoryWatch(buffer.add, timer.find_place, self.outbox.wake, self._identity))
        try:
            self._thread.start()
        except RuntimeError:
            self._samples.stop()
            self._close()
            raise
        self._watchdog.start()
        self._training.windows.start_sampler()

    def connect(self, address: CollectorAddress, is_configured: bool) -> None:  # noqa: FBT001 - of the connect thread
        """Connect to the collector. If it is a configured one, rank 0 logs whether it is reached."""
        self.outbox.connect(address, is_configured=is_configured)
        self._watchdog.set_collector(address)

    def stop(self, end: ScriptEnd) -> None:
        """Let the thread send the last report and a goodbye."""
        self._samples.stop()
        self._training.windows.sampling.close()
        self._end = end
        self._stopping.set()
        self.outbox.wake()

    def wait(self) -> None:
        """Wait after `stop`, at most `drain_s`, for the acknowledgement, and until the collector has fetched the files
        of captures that it has ordered.
        """
        self._thread.wait_for_end(self._config.drain_s + 2 * IDLE_WAIT_S)
        self._training.windows.sampling.wait(SAMPLER_S_MAX)

    # -- the agent thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        next_report_ns = self._clock.monotonic_ns() + self._find_interval_ns()
        while not self._stopping.is_set() and not self._guard.is_off(PART):
            try:
                self.outbox.exchange(next_report_ns)
                if self._clock.monotonic_ns() >= next_report_ns or self._samples.has_memory_error:
                    interval_ns = self._find_interval_ns()
                    late_ns = max(-interval_ns, self._clock.monotonic_ns() - next_report_ns)
                    next_report_ns += interval_ns * (1 + late_ns // interval_ns)
                    self._report()
                self.outbox.log_changes()
                if self.outbox.spill_folder:  # from which the sidecar delivers orphaned reports
                    self._watchdog.set_spill_folder(self.outbox.spill_folder)
                if self._ends_by_patch():
                    break
            except Exception as error:  # noqa: BLE001 - no error of the agent may reach the training script
                self._note(error)
                self._stopping.wait(IDLE_WAIT_S)
        if not self._stopping.is_set() and self._guard.is_off(PART):
            self._end = ScriptEnd("stopped", f"{PART} is switched off after too many errors")
        self._finish()

    def _ends_by_patch(self) -> bool:
        """Return whether gevent or eventlet has patched the process since the start: then this thread ends, and so do
        the last profiler window and captures. The hooks stay, and write into rings that nobody reads.
        """
        library = find_patched()
        if not library:
            return False
        self._training.sessions.switch_off()
        self._end = ScriptEnd("stopped", f"{library} has patched the process")
        log_line(
            f"rank {self._identity.rank} is measured no further: {library} has patched its process (monkey patching) "
            "since the agent started. Training continues. To have it measured, train in a process without that."
        )
        return True

    def _finish(self) -> None:
        is_acknowledged = False
        try:
            self._report_last()
            self.outbox.push(self._builder.build_goodbye(self._end), step_count=0)
            deadline_ns = self._clock.monotonic_ns() + s_to_ns(self._config.drain_s)
            is_acknowledged = self.outbox.drain(deadline_ns)
            self.outbox.log_summary()
            if is_acknowledged:
                self.outbox.serve(deadline_ns, lambda: self._orders.has_files)
            if self._training.traces is not None:
                self._training.traces.finish(deadline_ns)
        except Exception as error:  # noqa: BLE001
            self._guard.record(PART, error)
        finally:
            self._watchdog.stop(self._end.exit_code, is_acknowledged=is_acknowledged)
            self._close()

    def _close(self) -> None:
        """Close the connection, files and libraries."""
        if self._quiet is not None:
            self._quiet.is_wanted = False
        self.outbox.close()
        self._orders.close()
        self._samples.close()

    def _report_last(self) -> None:
        """Build the last report; the goodbye is sent even if this fails."""
        try:
            self._report(last=True)
        except Exception as error:  # noqa: BLE001
            self._note(error)

    def _note(self, error: Exception) -> None:
        """Count an error, and reuse the sequence number of the message that it prevented."""
        self._guard.record(PART, error)
        self._builder.set_last_sequence(self.outbox.buffer.last_sequence)

    def _find_interval_ns(self) -> int:
        interval_s = self._config.report_interval_s
        if self._cost.reports_less_often:
            interval_s = max(interval_s, min(RARE_REPORTS_TIMES * interval_s, RARE_REPORTS_S_MAX))
        return s_to_ns(interval_s)

    def _introduce(self, first_sequence: int) -> Hello:
        # A collector that has just been started lacks the report with the process groups.
        self._groups_wanted = True
        return self._make_hello(first_sequence)

    # -- one report ---------------------------------------------------------------------------------------------------

    def _report(self, *, last: bool = False) -> None:
        now_ns = self._clock.monotonic_ns()
        self._samples.run(now_ns, last=last)
        hooks = self._training.hooks
        hooks.buffer.flush_deferred()
        stepless = self._stepless.find(now_ns, hooks.backwards_without_end, last=last)
        partial = self._loop.find(moves=hooks.thread_moves, rivals=hooks.rival_steps, interrupted=hooks.interrupted)
        for text in filter(None, (stepless, partial)):
            log_line(text)
        self._training.sessions.log()
        steps = self._write_traces(self._training.steps.drain())
        self.outbox.send_answer(self._orders.collect_samples(steps, last=last))
        self._samples.add_steps(steps)
        windows = self._window_results.collect(steps, last=last)
        cost = self._cost.govern(now_ns)
        self._learn_step_time(steps)
        observed = self._watchdog.observe(now_ns, steps)
        interval = Interval(
            steps=steps,
            collectives=[record for window in windows for record in window.collectives],
            covered_steps=[window.covered_steps for window in windows if window.covered_steps is not None],
            timed_steps=[window.timed_steps for window in windows if window.timed_steps is not None],
            breakdowns=[breakdown for window in windows for breakdown in window.breakdowns],
            synchronizations=[window.synchronizations for window in windows if window.synchronizations is not None],
            host=self._samples.host,
            devices=self._samples.devices,
            allocator=self._samples.allocator,
            groups=self._read_groups(),
            # Last, so that the final report includes its own errors.
            losses=self._count_losses(reported=self._builder.totals.steps + len(steps)),
            overhead_ratio=self._cost.overhead_ratio(cost, now_ns),
            cost=cost,
            progress=observed.progress,
            stalled_since_host_ns=observed.stalled_since_host_ns,
            stall=observed.stall,
            node=self._samples.pop_node(),
            out_of_memory=self._samples.collect_memory_errors(last=last),
            flops=self._samples.step_flops.read(),
            flop_totals=self._samples.flops.totals,
            enqueues=next((window.enqueues for window in windows if window.enqueues is not None), None),
            compilations=self._samples.collect_compilations(steps, last=last),
            saves=self._training.saves.read(),
            pipeline=self._training.read_pipeline(),
            layers=self._training.read_layers(),
            quiet=self._read_quiet(steps),
        )
        if self._groups_wanted:
            self._builder.resend_groups()
            self._groups_wanted = False
        self.outbox.push(self._builder.build(interval, now_ns), step_count=len(steps))
        self._samples.attach_memory()
        if not last and self._samples.out_of_memory is not None:
            self._samples.out_of_memory.read_held(interval.out_of_memory)

    def _write_traces(self, steps: list[StepRecord]) -> list[StepRecord]:
        """Write the captures that have ended, and mark the steps that a capture has made longer."""
        traces = self._training.traces
        if traces is None:
            return steps
        traces.events_a_step = self._window_results.full_events_a_step
        traces.window_ns_an_event = self._window_results.full_ns_an_event
        try:
            traces.write()
            self._window_results.add_captured(traces.plain_traces)
            traces.plain_traces = []
            for state in self._orders.collect_captures():
                self.outbox.send_answer(state)
            return traces.mark(steps)
        except Exception as error:  # noqa: BLE001 - no error of a capture may lose steps
            self._guard.record(CAPTURES, error)
            return steps

    def _read_groups(self) -> Mapping[str, GroupInfo]:
        if not self._guard.is_off(GROUPS):
            try:
                self._groups = self._training.windows.progress.find_groups()
            except Exception as error:  # noqa: BLE001 - a change in torch's internals must not lose steps
                self._guard.record(GROUPS, error)
        return self._groups

    def _learn_step_time(self, steps: list[StepRecord]) -> None:
        """Update the typical step time, without warm-up steps, from which window intervals follow."""
        warm = [record.duration_ns for record in steps if record.step >= self._config.warmup_steps]
        self._step_times_ns = (self._step_times_ns + warm)[-STEP_TIMES_KEPT:]
        if warm and len(self._step_times_ns) >= STEPS_MIN:
            self._training.learn_step_time(_median_ns(self._step_times_ns), steps[-1].step)

    def _read_quiet(self, steps: list[StepRecord]) -> tuple[QuietPlace, ...]:
        """Return where the training thread was in long steps; have the sampler look, once there have been some."""
        try:
            return self._look_at_long(steps)
        except Exception as error:  # noqa: BLE001 - no error of a look may lose steps
            self._guard.record(LINE_SAMPLES, error)
            return ()

    def _look_at_long(self, steps: list[StepRecord]) -> tuple[QuietPlace, ...]:
        usual_ns = _median_ns(self._step_times_ns) if len(self._step_times_ns) >= STEPS_MIN else math.inf
        least_ns = max(STALL_RATIO * usual_ns, usual_ns + STALL_NS_MIN)
        stalls = [(one.step, one.duration_ns - usual_ns) for one in steps if one.duration_ns >= least_ns]
        sampler = self._training.windows.sampling.find_sampler() if stalls or self._quiet is not None else None
        if sampler is None:
            return ()
        if self._quiet is None:
            self._quiet = self._make_quiet_steps()
        places = self._quiet.take(steps)
        may_look = sampler.is_usable and not sampler.is_paused
        if self._quiet.learn(stalls, self._training.timer.step, usual_ns, may_look=may_look):
            sampler.start()
            sampler.begin(self._quiet)
        return places

    def _make_quiet_steps(self) -> "QuietSteps":
        with LATE_IMPORTS:
            from rankscope.agent.captures.quiet_steps import QuietSteps  # noqa: PLC0415 - few runs have long steps
        training = self._training
        return QuietSteps(
            count_events=training.count_events,
            find_thread=lambda: training.hooks.buffer.thread,
            has_device=lambda: training.device.seen() is not None,
        )

    def _count_losses(self, reported: int) -> Losses:
        made, overwritten, buffered = self._training.count_records(reported)
        timers = self._training.device_timers
        return Losses(
            steps_overwritten=overwritten,
            steps_dropped_in_reports=self.outbox.buffer.steps_dropped,
            reports_dropped=self.outbox.buffer.reports_dropped,
            windows_skipped=self._window_results.skipped,
            errors=self._guard.errors | self.outbox.errors,
            device_timings_skipped=dict(timers.skipped) if timers is not None else {},
            steps_made=made,
            steps_buffered=buffered,
            device_tails_skipped=dict(timers.tails.skipped) if timers is not None else {},
        )


def _median_ns(times_ns: list[int]) -> int:
    """Return the lower median, without the import of `statistics`, which takes 20 ms."""
    return sorted(times_ns)[(len(times_ns) - 1) // 2]
