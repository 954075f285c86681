"""Start and stop Kineto without torch.profiler: 0.4 ms instead of 1 ms to start, and only the scopes that are needed.

The functions are private to torch and differ between its versions (docs/torch.md lists those tried), so
`TorchProfiler.find` checks for each of them first and names what is missing. Start and stop must be called on the same
thread, the training thread, at a step boundary.

What a window records
---------------------
- A light one: the user's ranges with shapes, 5 to 11 events a step. A backend on the CPU marks each collective by one.
- A full one on the CPU: every operator, thousands a step, at 1.7 us each when it ends.
- A full one once a device is in use: kernels, copies and the calls that launched them. Operators only if the process
  communicates, since `record_param_comms`, which describes a collective, is one of them (scope FUNCTION; there is none
  narrower). That doubles the events, 7 ms a step when the window ends. To infer group and sequence from the order of
  the `nccl:` ranges would fail with the first lost range. Backward nodes are left out.
- A full one with shapes, for FLOPs: every operator and backward node, with the shapes of its inputs.
- One of the host alone, for FLOPs where windows of its device are off or over: the same without Kineto
  (`host_operators.py`), which reaches CUPTI in each of its sessions.

The end of a session on a device
--------------------------------
`_disable_profiler` does not wait for the device, unlike torch.profiler. CUPTI hands over only buffers in which every
kernel has ended, so that one that still runs may cost a short window all of its kernels. On an H200 5 of 8 windows that
did not wait had no whole step, and 19 of 19 that did had all kernels, but for those that detached CUPTI. So
`wait_for_device` comes before: it waits at most as long as it is told, since a kernel of NCCL runs until the last rank
has arrived.
"""

import functools
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

from rankscope.agent.guard import pause
from rankscope.agent.late_imports import LATE_IMPORTS
from rankscope.agent.own_thread import call_without_signals
from rankscope.agent.profiler.forked_child import find_early_exit
from rankscope.agent.steps.open_ranges import OpenRanges
from rankscope.measure.errors import UnavailableError

if TYPE_CHECKING:
    from rankscope.agent.profiler.host_operators import OperatorSession

KINETO_QUIET = ("KINETO_LOG_LEVEL", "99")
"""Silences the two lines that each window writes to stderr; levels 0 to 5 do not. A value set by the user stays."""
DEVICES = ("cuda", "xpu")
"""Kinds of devices whose windows are read in the same way; torch calls ROCm's `cuda`."""

TEARDOWN = "TEARDOWN_CUPTI"
"""Set to 1 it makes Kineto detach CUPTI from the process by its next session. In a process that has a CUDA graph that
ends in a crash: seen in three of three, with torch 2.11 and CUDA 13.0."""
DETACH_CUDA_MIN = (12, 6)
DETACH_CALLS, DETACH_PAUSE_S = 20, 1e-3
_CALLS = (
    "_prepare_profiler", "_enable_profiler", "_disable_profiler", "_profiler_enabled", "_enable_record_function",
)  # fmt: skip
POLL_S_FIRST = 50e-6
POLL_S_MAX = 1e-3
"""Sleep between two questions whether a device has finished, at first and at most."""


class DeviceKind(NamedTuple):
    """A kind of device that this torch was built for: whether the script uses it, whether it can be recorded (called
    only once it is in use), Kineto's name for it; `mark` records and returns an event in the current stream of each
    device that this process uses.
    """

    is_in_use: Callable[[], bool]
    can_be_recorded: Callable[[], bool]
    activity: Any
    mark: Callable[[], Sequence[Any]]


