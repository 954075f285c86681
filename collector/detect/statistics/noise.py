"""Measure the noise of a series of steps, and the standard error of its median."""

import math
from typing import NamedTuple

import numpy as np

from rankscope.collector.steps.step_series import Floats

MAD_TO_SIGMA = 1.4826
"""A normal distribution's standard deviation over its median absolute deviation."""
MEDIAN_ERROR = 1.2533
"""sqrt(pi / 2): the standard error of a median over that of a mean, for normal noise."""
OUTLIER_DEVIATIONS = 3.0
"""Values farther out are clipped before the correlation is measured: one stall would hide it."""
CORRELATION_MAX = 0.9
"""Beyond it a series of a few hundred steps cannot be distinguished from one that drifts."""


class Noise(NamedTuple):
    """The noise of a series about its level: robust standard deviation, and correlation of neighbors (0: none)."""

    deviation: float
    correlation: float

    def median_error(self, count: int) -> float:
        """Return the standard error of the median of `count` neighboring values.

        Neighboring steps are correlated (batch sizes, other load on the machine), so n values count as
        n (1 - r) / (1 + r), with r the correlation.

        >>> round(Noise(deviation=0.1, correlation=0.0).median_error(100), 4)
        0.0125
        """
        independent = max(1.0, count * (1 - self.correlation) / (1 + self.correlation))
        return MEDIAN_ERROR * self.deviation / math.sqrt(independent)


def measure_noise(series: Floats, *changes: int) -> Noise:
    """Return the noise of a series, shape (n,), n >= 1, no NaN, whose level changes at the indices `changes`, in
    ascending order (0: nowhere).

    The noise is that of the whole series, not of the part in question: among many parts of a dozen values some always
    look quiet by chance. For the same reason the correlation is the estimate plus two of its standard errors,
    1 / sqrt(n).
    """
    deviations, correlations = measure_noises(series[:, np.newaxis], *changes)
    return Noise(float(deviations[0]), float(correlations[0]))


def measure_noises(series: Floats, *changes: int) -> tuple[Floats, Floats]:
    """Return deviation and correlation, shape (m,) each, of every column of `series`, shape (n, m), as
    `measure_noise`.
    """
    sides = [side - np.median(side, axis=0) for side in np.split(series, changes) if len(side)]
    residual = np.concatenate(sides)
    deviation = MAD_TO_SIGMA * np.median(np.abs(residual), axis=0)
    bounded = np.clip(residual, -OUTLIER_DEVIATIONS * deviation, OUTLIER_DEVIATIONS * deviation)
    power = np.sum(bounded**2, axis=0)
    products = np.sum(bounded[1:] * bounded[:-1], axis=0)
    correlation = np.divide(products, power, out=np.zeros_like(power), where=power > 0)
    return deviation, np.clip(correlation + 2 / math.sqrt(len(series)), 0.0, CORRELATION_MAX)


def median_errors(deviations: Floats, correlations: Floats, count: int) -> Floats:
    """Return `Noise.median_error` of many."""
    independent = np.maximum(1.0, count * (1 - correlations) / (1 + correlations))
    return np.asarray(MEDIAN_ERROR * deviations / np.sqrt(independent))


def find_neighbor_deviations(series: Floats) -> Floats:
    """Return the deviation of every column of `series`, shape (n, m), n >= 2, from the differences of neighbors, which
    a change of level does not raise. Noise that wanders looks smaller.

    >>> steps = np.array([[0.0], [0.1], [0.0], [5.1], [5.0], [5.1]])
    >>> find_neighbor_deviations(steps).round(2).tolist()
    [0.1]
    """
    return np.asarray(MAD_TO_SIGMA / math.sqrt(2) * np.median(np.abs(np.diff(series, axis=0)), axis=0))


def rank_sum_deviations(before: Floats, after: Floats) -> tuple[float, float]:
    """Return by how many standard deviations the values `after`, shape (m,), rank above those `before`, shape (n,), and
    how many it would be if each did: m, n >= 1.

    It is the statistic of Wilcoxon's rank sum test (Mann and Whitney 1947), which no distribution is assumed for. The
    error of a median is too small where values are of two kinds, each in about half of all steps.

    >>> [round(value, 2) for value in rank_sum_deviations(np.array([1.0, 2.0, 3.0]), np.array([2.5, 4.0, 5.0]))]
    [1.53, 1.96]
    """
    count, later = len(before) + len(after), len(after)
    ranks = np.argsort(np.argsort(np.concatenate([before, after]), kind="stable"), kind="stable")
    pairs = len(before) * later
    above = float(ranks[len(before) :].sum()) - later * (later - 1) / 2
    deviation = math.sqrt(pairs * (count + 1) / 12)
    return (above - pairs / 2) / deviation, pairs / 2 / deviation
