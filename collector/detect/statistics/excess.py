"""Compute by how much a rank's own time exceeds that of its peers, step by step.

A rank with too few peers is compared with ranks that do other work: what counts is only what exceeds the rank's own
usual ratio to them.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from rankscope.collector.detect.statistics.change_points import SIGMA_FLOOR, find_last_change
from rankscope.collector.steps.peer_groups import PeerGroups
from rankscope.collector.steps.step_series import Floats, Ints, StepSeries, in_blocks, medians_of_last

OWN_NS_MIN: Final = 1.0
"""The least own time that is compared, in ns: the logarithm of none is no number. The way back takes the same one."""
PARTS: Final = 4
"""Parts of a series whose medians are compared first: a change shows in one of them."""
KNOWN_MIN: Final = 0.5
"""Share of the peers whose own time must be known for a median."""


def find_excess(series: StepSeries, peer_groups: PeerGroups) -> Floats:
    """Return log(own time / median own time of the peers), shape (n, ranks) as the series; NaN where the rank's or
    too many of its peers' own times are not known.
    """
    rows = np.flatnonzero(~np.isnan(series.own_ns).all(axis=1))  # waits are measured in some steps only
    excess = np.full(series.own_ns.shape, np.nan)

    def cells(some: Ints, columns: Ints) -> Any:
        return some if len(columns) == len(series.ranks) else np.ix_(some, columns)  # all columns: no copy

    for comparison in peer_groups.comparisons:
        members, against = series.columns_of(comparison.members), series.columns_of(comparison.against)
        are_all = comparison.against == comparison.members
        for some in in_blocks(rows, len(against)):  # of 16,384 ranks and 256 steps each copy is 32 MiB
            mine = np.maximum(series.own_ns[cells(some, members)], OWN_NS_MIN)
            theirs = mine if are_all else np.maximum(series.own_ns[cells(some, against)], OWN_NS_MIN)
            excess[cells(some, members)] = _compare(mine, theirs, are_apart=comparison.are_apart)
    return excess


def find_excess_ns(excess: Floats, own_ns: Floats) -> Floats:
    """Return an excess as a time, the own time less that of the peers, in ns, shape as both; NaN where not known."""
    # x = log(mine / theirs), so mine - theirs = mine (1 - exp(-x)), of the same `mine`.
    share = np.negative(excess)  # and all that follows in the same array
    with np.errstate(invalid="ignore"):  # numpy 1.24 warns of NaN on CPUs with AVX-512
        np.negative(np.expm1(share, out=share), out=share)
    return np.multiply(np.maximum(own_ns, OWN_NS_MIN), share, out=share)


def find_peers_ns(excess: Floats, own_ns: Floats) -> Floats:
    """Return the own time of the peers that an excess is over, in ns, shape as both; NaN where not known."""
    return np.asarray(np.maximum(own_ns, OWN_NS_MIN) / np.exp(excess))


def find_usual(
    excess: Floats, series: StepSeries, peer_groups: PeerGroups, known: Mapping[int, float], steps_min: int
) -> Floats:
    """Return the usual excess of each rank, shape (ranks,): 0 for ranks with peers; for the others the `known` one,
    else the median before the last clear change of level, or of all steps where there is none.

    A change counts once `steps_min` steps follow it, and as many came before: what is usual is not read from fewer.
    """
    usual = np.zeros(excess.shape[1])
    without_peers = [rank for one in peer_groups.comparisons if not one.do_same_work for rank in one.members]
    for rank in without_peers:
        column = series.column_of(rank)
        values = excess[~np.isnan(excess[:, column]), column]
        if rank in known:
            usual[column] = known[rank]
        elif len(values):
            usual[column] = _usual_level(values, steps_min)
    return usual


def _usual_level(values: Floats, steps_min: int) -> float:
    medians = [float(np.median(part)) for part in np.array_split(values, PARTS) if len(part)]
    since = find_last_change(values, steps_min) if max(medians) - min(medians) > SIGMA_FLOOR else 0
    if since < steps_min:
        return float(np.median(values))
    before = values[:since]
    return float(np.median(before[find_last_change(before, steps_min) :]))


def _compare(mine: Floats, against: Floats, *, are_apart: bool) -> Floats:
    found = np.full(mine.shape, np.nan)
    count = against.shape[1]
    known = count - np.count_nonzero(np.isnan(against), axis=1)
    complete = known == count
    least = 1 if are_apart else 2

    def median(values: Floats, beside: Floats) -> Floats:
        return np.median(values, axis=1, keepdims=True) if are_apart else _median_of_others(values, beside)

    if count >= least:
        found[complete] = np.log(mine[complete] / median(against[complete], mine[complete]))
    for row in np.flatnonzero(~complete & (known >= max(least, KNOWN_MIN * count))):
        values = against[row, ~np.isnan(against[row])][np.newaxis]
        found[row] = np.log(mine[row] / median(values, mine[[row]])[0])
    return found


def _median_of_others(values: Floats, mine: Floats) -> Floats:
    """Return for each of `mine`, which are among the values of the same row, the median of the row's other values.

    `values`: shape (n, m), m >= 2; `mine`: (n, k), NaN where one is not known.
    """
    others = values.shape[1] - 1
    lower, upper = (others - 1) // 2, others // 2
    ordered = np.partition(values, sorted({lower, lower + 1, upper, upper + 1}), axis=1)

    def nth_other(nth: int) -> Floats:
        return np.where(mine <= ordered[:, [nth]], ordered[:, [nth + 1]], ordered[:, [nth]])

    return (nth_other(lower) + nth_other(upper)) / 2


def slowdown_ratios(excess: Floats, steps: int) -> Floats:
    """Return exp of each rank's median over its last known steps; shape (n, ranks) to (ranks,), NaN where none is."""
    return np.asarray(np.exp(medians_of_last(excess, steps)))
