"""Decide whether full windows may begin on the device in use, and when CUPTI is detached, by what training takes."""

from collections.abc import Callable
from typing import Protocol

from rankscope.agent.profiler.window_effect import EffectState, WindowEffect
from rankscope.agent.profiler.window_plan import WindowPlan


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


class DeviceGate:
    """The decisions about windows of a device at step boundaries. Without an `effect` every window may begin.

    `may_detach` returns whether CUPTI may be detached from the process; None: not known yet.
    """

    def __init__(
        self,
        profiler: DeviceProfiler,
        plan: WindowPlan,
        effect: WindowEffect | None,
        may_detach: Callable[[], bool | None],
    ) -> None:
        self._profiler = profiler
        self._plan = plan
        self._effect = effect
        self._may_detach = may_detach

    def begins_full(self, step: int) -> bool:
        """Return whether a full window begins with this step."""
        return self.is_new_device or (self._plan.begins_full(step) and self._is_allowed)

    @property
    def is_new_device(self) -> bool:
        """Whether a device is in use that no session has recorded, and one may begin."""
        return self._profiler.is_first_of_device and self._is_allowed

    @property
    def may_matter_now(self) -> bool:
        """Whether any boundary may be the one at which a device's windows begin or are decided on."""
        is_compared = self._effect is not None and self._effect.is_open and self._profiler.sees_device
        return is_compared or self.is_new_device

    @property
    def wants_to_detach(self) -> bool:
        """Whether windows have slowed training, and CUPTI is still attached."""
        return self._effect is not None and self._effect.state is EffectState.SLOWER

    def decide_to_detach(self) -> bool:
        """Return whether a session that detaches CUPTI begins now. Where none ever may, full windows are over."""
        if self._effect is None or not self.wants_to_detach:
            return False
        may_detach = self._may_detach()
        if may_detach is False:
            self._effect.on_stays_attached()
            self._end_windows_that_slow()
        return bool(may_detach)

    def on_step(self, step: int, duration_ns: int, *, in_window: bool) -> None:
        """Add a finished step, which a full window or the user's profiler has recorded or not."""
        if self._effect is not None and self._effect.is_open:
            self._effect.on_step(step, duration_ns, in_window=in_window)
            self._end_windows_that_slow()

    def on_user_profiler(self) -> None:
        """The user's profiler begins."""
        if self._effect is not None:
            self._effect.on_other_profiler()

    def on_session_end(self, *, detached: bool) -> None:
        """A session that recorded a device has ended."""
        if self._effect is not None:
            (self._effect.on_detached if detached else self._effect.on_attached)()

    @property
    def _is_allowed(self) -> bool:
        return self._effect is None or self._effect.allows_windows or not self._profiler.sees_device

    def _end_windows_that_slow(self) -> None:
        if self._effect is not None and self._effect.state is EffectState.ENDED:
            self._plan.full_has_ended = True
