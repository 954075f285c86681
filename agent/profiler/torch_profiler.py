"""Kineto, started and stopped without torch.profiler: 0.4 ms instead of 1 ms to start, and only the scopes asked for.

All of it is private to torch, and differs between its versions (docs/torch.md says which were tried; what concerns
devices was read in its sources and in Kineto's), so `TorchProfiler.find` looks for every piece first and says what is
missing. Start and stop must be called on the same thread, the training thread, at a step boundary.

What a window records
---------------------
- A light one the user's ranges with shapes, 5 to 11 events a step: a backend on the CPU marks each collective so.
- A full one on the CPU every operator, thousands a step, at 1.7 us each when it ends.
- A full one once a device is in use: kernels, copies and the calls that launched them, and no operators, unless the
  process communicates. Then operators too, since `record_param_comms`, which says what a collective is, is one of them
  (scope FUNCTION; there is none narrower). That doubles the events: 12,777 operators beside 12,514 kernels, copies and
  calls in the three steps of a100_nccl_2ranks_r0, so 7 ms a step when the window ends, and most are not read after it.
  The alternative, to guess group and sequence from the order of the `nccl:` ranges, fails with the first that is lost.
  Backward nodes, 1,569 there, are left out.

`_disable_profiler` does not synchronise the device, unlike torch.profiler: Kineto takes over what CUPTI has finished,
and leaves out what still runs.
"""

import os
import sys
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any, NamedTuple

from rankscope.agent.profiler.kineto_events import SessionEvents, check_events
from rankscope.agent.steps.open_ranges import OpenRanges
from rankscope.measure.errors import UnavailableError

# Two lines per window go to the job's stderr otherwise; levels 0 to 5 do not silence them. A user's own choice stays.
KINETO_QUIET = ("KINETO_LOG_LEVEL", "99")
DEVICES = ("cuda", "xpu")
"""Kinds of devices whose windows are read alike; ROCm's are `cuda` to torch."""

TEARDOWN = "TEARDOWN_CUPTI"
"""Set to 1 it makes Kineto leave CUPTI after each session, and coming back crashes jobs with CUDA graphs (torch's own
profiler switches it off for them)."""


class DeviceKind(NamedTuple):
    """A kind of device that this torch was built for: whether the script uses it by now, whether it can be recorded
    (asked only once it is in use), and Kineto's name for it.
    """

    is_in_use: Callable[[], bool]
    can_be_recorded: Callable[[], bool]
    activity: Any


