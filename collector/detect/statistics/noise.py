"""How noisy a series of steps is, and how far its median may therefore be off."""

import math
from typing import NamedTuple

import numpy as np

from rankscope.collector.steps.step_series import Floats

MAD_TO_SIGMA = 1.4826
"""A normal distribution's standard deviation over its median absolute deviation."""
MEDIAN_ERROR = 1.2533
"""sqrt(pi / 2): the standard error of a median over that of a mean, for normal noise."""
OUTLIER_DEVIATIONS = 3.0
"""Values farther out are pulled in to here before neighbours are compared: one stall would hide how alike they are."""
CORRELATION_MAX = 0.9
"""Beyond it a series of the few hundred steps kept here cannot be told from one that wanders off."""


class Noise(NamedTuple):
    """Of a series about its level: its robust standard deviation, and how alike neighbours may be (0: not at all)."""

    deviation: float
    correlation: float

    def median_error(self, count: int) -> float:
        """The standard error of the median of `count` neighbouring values.

        Neighbouring steps are alike (the same batch sizes, the same other load on the machine), so n values count as
        n (1 - r) / (1 + r), r their correlation with the next ones.

        >>> round(Noise(deviation=0.1, correlation=0.0).median_error(100), 4)
        0.0125
        """
        independent = max(1.0, count * (1 - self.correlation) / (1 + self.correlation))
        return MEDIAN_ERROR * self.deviation / math.sqrt(independent)


def measure_noise(series: Floats, change: int) -> Noise:
    """The noise of a series, shape (n,), n >= 1, no NaN, whose level changes at index `change` (0: nowhere).

    Measured over the whole of it, not over the part that is in question: twelve values can look far quieter than what
    they were drawn from, and among all the parts that might be picked some always do. For the same reason the
    correlation is taken at the upper end of what it may be: its estimate plus two of its standard errors, 1 / sqrt(n).
    """
    deviations, correlations = measure_noises(series[:, np.newaxis], change)
    return Noise(float(deviations[0]), float(correlations[0]))


def measure_noises(series: Floats, change: int) -> tuple[Floats, Floats]:
    """`measure_noise` of every column of `series`, shape (n, m): their deviations and correlations, shape (m,)."""
    sides = [side - np.median(side, axis=0) for side in (series[:change], series[change:]) if len(side)]
    rest = np.concatenate(sides)
    deviation = MAD_TO_SIGMA * np.median(np.abs(rest), axis=0)
    bounded = np.clip(rest, -OUTLIER_DEVIATIONS * deviation, OUTLIER_DEVIATIONS * deviation)
    power = np.sum(bounded**2, axis=0)
    products = np.sum(bounded[1:] * bounded[:-1], axis=0)
    correlation = np.divide(products, power, out=np.zeros_like(power), where=power > 0)
    return deviation, np.clip(correlation + 2 / math.sqrt(len(series)), 0.0, CORRELATION_MAX)


def median_errors(deviations: Floats, correlations: Floats, count: int) -> Floats:
    """`Noise.median_error` of many."""
    independent = np.maximum(1.0, count * (1 - correlations) / (1 + correlations))
    return np.asarray(MEDIAN_ERROR * deviations / np.sqrt(independent))
