"""Find where the level of a noisy series has clearly changed.

A series is log(time / what it is compared with) step by step, shape (n,), without NaN: one rank over its peers, a
group of ranks over the others, the whole run over its own past.
"""

import math
from typing import Final, NamedTuple

import numpy as np

from rankscope.collector.detect.statistics.noise import measure_noise
from rankscope.collector.steps.step_series import Floats, Ints

SIDE_MIN = 3
"""Least values on either side of a change: one or two outliers at an end are no change."""
OUTLIER_QUANTILE = 0.05
"""Values beyond this quantile at either end are clipped to it: one stalled step must not look like a change or bend a
ramp."""


def find_change(series: Floats) -> int:
    """Return the index of the first value after the most likely change of level; 0 when there are too few values.

    `series`: shape (n,), no NaN. The split maximizes the difference of the two sides' means, weighted by
    sqrt(k (n - k) / n), the cumulative-sum statistic for one change of mean in noise (Page 1954).

    >>> find_change(np.array([0.0, 0.1, 0.0, 0.1, 0.0, 0.9, 1.0, 0.9, 1.0]))
    5
    """
    count = len(series)
    if count < 2 * SIDE_MIN:
        return 0
    low, high = np.quantile(series, [OUTLIER_QUANTILE, 1 - OUTLIER_QUANTILE])
    sums = np.cumsum(np.clip(series, low, high))
    before = np.arange(1, count)
    gap = np.abs(sums[:-1] - before * sums[-1] / count) / np.sqrt(before * (count - before) / count)
    inside = gap[SIDE_MIN - 1 : count - SIDE_MIN]
    return int(np.argmax(inside)) + SIDE_MIN


SIGMA_FLOOR: Final = 0.01
"""1 %: the usual difference between identical ranks, without a cause to act on."""
SURE_DEVIATIONS: Final = 3.0
"""Standard errors by which the medians on both sides must differ for a change to be clear."""


def find_clear_change(series: Floats, steps_min: int) -> int:
    """Return the index of the clearest change of level; 0 when there is none, or fewer than `steps_min` values
    follow.
    """
    change = find_change(series)
    after, before = series[change:], series[:change]
    if change == 0 or len(after) < steps_min:
        return 0
    shift = abs(float(np.median(after)) - float(np.median(before)))
    noise = measure_noise(series, change)
    by_chance = SURE_DEVIATIONS * math.hypot(noise.median_error(len(before)), noise.median_error(len(after)))
    return change if shift > max(by_chance, SIGMA_FLOOR) else 0


def find_last_change(series: Floats, steps_min: int) -> int:
    """Return the index at which the present level begins: the last clear change, up or down, else 0.

    The clearest change need not be the last one, so the part after a change is searched again. A change that fewer than
    `steps_min` values follow is not found yet.
    """
    since = 0
    while (change := find_clear_change(series[since:], steps_min)) > 0:
        since += change
    return since


LEVEL_DEVIATIONS: Final = 5.0
"""The same for the earlier levels that noise is measured about: what is taken for a level is no noise."""


def find_levels(series: Floats, steps_min: int) -> tuple[int, ...]:
    """Return the indices at which levels of at least `steps_min` values begin, without the first; ascending.

    >>> find_levels(np.repeat([0.0, 1.0, 0.0], 20), 12)
    (20, 40)
    """
    change = find_change(series)
    if change < steps_min or len(series) - change < steps_min:
        return ()
    left = find_levels(series[:change], steps_min)
    right = tuple(change + index for index in find_levels(series[change:], steps_min))
    noise = measure_noise(series, *left, change, *right)
    before, after = series[(left or (0,))[-1] : change], series[change : (right or (len(series),))[0]]
    by_chance = LEVEL_DEVIATIONS * math.hypot(noise.median_error(len(before)), noise.median_error(len(after)))
    is_clear = abs(float(np.median(after) - np.median(before))) > max(by_chance, SIGMA_FLOOR)
    return (*left, change, *right) if is_clear else (*left, *right)


