"""Find between which values of a noisy series a rise may have begun, given its noise.

Of all begins those are kept that explain the series nearly as well as the best one: a rise in one step or gradually,
of any length, whose squares left exceed the fewest by at most LIKELIHOOD_RATIO variances of the noise. For one change
of level the set of such begins has the true one in 99 % of all cases (Hansen, Sample splitting and threshold
estimation, Econometrica 2000): -2 ln(1 - sqrt(0.99)) = 10.6. Neighboring values are correlated, so the variance is
that of independent values times (1 + r) / (1 - r), as in `Noise.median_error`.
"""

import math
from typing import Final

import numpy as np

from rankscope.collector.detect.finding import SinceRange
from rankscope.collector.detect.statistics.change_points import (
    OUTLIER_QUANTILE,
    SIDE_MIN,
    Ramp,
    find_last_change,
    find_levels,
    squares_left,
)
from rankscope.collector.detect.statistics.noise import measure_noise
from rankscope.collector.steps.step_series import Floats, Ints

CONFIDENCE: Final = 0.99
LIKELIHOOD_RATIO: Final = -2 * math.log(1 - math.sqrt(CONFIDENCE))
"""Twice the logarithm of the likelihood by which a begin may fall short of the best one."""
BEGINS_MAX: Final = 64
"""Begins tried: of 256 values every fourth, and the range reaches to the next that is refused."""
LENGTHS: Final = tuple(np.unique(np.geomspace(1, 256, 40).round().astype(np.int64)).tolist())
"""Lengths of a rise that are tried, in values, each a seventh longer than the last; 1 is a change from one value to the
next."""
BENT_SHARE: Final = 0.1
"""Share of the length of a rise by which its begin may be off as the rise is not straight: one to three times the level
that grows evenly in time bends in the logarithm, and its begin is off by a twelfth of its length."""
LEVEL_MIN: Final = 12
"""Values of an earlier level: what came before it says nothing of the rise."""


def find_begin_range(series: Floats, begin: int, until: int) -> tuple[int, int]:
    """Return the first and the last index at which a rise may have begun that is dated to `begin`.

    `series`: shape (n,), no NaN. `until`, beyond `begin`: where a later change of level begins, else n.

    >>> find_begin_range(np.repeat([0.0, 0.1], 20) + np.tile([0.001, -0.001], 20), 20, 40)
    (20, 20)
    """
    first = _find_level_before(series, begin)
    part = series[first:until]
    count = len(part)
    if count < 2 * SIDE_MIN:
        return begin, begin
    bounded = np.clip(part, *np.quantile(part, [OUTLIER_QUANTILE, 1 - OUTLIER_QUANTILE]))
    near = np.arange(max(1, begin - first - SIDE_MIN), min(count - 1, begin - first + SIDE_MIN) + 1)
    begins = np.union1d(np.linspace(1, count - 1, min(BEGINS_MAX, count - 1)).astype(np.int64), near)
    left = np.array([squares_left(bounded, begins, length) for length in LENGTHS])
    row, column = np.unravel_index(int(np.argmin(left)), left.shape)
    best = Ramp(int(begins[column]), LENGTHS[row], is_gradual=False)
    noise = measure_noise(bounded - best.values(bounded), 0)
    variance = noise.deviation**2 * (1 + noise.correlation) / (1 - noise.correlation)
    likely = np.flatnonzero(left.min(axis=0) <= left.min() + LIKELIHOOD_RATIO * variance)
    # A begin that was not tried may be as likely as the tried one beside it.
    earliest = int(begins[likely[0] - 1]) + 1 if likely[0] else int(begins[0])
    latest = int(begins[likely[-1] + 1]) - 1 if likely[-1] + 1 < len(begins) else int(begins[-1])
    bent = int(BENT_SHARE * best.length)
    return max(0, min(begin, first + earliest - bent)), min(until - 1, max(begin, first + latest + bent))


def to_since_range(steps: Ints, first: int, last: int) -> SinceRange:
    """Return a range of indices of known steps as steps: it may have begun in unknown ones before the first."""
    return (int(steps[first - 1]) + 1 if first else int(steps[0])), int(steps[last])


def find_rise(steps: Ints, ratios: Floats, least: float, steps_min: int) -> tuple[int, int | None, int]:
    """Return since which step the median of a series is `least` or more, with the earliest and the latest step that it
    may be; no earliest where it is in all that is known.

    `steps`, `ratios`: shape (n,), n >= 1, no NaN. `steps_min`: the fewest values of a level.

    >>> find_rise(np.arange(40), np.repeat([0.0, 0.5], 20), 0.2, 8)
    (20, 20, 20)
    """
    begin = find_last_change(ratios, steps_min)
    while begin and float(np.median(ratios[(earlier := find_last_change(ratios[:begin], steps_min)) : begin])) >= least:
        begin = earlier
    if not begin:
        return int(steps[0]), None, int(steps[0])
    earliest, latest = to_since_range(steps, *find_begin_range(ratios, begin, len(ratios)))
    return int(steps[begin]), earliest, latest


def _find_level_before(series: Floats, begin: int) -> int:
    """Return where the level before a rise begins. Levels that rise one after the other belong to the rise."""
    begins = [0, *find_levels(series[:begin], LEVEL_MIN)]
    levels = [float(np.median(part)) for part in np.split(series[:begin], begins[1:])]
    last = len(levels) - 1
    while last > 0 and levels[last - 1] < levels[last]:
        last -= 1
    return begins[last]
