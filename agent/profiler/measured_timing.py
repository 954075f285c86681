"""Begin to time the collectives of NCCL within a run, and compare the steps before with those after
(`nccl_timing = measured`). Pure, but for the call into torch: steps in, decisions out.

torch's `ProcessGroup._enable_collectives_timing` sets an atomic flag of each backend (pytorch #108814). Each collective
copies it when it is created, so that those in flight stay as they are, and later ones are timed. There is no way back.
The call walks the group's table of backends without a lock, so it is made on the training thread at a step boundary,
where no operator of the step is at work. The environment variable, which groups made later would read, stays as it is:
changing it beside threads that read it is not safe. So the timing of later groups is switched on one by one.

    WAITING     there is no group of NCCL, or windows are just compared with steps of their own
    REFERENCE   a stretch of steps without timing, by `window_effect.py`
    COMPARED    torch times collectives; up to four stretches are compared with the reference
    KEPT        steps have not become measurably longer
    SLOWER      two stretches in a row, or all together, were longer
    UNKNOWN     a profiler of the script or a capture began while steps were compared: it may have made them longer
    ABSENT      nothing is timed: `why_absent`

It comes before the windows of a device, none of which begins meanwhile, and no duration is read: so the reference is of
steps without anything, no other part of the agent explains a change, and all that windows are compared with later has
timing in it. The other order would keep timing waiting for as long as windows are compared and, since windows go on
afterwards, interrupt each of its stretches. Ranks of a run decide by their own step times, so one may begin some
stretches before another, whose reference then contains a part of the effect.
"""

import enum
import threading
import weakref
from collections.abc import Callable
from typing import Any, Final, Protocol

from rankscope.agent.profiler.nccl_timing import NCCL_TIMING
from rankscope.agent.profiler.window_effect import EffectState, WindowEffect, describe_ratio
from rankscope.agent.steps.step_intervals import UNKNOWN_STEPS

PART: Final = NCCL_TIMING
WAITING_STEPS: Final = 16
"""Steps between two looks for a first group, and LATER_STEPS between two for later ones, at other boundaries too."""
LATER_STEPS: Final = 64


_CURE: Final = (
    "The timing cannot be ended within a process; RANKSCOPE_NCCL_TIMING=off leaves it out of the next run "
    "(docs/cost.md)."
)


class TimingState(enum.Enum):
    """How far the comparison is; see above."""

    WAITING = "waiting"
    REFERENCE = "reference"
    COMPARED = "compared"
    KEPT = "kept"
    SLOWER = "slower"
    UNKNOWN = "unknown"
    ABSENT = "absent"


class Windows(Protocol):
    """The profiler windows of the rank, as `window_scheduler.WindowScheduler`."""

    is_held: bool

    def hold(self) -> bool:
        """Begin no window while `is_held`; return False, and hold nothing, where that is not possible now."""
        ...


