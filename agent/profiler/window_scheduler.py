"""Start and stop profiler windows: nearly always a light one, with collectives, and sometimes a full one, with
operators.

Windows begin and end at step boundaries, on step numbers that every rank computes alone: all ranks have the cost at the
same steps, so none waits for another's window, and the windows have the same collectives on every rank. Not so the
first windows of a device, and the boundary at which CUPTI is detached: these depend on the rank's own step times.

A timer of each rank would be simpler. But then each rank's window would make another step longer, for all ranks, since
they wait for it; and of no step would the collectives of all ranks be known, of which the shortest tells the transfer.
Example: all ranks begin a light window at step 1,024, of two steps. At 1,026 an all_reduce of rank 3 is not over, so
its window cannot end there: it records nothing more, and the boundary of 1,027 ends it.
"""

import enum
import threading
from collections.abc import Callable, Sequence
from threading import get_ident
from time import thread_time_ns
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from rankscope.agent.guard import WINDOWS, Guard, ScriptInterruptError, is_of_script
from rankscope.agent.profiler.device_gate import DeviceGate, DeviceProfiler
from rankscope.agent.profiler.flops_windows import COST_TIMES, COST_TIMES_ON_DEVICE, FlopsWindows
from rankscope.agent.profiler.step_size import StepSize
from rankscope.agent.profiler.window_kinds import WindowGate, WindowKind
from rankscope.agent.profiler.window_plan import WindowPlan
from rankscope.agent.steps.open_collectives import SETTLE_S, SETTLE_S_LAST, SETTLE_S_MAX
from rankscope.agent.steps.step_intervals import UNKNOWN_STEPS
from rankscope.measure.clock import read_wall_minus_host_ns
from rankscope.measure.records import StepRecord
from rankscope.measure.units import NS_PER_S

if TYPE_CHECKING:
    from rankscope.agent.profiler.line_sampler import LineSampler, WindowLines
    from rankscope.agent.profiler.operator_gate import OperatorGate

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
    the operators of a host whose device has work of its own, which is not recorded. `thread` is the one that it is of,
    None: not known.
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
    thread: int | None = None


class WindowHost(Protocol):
    """The rank that windows are taken of, as `windows.ProfilerWindows`. For the training thread."""

    def keep(self, window: RawWindow) -> bool:
        """Take a finished window; return False if there is no room for it."""
        ...

    def read_enqueued(self) -> dict[int, int]:
        """Return the sequence number of the last collective of each process group."""
        ...

    def find_resident_bytes(self) -> int | None:
        """Return the resident memory of the process; None: not known."""
        ...

    def is_capturing(self) -> bool:
        """Return whether a CUDA graph is being captured."""
        ...


class WindowState(enum.Enum):
    """What the scheduler is doing.

    IDLE        no session is on
    RECORDING   a session records the steps of a window
    ENDING      the window is over, and its session is not: it records nothing more, and ends once its collectives are
                over (`steps/open_collectives.py`), or on the thread that began it
    """

    IDLE = "idle"
    RECORDING = "recording"
    ENDING = "ending"


After = Callable[[Any, int], None]
"""What is done with the result of a window, and the CPU time that its end took, in ns."""


class OpenWindow(msgspec.Struct, eq=False):
    """A window whose session is on, and the thread that began it. `after`: what is done once the session has ended;
    None while it records.
    """

    kind: WindowKind
    thread: int
    on_device: bool
    has_shapes: bool
    enqueued_before: dict[int, int]
    resident_before_bytes: int | None
    begin_cost_ns: int = 0
    steps: list[StepRecord] = []
    after: After | None = None

    @property
    def is_full(self) -> bool:
        """Whether it is of any kind but a light one."""
        return self.kind is not WindowKind.LIGHT


