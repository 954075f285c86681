"""Date the begin of a slowness: the steps between which it lies, and where in a gap, between two steps in which the
ranks could be compared.

Profiler windows are apart, and reports get lost. Since all ranks wait for a slow one, the begin shows in how long the
steps took, of which any one rank's report is enough.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from rankscope.collector.detect.finding import DRIFTING, RUN_SLOWDOWN, Finding, SinceRange
from rankscope.collector.detect.finding_memory import recall
from rankscope.collector.detect.statistics.begin_range import find_begin_range, to_since_range
from rankscope.collector.detect.statistics.change_points import SIDE_MIN, SIGMA_FLOOR, find_clear_change
from rankscope.collector.detect.statistics.noise import measure_noise
from rankscope.collector.detect.stragglers.persistent import SlowRank
from rankscope.collector.detect.view import RunView

BESIDE_STEPS: Final = 32
"""Steps on either side of the gap that are compared: enough for the level there."""
RISE_SHARE: Final = 0.5
"""Share of the rank's excess by which the steps must have become longer."""
BEGIN_DEVIATIONS: Final = 2.0
"""Standard errors by which steps before the begin of an open finding must be slow to belong to it."""


def date_begin(slow: SlowRank, view: RunView, findings: Sequence[Finding]) -> SlowRank:
    """Return a slow rank that began in a gap with the step at which the run became slower there, by an open finding
    about that or by the steps; as it is where neither shows it.
    """
    if slow.before_step is None:
        return _date_by_run(slow, view, findings)
    # Noise may put the begin a step or two behind a gap: then it may as well lie in it.
    found = find_since_range(slow, slow.since_step, view)
    before_step = slow.before_step if found is None else min(slow.before_step, found[0] - 1)
    for finding in findings:
        since_step = finding.since_step
        if finding.kind == RUN_SLOWDOWN and since_step is not None and before_step < since_step <= slow.since_step:
            earliest, latest = finding.since_range or (since_step, since_step)
            between = max(earliest, before_step + 1), min(max(latest, since_step), slow.since_step)
            return slow._replace(since_step=since_step, since_range=between)
    if slow.since_step - slow.before_step <= 1:
        return slow
    step = _find_rise(slow, view, slow.before_step)
    return slow if step is None else slow._replace(since_step=step)


def _date_by_run(slow: SlowRank, view: RunView, findings: Sequence[Finding]) -> SlowRank:
    """Return a rank that was slow in all steps in which it could be compared, with the begin of the run's slowdown,
    where that is as large; as it is where there is none, or where the rank is known to have been slow well before.
    """
    excess_ns = slow.excess_ns
    known = view.series.steps[~np.isnan(view.excess_of(slow.rank))]
    for finding in findings:
        since_step, before_ns = finding.since_step, recall(finding).step_before_ns
        if finding.kind != RUN_SLOWDOWN or since_step is None or before_ns is None:
            continue
        later_ns = view.longest_ns[view.series.steps >= since_step]
        added_ns = float(np.nanmedian(later_ns)) - before_ns if not np.isnan(later_ns).all() else math.nan
        is_as_large = RISE_SHARE * excess_ns <= added_ns <= excess_ns / RISE_SHARE
        if is_as_large and np.count_nonzero(known < since_step) < SIDE_MIN:
            level_from = since_step if slow.level_from_step == slow.since_step else slow.level_from_step
            return slow._replace(
                since_step=since_step,
                before_step=since_step - 1,
                level_from_step=level_from,
                since_range=finding.since_range or (since_step, since_step),
            )
    return slow


def find_since_range(slow: SlowRank, begin: int, view: RunView, found: SinceRange | None = None) -> SinceRange | None:
    """Return the steps between which the begin of a slow rank lies, which is stated as step `begin`; None where it is
    not known. It is the one `found` before where the steps before the begin are no longer kept.
    """
    if found is not None:
        found = min(found[0], begin), found[1]  # the begin may have been dated back since then
    excess = view.excess_of(slow.rank)
    known = np.flatnonzero(~np.isnan(excess))
    steps = view.series.steps[known]
    at, since, until = np.searchsorted(steps, [begin, slow.since_step, slow.level_from_step]).tolist()
    if slow.before_step is None or (slow.since_range is None and not 0 < at < len(steps)):
        return found
    if slow.since_range is not None:
        earliest, latest = slow.since_range
    else:
        is_one_rise = slow.pattern == DRIFTING or until <= since
        first, last = find_begin_range(excess[known], at, len(steps) if is_one_rise else until)
        earliest, latest = to_since_range(steps, first, last)
        if begin < steps[at]:  # the steps of the run have dated it, between two known steps
            earliest = begin if first == at else earliest
            latest = begin if last == at else latest
    if found is not None and earliest <= steps[1]:
        return found
    if found is not None:
        if earliest <= found[1] and found[0] <= latest:  # both may be right, and the words do not flip
            earliest = max(earliest, found[0])
        latest = min(latest, found[1])  # what was found then had begun
    return min(earliest, begin), max(latest, begin)


def was_slow(view: RunView, rank: int, since_step: int, until_step: int) -> bool:
    """Return whether a rank was slow between two steps: the median of its excess is clearly above none."""
    excess = view.excess_of(rank)[(view.series.steps >= since_step) & (view.series.steps < until_step)]
    known = excess[~np.isnan(excess)]
    if len(known) < SIDE_MIN:
        return False
    return bool(np.median(known) >= max(SIGMA_FLOOR, BEGIN_DEVIATIONS * measure_noise(known).median_error(len(known))))


def _is_in_gap(slow: SlowRank, step: int) -> bool:
    return slow.before_step is not None and slow.before_step < step <= slow.since_step


def _find_rise(slow: SlowRank, view: RunView, before_step: int) -> int | None:
    """Return the step in the gap from which on the steps were longer; None where they were not, or it is not known."""
    steps = view.series.steps
    first, last = before_step - BESIDE_STEPS, slow.since_step + BESIDE_STEPS
    rows = np.flatnonzero((steps >= first) & (steps <= last) & ~np.isnan(view.longest_ns))
    logs = np.log(np.maximum(view.longest_ns[rows], 1.0))
    change = find_clear_change(logs, SIDE_MIN)
    if change == 0 or not _is_in_gap(slow, int(steps[rows[change]])):
        return None
    before_ns = math.exp(float(np.median(logs[:change])))
    added_ns = math.exp(float(np.median(logs[change:]))) - before_ns
    return int(steps[rows[change]]) if added_ns >= RISE_SHARE * slow.excess_ns else None
