"""Whether a rank became slow from one step to the next or little by little, and where that began.

    x[i] = low                                  i <  begin
    x[i] = low + height (i - begin) / length    begin <= i < begin + length
    x[i] = low + height                         from there on

fitted by least squares over a grid of begins and lengths, against two sudden changes one after the other, which have as
many numbers to choose.
"""

from typing import Final, NamedTuple

import numpy as np

from rankscope.collector.steps.step_series import Floats, Ints

OUTLIER_QUANTILE: Final = 0.05
"""Values beyond this quantile at either end are pulled in to it: one stall must not bend the ramp."""
GRID: Final = 32
"""Begins and lengths tried: of 256 steps every eighth, which is as well as a slow drift can be told."""
GRADUAL_STEPS_MIN: Final = 8
"""A shorter ramp is a change from one step to the next with noise on it."""
BETTER_RATIO: Final = 0.9
"""What a ramp must leave at most of the squares that two sudden changes leave: one of them leaves a little less by
chance."""


class Ramp(NamedTuple):
    """The best ramp: the index at which it begins, how many values it takes, and whether it fits clearly better than
    sudden changes.
    """

    begin: int
    length: int
    is_gradual: bool


def fit_ramp(series: Floats) -> Ramp:
    """The ramp that fits a series best; shape (n,), n >= 2, no NaN."""
    count = len(series)
    bounded = np.clip(series, *np.quantile(series, [OUTLIER_QUANTILE, 1 - OUTLIER_QUANTILE]))
    begins = np.unique(np.linspace(1, count - 1, min(GRID, count - 1)).astype(np.int64))
    lengths = np.unique(np.linspace(GRADUAL_STEPS_MIN, max(GRADUAL_STEPS_MIN, count), GRID).astype(np.int64))
    left = np.array([_squares_left(bounded, begins, int(length)) for length in lengths])
    row, column = np.unravel_index(int(np.argmin(left)), left.shape)
    is_gradual = float(left[row, column]) < BETTER_RATIO * _squares_left_by_two_changes(bounded)
    return Ramp(int(begins[column]), int(lengths[row]), is_gradual)


def _squares_left_by_two_changes(series: Floats) -> float:
    """The best change, and the best in what is left then."""
    rest = series
    for _ in range(2):
        begins = np.arange(1, len(rest))
        begin = int(begins[int(np.argmin(_squares_left(rest, begins, 1)))])
        rest = np.concatenate([rest[:begin] - rest[:begin].mean(), rest[begin:] - rest[begin:].mean()])
    return float(np.sum(rest**2))


def _squares_left(series: Floats, begins: Ints, length: int) -> Floats:
    """For each begin the sum of squares that the best ramp of that length leaves; shape (begins,)."""
    shape = np.clip((np.arange(len(series)) - begins[:, np.newaxis] + 1) / length, 0.0, 1.0)
    shape -= shape.mean(axis=1, keepdims=True)
    rest = series - series.mean()
    power = np.sum(shape**2, axis=1)
    height = np.divide(shape @ rest, power, out=np.zeros_like(power), where=power > 0)
    return np.asarray(np.sum(rest**2) - height**2 * power)
