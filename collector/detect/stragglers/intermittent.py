"""Find ranks that are slow in some steps only: every k-th one, or at random, far more often than their peers.

Examples are a garbage collector that runs every fifty steps, or a rank that writes every tenth: its median step is as
fast as the peers', and yet all others wait. Every rank stalls sometimes, so the number of slow periods is judged:

    slow step     excess above what the smallest effect and SLOW_DEVIATIONS of the peers' noise allow
    slow period   consecutive slow steps: a single long stall is one period
    by chance     the probability of at least that many slow periods at the peers' rate (binomial), and of few ranks
                  that of so large a share of all slow periods; at most CHANCE_MAX
    effect        all steps together lose at least COST_RATIO_MIN to it
"""

import math
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import numpy as np

from rankscope.collector.detect.statistics.change_points import SIGMA_FLOOR
from rankscope.collector.detect.statistics.noise import MAD_TO_SIGMA
from rankscope.collector.detect.stragglers.persistent import SlowRank, Thresholds
from rankscope.collector.detect.view import RunView
from rankscope.collector.steps.peer_groups import PEERS_SAMPLED_MAX
from rankscope.collector.steps.step_series import Flags, Floats, Ints

SLOW_DEVIATIONS: Final = 4.0
CHANCE_MAX: Final = 1e-9
"""A thousand ranks judged once a second are 10^8 chances a day."""
COST_RATIO_MIN: Final = 0.01
"""1 % of all steps: less is not worth acting on."""
PERIODS_MIN: Final = 3
"""Fewer slow periods prove nothing, however long they are."""
LONG_STEPS_MIN: Final = 12
LONG_RATIO_MIN: Final = 3
"""LONG_STEPS_MIN slow steps, on top of LONG_RATIO_MIN times those of any rank that the usual rate includes, are not by
chance."""
EXCLUDED_RATIO: Final = 0.1
"""Share of the ranks, those with the most slow periods, that the usual rate leaves out: they may be the slow ones."""
FEW_RANKS_MAX: Final = 4
"""Of so few ranks the usual rate leaves out one, and is that of at most three: too few to take it as known."""
QUIET_GAPS: Final = 4
"""It has passed after this many usual gaps without a slow step, counted in known steps."""
PERIODIC_RATIO: Final = 0.8
"""Share of the gaps that must be equal for the pattern to be called every k-th step."""


class SlowPeriods(NamedTuple):
    """The slow periods of each rank: rows of the known steps, which of them are slow, shape (n, ranks), and the number
    of slow periods, shape (ranks,).
    """

    rows: Ints
    slow: Flags
    counts: Ints


def find_intermittent(view: RunView, thresholds: Thresholds, known: Collection[int]) -> tuple[SlowRank, ...]:
    """Return the intermittently slow ranks that are not `known` to be slow, the costliest first."""
    periods = find_slow_periods(view, thresholds)
    if len(periods.rows) < 2 * thresholds.steps_min:
        return ()
    found = [
        _judge(view, column, periods)
        for column in _find_candidates(periods).tolist()
        if view.series.ranks[column] not in known
    ]
    return tuple(sorted((slow for slow in found if slow is not None), key=_cost, reverse=True))


