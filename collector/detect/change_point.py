"""Since when: the point that best splits a series into a before and an after."""

import numpy as np

from rankscope.collector.steps.step_series import Floats

SIDE_MIN = 3
"""Fewest values on either side of a change: one or two outliers at an end are no change."""
OUTLIER_QUANTILE = 0.05
"""Values beyond this quantile at either end are pulled in to it: one stalled step must not look like a change."""


def find_change(series: Floats) -> int:
    """The index of the first value after the most likely change of level; 0 when there are too few values to tell.

    `series`: shape (n,), no NaN. The split maximises the difference of the two sides' means, weighted by
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
