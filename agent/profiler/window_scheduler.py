"""Start and stop profiler windows: nearly always a light one, with collectives, and sometimes a full one, with
operators.

Windows begin and end at step boundaries, on step numbers that every rank computes alone: all ranks have the cost at the
same steps, so none waits for another's window, and the windows have the same collectives on every rank. Not so the
first windows of a device, and the boundary at which CUPTI is detached: these depend on the rank's own step times.
"""

import threading
from collections.abc import Callable, Sequence
from threading import get_ident
from time import thread_time_ns
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from rankscope.agent.guard import WINDOWS, Guard, ScriptInterruptError, is_of_script
from rankscope.agent.profiler.device_gate import DeviceGate, DeviceProfiler
from rankscope.agent.profiler.flops_windows import COST_TIMES, COST_TIMES_ON_DEVICE, FlopsWindows
from rankscope.agent.profiler.operator_gate import OperatorGate
from rankscope.agent.profiler.window_effect import EffectState, WindowEffect
from rankscope.agent.profiler.window_plan import WindowPlan
from rankscope.agent.steps.first_graph import FirstGraph
from rankscope.agent.steps.open_collectives import SETTLE_S, SETTLE_S_LAST, SETTLE_S_MAX
from rankscope.agent.steps.step_intervals import UNKNOWN_STEPS
from rankscope.measure.clock import read_wall_minus_host_ns
from rankscope.measure.records import StepRecord
from rankscope.measure.units import NS_PER_S

if TYPE_CHECKING:
    from rankscope.agent.profiler.line_sampler import LineSampler, WindowLines

PART = WINDOWS
USER_PROFILER_WAIT_S = 2.0
"""Time for which the user's profiler, starting on another thread, is delayed until a step boundary has ended ours."""
DEVICE_WAIT_NS_MIN = NS_PER_S
DEVICE_WAIT_NS_MAX = 30 * NS_PER_S
"""A window of a device ends once the device has done its work; that is waited for as long as its steps took, within
these limits. Before an evaluation and at the end of the process it is the smaller one."""
FIRST_OF_DEVICE = "first_of_device"
DEVICE_NOT_FINISHED = "device_not_finished"
"""Why a window is discarded: it was the first of a device, the device had not done its work in time."""
BEFORE_FIRST_GRAPH = "before_first_graph"
"""Why a full window does not begin: the run is to capture its first CUDA graph."""
NOT_FINISHED_MAX = 3
"""After so many windows in a row whose device was not done in time there are no more."""
ANOTHER_THREAD = "another_thread"
"""Why a window is discarded: training went on on another thread, of which it has nothing."""
TRIES = 3
"""Attempts at what must be done and was interrupted by a signal handler of the script."""
LEFT_MAX = 3
"""After so many windows in a row that were discarded for that there are no more."""


class Profiler(DeviceProfiler, Protocol):
    """A profiler for windows, as `torch_profiler.TorchProfiler`.

    One session at a time, ended on the thread that began it: anything else raises RuntimeError and changes nothing.
    """

    @property
    def misses_device(self) -> bool:
        """Whether a device is in use that no session can record."""
        ...

    @property
    def has_session(self) -> bool:
        """Whether a session that this object has begun is on in this thread."""
        ...

    def is_busy(self) -> bool:
        """Return whether any profiler is on in this thread."""
        ...

    def wait_for_device(self, limit_ns: int, gives_up: Callable[[], bool]) -> bool:
        """Wait until the device has done what was launched; return False when it has not in time, or `gives_up`."""
        ...

    def detach(self) -> bool:
        """Take CUPTI out of the process; return False, and do nothing, while a CUDA graph is being captured."""
        ...

    def settle(self, limit_s: float) -> bool:
        """Wait until all collectives that the session may have recorded are over; return False when they are not after
        this time. Then it records nothing more, and may not be ended.
        """
        ...

    def start(self, *, full: bool, shapes: bool = False, host_only: bool = False) -> None:
        """Begin to record; a full window with `shapes` has those of all operators, one that is `host_only` nothing of a
        device.
        """
        ...

    def stop(self) -> Any:
        """End recording and return the result."""
        ...


