"""Find ranks that are slow in some steps only: every k-th one, or at random, far more often than their peers.

Examples are a garbage collector that runs every fifty steps, or a rank that writes every tenth: its median step is as
fast as the peers', and yet all others wait. Every rank stalls sometimes, so the number of slow periods is judged:

    slow step     excess above what the smallest effect and SLOW_DEVIATIONS of the peers' noise allow
    slow period   consecutive slow steps: a single long stall is one period
    by count      the probability of at least that many slow periods at the peers' rate (binomial) is at most
                  CHANCE_MAX; only of more than FEW_RANKS_MAX ranks, of fewer the rate is hardly known
    by sum        or the probability that so much of the time of all slow periods of its peers and itself is its own,
                  where each period might as well be another's, is at most CHANCE_OF_SUM_MAX over the number of ranks
    effect        all steps together lose at least COST_RATIO_MIN to it
    now           it has had a slow step within STALE_GAPS usual gaps
"""

import itertools
import math
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import numpy as np

from rankscope.collector.detect.finding import SinceRange
from rankscope.collector.detect.statistics.begin_range import CONFIDENCE, LIKELIHOOD_RATIO, to_since_range
from rankscope.collector.detect.statistics.change_points import SIGMA_FLOOR
from rankscope.collector.detect.statistics.excess import find_excess_ns
from rankscope.collector.detect.statistics.noise import MAD_TO_SIGMA, find_neighbor_deviations
from rankscope.collector.detect.stragglers.persistent import SlowRank, Thresholds
from rankscope.collector.detect.view import RunView
from rankscope.collector.steps.peer_groups import PEERS_SAMPLED_MAX
from rankscope.collector.steps.step_series import Flags, Floats, Ints