def find_slow_periods(view: RunView, thresholds: Thresholds) -> SlowPeriods:
    """Find every rank's slow periods among the steps in which any rank's excess is known."""
    rows = np.flatnonzero(view.is_known)
    excess = view.excess if len(rows) == len(view.excess) else view.excess[rows]
    slow: Flags = np.full(excess.shape, fill_value=False)
    if len(rows):
        for comparison in view.peer_groups.comparisons:
            columns = view.series.columns_of(comparison.members)
            sampled = np.nan_to_num(excess[:, columns[:: -(-len(columns) // PEERS_SAMPLED_MAX)]], nan=0.0)
            deviations = MAD_TO_SIGMA * np.median(np.abs(sampled - np.median(sampled, axis=0)), axis=0)
            usual = max(float(np.median(deviations)), SIGMA_FLOOR)
            slow_from = max(math.log(thresholds.slowdown_ratio_min), SLOW_DEVIATIONS * usual)
            if len(columns) == excess.shape[1]:
                np.greater(excess, slow_from, out=slow)  # what is not known is not slow
            else:
                slow[:, columns] = excess[:, columns] > slow_from
    begins = slow & ~np.vstack([np.zeros_like(slow[:1]), slow[:-1]])
    return SlowPeriods(rows, slow, np.count_nonzero(begins, axis=0))


def has_passed(view: RunView, ranks: Sequence[int], thresholds: Thresholds, known_gap: float) -> bool:
    """Return whether the slow ranks have had no slow step for QUIET_GAPS usual gaps."""
    periods = find_slow_periods(view, thresholds)
    quiet = max(thresholds.steps_min, round(QUIET_GAPS * known_gap))
    last = periods.slow[-quiet:, view.series.columns_of(ranks)]
    return len(last) >= quiet and not last.any()


def _find_candidates(periods: SlowPeriods) -> Ints:
    """Return the columns with more slow periods than usual; cheap, for all ranks at once."""
    usual = len(periods.rows) * usual_rate(periods)
    return np.flatnonzero(periods.counts >= max(PERIODS_MIN, usual + math.sqrt(usual)))


def usual_rate(periods: SlowPeriods) -> float:
    """Return the slow periods per step of a healthy rank, with half a period added over all ranks for those unseen."""
    ranks = len(periods.counts)
    kept = np.sort(periods.counts)[: max(1, min(ranks - 1, round((1 - EXCLUDED_RATIO) * ranks)))]
    return (float(kept.sum()) + 0.5) / max(1, len(kept) * len(periods.rows))


def _judge(view: RunView, column: int, periods: SlowPeriods) -> SlowRank | None:
    steps = view.series.steps[periods.rows]
    slow = np.flatnonzero(periods.slow[:, column])
    began = _find_begin(periods.slow[:, column])
    slow = slow[slow >= began]
    chance = _chance_of(periods, column)
    by_chance = chance > CHANCE_MAX and not _has_long_periods(periods, column)
    excess = view.excess[periods.rows[slow], column]
    level = float(np.median(excess))
    share = len(slow) / (len(steps) - began)
    if by_chance or share * math.expm1(level) < COST_RATIO_MIN:
        return None
    rank = view.series.ranks[column]
    self_ns = view.series.self_ns[periods.rows[slow], column]
    return SlowRank(
        rank=rank,
        since_step=int(steps[began]),
        level_from_step=int(steps[began]),
        before_step=int(steps[began - 1]) if began > 0 else None,
        slowdown_ratio=math.exp(level),
        robust_z=-math.log10(max(chance, 1e-300)),
        persistence=share,
        self_ns=float(np.median(self_ns)),
        peers_self_ns=float(np.median(self_ns / np.exp(excess))),
        steps_judged=len(steps) - began,
        peers=view.peer_groups.of(rank).peers_of(rank),
        pattern="intermittent",
        slow_steps=steps[slow],
    )


def _chance_of(periods: SlowPeriods, column: int) -> float:
    """Return the probability that a healthy rank has so many slow periods: at the usual rate, and of few ranks, whose
    rate is hardly known, also that so many of all slow periods are one rank's.
    """
    count, ranks = int(periods.counts[column]), len(periods.counts)
    chance = probability_of(count, len(periods.rows), usual_rate(periods))
    if ranks > FEW_RANKS_MAX:
        return chance
    return max(chance, probability_of(count, int(periods.counts.sum()), 1 / ranks))


def _has_long_periods(periods: SlowPeriods, column: int) -> bool:
    """Return whether a few slow periods last long: then the slow steps are not independent, and their number is
    compared with that of all other ranks but the excluded ones.
    """
    slow_steps = np.sort(np.count_nonzero(periods.slow, axis=0))
    usual = int(slow_steps[: max(1, round((1 - EXCLUDED_RATIO) * len(slow_steps)))].max())
    mine = int(np.count_nonzero(periods.slow[:, column]))
    return bool(periods.counts[column] >= PERIODS_MIN and mine >= LONG_STEPS_MIN + LONG_RATIO_MIN * usual)


def _cost(slow: SlowRank) -> float:
    return slow.persistence * (slow.slowdown_ratio - 1)


def _find_begin(slow: Flags) -> int:
    """Return the index of the slow step at which the rate of slow steps most likely changed; the first slow step unless
    a later one is clearly more likely.
    """
    count = len(slow)
    at = np.flatnonzero(slow)
    before = np.arange(len(at))
    likelihood = _log_likelihood(before, at) + _log_likelihood(len(at) - before, count - at)
    best = int(np.argmax(likelihood))
    # A begin is one more parameter: half of log(count) in the Bayesian information criterion, twice for safety.
    return int(at[best if likelihood[best] - likelihood[0] > math.log(count) else 0])


def _log_likelihood(slow: Ints, steps: Ints) -> Floats:
    """Return the largest log-likelihood, over all rates, of `slow` among `steps`."""
    rate = np.clip(slow / np.maximum(steps, 1), 1e-12, 1 - 1e-12)
    return np.asarray(slow * np.log(rate) + (steps - slow) * np.log1p(-rate))


def probability_of(periods: int, steps: int, rate: float) -> float:
    """Return the probability of at least this many slow periods in so many steps at this rate per step.

    >>> round(probability_of(2, 2, 0.5), 3), probability_of(0, 5, 0.1)
    (0.25, 1.0)
    """
    if periods <= 0:
        return 1.0
    rate = min(rate, 0.5)
    logs = [
        math.lgamma(steps + 1) - math.lgamma(k + 1) - math.lgamma(steps - k + 1)
        + k * math.log(rate) + (steps - k) * math.log1p(-rate)
        for k in range(periods, steps + 1)
    ]  # fmt: skip
    return min(1.0, math.fsum(math.exp(log) for log in logs))


def count_known_between(view: RunView, slow_steps: Ints) -> int:
    """Return the usual gap between slow periods, counted in known steps."""
    return find_period(np.searchsorted(view.series.steps[view.is_known], slow_steps))[0]


def find_period(slow_steps: Ints) -> tuple[int, bool]:
    """Return the usual gap between the begins of slow periods in steps, and whether most gaps are equal to it.

    >>> find_period(np.array([10, 14, 18, 22, 23]))
    (4, True)
    """
    begins = slow_steps[np.diff(slow_steps, prepend=slow_steps[0] - 2) > 1]
    gaps = np.diff(begins)
    if len(gaps) == 0:
        return 0, False
    usual = int(np.median(gaps))
    return usual, bool(np.mean(gaps == usual) >= PERIODIC_RATIO)