class WindowScheduler:
    """Start and stop windows on the training thread, by the plan. Finished ones go to the `host`.

    A window during which the user's profiler began is discarded and counted in `skipped`; none starts while it runs.
    The first window of a device, which lasts one step and starts as soon as the device is in use, or with an effect of
    windows once its reference is complete, is discarded as well. No window begins or ends while a CUDA graph is being
    captured.

    A window ends only once the collectives in it are over (`open_collectives.py`). Until then it records nothing more,
    no other one begins, and the next boundaries try again.

    Only the thread that began a window ends it. Where training has gone on on another one, the window is discarded, and
    no other one begins, until that thread has called `close`.

    What speaks against a window is asked of the `gates`, in order; `devices`, which is one of them, also says when a
    device's windows are due, and when CUPTI is detached, and `operators` when those of the host alone are. During a
    device's windows but the first the `sampler` notes where the training thread is. A full window has shapes when
    `flops` are due (None: never), and the budget pays for it. What the first one costs is estimated from the `size` of
    the steps (None: as usual).
    """

    def __init__(
        self,
        profiler: Profiler,
        plan: WindowPlan,
        guard: Guard,
        host: WindowHost,
        *,
        devices: DeviceGate,
        operators: "OperatorGate | None",
        gates: Sequence[WindowGate] = (),
        flops: FlopsWindows | None = None,
        sampler: "LineSampler | None" = None,
        size: StepSize | None = None,
        light: bool,
        full: bool,
        user_profiler_wait_s: float = USER_PROFILER_WAIT_S,
    ) -> None:
        self._profiler = profiler
        self._plan = plan
        self._guard = guard
        self._host = host
        self._devices = devices
        self.operators = operators
        """None where there is no device."""
        self._gates = (devices, *gates)
        self.flops = flops
        """None if no windows are to have shapes."""
        self._sampler = sampler
        self._size = size
        self._light_wanted = light
        self._full_wanted = full
        self._user_profiler_wait_s = user_profiler_wait_s
        self._window: OpenWindow | None = None
        self._lines: WindowLines | None = None
        self._not_finished_in_a_row = self._left_in_a_row = 0
        self._has_stopped = False
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

    @property
    def state(self) -> WindowState:
        """What it is doing. For any thread."""
        window = self._window
        if window is None:
            return WindowState.IDLE
        return WindowState.RECORDING if window.after is None else WindowState.ENDING

    def on_step(self, record: StepRecord) -> None:
        """Add a finished step; called before `on_boundary`."""
        window = self._window
        if window is not None and window.after is None:
            self.open_from_step = record.step if not window.steps else self.open_from_step
            window.steps.append(record)
        if self.flops is not None:
            self.flops.on_step(record)
        if self.is_held:
            return
        try:
            in_window = (window is not None and window.is_full) or self._user_profilers > 0
            self._devices.on_step(record.step, record.duration_ns, in_window=in_window)
            if self.operators is not None:
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
                if self._window is not None and not self._host.is_capturing():
                    self._run(self._finish, DEVICE_WAIT_NS_MIN, SETTLE_S)
                return
            if self._size is not None:
                self._plan.events_a_step = self._size.estimate(step)
            is_due = self._is_due(step)
        except BaseException as error:  # noqa: BLE001 - as in _run, without reading the clock
            self._guard.record(PART, error)
            return
        if is_due:
            self._run(self._advance, step)

    def find_next(self, step: int) -> int:
        """Return the first step after this one at which a window may begin or end."""
        window = self._window
        is_left = self.is_on_another_thread  # each boundary would only find that again
        is_ending = window is not None and (window.is_full or window.after is not None)
        if not is_left and (is_ending or self._user_profilers):
            return step + 1
        planned = self._plan.find_next(step)
        if not self._full_wanted or self._guard.is_off(PART):
            return planned
        try:
            if self.operators is not None:
                planned = min(planned, self.operators.find_next(step, UNKNOWN_STEPS))
            return min(planned, step + self._devices.steps_until_due(UNKNOWN_STEPS))
        except BaseException as error:  # noqa: BLE001 - steps are measured without windows, too
            self._guard.record(PART, error)
            return planned

    def on_user_profiler(self, begins: bool) -> None:  # noqa: FBT001 - an event, not an option
        """Handle the begin or the end of the user's profiler, on any thread. Returns when ours is off."""
        with self._beginning:  # a window of ours that is just beginning must be seen
            self._user_profilers = max(0, self._user_profilers + (1 if begins else -1))
            window = self._window if begins else None
            if begins:
                self._devices.on_user_profiler()
        if window is None:
            return
        if get_ident() == window.thread:
            # It could not begin beside ours, which ends also where a collective is not over.
            self._run(lambda: self._end(skipped="user_profiler", wait_s=SETTLE_S_MAX, must_end=True))
        elif window.kind is not WindowKind.HOST and not self._is_idle.wait(self._user_profiler_wait_s):
            # Once the user's has ended, ending ours would crash the process (SIGSEGV in _disable_profiler, torch 2.13).
            # So it stays on, and there are no more windows. One of the host alone shares nothing with a session of
            # another thread, and on for good it would keep every operator of the run: the next boundary ends it.
            self._window = self.open_from_step = None
            self._end_lines()
            self._count_skip("user_profiler")

    @property
    def user_profiler_is_on(self) -> bool:
        """Whether a profiler of the user or a capture records, on any thread."""
        return self._user_profilers > 0

    @property
    def thread(self) -> int | None:
        """The thread of the session that is on, which alone can end it; None: there is none."""
        window = self._window
        return None if window is None else window.thread

    @property
    def is_on_another_thread(self) -> bool:
        """Whether a session is on that the calling thread cannot end."""
        return self.thread not in (None, get_ident())

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
        window = self._window
        effects = [gate.effect for gate in (self._devices, self.operators) if gate is not None and gate.effect]
        if (window is not None and window.is_full) or any(one.is_comparing for one in effects):
            return False
        for one in effects:
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
            if self.thread != get_ident():
                return
            self._run(self._finish, DEVICE_WAIT_NS_MIN, limit_s, must_end)

    def stop(self) -> None:
        """Begin no more windows on any thread, and end the running one if this is its thread. Never raises."""
        with self._beginning:  # another thread may be about to begin one
            self._has_stopped = True
        self.close(must_end=True)

    def leave(self) -> None:
        """Discard the window of another thread, if there is one, which is to end it."""
        window = self._window
        if window is not None and window.after is None and get_ident() != window.thread:
            window.after = _discard
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
        if self._window is None:
            self.open_from_step = None
        self.full_spent_ns += self._full_in_run_ns
        self.light_spent_ns += thread_time_ns() - begin_ns - self._full_in_run_ns

    def _agree_with_profiler(self) -> None:
        """Let a session and its window be both there or neither, after an interruption anywhere."""
        for _ in range(TRIES):
            try:
                if not self._profiler.has_session:
                    self._window = None
                    self._is_idle.set()
                elif self._window is None:
                    self._profiler.stop()
            except BaseException as error:  # noqa: BLE001 - another signal
                self._guard.record(PART, error)
            else:
                return

    def _is_due(self, step: int) -> bool:
        """Return whether a window may begin or end: mostly not, and then the CPU clock is not read."""
        state = self.state
        if self.is_held or state is WindowState.ENDING:
            return state is not WindowState.IDLE
        if state is WindowState.IDLE and self._devices.waits(step):
            if self._plan.begins_full(step):
                self._count_skip(BEFORE_FIRST_GRAPH)
            return False
        return (
            self._plan.begins_light(step)
            or self._plan.begins_full(step)
            or bool(self._user_profilers)
            or self._has_run_its_length(step)
            or (self._full_wanted and self._devices.steps_until_due(UNKNOWN_STEPS) == 1)
            or self._begins_of_host(step)
        )

    def _advance(self, step: int) -> None:
        if self._host.is_capturing():
            self._count_skip("graph_capture")
            return
        if self.state is WindowState.ENDING and not self._end(must_end=bool(self._user_profilers)):
            return
        if self._window is not None and self._user_profilers:
            self._end(skipped="user_profiler", wait_s=SETTLE_S_MAX, must_end=True)
        if self.is_held:
            if self._window is not None:
                self._finish()
            return
        window, ends = self._window, self._has_run_its_length(step)
        full_ends = ends and window is not None and window.is_full
        if window is not None and full_ends and window.kind is WindowKind.FIRST:
            self._end(skipped=FIRST_OF_DEVICE)
        kind = self._choose_full(step)
        rolls = self._is_light_on and self._plan.begins_light(step)
        if self._window is not None and (ends or kind is not None or rolls):
            self._finish()
        begins_light = self._plan.begins_light(step) or (full_ends and self._plan.is_light(step))
        if kind is None and self._light_wanted and begins_light:
            kind = WindowKind.LIGHT
        if self._window is None and kind is not None:
            self._begin(step, kind, is_planned=begins_light or self._plan.begins_full(step))

    @property
    def _is_light_on(self) -> bool:
        window = self._window
        return window is not None and not window.is_full

    def _choose_full(self, step: int) -> WindowKind | None:
        """Return the kind of the full window that begins with this step; None: there is none. Detach CUPTI if that is
        due.
        """
        if not self._full_wanted or (self._window is not None and not self._is_light_on):
            return None
        if self._devices.decide_to_detach():
            self._detach()
        if self._devices.begins_full(step):
            return WindowKind.FULL
        return WindowKind.HOST if self._begins_of_host(step) else None

    def _begins_of_host(self, step: int) -> bool:
        return self.operators is not None and self.operators.begins(step)

    def _has_run_its_length(self, step: int) -> bool:
        """Return whether the running window, if any, has all its steps. The first one of a device has one step, others
        of a device one more than is reported.
        """
        window = self._window
        if window is None:
            return False
        if not window.is_full:
            return not self._plan.is_light(step, len(window.steps))
        steps = max(1, self._plan.full_window_steps)
        return len(window.steps) >= (1 if window.kind is WindowKind.FIRST else steps + window.on_device)

    def _detach(self) -> None:
        """Detach CUPTI, within this boundary; where the user's profiler is on or a graph captured, at a later one."""
        if self._window is not None:
            self._finish()
        begin_ns = thread_time_ns()
        with self._beginning:
            if self._user_profilers or self._profiler.is_busy():
                return
            if self._profiler.detach():
                self._devices.on_detached()
        self._full_in_run_ns += thread_time_ns() - begin_ns

    def _find_obstacle(self, step: int, kind: WindowKind) -> str | None:
        """Return why no window of this kind may begin with this step, as the first gate that has a reason says."""
        for gate in self._gates:
            reason = gate.may_begin(step, kind)
            if reason is not None:
                return reason
        return None

    def _begin(self, step: int, kind: WindowKind, *, is_planned: bool) -> None:
        reason = self._find_obstacle(step, kind)
        if reason is not None:
            if reason:
                self._count_skip(reason)
            return
        begin_ns = thread_time_ns()
        enqueued, resident_bytes = self._host.read_enqueued(), self._host.find_resident_bytes()
        self._plan.learn_collectives(sum(enqueued.values()), step)
        with self._beginning:
            if self._has_stopped or self.has_given_up:
                return
            if self._user_profilers or self._profiler.is_busy():
                if is_planned:
                    self._count_skip("user_profiler")
                return
            if kind is WindowKind.FULL and self._profiler.is_first_of_device:
                kind = WindowKind.FIRST
            is_host_only, is_full = kind is WindowKind.HOST, kind is not WindowKind.LIGHT
            on_device = is_full and not is_host_only and self._profiler.sees_device
            has_shapes = is_host_only or (
                kind is WindowKind.FULL and _affords_shapes(self.flops, self._plan, step, on_device=on_device)
            )
            window = OpenWindow(kind, get_ident(), on_device, has_shapes, enqueued, resident_bytes)
            self._profiler.start(full=is_full, shapes=has_shapes, host_only=is_host_only)
            self._window = window
            if not is_host_only:
                self._devices.on_session_begin()
            if kind is WindowKind.FULL:
                self._plan.on_full()
                self._devices.on_begin()
                self._lines = None
                if on_device and self._sampler is not None:
                    self._sampler.begin()
            self._is_idle.clear()
        window.begin_cost_ns = thread_time_ns() - begin_ns
        self._full_in_run_ns += window.begin_cost_ns if is_full else 0

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
        window = self._window
        if window is None:
            return
        if window.after is not None or window.kind is WindowKind.FIRST:
            self._end(skipped=FIRST_OF_DEVICE, wait_s=wait_s, must_end=must_end)
            return
        self._end_lines()  # the last step is over; what follows waits for the device, on a line of no step
        is_finished = not window.on_device or self._is_device_finished(window, wait_ns_max)
        if self._window is not window:
            return  # it was given up for the user's profiler meanwhile
        if not is_finished:
            skipped = "user_profiler" if self._user_profilers else DEVICE_NOT_FINISHED
            self._end(skipped=skipped, wait_s=wait_s, must_end=must_end)
            return
        begin_ns = thread_time_ns()
        try:
            found = self._describe(window)
        except Exception:
            self._end(_discard, wait_s=wait_s, must_end=must_end)  # the session must end all the same
            raise
        read_ns = thread_time_ns() - begin_ns

        def pass_on(result: Any, end_cost_ns: int) -> None:
            self._left_in_a_row = 0
            if found.has_shapes and self.flops is not None:
                self.flops.on_recorded(found.steps)
            cost_ns = found.training_cost_ns + read_ns + end_cost_ns
            if not self._host.keep(found._replace(result=result, training_cost_ns=cost_ns)):
                self._count_skip("backlog")

        self._full_in_run_ns += read_ns if window.is_full else 0
        self._end(pass_on, wait_s=wait_s, must_end=must_end)

    def _describe(self, window: OpenWindow) -> RawWindow:
        """Return a window that is over, without its result."""
        enqueued, lines = self._host.read_enqueued(), self._lines if window.on_device else None
        return RawWindow(
            full=window.is_full,
            steps=window.steps,
            result=None,
            wall_minus_host_ns=read_wall_minus_host_ns(),
            enqueued_before=window.enqueued_before,
            enqueued_after=enqueued,
            training_cost_ns=window.begin_cost_ns + (0 if lines is None else lines.cpu_ns),
            on_device=window.on_device,
            resident_before_bytes=window.resident_before_bytes,
            lines=lines,
            has_shapes=window.has_shapes,
            host_only=window.kind is WindowKind.HOST,
            thread=window.thread,
        )

    def _end(
        self, after: After | None = None, *, skipped: str = "", wait_s: float = SETTLE_S, must_end: bool = False
    ) -> bool:
        """End the session of a window that is over, and call `after` with its result and the CPU time that took;
        without it the window is discarded, which is counted as `skipped`. Return False, and let the session record
        nothing more, while collectives in it are not over, unless it `must_end`. Then a later call ends it, which does
        not wait, and what is done afterwards stays.
        """
        window = self._window
        if window is None:
            return False
        begin_ns, is_first = thread_time_ns(), window.after is None
        if window.after is None:
            if after is None:
                self._count_skip(skipped)
            window.after = _discard if after is None else after
        try:
            are_over = self._profiler.settle(wait_s if is_first or must_end else 0.0)
        except ScriptInterruptError:
            raise
        except Exception as error:  # noqa: BLE001 - the session must end all the same
            self._guard.record(PART, error)
            are_over = True
        if self._window is not window:  # it was given up for the user's profiler
            return False
        if not (are_over or must_end):
            return False
        result = self._stop(window)
        cost_ns = thread_time_ns() - begin_ns
        self._full_in_run_ns += cost_ns if window.is_full else 0
        window.after(result, cost_ns)
        return True

    def _is_device_finished(self, window: OpenWindow, wait_ns_max: int) -> bool:
        """Wait for the work of the running window: while one kernel runs, the profiler may lose all of them. Raises
        ScriptInterruptError.
        """
        begin_ns = thread_time_ns()
        steps_ns = sum(step.duration_ns for step in window.steps)
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

    def _stop(self, window: OpenWindow) -> Any:
        self._window = None
        try:
            return self._profiler.stop()
        finally:
            self._is_idle.set()
            self._end_lines()
            if window.on_device:
                self._devices.on_session_end()
            if window.kind is WindowKind.HOST and self.operators is not None:
                self.operators.on_session_end()

    def _count_skip(self, reason: str) -> None:
        self.skipped[reason] = self.skipped.get(reason, 0) + 1


def _discard(_result: Any, _cost_ns: int) -> None:
    """Do nothing with a window."""


def _affords_shapes(flops: FlopsWindows | None, plan: WindowPlan, step: int, *, on_device: bool) -> bool:
    """Return whether FLOPs are due at this step, and the budget pays for a window with shapes."""
    times = COST_TIMES_ON_DEVICE if on_device else COST_TIMES
    return flops is not None and flops.is_due(step) and plan.affords_full(times)
