"""Say what the ratios of a rank stand on: how many steps, how old, and why there are none (docs/definitions.md section
1). Pure.

A ratio that is shown is one of the present. It is of no use once windows have ended, or when the newest one is old.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from rankscope.measure.bounds import to_count
from rankscope.measure.records import AgentCost, WindowBreakdown
from rankscope.measure.units import NS_PER_S, format_length

INTERVALS_MAX: Final = 4
"""Age of the newest window beyond which it is old, in distances between windows. Of each interval some step has one, so
the longer of two distances in a row is more than half an interval, and the next one less than two. For the rest, the
interval may double, and one window may be left out for its cost.
"""
AGE_NS_MIN: Final = 60 * NS_PER_S
"""No window is old before: the first ones follow each other within seconds, and a scraper may read twice a minute."""
FIRST_AGE_NS_MIN: Final = 600 * NS_PER_S
"""No window is old before while only one distance is known. The second window may be late: it waits until the first one
was compared, and is paid from the default budget's half for full windows, 0.25 % of the time, by which one that costs
1 s comes every 400 s.
"""
CHANGE_MAX: Final = 1000.0
"""Largest change of the step time that is believed, whatever a rank has sent."""

FULL_WINDOWS: Final = "full_windows"
ENDED: Final = "ended"
"""Part and state of an agent, in AgentCost, once windows of its GPU are over."""
ON_DEMAND: Final = "on_demand"
"""State of an agent, in AgentCost, whose GPU is recorded in captures only."""
AWAITS_GRAPH: Final = "awaits_graph"
"""State of an agent, in AgentCost, that begins no profiler session before the run's first CUDA graph."""
CAPTURE_AGE_NS_MAX: Final = 600 * NS_PER_S
"""Age beyond which captured steps are old: when the next capture comes is not known, as with windows."""
ORDER: Final = "rankscope capture orders one"
PAUSED: Final = "full windows were paused by the agent, usually because they cost too much"