class TorchProfiler:
    """Our profiler session, one at a time.

    Stricter than torch, where a stop without a session returns an empty result and warns on stderr.
    """

    def __init__(
        self,
        autograd: Any,
        c_profiler: Any,
        ranges: OpenRanges | None = None,
        devices: Sequence[DeviceKind] = (),
        communicates: Callable[[], bool] = lambda: False,
        *,
        run_between: Callable[[Callable[[], bool]], bool | None] = lambda action: action(),
    ) -> None:
        self._run_between = run_between
        self._autograd = autograd
        self._ranges = ranges or OpenRanges()
        self._devices = devices
        self._communicates = communicates
        self._cpu = c_profiler.ProfilerActivity.CPU
        self._scope = c_profiler.RecordScope
        self._c_profiler = c_profiler
        self._lists_activities = hasattr(autograd._ProfilerResult, "trace_activities")
        self._wrap_result = None if self._lists_activities else _find_older_result(autograd)
        self._with_shapes, self._without_shapes = (
            _configure(c_profiler, record_shapes=has_shapes, lists_activities=self._lists_activities)
            for has_shapes in (True, False)
        )
        self.count_nodes: Callable[[], int] = getattr(autograd, "_get_sequence_nr", lambda: 0)
        """Returns how many nodes of autograd's graphs this thread has made; 0 where torch does not tell."""
        self._thread: int | None = None
        self._activities_seen: set[Any] = set()
        self._is_host_only = False
        os.register_at_fork(after_in_child=find_early_exit())  # a session starts a thread that a child waits for

    @classmethod
    def find(
        cls,
        ranges: OpenRanges | None = None,
        run_between: Callable[[Callable[[], bool]], bool | None] = lambda action: action(),
    ) -> "TorchProfiler":
        """Return the profiler of the user's torch; `ranges` is notified of its sessions, `run_between` runs calls of
        CUDA between captures of graphs (`GraphCaptures`). Raises UnavailableError naming what this torch lacks.
        """
        os.environ.setdefault(*KINETO_QUIET)
        try:
            from torch._C import _autograd, _profiler  # noqa: PLC0415

            for name in _CALLS:
                getattr(_autograd, name)
            devices = find_devices(_autograd, _profiler)
            found = cls(_autograd, _profiler, ranges, devices, communicates, run_between=run_between)
            found._begin_kineto()
        except (ImportError, AttributeError, TypeError) as error:
            raise UnavailableError(f"this torch has no profiler that windows could use: {error}") from error
        return found

    @functools.cached_property
    def _operators(self) -> "OperatorSession | None":
        """What records the host alone. Made when windows of a device are off or over, which it replaces."""
        return find_operator_session(self._autograd, self._c_profiler)

    @property
    def has_session(self) -> bool:
        """Whether a session that this object has begun is on in this thread."""
        return self._thread == get_ident() and self._may_be_on()

    def _begin_kineto(self) -> None:
        """Take the first session of the process here, on the thread that imports torch: of a first one on another
        thread Kineto complains on stderr. It takes 0.8 ms. Not where it would bring CUPTI along.
        """
        if self._devices or self.is_busy():
            return
        call_without_signals(self._take_first_session)  # it starts a thread

    def _take_first_session(self) -> None:
        self._autograd._prepare_profiler(self._without_shapes, {self._cpu})
        self._autograd._enable_profiler(self._without_shapes, {self._cpu}, {self._scope.USER_SCOPE})
        self._autograd._disable_profiler()

    def is_busy(self) -> bool:
        """Return whether any profiler, ours, the user's or another tool's, is on in this thread."""
        return bool(self._autograd._profiler_enabled())

    def _may_be_on(self) -> bool:
        """Return whether a session is on in this thread; True where torch cannot say: ours must be ended all the same,
        since one that is left on the main thread ends the process by a signal.
        """
        try:
            return self.is_busy()
        except Exception:  # noqa: BLE001 - the error of another torch, or of what has replaced a part of it
            return True

    @property
    def records_operators(self) -> bool:
        """Whether a session may be of the host alone."""
        return self._operators is not None and self._operators.may_begin()

    @property
    def knows_devices(self) -> bool:
        """Whether this torch was built for any kind of device that can be recorded."""
        return bool(self._devices)

    @property
    def sees_device(self) -> bool:
        """Whether a full session begun now would record a device."""
        return bool(self._find_activities())

    @property
    def is_first_of_device(self) -> bool:
        """Whether a full session begun now would be the first to record the device in use. Its begin takes longer, 15
        to 20 ms on an H200, while CUPTI attaches, so its times are not those of training.
        """
        return not self._find_activities() <= self._activities_seen

    @property
    def can_detach(self) -> bool:
        """Whether `detach` takes CUPTI out of this process, unless a CUDA graph is in it. Only from CUDA 12.6 on: torch
        itself avoids it before. A value that the user has set for it stays.
        """
        numbers = re.findall(r"\d+", str(getattr(sys.modules["torch"].version, "cuda", None) or ""))
        return tuple(map(int, numbers[:2])) >= DETACH_CUDA_MIN and TEARDOWN not in os.environ

    @property
    def misses_device(self) -> bool:
        """Whether a device is in use that cannot be recorded: a full session would then show only the host's work as
        that of training.
        """
        return any(device.is_in_use() and not device.can_be_recorded() for device in self._devices)

    def wait_for_device(self, limit_ns: int, gives_up: Callable[[], bool] = lambda: False) -> bool:
        """Wait until the devices in use have done what was launched on their current streams; return False if that is
        not so after `limit_ns`, if `gives_up`, or while a CUDA graph is being captured, which a question would
        invalidate. Raises ScriptInterruptError.

        A device is asked, not waited for by CUDA, which would have no limit.
        """
        events: list[Any] = []
        if self._run_between(lambda: self._mark_into(events)) is None:
            return False
        end_ns, pause_s = time.monotonic_ns() + limit_ns, POLL_S_FIRST
        while not (are_done := self._run_between(lambda: all(event.query() for event in events))):
            if are_done is None or gives_up() or time.monotonic_ns() >= end_ns:
                return False
            pause(pause_s)
            pause_s = min(2 * pause_s, POLL_S_MAX)
        # It returns at once; the windows that were seen whole on hardware had ended after such a call.
        return self._run_between(lambda: all(event.synchronize() is None for event in events)) is not None

    def _mark_into(self, events: list[Any]) -> bool:
        events += [event for device in self._devices if device.is_in_use() for event in device.mark()]
        return True

    def detach(self) -> bool:
        """Take CUPTI out of this process, by a session without a step. The next full session is then the first of the
        device again. Return False, and do nothing, while a CUDA graph is being captured. Raises RuntimeError when a
        session is on, and ScriptInterruptError.

        Kineto reads the variable when a session begins and when it ends; a thread of its own then makes CUPTI end
        within the next call of CUDA, and reads it once more. So some calls are made each time, for 20 ms, which only
        ask whether the device is idle.
        """
        self._check_free()
        return bool(self._run_between(self._detach))

    def _detach(self) -> bool:
        activities = {self._cpu, *self._find_activities()}  # which the variable would leave out
        os.environ[TEARDOWN] = "1"
        try:
            self._autograd._prepare_profiler(self._without_shapes, activities)
            self._autograd._enable_profiler(self._without_shapes, activities, {self._scope.USER_SCOPE})
            try:
                self._call_device()
            finally:
                self._autograd._disable_profiler()
            self._call_device()
        finally:
            os.environ.pop(TEARDOWN, None)
            self._activities_seen.clear()
        return True

    def _call_device(self) -> None:
        for _ in range(DETACH_CALLS):
            self.wait_for_device(0)
            pause(DETACH_PAUSE_S)

    def start(self, *, full: bool, shapes: bool = False, host_only: bool = False) -> None:
        """Begin to record the user's ranges with shapes; for a full window all that a breakdown needs, without shapes.
        A full one with `shapes` has every operator on a device too. With `host_only` it has every operator with shapes,
        nothing of a device, and uses neither Kineto nor CUPTI.

        Raises RuntimeError when a session is on, ours or another, and for a light one where collectives could not be
        watched.
        """
        self._check_free()
        try:
            self._thread = get_ident()  # first: an interruption may come between any two calls
            self._start(full=full, shapes=shapes, host_only=host_only)
        except BaseException:
            if self._may_be_on():
                self.stop()
            self._thread = None
            raise

    def _start(self, *, full: bool, shapes: bool, host_only: bool) -> None:
        if host_only and self._operators is not None:
            self._is_host_only = True
            with self._ranges.beginning_session():
                self._operators.start()
            return
        configuration = self._with_shapes if shapes or not full else self._without_shapes
        on_device = self._find_activities() if full else set()
        activities = {self._cpu, *on_device}
        scopes = self._find_scopes(full=full, every_operator=shapes or not on_device)

        def begin() -> None:
            self._autograd._prepare_profiler(configuration, activities)
            with self._ranges.beginning_session():
                self._autograd._enable_profiler(configuration, activities, scopes)
                self._ranges.records_functions = full

        call_without_signals(begin)  # the first session of a device starts threads
        self._activities_seen |= on_device

    def settle(self, limit_s: float) -> bool:
        """Wait until all collectives that the session may have recorded are over, at most `limit_s`; return whether
        they are. Only then may it be ended; until then it records nothing more. Raises ScriptInterruptError.
        """
        return self._is_host_only or self._ranges.collectives.settle(limit_s, pause)

    def stop(self) -> Any:
        """End the session and return its result, whose `trace_activities()` may be read on another thread. A torch that
        cannot list activities gets a `SessionEvents`.

        Raises RuntimeError when there is none, or another thread began it.
        """
        if self._thread != get_ident():
            raise RuntimeError("no profiler session was begun on this thread")
        if not self._may_be_on():
            self._forget()
            raise RuntimeError("other code has ended the profiler session")
        is_ended, operators = False, self._operators if self._is_host_only else None
        try:
            result = self._autograd._disable_profiler() if operators is None else operators.stop()
            is_ended = True
        finally:
            if is_ended or not self._may_be_on():  # else it was interrupted before
                self._forget()
        return result if self._wrap_result is None or operators is not None else self._wrap_result(result)

    def _forget(self) -> None:
        self._ranges.on_session_end()
        self._thread, self._is_host_only = None, False

    def _check_free(self) -> None:
        if self._thread == get_ident() and not self.is_busy():
            self._forget()  # a session whose end was interrupted once it was off
        if self._thread is not None or self.is_busy():
            raise RuntimeError("a profiler is on already; there can be one at a time")

    def _find_activities(self) -> set[Any]:
        return {device.activity for device in self._devices if device.is_in_use() and device.can_be_recorded()}

    def _find_scopes(self, *, full: bool, every_operator: bool) -> set[Any]:
        scope = self._scope
        ranges = {scope.USER_SCOPE} if self._ranges.collectives.may_be_recorded else set()
        if not full:
            if not ranges:  # for torch no scope means all
                raise RuntimeError("no light window: gloo cannot be watched, and its end could corrupt memory")
            return ranges
        if every_operator:
            return {*ranges, scope.FUNCTION, scope.BACKWARD_FUNCTION}
        return {*ranges, scope.FUNCTION} if self._communicates() or not ranges else ranges


