"""Decide whether full windows may begin on the device in use, and when CUPTI is detached, by what training takes."""

from collections.abc import Callable
from time import monotonic_ns
from typing import TYPE_CHECKING, Final, Protocol

from rankscope.agent.profiler.window_kinds import ProcessGraphs, WindowKind
from rankscope.agent.profiler.window_plan import WindowPlan
from rankscope.agent.steps.first_graph import QUESTION_STEPS, FirstGraph
from rankscope.measure.units import NS_PER_S

if TYPE_CHECKING:
    from rankscope.agent.profiler.window_effect import WindowEffect

DEVICE_NOT_RECORDED: Final = "device_not_recorded"
"""Why a full window does not begin: a device is in use that cannot be recorded."""
GRAPHS_WAIT_NS: Final = 60 * NS_PER_S
"""How long windows that have slowed training wait to learn whether the process launches CUDA graphs; then they end."""


class DeviceProfiler(Protocol):
    """What a profiler knows of devices, as `window_scheduler.Profiler`."""

    @property
    def sees_device(self) -> bool:
        """Whether a full session begun now would record a device."""
        ...

    @property
    def is_first_of_device(self) -> bool:
        """Whether a full session begun now would be the first to record the device that is in use."""
        ...

    @property
    def misses_device(self) -> bool:
        """Whether a device is in use that no session can record."""
        ...

    @property
    def records_operators(self) -> bool:
        """Whether a session can record the operators of the host alone."""
        ...


class DeviceGate:
    """The decisions about windows of a device at step boundaries. Without an `effect` every window may begin, but not
    while the `first_graph` is waited for. By `graphs` CUPTI may be detached, or not.
    """

    def __init__(
        self,
        profiler: DeviceProfiler,
        plan: WindowPlan,
        effect: "WindowEffect | None",
        graphs: ProcessGraphs,
        *,
        first_graph: FirstGraph | None = None,
        read_clock_ns: Callable[[], int] = monotonic_ns,
    ) -> None:
        self._profiler = profiler
        self._plan = plan
        self.effect = effect
        self._graphs = graphs
        self._first_graph = first_graph
        self._read_clock_ns = read_clock_ns
        self._has_detached = False
        self._owes_first = False
        self._slower_since_ns: int | None = None

    def waits(self, step: int) -> bool:
        """Return whether no session may begin with this step, of whatever kind, since the run is to capture its first
        CUDA graph. Steps before it are no reference for those after it.
        """
        if self._first_graph is None:
            return False
        was_waiting = self._first_graph.is_waiting
        waits = self._first_graph.waits(step)
        if was_waiting and not waits and self.effect is not None:
            self.effect.restart()
        return waits

    def may_begin(self, _step: int, kind: WindowKind) -> str | None:
        """Return why no window of this kind may begin; empty: it is not counted. None: nothing is in the way."""
        if kind is WindowKind.LIGHT:
            return None if self.allows_light else ""
        is_missed = kind is not WindowKind.HOST and self._profiler.misses_device
        return DEVICE_NOT_RECORDED if is_missed else None

    def begins_full(self, step: int) -> bool:
        """Return whether a full window begins with this step."""
        if self.is_new_device or self.owes_first:
            return True
        may_interrupt = self.effect is None or self.effect.may_interrupt or not self._profiler.sees_device
        return may_interrupt and self._plan.begins_full(step) and self._is_allowed

    @property
    def allows_light(self) -> bool:
        """Whether a light window may begin. Where a device is in use its session reaches CUPTI as well, whatever it
        asks for (`host_operators.py`), so that it may only once the device's first window has been.
        """
        if self.effect is None or not self._profiler.sees_device:
            return True
        return self._is_allowed and not self.effect.is_ready

    @property
    def is_new_device(self) -> bool:
        """Whether a device is in use that no session has recorded, and one may begin."""
        return self._profiler.is_first_of_device and self._is_allowed and self._plan.affords_one_step()

    @property
    def owes_first(self) -> bool:
        """Whether the window is due that without a reference would have begun after the warm-up: it gives the first
        ratios, and shows whether the process launches CUDA graphs.
        """
        return self._owes_first and self._is_allowed and self._plan.affords_full()

    def steps_until_due(self, unknown: int) -> int:
        """Return after how many steps at least a device's windows may begin or be decided on; `unknown` if not yet."""
        if self._first_graph is not None and self._first_graph.is_waiting:
            return QUESTION_STEPS
        if self.is_new_device or self.owes_first:
            return 1
        if self.effect is not None and self.effect.is_open and self._profiler.sees_device:
            return self.effect.steps_left
        return unknown

    def decide_to_detach(self) -> bool:
        """Return whether a session that detaches CUPTI begins now. Where none ever may, full windows are over."""
        if self.effect is None or not self.effect.is_slower:
            return False
        may_detach, now_ns = self._graphs.may_detach(), self._read_clock_ns()
        if self._slower_since_ns is None:
            self._slower_since_ns = now_ns
        if may_detach is False or (may_detach is None and now_ns - self._slower_since_ns > GRAPHS_WAIT_NS):
            self.effect.on_stays_attached()
            self._slower_since_ns = None
            self._end_windows_that_slow()
        return bool(may_detach)

    def on_step(self, step: int, duration_ns: int, *, in_window: bool) -> None:
        """Add a finished step, which a full window or the user's profiler has recorded or not."""
        if self.effect is not None and self.effect.is_open and self._profiler.sees_device:
            self.effect.on_step(step, duration_ns, in_window=in_window)
            self._end_windows_that_slow()

    def on_user_profiler(self) -> None:
        """The user's profiler begins."""
        if self._first_graph is not None:
            self._first_graph.on_session()
        if self.effect is not None:
            was_open = self.effect.is_open
            self.effect.on_other_profiler()
            if was_open:
                self._end_windows_that_slow()

    def on_session_begin(self) -> None:
        """A session other than of the host's operators begins."""
        if self._first_graph is not None and self._profiler.sees_device:
            self._first_graph.on_session()

    def on_begin(self) -> None:
        """A full window begins that is not the first of a device."""
        self._owes_first = False

    def on_session_end(self) -> None:
        """A session that recorded a device has ended."""
        if self.effect is not None and self.effect.is_ready:
            self.effect.on_attached()
            self._owes_first = True

    def on_detached(self) -> None:
        """CUPTI has been detached."""
        self._has_detached = True
        if self.effect is not None:
            self.effect.on_detached()

    @property
    def _is_allowed(self) -> bool:
        if self.effect is None or not self._profiler.sees_device:
            return True
        # Attaching again where a graph has been captured since may end in a crash.
        return self.effect.allows_windows and (not self._has_detached or self._graphs.may_detach() is True)

    def _end_windows_that_slow(self) -> None:
        if self.effect is not None and self.effect.has_ended:
            self._plan.full_has_ended = True