class RawWindow(NamedTuple):
    """A finished window, from the training thread.

    `wall_minus_host_ns` converts Kineto's wall-clock times to the host clock. `enqueued_before` and `enqueued_after`
    are the last sequence numbers of each process group at its begin and end. `training_cost_ns` is the CPU time of
    beginning and ending it on the training thread, and of sampling its `lines`. With `on_device` a full window has a
    device's work, and one step more than is reported: the last only bounds the one before. `resident_before_bytes` is
    the resident memory of the process at its begin, None: not known. `lines`: where the training thread was meanwhile,
    None: not sampled. A full window that `has_shapes` is one from which FLOPs are counted; one that is `host_only` has
    the operators of a host whose device has work of its own, which is not recorded.
    """

    full: bool
    steps: Sequence[StepRecord]
    result: Any
    wall_minus_host_ns: int
    enqueued_before: dict[int, int]
    enqueued_after: dict[int, int]
    training_cost_ns: int
    on_device: bool = False
    resident_before_bytes: int | None = None
    lines: "WindowLines | None" = None
    has_shapes: bool = False
    host_only: bool = False


class WindowScheduler:
    """Start and stop windows on the training thread, by the plan. Finished ones go to `on_window`.

    A window during which the user's profiler began is discarded and counted in `skipped`; none starts while it runs.
    The first window of a device, which lasts one step and starts as soon as the device is in use, or with an `effect`
    once its reference is complete, is discarded as well. No window begins or ends while `is_capturing` returns that a
    CUDA graph is being captured, and none begins while the `first_graph` is waited for.

    A window ends only once the collectives in it are over (`open_collectives.py`). Until then it records nothing more,
    no other one begins, and the next boundaries try again.

    Only the thread that began a window ends it. Where training has gone on on another one, the window is discarded, and
    no other one begins, until that thread has called `close`.

    With an `effect` a device's windows begin only after its reference stretch, and end if it finds that they slow
    training. Then CUPTI is detached, if `may_detach` returns True; None: not known yet.

    Full windows are left out, and counted, while a device is in use that cannot be recorded. Light windows are left out
    unless `light_is_useful`: where all communication is on a device, its backend's ranges only span the enqueueing; and
    while a device is in use whose windows may not begin.

    During a device's windows but the first the `sampler` notes where the training thread is.

    A full window has shapes when FLOPs are due, by `flops_interval_ns` (None: never), and the budget pays for it.
    Where windows of the device are off or over, a window of the host alone has them, as `operators_effect` allows
    (None: there are none), and not while the process `has_graphs`.
    """

    def __init__(
        self,
        profiler: Profiler,
        plan: WindowPlan,
        guard: Guard,
        on_window: Callable[[RawWindow], bool],
        read_enqueued: Callable[[], dict[int, int]],
        *,
        light: bool,
        full: bool,
        user_profiler_wait_s: float = USER_PROFILER_WAIT_S,
        is_capturing: Callable[[], bool] = lambda: False,
        light_is_useful: Callable[[], bool] = lambda: True,
        find_resident_bytes: Callable[[], int | None] = lambda: None,
        effect: WindowEffect | None = None,
        may_detach: Callable[[], bool | None] = lambda: False,
        first_graph: FirstGraph | None = None,
        sampler: "LineSampler | None" = None,
        flops_interval_ns: int | None = None,
        operators_effect: WindowEffect | None = None,
        has_graphs: Callable[[], bool] = lambda: False,
    ) -> None:
        self.flops = None if flops_interval_ns is None or not full else FlopsWindows(flops_interval_ns, plan)
        """None if no windows are to have shapes."""
        self.operators = OperatorGate(
            profiler, plan, self.flops, device_effect=effect, own_effect=operators_effect, has_graphs=has_graphs
        )
        self._has_shapes = self._is_host_only = False
        self._sampler = sampler
        self._lines: WindowLines | None = None
        self._profiler = profiler
        self._plan = plan
        self._guard = guard
        self._on_window = on_window
        self._read_enqueued = read_enqueued
        self._light_wanted = light
        self._full_wanted = full
        self._user_profiler_wait_s = user_profiler_wait_s
        self._is_capturing = is_capturing
        self._light_is_useful = light_is_useful
        self._find_resident_bytes = find_resident_bytes
        self._running: bool | None = None  # None: no window; True: a full one; False: a light one
        self._after_end: Callable[[Any, int], None] | None = None  # of a window that is over and whose session is not
        self._gate = DeviceGate(profiler, plan, effect, may_detach, first_graph=first_graph)
        self._on_device = False
        self._is_first_of_device = False
        self._not_finished_in_a_row = 0
        self._thread = get_ident()
        self._left_in_a_row = 0
        self._has_stopped = False
        self._steps: list[StepRecord] = []
        self._enqueued_before: dict[int, int] = {}
        self._resident_before_bytes: int | None = None
        self._begin_cost_ns = 0
        self._user_profilers = 0
        self._is_idle = threading.Event()
        self._is_idle.set()
        self._beginning = threading.RLock()  # a signal handler of the script may start a profiler right inside
        self._full_in_run_ns = 0
        self.skipped: dict[str, int] = {}
        self.full_spent_ns = 0
        """CPU time of beginning and ending full windows so far; `light_spent_ns` is that of light ones."""
        self.light_spent_ns = 0
        self.open_from_step: int | None = None
        """The first step of the window that is running or being passed on; None: there is no step of one."""
        self.is_held = False
        """Whether no window may begin, after `hold`; to be set to False by whoever holds them."""
        self._effects = [one for one in (effect, operators_effect) if one is not None]

    def on_step(self, record: StepRecord) -> None:
        """Add a finished step; called before `on_boundary`."""
        if self._running is not None and self._after_end is None:
            self.open_from_step = record.step if not self._steps else self.open_from_step
            self._steps.append(record)
        if self.flops is not None:
            self.flops.on_step(record)
        if self.is_held:
            return
        try:
            in_window = self._running is True or self._user_profilers > 0
            self._gate.on_step(record.step, record.duration_ns, in_window=in_window)
            self.operators.on_step(record, in_window=in_window)
        except BaseException as error:  # noqa: BLE001 - the record must not be lost
            self._guard.record(PART, error)

    def on_boundary(self, step: int) -> None:
        """Begin or end a window at the begin of this step, if that is due."""
        if self.is_on_another_thread:
            self.leave()
            return
        try:
            if self._guard.is_off(PART):
                if self._running is not None and not self._is_capturing():
                    self._run(self._finish, DEVICE_WAIT_NS_MIN, SETTLE_S)
                return
            is_due = self._is_due(step)
        except BaseException as error:  # noqa: BLE001 - as in _run, without reading the clock
            self._guard.record(PART, error)
            return
        if is_due:
            self._run(self._advance, step)

    def find_next(self, step: int) -> int:
        """Return the first step after this one at which a window may begin or end."""
        is_left = self.is_on_another_thread  # each boundary would only find that again
        if not is_left and (self._running or self._user_profilers or self._after_end is not None):
            return step + 1
        planned = self._plan.find_next(step)
        if not self._full_wanted or self._guard.is_off(PART):
            return planned
        try:
            of_operators = self.operators.find_next(step, UNKNOWN_STEPS)
            return min(planned, of_operators, step + self._gate.steps_until_due(UNKNOWN_STEPS))
        except BaseException as error:  # noqa: BLE001 - steps are measured without windows, too
            self._guard.record(PART, error)
            return planned

    def on_user_profiler(self, begins: bool) -> None:  # noqa: FBT001 - an event, not an option
        """Handle the begin or the end of the user's profiler, on any thread. Returns when ours is off."""
        with self._beginning:  # a window of ours that is just beginning must be seen
            self._user_profilers = max(0, self._user_profilers + (1 if begins else -1))
            ours_is_on = begins and self._running is not None
            if begins:
                self._gate.on_user_profiler()
        if ours_is_on and get_ident() == self._thread:
            # It could not begin beside ours, which ends also where a collective is not over.
            self._run(lambda: self._end(skipped="user_profiler", wait_s=SETTLE_S_MAX, must_end=True))
        elif ours_is_on and not self._is_host_only and not self._is_idle.wait(self._user_profiler_wait_s):
            # Once the user's has ended, ending ours would crash the process (SIGSEGV in _disable_profiler, torch 2.13).
            # So it stays on, and there are no more windows. One of the host alone shares nothing with a session of
            # another thread, and on for good it would keep every operator of the run: the next boundary ends it.
            self._running = self._after_end = self.open_from_step = None
            self._end_lines()
            self._count_skip("user_profiler")

    @property
    def user_profiler_is_on(self) -> bool:
        """Whether a profiler of the user or a capture records, on any thread."""
        return self._user_profilers > 0

    @property
    def thread(self) -> int | None:
        """The thread of the session that is on, which alone can end it; None: there is none."""
        return None if self._running is None else self._thread

    @property
    def is_on_another_thread(self) -> bool:
        """Whether a session is on that the calling thread cannot end."""
        return self._running is not None and get_ident() != self._thread

    @property
    def has_given_up(self) -> bool:
        """Whether there are no more windows, since training changes its thread again and again."""
        return self._left_in_a_row >= LEFT_MAX

    def wait_until_off(self, limit_s: float) -> bool:
        """Wait until no session is on, at most so long; return whether that is so. For other threads than its own."""
        return self._is_idle.wait(limit_s)

    def hold(self) -> bool:
        """Begin no window while `is_held`, since something else may change the steps: a light one ends at this
        boundary, and references of steps before windows begin anew afterwards. Return False, and hold nothing, while a
        full window runs or steps around windows are being compared.
        """
        references = {EffectState.REFERENCE, EffectState.READY}
        if self._running or any(one.is_open and one.state not in references for one in self._effects):
            return False
        for one in self._effects:
            one.restart()
        self.is_held = True
        return True

    def close(self, *, must_end: bool = False) -> None:
        """End the running window, if this is its thread, and pass it on. Never raises.

        For what no window may span: an evaluation, a fork (the child would continue to record, into memory that is
        never freed). There it may also record nothing more, and end later. At the end of the process or of its thread
        it `must_end`: the process would crash.
        """
        limit_s = SETTLE_S_LAST if must_end else SETTLE_S_MAX
        for _ in range(TRIES if must_end else 1):
            if self._running is None or get_ident() != self._thread:
                return
            self._run(self._finish, DEVICE_WAIT_NS_MIN, limit_s, must_end)

    def stop(self) -> None:
        """Begin no more windows on any thread, and end the running one if this is its thread. Never raises."""
        with self._beginning:  # another thread may be about to begin one
            self._has_stopped = True
        self.close(must_end=True)

    def leave(self) -> None:
        """Discard the window of another thread, if there is one, which is to end it."""
        if self.is_on_another_thread and self._after_end is None:
            self._after_end = _discard
            self._left_in_a_row += 1
            self._count_skip(ANOTHER_THREAD)

    def _run(self, action: Callable[..., object], *arguments: float | str) -> None:
        begin_ns = thread_time_ns()
        self._full_in_run_ns = 0
        try:
            action(*arguments)
        except ScriptInterruptError as stop:
            self._guard.hold(stop.error)  # the window goes on, and ends at the next boundary
        except BaseException as error:  # noqa: BLE001 - nothing of ours may reach the training script
            self._guard.record(PART, error)
            if is_of_script(error):
                self._agree_with_profiler()
        if self._running is None:
            self.open_from_step = None
        self.full_spent_ns += self._full_in_run_ns
        self.light_spent_ns += thread_time_ns() - begin_ns - self._full_in_run_ns

    def _agree_with_profiler(self) -> None:
        """Let a session and its window be both there or neither, after an interruption anywhere."""
        for _ in range(TRIES):
            try:
                if not self._profiler.has_session:
                    self._running = self._after_end = None
                    self._is_idle.set()
                elif self._running is None:
                    self._profiler.stop()
            except BaseException as error:  # noqa: BLE001 - another signal
                self._guard.record(PART, error)
            else:
                return

    def _is_due(self, step: int) -> bool:
        """Return whether a window may begin or end: mostly not, and then the CPU clock is not read."""
        if self._running is None:
            self._after_end = None  # of a window that its own thread had ended when this one was about to leave it
        if self.is_held or self._after_end is not None:
            return self._running is not None
        if self._running is None and self._gate.waits(step):
            if self._plan.begins_full(step):
                self._count_skip(BEFORE_FIRST_GRAPH)
            return False
        return (
            self._plan.begins_light(step)
            or self._plan.begins_full(step)
            or bool(self._user_profilers)
            or self._has_run_its_length(step)
            or (self._full_wanted and self._gate.steps_until_due(UNKNOWN_STEPS) == 1)
            or self.operators.begins(step)
        )

    def _advance(self, step: int) -> None:
        if self._is_capturing():
            self._count_skip("graph_capture")
            return
        if self._after_end is not None and not self._end(must_end=bool(self._user_profilers)):
            return
        if self._running is not None and self._user_profilers:
            self._end(skipped="user_profiler", wait_s=SETTLE_S_MAX, must_end=True)
        if self.is_held:
            if self._running is not None:
                self._finish()
            return
        ends = self._has_run_its_length(step)
        full_ends = ends and self._running is True
        if full_ends and self._is_first_of_device:
            self._end(skipped=FIRST_OF_DEVICE)
        may_begin = self._full_wanted and self._running is not True
        if may_begin and self._gate.decide_to_detach():
            self._detach()
        begins_full = may_begin and self._gate.begins_full(step)
        host_only = may_begin and not begins_full and self.operators.begins(step)
        rolls = self._running is False and self._plan.begins_light(step)
        if self._running is not None and (ends or begins_full or host_only or rolls):
            self._finish()
        begins_light = self._plan.begins_light(step) or (full_ends and self._plan.is_light(step))
        if self._running is None and (begins_full or host_only or (self._light_wanted and begins_light)):
            is_planned = begins_light or self._plan.begins_full(step)
            self._begin(step, full=begins_full or host_only, is_planned=is_planned, host_only=host_only)

    def _has_run_its_length(self, step: int) -> bool:
        """Return whether the running window, if any, has all its steps. The first one of a device has one step, others
        of a device one more than is reported.
        """
        if self._running:
            steps = max(1, self._plan.full_window_steps)
            wanted = 1 if self._is_first_of_device else steps + self._on_device
            return len(self._steps) >= wanted
        return self._running is False and not self._plan.is_light(step)

    def _detach(self) -> None:
        """Detach CUPTI, within this boundary; where the user's profiler is on or a graph captured, at a later one."""
        if self._running is not None:
            self._finish()
        begin_ns = thread_time_ns()
        with self._beginning:
            if self._user_profilers or self._profiler.is_busy():
                return
            if self._profiler.detach():
                self._gate.on_detached()
        self._full_in_run_ns += thread_time_ns() - begin_ns

    def _begin(self, step: int, *, full: bool, is_planned: bool, host_only: bool) -> None:
        if not full and not (self._light_wanted and self._light_is_useful() and self._gate.allows_light):
            return
        if full and not host_only and self._profiler.misses_device:
            self._count_skip("device_not_recorded")
            return
        begin_ns = thread_time_ns()
        enqueued = self._read_enqueued()
        self._resident_before_bytes = self._find_resident_bytes()
        with self._beginning:
            if self._has_stopped or self.has_given_up:
                return
            if self._user_profilers or self._profiler.is_busy():
                if is_planned:
                    self._count_skip("user_profiler")
                return
            on_device = full and not host_only and self._profiler.sees_device
            is_first = full and not host_only and self._profiler.is_first_of_device
            has_shapes = host_only or (
                full and not is_first and _affords_shapes(self.flops, self._plan, step, on_device=on_device)
            )
            self._profiler.start(full=full, shapes=has_shapes, host_only=host_only)
            self._has_shapes, self._is_host_only = has_shapes, host_only
            self._running, self._thread, self._steps = full, get_ident(), []
            self._on_device, self._is_first_of_device = on_device, is_first
            if not host_only:
                self._gate.on_session_begin()
            if full and not is_first and not host_only:
                self._plan.on_full()
                self._gate.on_begin()
                self._lines = None
                if on_device and self._sampler is not None:
                    self._sampler.begin()
            self._is_idle.clear()
        self._enqueued_before = enqueued
        self._begin_cost_ns = thread_time_ns() - begin_ns
        self._full_in_run_ns += self._begin_cost_ns if full else 0

    def _end_lines(self) -> None:
        """End sampling, if it is on, and keep the lines."""
        lines = None if self._sampler is None else self._sampler.end()
        if lines is not None:
            self._lines = lines
            self.full_spent_ns += lines.cpu_ns

    def _finish(
        self,
        wait_ns_max: int = DEVICE_WAIT_NS_MAX,
        wait_s: float = SETTLE_S,
        must_end: bool = False,  # noqa: FBT001, FBT002 - as `_run` passes it
    ) -> None:
        """End the window, and pass it on; the first one of a device is discarded."""
        if self._after_end is not None or self._is_first_of_device:
            self._end(skipped=FIRST_OF_DEVICE, wait_s=wait_s, must_end=must_end)
            return
        self._end_lines()  # the last step is over; what follows waits for the device, on a line of no step
        is_finished = not self._on_device or self._is_device_finished(wait_ns_max)
        if self._running is None:
            return  # it was given up for the user's profiler meanwhile
        if not is_finished:
            skipped = "user_profiler" if self._user_profilers else DEVICE_NOT_FINISHED
            self._end(skipped=skipped, wait_s=wait_s, must_end=must_end)
            return
        begin_ns, lines = thread_time_ns(), self._lines if self._on_device else None
        try:
            enqueued = self._read_enqueued()
        except Exception:
            self._end(_discard, wait_s=wait_s, must_end=must_end)  # the session must end all the same
            raise
        window = RawWindow(
            full=bool(self._running),
            steps=self._steps,
            result=None,
            wall_minus_host_ns=read_wall_minus_host_ns(),
            enqueued_before=self._enqueued_before,
            enqueued_after=enqueued,
            training_cost_ns=self._begin_cost_ns + (0 if lines is None else lines.cpu_ns),
            on_device=self._on_device,
            resident_before_bytes=self._resident_before_bytes,
            lines=lines,
            has_shapes=self._has_shapes,
            host_only=self._is_host_only,
        )
        read_ns = thread_time_ns() - begin_ns

        def pass_on(result: Any, end_cost_ns: int) -> None:
            self._left_in_a_row = 0
            if window.has_shapes and self.flops is not None:
                self.flops.on_recorded(window.steps)
            cost_ns = window.training_cost_ns + read_ns + end_cost_ns
            if not self._on_window(window._replace(result=result, training_cost_ns=cost_ns)):
                self._count_skip("backlog")

        self._full_in_run_ns += read_ns if window.full else 0
        self._end(pass_on, wait_s=wait_s, must_end=must_end)

    def _end(
        self,
        after: Callable[[Any, int], None] | None = None,
        *,
        skipped: str = "",
        wait_s: float = SETTLE_S,
        must_end: bool = False,
    ) -> bool:
        """End the session of a window that is over, and call `after` with its result and the CPU time that took, in ns;
        without it the window is discarded, which is counted as `skipped`. Return False, and let the session record
        nothing more, while collectives in it are not over, unless it `must_end`. Then a later call ends it, which does
        not wait, and what is done afterwards stays.
        """
        if self._running is None:
            self._after_end = None
            return False
        begin_ns, full = thread_time_ns(), self._running
        is_first = self._after_end is None
        if self._after_end is None:
            if after is None:
                self._count_skip(skipped)
            self._after_end = _discard if after is None else after
        try:
            are_over = self._profiler.settle(wait_s if is_first or must_end else 0.0)
        except ScriptInterruptError:
            raise
        except Exception as error:  # noqa: BLE001 - the session must end all the same
            self._guard.record(PART, error)
            are_over = True
        if _is_off(self._running):  # it was given up for the user's profiler
            self._after_end = None
            return False
        if not (are_over or must_end):
            return False
        then, self._after_end = self._after_end, None
        result = self._stop()
        cost_ns = thread_time_ns() - begin_ns
        self._full_in_run_ns += cost_ns if full else 0
        then(result, cost_ns)
        return True

    def _is_device_finished(self, wait_ns_max: int) -> bool:
        """Wait for the work of the running window: while one kernel runs, the profiler may lose all of them. Raises
        ScriptInterruptError.
        """
        begin_ns = thread_time_ns()
        steps_ns = sum(step.duration_ns for step in self._steps)
        limit_ns = DEVICE_WAIT_NS_MIN if self._not_finished_in_a_row else max(steps_ns, DEVICE_WAIT_NS_MIN)
        try:
            is_finished = self._profiler.wait_for_device(min(limit_ns, wait_ns_max), lambda: self._user_profilers > 0)
        except ScriptInterruptError:
            raise
        except Exception as error:  # noqa: BLE001 - the session must end all the same
            self._guard.record(PART, error)
            is_finished = False
        self._full_in_run_ns += thread_time_ns() - begin_ns
        if not self._user_profilers:
            self._not_finished_in_a_row = 0 if is_finished else self._not_finished_in_a_row + 1
            if self._not_finished_in_a_row == NOT_FINISHED_MAX:
                self._plan.full_has_ended = True
        return is_finished

    def _stop(self) -> Any:
        on_device, host_only = self._on_device, self._is_host_only
        self._running, self._on_device, self._is_first_of_device, self._has_shapes = None, False, False, False
        self._is_host_only = False
        try:
            return self._profiler.stop()
        finally:
            self._is_idle.set()
            self._end_lines()
            if on_device:
                self._gate.on_session_end()
            if host_only:
                self.operators.on_session_end()

    def _count_skip(self, reason: str) -> None:
        self.skipped[reason] = self.skipped.get(reason, 0) + 1


def _is_off(running: bool | None) -> bool:  # noqa: FBT001 - the state of a window
    return running is None


def _discard(_result: Any, _cost_ns: int) -> None:
    """Do nothing with a window."""


def _affords_shapes(flops: FlopsWindows | None, plan: WindowPlan, step: int, *, on_device: bool) -> bool:
    """Return whether FLOPs are due at this step, and the budget pays for a window with shapes."""
    times = COST_TIMES_ON_DEVICE if on_device else COST_TIMES
    return flops is not None and flops.is_due(step) and plan.affords_full(times)