def _configure(c_profiler: Any, *, record_shapes: bool, lists_activities: bool) -> Any:
    # Positional: state, record_shapes, profile_memory, with_stack, with_flops, with_modules, experimental
    experimental = leave_events_out(c_profiler) if lists_activities else c_profiler._ExperimentalConfig()
    state = c_profiler.ProfilerState.KINETO
    return c_profiler.ProfilerConfig(state, record_shapes, False, False, False, False, experimental)


def leave_events_out(c_profiler: Any) -> Any:
    """Return a configuration without torch's own events, a third of the cost of ending a window, which are not read."""
    try:
        return c_profiler._ExperimentalConfig(trace_only=True)
    except TypeError:
        return c_profiler._ExperimentalConfig()


def _find_older_result(autograd: Any) -> Callable[[Any], Any]:
    """Return what makes a `SessionEvents` of a session's result. Raises UnavailableError naming what torch lacks."""
    from rankscope.agent.profiler.kineto_events import SessionEvents, check_events  # noqa: PLC0415 - torch before 2.13

    check_events(autograd)
    return lambda result: SessionEvents(result, autograd.DeviceType.CPU)


def find_operator_session(autograd: Any, c_profiler: Any) -> "OperatorSession | None":
    """Return what records the operators of the host without Kineto; None where this torch lacks it."""
    with LATE_IMPORTS:
        from rankscope.agent.profiler.host_operators import OperatorSession  # noqa: PLC0415 - only with devices

    try:
        return OperatorSession(autograd, c_profiler)
    except (AttributeError, TypeError):
        return None