SLOW_DEVIATIONS: Final = 4.0
MEDIAN_HOLDS_MIN: Final = 3
"""Above so many ranks the median of the others does not move when one stalls."""
THIRD_TO_SIGMA: Final = 1.161
"""A normal distribution's standard deviation over the length of its middle third, 2 x 0.4307 deviations."""
FEW_VALUES: Final = 19
"""The closest third of n values is short by chance: by 1 + 19 / n in normal noise of 24 to 250 values, as drawn."""
CHANCE_MAX: Final = 1e-9
"""A thousand ranks judged once a second are 10^8 chances a day."""
CHANCE_OF_SUM_MAX: Final = 1e-6
"""The same for all ranks of a run together. Of 3 ranks it takes 14 slow periods that are all one rank's, of 4 ranks 11,
of 8 ranks 8: 3^-14 is 2.1e-7, and the limit of each of 3 ranks 3.3e-7."""
SUMS_JUDGED_MAX: Final = 16
"""Ranks with the longest slow periods that are judged by their sum in a pass."""
WEIGHT_RATIO_MAX: Final = 4.0
"""A period longer than this many usual ones counts as so many: one stall of a minute hides nothing."""
TILTS: Final = np.geomspace(0.05, 64.0, 48)
"""Tilts of the exponential bound (Chernoff) that are tried, over the longest period; any of them is valid."""
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
"""A regular slowness has passed after this many usual gaps without a slow step, counted in known steps."""
QUIET_GAPS_AT_RANDOM: Final = 7
"""Any other one after this many, of the steps that are kept: a gap at random is longer than 4 mean ones in one of 55
cases, e^-4, and longer than 7 in one of 1100."""
STALE_GAPS: Final = 8
"""After this many it is not found either, although its slow steps are still known. Gaps at random are twice as long
as their median in one of four cases, and eight times in one of 250."""
CLASS_RATIO: Final = 0.25
"""Small is less than this part of the large ones, which hold half of the time. Noise of other ranks is a tenth of a
stall that costs 1 %.
"""
SMALL_SHARE_MAX: Final = 0.1
"""Share of the excess up to which small slow steps are noise; more is work of another kind, as logging beside saves."""
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
    sums = find_period_sums(view, periods)
    candidates = {*_find_candidates(periods).tolist(), *sums.longest().tolist()}
    found = [
        _judge(view, column, periods, sums, thresholds)
        for column in sorted(candidates)
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
            usual = max(float(np.median(find_deviations(sampled))), SIGMA_FLOOR)
            slow_from = max(math.log(thresholds.slowdown_ratio_min), SLOW_DEVIATIONS * usual)
            if len(columns) == excess.shape[1]:
                np.greater(excess, slow_from, out=slow)  # what is not known is not slow
            else:
                slow[:, columns] = excess[:, columns] > slow_from
    begins = slow & ~np.vstack([np.zeros_like(slow[:1]), slow[:-1]])
    return SlowPeriods(rows, slow, np.count_nonzero(begins, axis=0))


def find_deviations(excess: Floats) -> Floats:
    """Return the usual deviation of each column, shape (n, ranks) to (ranks,).

    Beside one or two others a stall of one rank shows in the excess of all. So that of three ranks and fewer is read
    from the third of the values that is closest together, which a stall in every other step leaves as it is, or from
    the differences of neighbors, which levels of many steps leave as they are, each for a while: the smaller of both.
    """
    count, ranks = excess.shape
    if ranks > MEDIAN_HOLDS_MIN:
        return np.asarray(MAD_TO_SIGMA * np.median(np.abs(excess - np.median(excess, axis=0)), axis=0))
    ordered, third = np.sort(excess, axis=0), -(-count // 3)
    shortest = np.min(ordered[third - 1 :] - ordered[: count - third + 1], axis=0)
    closest = THIRD_TO_SIGMA * (1 + FEW_VALUES / count) * shortest
    return np.asarray(np.minimum(closest, find_neighbor_deviations(excess)) if count > 1 else closest)


def has_passed(view: RunView, ranks: Sequence[int], thresholds: Thresholds, known_gap: float) -> bool:
    """Return whether the slow ranks have had no slow step for QUIET_GAPS usual gaps, or QUIET_GAPS_AT_RANDOM, which may
    be all that is kept. `known_gap`: the usual gap in known steps.
    """
    periods = find_slow_periods(view, thresholds)
    slow: Flags = np.any(periods.slow[:, view.series.columns_of(ranks)], axis=1)
    least = max(thresholds.steps_min, round(QUIET_GAPS * known_gap))
    is_regular = bool(slow.any()) and find_period(view.series.steps[periods.rows[slow]])[1]
    quiet = least if is_regular else max(thresholds.steps_min, round(QUIET_GAPS_AT_RANDOM * known_gap))
    return len(slow) >= least and not bool(slow[-quiet:].any())


def _find_candidates(periods: SlowPeriods) -> Ints:
    """Return the columns with more slow periods than usual; cheap, for all ranks at once."""
    usual = len(periods.rows) * usual_rate(periods)
    return np.flatnonzero(periods.counts >= max(PERIODS_MIN, usual + math.sqrt(usual)))


def usual_rate(periods: SlowPeriods) -> float:
    """Return the slow periods per step of a healthy rank, with half a period added over all ranks for those unseen."""
    ranks = len(periods.counts)
    kept = np.sort(periods.counts)[: max(1, min(ranks - 1, round((1 - EXCLUDED_RATIO) * ranks)))]
    return (float(kept.sum()) + 0.5) / max(1, len(kept) * len(periods.rows))


def _judge(
    view: RunView, column: int, periods: SlowPeriods, sums: "PeriodSums", thresholds: Thresholds
) -> SlowRank | None:
    steps = view.series.steps[periods.rows]
    is_slow = _leave_out_small(view, column, periods)
    began, earliest, latest = find_begin(is_slow)
    slow = np.flatnonzero(is_slow[began:]) + began
    by_count, by_sum = _chance_of_count(periods, column), sums.chance_of(column)
    is_by_chance = by_count > CHANCE_MAX and by_sum > CHANCE_OF_SUM_MAX / len(periods.counts)
    is_by_chance &= not _has_long_periods(periods, column)
    excess = view.excess[periods.rows[slow], column]
    level = float(np.median(excess))
    share = len(slow) / (len(steps) - began)
    is_past = _is_stale(slow, len(steps), thresholds) or _was_steady(slow, len(steps), thresholds)
    if is_by_chance or is_past or share * math.expm1(level) < COST_RATIO_MIN:
        return None
    rank = view.series.ranks[column]
    own_ns = view.series.own_ns[periods.rows[slow], column]
    return SlowRank(
        rank=rank,
        since_step=int(steps[began]),
        level_from_step=int(steps[began]),
        before_step=int(steps[began - 1]) if began > 0 else None,
        slowdown_ratio=math.exp(level),
        robust_z=-math.log10(max(min(by_count, by_sum), 1e-300)),
        persistence=share,
        own_ns=float(np.median(own_ns)),
        steps_judged=len(steps) - began,
        peers=view.peer_groups.of(rank).peers_of(rank),
        pattern="intermittent",
        slow_steps=steps[slow],
        since_range=_narrow_range(steps[slow], to_since_range(steps, earliest, latest)) if began > 0 else None,
    )


def _leave_out_small(view: RunView, column: int, periods: SlowPeriods) -> Flags:
    """Return which known steps are slow ones of a rank, shape (n,), without small ones that hold next to nothing."""
    is_slow: Flags = periods.slow[:, column].copy()
    rows = periods.rows[is_slow]
    excess_ns = find_excess_ns(view.excess[rows, column], view.series.own_ns[rows, column])
    is_small = excess_ns < CLASS_RATIO * find_half_of_time(excess_ns.tolist())
    if float(excess_ns[is_small].sum()) <= SMALL_SHARE_MAX * float(excess_ns.sum()):
        is_slow[is_slow] = ~is_small
    return is_slow


def find_half_of_time(taken_ns: Sequence[float]) -> float:
    """Return the time that a stall takes of which longer ones, and those as long, hold half of the time of all.

    >>> find_half_of_time([1.0, 1.0, 1.0, 1.0, 9.0, 10.0])
    9.0
    """
    ordered = sorted(taken_ns, reverse=True)
    half_ns = sum(ordered) / 2
    return next(
        (one for one, so_far in zip(ordered, itertools.accumulate(ordered), strict=True) if so_far >= half_ns), 0.0
    )


def _is_stale(slow: Ints, count: int, thresholds: Thresholds) -> bool:
    """Return whether the last of these slow ones of `count` known steps is long past."""
    quiet = STALE_GAPS * _mean_gap(slow)
    return quiet > 0 and count - 1 - int(slow[-1]) > max(2 * thresholds.steps_min, quiet)


def _was_steady(slow: Ints, count: int, thresholds: Thresholds) -> bool:
    """Return whether these slow ones of `count` known steps are a steady slowness that is over: most of the steps from
    the first to the last, and none of the last `steps_min`.
    """
    is_over = count - 1 - int(slow[-1]) >= thresholds.steps_min
    return is_over and len(slow) >= thresholds.persistence_ratio * (int(slow[-1]) - int(slow[0]) + 1)


def _chance_of_count(periods: SlowPeriods, column: int) -> float:
    """Return the probability that a healthy rank has so many slow periods at the usual rate; 1 for few ranks, whose
    rate is hardly known.
    """
    if len(periods.counts) <= FEW_RANKS_MAX:
        return 1.0
    return probability_of(int(periods.counts[column]), len(periods.rows), usual_rate(periods))


class PeriodSums(NamedTuple):
    """How long the slow periods of ranks with equal work are. Of each period `column` is the rank's, `weight` its
    excess in all steps, in ns, and `place` the comparison that the rank is in, which has `sizes[place]` ranks; shape
    (periods,) each.
    """

    column: Ints
    weight: Floats
    place: Ints
    sizes: tuple[int, ...]

    def longest(self) -> Ints:
        """Return the columns with the longest slow periods in sum, of PERIODS_MIN periods or more."""
        columns, which, counts = np.unique(self.column, return_inverse=True, return_counts=True)
        sums = np.bincount(which, self.weight, minlength=len(columns))
        sums[counts < PERIODS_MIN] = 0.0
        order = np.argsort(sums)[-SUMS_JUDGED_MAX:]
        return columns[order[sums[order] > 0]]

    def chance_of(self, column: int) -> float:
        """Return the probability that so much of all slow periods of its comparison is this rank's by chance; 1 for a
        rank without peers of equal work.
        """
        mine = self.column == column
        if not mine.any():
            return 1.0
        place = int(self.place[mine][0])
        there = self.place == place
        return chance_of_sum(self.weight[there], mine[there], self.sizes[place])


def find_period_sums(view: RunView, periods: SlowPeriods) -> PeriodSums:
    """Return the length of every slow period of the ranks that have peers of equal work."""
    place = np.full(periods.slow.shape[1], -1, dtype=np.int64)
    for number, one in enumerate(view.peer_groups.comparisons):
        if one.do_same_work and len(one.members) > 1:
            place[view.series.columns_of(one.members)] = number
    row, column = np.nonzero(periods.slow)
    order = np.argsort(column, kind="stable")  # by rank, and in the order of steps
    order = order[place[column[order]] >= 0]
    row, column = row[order], column[order]
    begins = np.ones(len(row), dtype=bool)
    begins[1:] = (column[1:] != column[:-1]) | (row[1:] != row[:-1] + 1)
    period = np.cumsum(begins) - 1
    cells = periods.rows[row], column
    weight: Floats = np.bincount(period, find_excess_ns(view.excess[cells], view.series.own_ns[cells])).astype(float)
    owner = column[begins]
    sizes = tuple(len(one.members) for one in view.peer_groups.comparisons)
    return PeriodSums(owner, weight, place[owner], sizes)


def chance_of_sum(weights: Floats, mine: Flags, ranks: int) -> float:
    """Return a bound of the probability that periods of these weights, shape (n,), each of which may be any of `ranks`
    ranks' alike, give one rank at least the sum of those that are `mine`.

    That is Chernoff's bound for a sum of independent weights, conditional on them: no distribution of them is assumed.
    `weights` are above 0 and count up to WEIGHT_RATIO_MAX times the median.

    >>> mine = np.arange(14) < 14
    >>> bool(chance_of_sum(np.ones(14), mine, 3) < 1.01 * 3**-14), chance_of_sum(np.ones(14), np.arange(14) < 4, 3)
    (True, 1.0)
    """
    bounded = np.minimum(weights, WEIGHT_RATIO_MAX * np.median(weights))
    scaled = bounded / bounded.max()
    total = float(scaled[mine].sum())
    logs = [float(np.log1p(np.expm1(tilt * scaled) / ranks).sum()) - tilt * total for tilt in TILTS.tolist()]
    return math.exp(min(0.0, *logs))


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


def find_begin(slow: Flags) -> tuple[int, int, int]:
    """Return the index of the slow step at which the rate of slow steps most likely rose, and the first and the last
    index at which it may have. It is the first slow step unless a later one is clearly more likely.
    """
    count = len(slow)
    at = np.flatnonzero(slow)
    places = np.arange(count)
    before = np.searchsorted(at, places)
    likelihood = _log_likelihood(before, places) + _log_likelihood(len(at) - before, count - places)
    has_risen = (len(at) - before) * places >= before * (count - places)  # the rate of slow steps, there
    likelihood[~has_risen] = -math.inf
    best = int(at[np.argmax(likelihood[at])])
    # A begin is one more parameter: half of log(count) in the Bayesian information criterion, twice for safety.
    began = best if likelihood[best] - likelihood[at[0]] > math.log(count) else int(at[0])
    likely = np.flatnonzero(likelihood >= min(likelihood[began], likelihood.max() - LIKELIHOOD_RATIO / 2))
    return began, int(likely[0]), int(likely[-1])


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


def count_known_between(view: RunView, slow_steps: Ints) -> float:
    """Return the usual gap between slow periods, counted in known steps: the median one, or their mean if that is
    larger. Where windows are short the known gaps of a regular slowness differ.
    """
    return _mean_gap(np.searchsorted(view.series.steps[view.is_known], slow_steps))


def _mean_gap(slow: Ints) -> float:
    begins = slow[np.diff(slow, prepend=slow[0] - 2) > 1]
    return max(float(find_period(slow)[0]), float(np.diff(begins).mean())) if len(begins) > 1 else 0.0


def _narrow_range(slow_steps: Ints, since_range: SinceRange) -> SinceRange:
    """Return the range of the begin of a regular slowness: no later than its first period, and so many periods before
    that as may all have been missed with a probability of 1 - CONFIDENCE, by the share that was missed since (Laplace's
    rule). Of any other the range as it is.
    """
    period, is_regular = find_period(slow_steps)
    if not is_regular:
        return since_range
    begins = slow_steps[np.diff(slow_steps, prepend=slow_steps[0] - 2) > 1]
    first = int(begins[np.argmax(np.diff(begins) == period)])
    expected = (int(begins[-1]) - first) // period + 1
    missed = max(0, expected - int(np.count_nonzero(begins >= first)))
    before = int(math.log(1 - CONFIDENCE) / math.log((missed + 1) / (expected + 2)))
    return max(since_range[0], first - period * (before + 1) + 1), first


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