# Ramps: whether a level changed from one step to the next or gradually, and where that began.
#
#     x[i] = low                                  i <  begin
#     x[i] = low + height (i - begin) / length    begin <= i < begin + length
#     x[i] = low + height                         from there on
#
# fitted by least squares over a grid of begins and lengths, against two sudden changes one after the other, which have
# as many parameters.

GRID: Final = 32
"""Begins and lengths tried: of 256 steps every eighth, as finely as a slow drift can be located."""
GRADUAL_STEPS_MIN: Final = 8
"""A shorter ramp is a change from one step to the next with noise on it."""
BETTER_RATIO: Final = 0.9
"""Largest ratio of the squares left by a ramp to those left by two sudden changes: less is not by chance."""


class Ramp(NamedTuple):
    """The best ramp: its first index, its length in values, and whether it fits clearly better than sudden changes."""

    begin: int
    length: int
    is_gradual: bool

    def values(self, series: Floats) -> Floats:
        """Return the ramp of this begin and length that fits a series best, at each of its values."""
        shape = np.clip((np.arange(len(series)) - self.begin + 1) / self.length, 0.0, 1.0)
        shape -= shape.mean()
        height = float(shape @ series) / max(float(shape @ shape), 1e-12)
        return np.asarray(series.mean() + height * shape)


def fit_ramp(series: Floats) -> Ramp:
    """Return the ramp that fits a series best; shape (n,), n >= 2, no NaN."""
    count = len(series)
    bounded = np.clip(series, *np.quantile(series, [OUTLIER_QUANTILE, 1 - OUTLIER_QUANTILE]))
    begins = np.unique(np.linspace(1, count - 1, min(GRID, count - 1)).astype(np.int64))
    lengths = np.unique(np.linspace(GRADUAL_STEPS_MIN, max(GRADUAL_STEPS_MIN, count), GRID).astype(np.int64))
    best = _best_ramp(bounded, begins, lengths)
    if squares_left(bounded, np.array([best[0]]), best[1])[0] >= BETTER_RATIO * _squares_left_by_two_changes(bounded):
        return Ramp(*best, is_gradual=False)
    apart = -(-count // GRID)  # between two begins of the grid
    near = np.arange(max(1, best[0] - apart), min(count - 1, best[0] + apart) + 1)
    return Ramp(*_best_ramp(bounded, near, lengths), is_gradual=True)


def _best_ramp(series: Floats, begins: Ints, lengths: Ints) -> tuple[int, int]:
    """Return the begin and the length that leave the fewest squares."""
    left = np.array([squares_left(series, begins, int(length)) for length in lengths])
    row, column = np.unravel_index(int(np.argmin(left)), left.shape)
    return int(begins[column]), int(lengths[row])


def _squares_left_by_two_changes(series: Floats) -> float:
    """Return the squares left by the best change and the best one in the remainder."""
    residual = series
    for _ in range(2):
        begins = np.arange(1, len(residual))
        begin = int(begins[int(np.argmin(squares_left(residual, begins, 1)))])
        residual = np.concatenate([part - part.mean() for part in (residual[:begin], residual[begin:])])
    return float(np.sum(residual**2))


def squares_left(series: Floats, begins: Ints, length: int) -> Floats:
    """Return for each begin the sum of squares left by the best ramp of that length; shape (begins,)."""
    shape = np.clip((np.arange(len(series)) - begins[:, np.newaxis] + 1) / length, 0.0, 1.0)
    shape -= shape.mean(axis=1, keepdims=True)
    residual = series - series.mean()
    power = np.sum(shape**2, axis=1)
    height = np.divide(shape @ residual, power, out=np.zeros_like(power), where=power > 0)
    return np.asarray(np.sum(residual**2) - height**2 * power)
