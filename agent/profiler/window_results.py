"""Turns the finished windows of a rank into collectives and breakdowns, on its agent thread, and learns their cost.

Between windows the flight recorder may add the collectives of a device (`timed_collectives.py`).
"""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rankscope.agent.governor import COLLECTIVE_TIMES
from rankscope.agent.guard import WINDOWS, Guard
from rankscope.agent.late_imports import LATE_IMPORTS
from rankscope.agent.profiler.measured_flops import MeasuredFlops
from rankscope.agent.profiler.reduced_window import EMPTY_WINDOW, ReducedWindow
from rankscope.agent.profiler.windows import ProfilerWindows
from rankscope.agent.steps.model_flops import ModelFlops
from rankscope.measure.clock import Clock, read_wall_minus_host_ns
from rankscope.measure.records import StepRecord
from rankscope.measure.units import NS_PER_S

RECORDED_EVENT_NS = 500
"""Estimated time of the training thread for each activity that a window records, beside the window's begin and end.
Measured: 210 to 320 ns, by blocks of steps within a profiler session and without
(`bench/results/moments.md`). Rounded up, for machines that are slower.
"""
WITHOUT_WINDOWS_NS = 60 * NS_PER_S
"""Time after a full window from which times of enqueuing are read, as long as the collector waits for another one."""
SHAPED_EVENT_NS = 1000
"""The same of a window with shapes, which adds 310 ns (`bench/results/flops-windows.md`). Rounded up."""

if TYPE_CHECKING:
    from rankscope.agent.captures.captured_steps import CapturedSteps, CapturedTrace
    from rankscope.agent.profiler.malloc_trim import MallocTrim
    from rankscope.agent.profiler.timed_collectives import EntrySource, TimedCollectives
    from rankscope.agent.profiler.window_reduction import WindowReduction
    from rankscope.agent.profiler.window_scheduler import RawWindow
    from rankscope.agent.steps.host_transfers import WaitedTransfer