class MeasuredTiming:
    """The timing of one rank's collectives. `on_step` may be called on the agent thread, under the event buffer's lock,
    `on_profiler` on any, everything else on the training thread.

    `find_groups` returns torch's objects of the groups of NCCL, `find_obstacle` why their collectives are not to be
    timed (None: they may be), `may_switch` whether timing may be switched on now: not while a CUDA graph is being
    captured. `windows` is None if there are none; `on_timed` is called with the first step whose durations may be read.
    """

    def __init__(
        self,
        make_effect: Callable[[], WindowEffect],
        find_groups: Callable[[], list[Any]],
        windows: Windows | None,
        *,
        find_obstacle: Callable[[], str | None],
        may_switch: Callable[[], bool],
        on_timed: Callable[[int], None],
    ) -> None:
        self._make_effect = make_effect
        self._effect = make_effect()
        self._find_groups = find_groups
        self._windows = windows
        self._find_obstacle = find_obstacle
        self._may_switch = may_switch
        self._on_timed = on_timed
        self._timed: weakref.WeakSet[Any] = weakref.WeakSet()
        self._refused: weakref.WeakSet[Any] = weakref.WeakSet()
        self._is_settling = self._is_released = self._has_given_up = False
        self._since_ns = self._profilers = 0
        self._counting = threading.Lock()
        self.state = TimingState.WAITING
        self.why_absent = ""
        """Why nothing is timed, or not each group is, to follow "because"; empty where that is not so."""
        self.from_step: int | None = None
        """The first step whose collectives torch has timed; None while there is none."""

    @property
    def ratio(self) -> float | None:
        """How much longer steps with timing took than those before, as a share (-1 and up), in the stretch compared
        last or in all together; None where that is not known.
        """
        return None if self.state is TimingState.UNKNOWN else self._effect.attached_ratio

    @property
    def slowed_ns(self) -> int:
        """The time by which steps have become longer so far, if they have measurably."""
        ratio = self.ratio or 0.0
        return round(self._since_ns * ratio / (1 + ratio)) if self.state is TimingState.SLOWER else 0

    @property
    def is_open(self) -> bool:
        """Whether steps are timed or compared, so that no window may begin."""
        return self.state in {TimingState.REFERENCE, TimingState.COMPARED}

    def find_next(self, step: int) -> int:
        """Return the first step after this one at which something may have to be done."""
        if self.is_open:
            return step + self._effect.steps_left
        if self.state is TimingState.WAITING:
            return step + WAITING_STEPS
        return step + (LATER_STEPS if self._times_later_groups else UNKNOWN_STEPS)

    def on_step(self, step: int, duration_ns: int) -> None:
        """Add a finished step."""
        if self.from_step is not None:
            self._since_ns += duration_ns
        if not self.is_open:
            return
        self._effect.on_step(step, duration_ns, in_window=self._profilers > 0 or self._is_settling)
        self._is_settling = False
        if self.state is TimingState.COMPARED and self._effect.state is EffectState.KEPT:
            self.state = TimingState.KEPT
        elif self.state is TimingState.COMPARED and self._effect.state is EffectState.SLOWER:
            self.state = TimingState.SLOWER

    def on_boundary(self, step: int) -> None:
        """Begin the reference, or switch timing on, if that is due. Call it after `on_step`, and before
        windows may begin.
        """
        if self.state is TimingState.WAITING:
            self._begin()
        elif self.state is TimingState.REFERENCE and self._effect.state is EffectState.READY:
            self._switch_on(step)
        elif self._times_later_groups and self._may_switch():
            self._time_new_groups()
        if self.from_step is not None and not self.is_open and not self._is_released:
            self._let_windows_begin()
            self._on_timed(step)

    def on_profiler(self, begins: bool) -> None:  # noqa: FBT001 - an event, not an option
        """Handle the begin or the end of a profiler of the script or a capture, whose library may make steps longer
        from its begin on.
        """
        with self._counting:
            self._profilers = max(0, self._profilers + (1 if begins else -1))
        if not begins:
            return
        if self.state is TimingState.REFERENCE:
            self._effect = self._make_effect()
        elif self.state is TimingState.COMPARED:
            self.state = TimingState.UNKNOWN

    def give_up(self, why: str) -> None:
        """Switch the timing of no further group on, and let windows begin."""
        self._has_given_up = True
        self.why_absent = why
        self.state = TimingState.ABSENT if self.from_step is None else TimingState.UNKNOWN
        self._let_windows_begin()

    def describe(self) -> str | None:
        """Return a line for the log once it is decided whether collectives are timed, and what that costs."""
        if self.state is TimingState.ABSENT:
            return f"NCCL's collectives are not timed (nccl_timing = measured), because {self.why_absent}."
        if self.is_open or self.from_step is None:
            return None
        since = f"NCCL's collectives have been timed since step {self.from_step} (nccl_timing = measured)"
        count = len(self._refused)
        refused = (
            f" {count} group{'s are' if count > 1 else ' is'} not timed, because {self.why_absent}." if count else ""
        )
        if self.state is TimingState.UNKNOWN:
            why = (
                self.why_absent
                if not self._refused and self.why_absent
                else "a profiler began while steps were compared"
            )
            return f"{since}. Whether steps became longer is not known, because {why}.{refused} {_CURE}"
        changed = f"{since}. Steps have been {describe_ratio(self.ratio or 0.0)}"
        if self.state is TimingState.KEPT:
            return f"{changed}, which does not count as a slowdown.{refused} {_CURE}"
        return (
            f"{changed}. No other part of the agent began meanwhile. Groups made later are not timed.{refused} {_CURE}"
        )

    @property
    def _times_later_groups(self) -> bool:
        is_timed = self.state in {TimingState.COMPARED, TimingState.KEPT, TimingState.UNKNOWN}
        return is_timed and not self._has_given_up

    def _begin(self) -> None:
        if not self._find_groups():
            return
        obstacle = self._find_obstacle()
        if obstacle is not None:
            self.give_up(obstacle)
        elif self._windows is None or self._windows.hold():
            self.state = TimingState.REFERENCE

    def _switch_on(self, step: int) -> None:
        obstacle = self._find_obstacle()
        if obstacle is not None:
            self.give_up(obstacle)
        elif self._may_switch():
            self._time_new_groups()
            if self._timed:
                self._effect.on_attached()
                self.state, self.from_step, self._is_settling = TimingState.COMPARED, step, True
            else:
                self.give_up(self.why_absent or "there is no group of NCCL any more")

    def _time_new_groups(self) -> None:
        for group in self._find_groups():
            if group in self._timed or group in self._refused:
                continue
            try:
                group._enable_collectives_timing()  # torch has no public name for it
                self._timed.add(group)
            except (AttributeError, RuntimeError) as error:
                self._refused.add(group)
                self.why_absent = f"torch refuses: {str(error).partition(chr(10))[0].rstrip('.')}"

    def _let_windows_begin(self) -> None:
        self._is_released = True
        if self._windows is not None:
            self._windows.is_held = False