def find_devices(autograd: Any, c_profiler: Any) -> tuple[DeviceKind, ...]:
    """Return the kinds of devices that this torch was built for. Initializes nothing."""
    torch = sys.modules["torch"]
    found = []
    for name in DEVICES:
        module = getattr(torch, name, None)
        activity = getattr(c_profiler.ProfilerActivity, name.upper(), None)
        is_compiled = getattr(module, "_is_compiled", None)
        if module is not None and activity is not None and is_compiled is not None and is_compiled():
            can_be_recorded = _make_can_be_recorded(autograd, activity)
            found.append(DeviceKind(module.is_initialized, can_be_recorded, activity, _make_mark(module)))
    return tuple(found)


def _make_mark(module: Any) -> Callable[[], Sequence[Any]]:
    def mark() -> Sequence[Any]:
        events = []
        for index in find_used_devices(module):
            event = module.Event()
            event.record(module.current_stream(index))
            events.append(event)
        return events

    return mark


def find_used_devices(module: Any) -> Sequence[int]:
    """Return the numbers of the devices on which this process has a context. An event on another one would make one:
    some hundred MiB, on a GPU that may be another rank's. Where torch cannot say it, the current device.
    """
    torch = sys.modules["torch"]
    has_context = getattr(torch._C, "_cuda_hasPrimaryContext", None) if module is torch.cuda else None
    if has_context is None:
        return [module.current_device()]
    return [index for index in range(module.device_count()) if has_context(index)]


def _make_can_be_recorded(autograd: Any, activity: Any) -> Callable[[], bool]:
    known: list[bool] = []

    def can_be_recorded() -> bool:
        if not known:  # it counts devices
            known.append(activity in autograd._supported_activities())
        return known[0] and os.environ.get(TEARDOWN) != "1"

    return can_be_recorded


def communicates() -> bool:
    """Return whether the script has process groups."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()