class WindowResults:
    """The results of one rank's windows. An unreadable window is counted, and loses no steps. `flops` gets those
    that were measured.
    """

    def __init__(
        self,
        windows: ProfilerWindows,
        guard: Guard,
        clock: Clock,
        make_source: Callable[[], "EntrySource"],
        *,
        events_max: int,
        communication_kernels: str = "",
        read_transfers: "Callable[[int, int], list[WaitedTransfer] | None]" = lambda _begin, _end: None,
        read_backward_ends: Callable[[int, int], list[int]] | None = None,
        flops: ModelFlops | None = None,
    ) -> None:
        self._measured_flops = MeasuredFlops(flops or ModelFlops(), windows)
        self._read_transfers = read_transfers
        self._read_backward_ends = read_backward_ends or (lambda _begin, _end: [])
        self._make_source = make_source
        self._windows = windows
        self._guard = guard
        self._clock = clock
        self._events_max = events_max
        self._communication_kernels = communication_kernels
        self.timed: TimedCollectives | None = None
        """The collectives between windows: a part of its own, whose errors cost no window. None before the first of a
        device.
        """
        effect = windows.effect
        self._captured = _make_captured_steps() if effect is not None and effect.is_on_demand else None
        """What joins captures with their steps, where the ratios of a device come from captures. It must have seen the
        steps before the captures come.
        """
        self._heap_relief: MallocTrim | None = None
        self._full_window_ns: int | None = None
        self._waiting: list[RawWindow] = []  # at most RAW_WINDOWS_MAX: none ends while a profiler of the user is on
        self._reduction: WindowReduction | None = None
        """None before the first window."""
        self.full_ns_an_event: float | None = None
        """CPU time of the training thread for the begin and end of the last full window, for each of its events."""
        self.full_reduced_ns = 0
        """CPU time of reducing full windows on the agent thread so far; `light_reduced_ns` is that of light ones."""
        self.light_reduced_ns = 0
        self.full_recording_ns = 0
        """Estimated time by which recording has slowed the steps of full windows so far, and of light ones."""
        self.light_recording_ns = 0

    @property
    def child_cpu_ns(self) -> int:
        """CPU time of the processes that reduce windows."""
        return 0 if self._reduction is None else self._reduction.child_cpu_ns

    @property
    def skipped(self) -> dict[str, int]:
        """The windows, steps and collectives not used, by reason."""
        skipped = dict(self._windows.skipped)
        if self._reduction is not None:
            skipped.update(self._reduction.skipped)
        for part in (self.timed, self._captured):
            skipped.update({} if part is None else part.skipped)
        return skipped

    @property
    def full_events_a_step(self) -> float | None:
        """Events of a step in the last full window; None before the first."""
        return None if self._reduction is None else self._reduction.full_events_a_step

    def collect(self, steps: Sequence[StepRecord], *, last: bool) -> list[ReducedWindow]:
        """Return the results since the last call. `steps` have ended since then. For the last report the results that
        are not ready yet are computed at once.

        While a profiler of the user or a capture is on, windows wait: recorded with its stacks, the thousands of calls
        that reducing one makes would stop training for longer than the script's own, and fill the trace.
        """
        window_from_step = self._windows.open_from_step  # read before the finished windows, so that none is missed
        self._guarded(self._begin_timed, part=COLLECTIVE_TIMES)
        finished = self._windows.finished.drain()
        for window in finished:
            if self.timed is not None:
                self.timed.leave_to_window(window.steps)
            if window.full:
                self._full_window_ns = self._clock.monotonic_ns()
        self._waiting += finished
        results = [] if self._windows.user_profiler_is_on and not last else self._reduce_all(self._waiting)
        if self._captured is not None:
            captured = self._captured
            results += self._guarded(lambda: self._submit_captured(captured, steps))
        if self._reduction is not None:
            results += self._guarded(self._reduction.finish if last else self._reduction.collect)
            self._windows.graphs_seen = self._reduction.launches_graphs
        if not self._guard.is_off(COLLECTIVE_TIMES):
            results += self._guarded(lambda: self._add_steps(steps, window_from_step, last=last), part=COLLECTIVE_TIMES)
        self._pass_on_flops(results)
        return results

    def _pass_on_flops(self, results: Sequence[ReducedWindow]) -> None:
        try:
            self._measured_flops.update(results)
        except Exception as error:  # noqa: BLE001 - as above
            self._guard.record(WINDOWS, error)

    def add_captured(self, traces: "Sequence[CapturedTrace]") -> None:
        """Add traces of captures from which the ratios of a device come."""
        if self._captured is not None:
            self._captured.add(traces)

    def _submit_captured(self, found: "CapturedSteps", steps: Sequence[StepRecord]) -> list[ReducedWindow]:
        """Submit the captured steps of a device for their breakdown; their result comes as that of a window does."""
        for trace, captured in found.join(steps):
            if self._windows.reduces_captures:
                self._reduction = self._reduction or self._begin_reduction()
                self._reduction.submit_captured(trace.data, captured, trace.wall_minus_host_ns)
        return []

    def _begin_timed(self) -> list[ReducedWindow]:
        """Begin to read the collectives of a device between windows, once the process has some."""
        windows = self._windows
        if self.timed is not None or self._guard.is_off(COLLECTIVE_TIMES) or not windows.progress.records_devices:
            return []
        with LATE_IMPORTS:
            from rankscope.agent.profiler.timed_collectives import TimedCollectives  # noqa: PLC0415 - only for NCCL

            source = self._make_source()
        self.timed = TimedCollectives(
            source,
            windows.progress.find_groups,
            monotonic_ns=self._clock.monotonic_ns,
            thread_cpu_ns=time.thread_time_ns,
            ring_entries=windows.ring_entries,
            timing_is_ours=lambda: windows.timing_is_ours,
            timed_from_step=lambda: windows.timed_from_step,
        )
        return []

    def _add_steps(
        self, steps: Sequence[StepRecord], window_from_step: int | None, *, last: bool
    ) -> list[ReducedWindow]:
        progress, timed = self._windows.progress, self.timed
        if timed is None or not progress.records_devices or (not progress.is_timed and self._windows_come):
            return []
        if not self._windows.timed_from_step:
            self._windows.log_timing()
        wall_minus_host_ns = read_wall_minus_host_ns(self._clock.wall_ns, self._clock.monotonic_ns)
        return timed.add_steps(steps, wall_minus_host_ns, window_from_step=window_from_step, last=last)

    @property
    def _windows_come(self) -> bool:
        """Whether a full window has shown lately who waits for whom: then nobody asks when a host enqueued."""
        last_ns = self._full_window_ns
        return last_ns is not None and self._clock.monotonic_ns() - last_ns <= WITHOUT_WINDOWS_NS

    def _reduce_all(self, windows: "list[RawWindow]") -> list[ReducedWindow]:
        if not windows:
            return []
        resident_bytes, full = windows[-1].resident_before_bytes, windows[-1].full
        reduced = []
        while windows:  # each is released with its Kineto data before the next
            reduced.append(self._reduce(windows.pop(0)))
        if self._heap_relief is None:
            from rankscope.agent.profiler.malloc_trim import MallocTrim, find_malloc_trim  # noqa: PLC0415 - as others

            self._heap_relief = MallocTrim(find_malloc_trim())
        begin_ns = time.thread_time_ns()
        self._heap_relief.after_window(resident_bytes)
        self._add_cost(time.thread_time_ns() - begin_ns, full=full)
        return reduced

    def _reduce(self, window: "RawWindow") -> ReducedWindow:
        if self._reduction is None:
            self._reduction = self._begin_reduction()  # imports are not charged to the first window
        reduction = self._reduction
        begin_ns = time.thread_time_ns()
        too_large_before, events_before = reduction.windows_too_large, reduction.events_recorded
        try:
            return reduction.reduce(window)
        except Exception as error:  # noqa: BLE001 - an unreadable window must not lose steps
            self._guard.record(WINDOWS, error)
            return EMPTY_WINDOW
        finally:
            if reduction.windows_too_large > too_large_before and not window.has_shapes:
                self._windows.plan.learn_too_large(len(window.steps), full=window.full)
            events = reduction.events_recorded - events_before
            if window.full and events and not window.has_shapes:
                self.full_ns_an_event = window.training_cost_ns / events
            recording_ns = (SHAPED_EVENT_NS if window.has_shapes else RECORDED_EVENT_NS) * events
            self._learn_cost(window, time.thread_time_ns() - begin_ns, recording_ns, reduction.light_events_a_step)

    def _begin_reduction(self) -> "WindowReduction":
        with LATE_IMPORTS:  # with the first window, on the agent thread: it takes 20 to 40 ms and some MiB
            from rankscope.agent.profiler.reduction_process import ReductionProcesses  # noqa: PLC0415
            from rankscope.agent.profiler.window_reduction import GroupSource, WindowReduction  # noqa: PLC0415

        source = GroupSource(
            self._windows.progress.find_groups,
            self._windows.progress.read_entries,
            self._read_transfers,
            self._read_backward_ends,
        )
        children = ReductionProcesses(communication_kernels=self._communication_kernels)
        return WindowReduction(source, children, events_max=self._events_max)

    def _learn_cost(
        self, window: "RawWindow", reduction_ns: int, recording_ns: int, light_events_a_step: float | None
    ) -> None:
        self._add_cost(reduction_ns, full=window.full)
        cost_ns = reduction_ns + recording_ns + window.training_cost_ns
        scheduler = self._windows.scheduler
        if window.host_only and scheduler is not None and scheduler.operators is not None:
            scheduler.operators.learn(cost_ns)
        if window.full:
            self.full_recording_ns += recording_ns
            if not window.has_shapes:  # which is rare, and says nothing of the next window's cost
                self._windows.plan.learn_full(cost_ns)
        else:
            self.light_recording_ns += recording_ns
            self._windows.plan.learn_light(cost_ns, len(window.steps), light_events_a_step)

    def _add_cost(self, cost_ns: int, *, full: bool) -> None:
        if full:
            self.full_reduced_ns += cost_ns
        else:
            self.light_reduced_ns += cost_ns

    def _guarded(self, read: Callable[[], list[ReducedWindow]], part: str = WINDOWS) -> list[ReducedWindow]:
        try:
            return read()
        except Exception as error:  # noqa: BLE001 - as above
            self._guard.record(part, error)
            return []


def _make_captured_steps() -> "CapturedSteps":
    from rankscope.agent.captures.captured_steps import CapturedSteps  # noqa: PLC0415 - at the start, on demand alone

    return CapturedSteps()