class TorchProfiler:
    """One profiler session at a time, of ours.

    Stricter than torch, where a stop without a session gives an empty result and a warning on stderr.
    """

    def __init__(
        self,
        autograd: Any,
        c_profiler: Any,
        ranges: OpenRanges | None = None,
        devices: Sequence[DeviceKind] = (),
        communicates: Callable[[], bool] = lambda: False,
    ) -> None:
        self._autograd = autograd
        self._ranges = ranges or OpenRanges()
        self._devices = devices
        self._communicates = communicates
        self._cpu = c_profiler.ProfilerActivity.CPU
        self._scope = c_profiler.RecordScope
        self._c_profiler = c_profiler
        self._lists_activities = hasattr(autograd._ProfilerResult, "trace_activities")
        if not self._lists_activities:
            check_events(autograd)
        self._with_shapes = self._configure(record_shapes=True)
        self._plain = self._configure(record_shapes=False)
        self._thread: int | None = None
        self._activities_seen: set[Any] = set()

    @classmethod
    def find(cls, ranges: OpenRanges | None = None) -> "TorchProfiler":
        """The profiler of the user's torch; `ranges` is told of its sessions. Raises UnavailableError naming what this
        torch lacks.
        """
        os.environ.setdefault(*KINETO_QUIET)
        try:
            from torch._C import _autograd, _profiler  # noqa: PLC0415

            for name in ("_prepare_profiler", "_enable_profiler", "_disable_profiler", "_profiler_enabled"):
                getattr(_autograd, name)
            return cls(_autograd, _profiler, ranges, find_devices(_autograd, _profiler), communicates)
        except (ImportError, AttributeError, TypeError) as error:
            raise UnavailableError(f"this torch has no profiler that windows could use: {error}") from error

    def is_busy(self) -> bool:
        """Whether any profiler, the user's or another tool's, is on in this thread."""
        return bool(self._autograd._profiler_enabled())

    @property
    def sees_device(self) -> bool:
        """Whether a full session begun now would record a device."""
        return bool(self._find_activities())

    @property
    def is_first_of_device(self) -> bool:
        """Whether a full session begun now would be the first to record the device that is in use. Its begin may take
        seconds, while CUPTI attaches and rewrites kernels: what it records is not how training runs.
        """
        return not self._find_activities() <= self._activities_seen

    @property
    def misses_device(self) -> bool:
        """Whether a device is in use that cannot be recorded: what a full session tells of the host would then pass for
        the work of training.
        """
        return any(device.is_in_use() and not device.can_be_recorded() for device in self._devices)

    def start(self, *, full: bool) -> None:
        """Record user ranges with shapes, or everything a breakdown needs, without shapes.

        Raises RuntimeError when a session of ours or anybody's is on.
        """
        if self._thread is not None or self.is_busy():
            raise RuntimeError("a profiler is on already; there can be one at a time")
        configuration = self._plain if full else self._with_shapes
        on_device = self._find_activities() if full else set()
        activities = {self._cpu, *on_device}
        self._autograd._prepare_profiler(configuration, activities)
        self._ranges.on_session_begin()
        self._autograd._enable_profiler(
            configuration, activities, self._find_scopes(full=full, on_device=bool(on_device))
        )
        self._thread = get_ident()
        self._activities_seen |= on_device

    def stop(self) -> Any:
        """End the session; the result's `trace_activities()` may be read from another thread. Where this torch cannot
        list them, it is a `SessionEvents`.

        Raises RuntimeError when there is none, or another thread began it.
        """
        if self._thread != get_ident():
            raise RuntimeError("no profiler session was begun on this thread")
        self._thread = None
        try:
            result = self._autograd._disable_profiler()
        finally:
            self._ranges.on_session_end()
        return result if self._lists_activities else SessionEvents(result, self._autograd.DeviceType.CPU)

    def _find_activities(self) -> set[Any]:
        return {device.activity for device in self._devices if device.is_in_use() and device.can_be_recorded()}

    def _find_scopes(self, *, full: bool, on_device: bool) -> set[Any]:
        scope = self._scope
        if not full:
            return {scope.USER_SCOPE}
        if not on_device:
            return {scope.USER_SCOPE, scope.FUNCTION, scope.BACKWARD_FUNCTION}
        return {scope.USER_SCOPE, scope.FUNCTION} if self._communicates() else {scope.USER_SCOPE}

    def _configure(self, *, record_shapes: bool) -> Any:
        # Positional: state, record_shapes, profile_memory, with_stack, with_flops, with_modules, experimental
        c = self._c_profiler
        experimental = self._leave_events_out() if self._lists_activities else c._ExperimentalConfig()
        return c.ProfilerConfig(c.ProfilerState.KINETO, record_shapes, False, False, False, False, experimental)

    def _leave_events_out(self) -> Any:
        """Torch's own events, which nobody looks at then, are a third of what ending a window takes."""
        try:
            return self._c_profiler._ExperimentalConfig(trace_only=True)
        except TypeError:
            return self._c_profiler._ExperimentalConfig()


def find_devices(autograd: Any, c_profiler: Any) -> tuple[DeviceKind, ...]:
    """The kinds of devices that this torch was built for. Nothing is initialised by asking."""
    torch = sys.modules["torch"]
    found = []
    for name in DEVICES:
        module = getattr(torch, name, None)
        activity = getattr(c_profiler.ProfilerActivity, name.upper(), None)
        is_compiled = getattr(module, "_is_compiled", None)
        if module is not None and activity is not None and is_compiled is not None and is_compiled():
            found.append(DeviceKind(module.is_initialized, _make_can_be_recorded(autograd, activity), activity))
    return tuple(found)


def _make_can_be_recorded(autograd: Any, activity: Any) -> Callable[[], bool]:
    known: list[bool] = []

    def can_be_recorded() -> bool:
        if not known:  # it counts devices
            known.append(activity in autograd._supported_activities() and os.environ.get(TEARDOWN) != "1")
        return known[0]

    return can_be_recorded


def communicates() -> bool:
    """Whether the script has process groups."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def is_current_stream_capturing() -> bool:
    """Whether this thread's CUDA stream is being captured. Nothing is initialised by asking."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda is not None and cuda.is_initialized() and bool(cuda.is_current_stream_capturing())
