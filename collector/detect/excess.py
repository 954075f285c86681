"""How much longer a rank's own work takes than that of those it is compared with, step by step."""

import numpy as np

from rankscope.collector.detect.series import Floats, StepSeries, medians_of_last
from rankscope.collector.detect.twins import Twins

KNOWN_MIN = 0.5
"""Share of the ranks compared with whose self time must be known: a median over fewer may be another one's."""


def find_excess(series: StepSeries, twins: Twins) -> Floats:
    """log(self time / median of the self times of those it is compared with), shape (n, ranks) as the series; NaN where
    its own or too many of theirs are not known.
    """
    self_ns = np.maximum(series.self_ns, 1.0)
    if len(twins.comparisons) == 1 and len(twins.comparisons[0].members) == len(series.ranks):  # nothing to be moved
        return _compare(self_ns, self_ns)
    excess = np.full(series.self_ns.shape, np.nan)
    for comparison in twins.comparisons:
        members = series.columns_of(comparison.members)
        mine = self_ns[:, members]
        are_all = comparison.against == comparison.members
        excess[:, members] = _compare(mine, mine if are_all else self_ns[:, series.columns_of(comparison.against)])
    return excess


def _compare(mine: Floats, against: Floats) -> Floats:
    found = np.full(mine.shape, np.nan)
    count = against.shape[1]
    known = count - np.count_nonzero(np.isnan(against), axis=1)
    complete = known == count
    if count > 1:
        found[complete] = np.log(mine[complete] / _median_of_others(against[complete], mine[complete]))
    for row in np.flatnonzero(~complete & (known >= max(2, KNOWN_MIN * count))):
        told = against[row, ~np.isnan(against[row])][np.newaxis]
        found[row] = np.log(mine[row] / _median_of_others(told, mine[[row]])[0])
    return found


def _median_of_others(values: Floats, mine: Floats) -> Floats:
    """For each of `mine`, which are among the values of the same row, the median of the row's other values.

    `values`: shape (n, m), m >= 2; `mine`: (n, k), NaN where one is not known.
    """
    others = values.shape[1] - 1
    lower, upper = (others - 1) // 2, others // 2
    ordered = np.partition(values, sorted({lower, lower + 1, upper, upper + 1}), axis=1)

    def nth_other(nth: int) -> Floats:
        return np.where(mine <= ordered[:, [nth]], ordered[:, [nth + 1]], ordered[:, [nth]])

    return (nth_other(lower) + nth_other(upper)) / 2


def slowdown_ratios(excess: Floats, steps: int) -> Floats:
    """exp of the median over the last steps that are known, of every rank; shape (n, ranks) to (ranks,), NaN where none
    is.
    """
    return np.asarray(np.exp(medians_of_last(excess, steps)))