class FirstSeen(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where the first distance between windows is counted from: step -1 and the Hello of a rank process that this
    collector has heard from its begin, else the last step and the time of the first report that came here.
    """

    step: int
    host_ns: int


class WindowTimes(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """When full windows of a rank came. `last_step` is the last step of the newest one, `host_ns` the time of the
    report that brought it, by the rank's clock. `steps` and `ns` lie between it and the window before it, or its
    FirstSeen; `former_steps` and `former_ns` are the same of that window, 0 while only one distance is known.
    """

    last_step: int
    host_ns: int
    steps: int
    ns: int
    former_steps: int = 0
    former_ns: int = 0

    @property
    def interval_steps(self) -> int:
        """The distance between windows in steps: the longer of the last two."""
        return max(self.steps, self.former_steps)

    @property
    def interval_ns(self) -> int:
        """The distance between windows in ns: the longer of the last two."""
        return max(self.ns, self.former_ns)

    @property
    def age_ns_min(self) -> int:
        """The age up to which the newest window is not old."""
        return AGE_NS_MIN if self.former_steps or self.former_ns else FIRST_AGE_NS_MIN


def note_windows(
    before: WindowTimes | None, windows: Sequence[WindowBreakdown], host_ns: int, first_seen: FirstSeen
) -> WindowTimes | None:
    """Return the times with the windows of a report of `host_ns`. Windows before the newest one change nothing."""
    if not windows:
        return before
    last_step = to_count(max(window.first_step + max(0, window.step_count) for window in windows) - 1)
    if before is None:
        distances = to_count(last_step - first_seen.step), to_count(host_ns - first_seen.host_ns)
        return WindowTimes(last_step, host_ns, *distances)
    if last_step <= before.last_step:
        return before
    distances = to_count(last_step - before.last_step), to_count(host_ns - before.host_ns)
    return WindowTimes(last_step, host_ns, *distances, before.steps, before.ns)


class RatioBasis(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the ratios of the last full windows stand on. `steps` were in these windows, of the `of_steps` from the
    first of them to the rank's last step; `share` is the former over the latter. `age_steps` and `age_s` lie between
    the newest window and the rank's last report, by its own clock. `absent` says why there are no ratios, None where
    there are. None elsewhere: there was no window. With `on_demand` the steps are those of the last capture that was
    ordered or scheduled, in place of windows.
    """

    steps: int = 0
    of_steps: int | None = None
    share: float | None = None
    age_steps: int | None = None
    age_s: float | None = None
    absent: str | None = "this collector has seen no full window"
    on_demand: bool = False


NO_WINDOW: Final = RatioBasis()


def find_basis(
    windows: WindowBreakdown | None,
    times: WindowTimes | None,
    cost: AgentCost,
    last_step: int | None,
    host_ns: int,
) -> RatioBasis:
    """Return what the ratios of a rank stand on. `windows` is the sum of its last windows, `last_step` and `host_ns`
    are of its last report.
    """
    if windows is None or times is None:
        why = _explain_none(cost)
        return NO_WINDOW if why is None else RatioBasis(absent=f"{NO_WINDOW.absent}: {why}")
    age_steps, age_ns = _find_age(times, last_step, host_ns)
    steps = to_count(windows.step_count)
    of_steps = max(steps, to_count(times.last_step + age_steps + 1 - windows.first_step))
    absent = find_absence(times, cost, last_step, host_ns)
    if absent is None and windows.window_ns <= 0:
        absent = "the last full windows had a length of 0"
    return RatioBasis(
        steps=steps,
        of_steps=of_steps,
        share=steps / of_steps if of_steps > 0 else None,
        age_steps=age_steps,
        age_s=age_ns / NS_PER_S,
        absent=absent,
        on_demand=cost.window_effect == ON_DEMAND,
    )


def find_absence(times: WindowTimes, cost: AgentCost, last_step: int | None, host_ns: int) -> str | None:
    """Return why the ratios of a rank that has had windows are none of the present; None where they are. Windows that
    are paused for their cost may come again: ratios stay until the newest one is old.
    """
    if cost.window_effect == ENDED:
        return f"full windows ended after step {times.last_step} because {_explain_end(cost)}"
    age_steps, age_ns = _find_age(times, last_step, host_ns)
    if cost.window_effect == ON_DEMAND:
        return _explain_old_capture(age_steps, age_ns)
    is_old = age_steps > INTERVALS_MAX * times.interval_steps and age_ns > INTERVALS_MAX * times.interval_ns
    if not is_old or age_ns <= times.age_ns_min:
        return None
    age = f"{format_length(age_ns / NS_PER_S)} and {age_steps:,} steps"
    why = f": {PAUSED}" if cost.dropped.get(FULL_WINDOWS) else ""
    limit = f"more than {INTERVALS_MAX} times the distance between windows"
    return f"at the last report the newest full window was {age} old, {limit}{why}"


def _find_age(times: WindowTimes, last_step: int | None, host_ns: int) -> tuple[int, int]:
    """Return the age of the newest window in steps and in ns."""
    return to_count((last_step or 0) - times.last_step), to_count(host_ns - times.host_ns)


def _explain_old_capture(age_steps: int, age_ns: int) -> str | None:
    """Return that the captured steps are none of the present; None where they are."""
    if age_ns <= CAPTURE_AGE_NS_MAX:
        return None
    age, limit = (format_length(ns / NS_PER_S) for ns in (age_ns, CAPTURE_AGE_NS_MAX))
    return f"at the last report the last capture was {age} and {age_steps:,} steps old, more than {limit}: {ORDER}"


def _explain_none(cost: AgentCost) -> str | None:
    if cost.window_effect == ON_DEMAND:
        return f"device_windows = on_demand, and no plain capture has arrived: {ORDER}"
    if cost.window_effect == ENDED:
        why = _explain_end(cost)
        return why if cost.attached_ratio is None else f"they ended because {why}"
    if cost.window_effect == AWAITS_GRAPH:
        return "none begins before the run's first CUDA graph (cuda_graphs)"
    return PAUSED if cost.dropped.get(FULL_WINDOWS) else None


def _explain_end(cost: AgentCost) -> str:
    """Return why windows of a GPU are over, to follow "because"."""
    if cost.attached_ratio is None:
        return "device_windows = off"
    change = read_change(cost.attached_ratio)
    return "the agent decided so" if change is None else f"steps took {describe_change(change)} the first window"


def read_change(ratio: float | None) -> float | None:
    """Return the change of the step time that an agent reports, None where it did not, or where it cannot be.

    >>> read_change(0.29), read_change(None), read_change(float("nan")), read_change(-1.5), read_change(1e300)
    (0.29, None, None, None, None)
    """
    return ratio if ratio is not None and -1.0 <= ratio <= CHANGE_MAX else None


def describe_change(ratio: float) -> str:
    """Return by how much steps have become longer, as text.

    >>> describe_change(0.294), describe_change(0.004), describe_change(-0.021), describe_change(0.0003)
    ('29 % longer than before', '0.4 % longer than before', '2.1 % shorter than before', 'as long as before')
    """
    percent = abs(100 * ratio)
    if percent < 0.05:  # noqa: PLR2004 - it would be shown as 0.0
        return "as long as before"
    return f"{percent:.{0 if percent >= 10 else 1}f} % {'longer' if ratio > 0 else 'shorter'} than before"  # noqa: PLR2004
