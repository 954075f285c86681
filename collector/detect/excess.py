"""How much longer a rank's own work takes than that of those it is compared with, step by step."""

import numpy as np

from rankscope.collector.detect.series import Floats, StepSeries
from rankscope.collector.detect.twins import Comparison, Twins

KNOWN_MIN = 0.5
"""Share of the ranks compared with whose self time must be known: a median over fewer may be another one's."""


def find_excess(series: StepSeries, twins: Twins) -> Floats:
    """log(self time / median of the self times of those it is compared with), shape (n, ranks) as the series; NaN where
    its own or too many of theirs are not known.
    """
    excess = np.full(series.self_ns.shape, np.nan)
    for comparison in twins.comparisons:
        members = series.columns_of(comparison.members)
        excess[:, members] = _compare(series, comparison)
    return excess


def _compare(series: StepSeries, comparison: Comparison) -> Floats:
    against = np.maximum(series.self_ns[:, series.columns_of(comparison.against)], 1.0)
    mine = np.maximum(series.self_ns[:, series.columns_of(comparison.members)], 1.0)
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


def slowdown_ratio(excess: Floats, steps: int) -> float | None:
    """exp of the median over the last steps that are known, shape (n,); None when none is."""
    known = excess[~np.isnan(excess)][-steps:]
    return float(np.exp(np.median(known))) if len(known) else None


def slowdown_ratios(excess: Floats, steps: int) -> Floats:
    """`slowdown_ratio` of every column; shape (n, ranks) to (ranks,), NaN where no step is known."""
    found = np.full(excess.shape[1], np.nan)
    rows = np.flatnonzero(~np.isnan(excess).all(axis=1))[-steps:]
    if len(rows):
        recent = excess[rows]
        complete = ~np.isnan(recent).any(axis=0)
        found[complete] = np.exp(np.median(recent[:, complete], axis=0))
        for column in np.flatnonzero(~complete):
            found[column] = slowdown_ratio(excess[:, column], steps) or np.nan
    return found
