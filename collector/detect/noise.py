"""How noisy a series of steps is, and how far its median may therefore be off."""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

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
    sides = [side - np.median(side) for side in (series[:change], series[change:]) if len(side)]
    rest = np.concatenate(sides)
    deviation = MAD_TO_SIGMA * float(np.median(np.abs(rest)))
    bounded = np.clip(rest, -OUTLIER_DEVIATIONS * deviation, OUTLIER_DEVIATIONS * deviation)
    power = float(np.sum(bounded**2))
    correlation = float(np.sum(bounded[1:] * bounded[:-1])) / power if power > 0 else 0.0
    at_most = correlation + 2 / math.sqrt(len(series))
    return Noise(deviation, min(max(at_most, 0.0), CORRELATION_MAX))
