"""Choose the time of a trace that shares are of: its steps, without those whose work is not all in the trace, and
without a few steps that took many times as long as the others, which are told by themselves.

    host    | step 3, compiles          | step 4 | step 5 | step 6 | ...
    device                           ====  =======  =======  =======
            | told by itself            | of this the shares are
"""

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from rankscope.collector.traces.report import LongStep
from rankscope.collector.traces.windows import find_launched
from rankscope.measure import intervals
from rankscope.measure.communication import is_backend_range
from rankscope.measure.intervals import EMPTY, Intervals
from rankscope.measure.kineto import Category, Ints
from rankscope.measure.rank_view import RankView, Step

LONG_STEP_RATIO_MIN = 3.0
"""Times the median of the steps. Steps of healthy runs differ by less than 2, also of one that saves or evaluates
little; a step that compiles or saves takes tens of times as long."""
LONG_STEPS_SHARE_MAX = 1 / 3
"""Where more than a third of the steps are long, that is how the run is."""
LONG_STEP_STEPS_MIN = 3
RANGE_SHARE_MIN = 0.5
"""A range must explain half of what a step took more to be named."""


class JudgedTime(NamedTuple):
    """Windows (n, 2) in ns by the host's clock that shares are of; empty where nothing can be judged. `long_steps` are
    in none of them.
    """

    windows: Intervals
    step_count: int
    long_steps: list[LongStep]


def find_judged_time(view: RankView) -> JudgedTime:
    """Return the time that shares are of; without steps that of the device's work, if none of it is lost."""
    if not view.steps:
        bounds = [] if view.has_lost_work else [view.bounds_ns or (0, 0)]
        return JudgedTime(np.array(bounds, dtype=np.int64).reshape(-1, 2), 0, [])
    whole = [step for step in view.steps if step.number not in view.steps_with_lost_work]
    long = _find_long(whole)
    kept = [step for step in whole if step not in long]
    windows = np.array([_window_of(view, step) for step in kept], dtype=np.int64).reshape(-1, 2)
    usual_ns = median(map(_length_of, kept)) if kept else 0
    return JudgedTime(intervals.union(windows), len(kept), [_describe_long(view, step, usual_ns) for step in long])


def _length_of(step: Step) -> int:
    return step.next_start_ns - step.start_ns


def _find_long(steps: Sequence[Step]) -> list[Step]:
    if len(steps) < LONG_STEP_STEPS_MIN:
        return []
    limit_ns = LONG_STEP_RATIO_MIN * median(map(_length_of, steps))
    long = [step for step in steps if _length_of(step) > limit_ns]
    return long if len(long) <= max(1, LONG_STEPS_SHARE_MAX * len(steps)) else []


def _window_of(view: RankView, step: Step) -> tuple[int, int]:
    """Return the window of a step; behind one whose work is lost it begins with the step's own work, since until then
    the device may have done what is lost.
    """
    place = view.steps.index(step)
    before = view.steps[place - 1] if place else None
    start_ns = step.start_ns
    if before is not None and before.number in view.steps_with_lost_work:
        mine = find_launched(view, step)
        first_ns = int(view.work.start_ns[mine].min()) if len(mine) else step.next_start_ns
        start_ns = min(max(start_ns, first_ns), step.next_start_ns)
    return start_ns, step.next_start_ns


# -- long steps -------------------------------------------------------------------------------------------------------


def _describe_long(view: RankView, step: Step, usual_ns: float) -> LongStep:
    name, range_ns = _find_range(view, step, usual_ns)
    busy = intervals.union(np.concatenate(view.sets)) if view.has_device else EMPTY
    busy_ns = intervals.total_ns(intervals.clip(busy, step.start_ns, step.next_start_ns))
    return LongStep(
        step=step.number,
        start_ns=step.start_ns - view.origin_ns,
        window_ns=_length_of(step),
        usual_ns=round(usual_ns),
        idle_ns=_length_of(step) - busy_ns if view.has_device else None,
        range_name=name,
        range_ns=range_ns,
    )


def _find_range(view: RankView, step: Step, usual_ns: float) -> tuple[str | None, int | None]:
    """Return the range or operator that explains what the step took more, and its time in the step: of all names with
    half of that the one with the least time, which is the innermost.
    """
    events = view.events
    rows = view.trace.rows(Category.CPU_OP, Category.ANNOTATION)
    rows = rows[~np.isin(rows, view.host.step_rows)]
    rows = rows[(events.end_ns[rows] > step.start_ns) & (events.start_ns[rows] < step.next_start_ns)]
    rows = view.trace.rows_named(rows, lambda name: not is_backend_range(name))
    least_ns = RANGE_SHARE_MIN * (_length_of(step) - usual_ns)
    found = [(name, _time_inside(view, rows[events.name[rows] == name], step)) for name in np.unique(events.name[rows])]
    explaining = [(own_ns, view.trace.names[name]) for name, own_ns in found if own_ns >= least_ns]
    if not explaining:
        return None, None
    own_ns, text = min(explaining)
    return text, own_ns


def _time_inside(view: RankView, rows: Ints, step: Step) -> int:
    inside = intervals.clip(intervals.union(view.intervals_of(rows)), step.start_ns, step.next_start_ns)
    return intervals.total_ns(inside)
