"""Who is slow in some steps only: every k-th one, or now and then, far oftener than those that do the same work.

A garbage collector that runs every fifty steps, a rank that writes every tenth: the median step is as fast as the
peers', and yet everybody waits. All ranks have stalls now and then, so what counts is who has more of them:

    slow step     excess above what the smallest effect and SLOW_DEVIATIONS of the peers' noise allow
    spells        slow steps with one that is not before them: a single long stall is one spell
    by chance     the probability of so many spells, or more, when they come as often as to the peers (binomial);
                  at most CHANCE_MAX
    effect        all steps together lose at least COST_RATIO_MIN to it
"""

import math
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import numpy as np

from rankscope.collector.detect.statistics.change_points import SIGMA_FLOOR
from rankscope.collector.detect.statistics.noise import MAD_TO_SIGMA
from rankscope.collector.detect.stragglers.persistent import Slow, Thresholds
from rankscope.collector.detect.view import RunView
from rankscope.collector.steps.peer_groups import PEERS_SAMPLED_MAX
from rankscope.collector.steps.step_series import Flags, Floats, Ints

SLOW_DEVIATIONS: Final = 4.0
CHANCE_MAX: Final = 1e-9
"""A thousand ranks looked at once a second are 10^8 chances a day."""
COST_RATIO_MIN: Final = 0.01
"""1 % of all steps: below, nobody would act."""
BOUTS_MIN: Final = 3
"""Fewer spells may be anything, however long they are."""
BOUT_STEPS_MIN: Final = 12
BOUT_TIMES: Final = 3
"""So many slow steps, and three times those of any other rank, are no chance that comes to all."""
SPARED_RATIO: Final = 0.1
"""Of the ranks, those with the most spells do not count for how often spells come: some may be what is looked for."""
QUIET_GAPS: Final = 4
"""After so many times the usual distance without a slow step it has passed. Counted in steps that are known: of windows
far apart no more is seen than of windows in a row."""
PERIODIC_RATIO: Final = 0.8
"""Share of the distances that must be the same for it to be called every k-th step."""


class Spells(NamedTuple):
    """Of each rank: which known steps are slow, shape (n, ranks), and how often a spell begins, shape (ranks,)."""

    rows: Ints
    slow: Flags
    counts: Ints


def find_intermittent(view: RunView, thresholds: Thresholds, known: Collection[int]) -> tuple[Slow, ...]:
    """Every rank that is slow now and then, of those that are not `known` to be slow, the costliest first."""
    spells = find_spells(view, thresholds)
    if len(spells.rows) < 2 * thresholds.steps_min:
        return ()
    found = [
        _judge(view, column, spells)
        for column in _find_worth(spells).tolist()
        if view.series.ranks[column] not in known
    ]
    return tuple(sorted((slow for slow in found if slow is not None), key=_cost, reverse=True))


def find_spells(view: RunView, thresholds: Thresholds) -> Spells:
    """Every rank's slow steps, among those whose excess is known of any rank."""
    rows = np.flatnonzero(view.is_known)
    excess = view.excess if len(rows) == len(view.excess) else view.excess[rows]
    slow: Flags = np.full(excess.shape, fill_value=False)
    if len(rows):
        for comparison in view.peer_groups.comparisons:
            columns = view.series.columns_of(comparison.members)
            asked = np.nan_to_num(excess[:, columns[:: -(-len(columns) // PEERS_SAMPLED_MAX)]], nan=0.0)
            deviations = MAD_TO_SIGMA * np.median(np.abs(asked - np.median(asked, axis=0)), axis=0)
            usual = max(float(np.median(deviations)), SIGMA_FLOOR)
            slow_from = max(math.log(thresholds.slowdown_ratio_min), SLOW_DEVIATIONS * usual)
            if len(columns) == excess.shape[1]:
                np.greater(excess, slow_from, out=slow)  # what is not known is not slow
            else:
                slow[:, columns] = excess[:, columns] > slow_from
    begins = slow & ~np.vstack([np.zeros_like(slow[:1]), slow[:-1]])
    return Spells(rows, slow, np.count_nonzero(begins, axis=0))


def has_passed(view: RunView, ranks: Sequence[int], thresholds: Thresholds, known_gap: float) -> bool:
    """Whether ranks that were slow every so many known steps have had none for long."""
    spells = find_spells(view, thresholds)
    quiet = max(thresholds.steps_min, round(QUIET_GAPS * known_gap))
    last = spells.slow[-quiet:, view.series.columns_of(ranks)]
    return len(last) >= quiet and not last.any()


def _find_worth(spells: Spells) -> Ints:
    """The columns whose spells are more than the others' make likely; cheap, for all ranks at once."""
    usual = len(spells.rows) * usual_rate(spells)
    return np.flatnonzero(spells.counts >= max(BOUTS_MIN, usual + math.sqrt(usual)))


def usual_rate(spells: Spells) -> float:
    """How many spells a step a rank has that has nothing of its own, with half a spell of all these ranks together for
    what has not been seen.
    """
    kept = np.sort(spells.counts)[: max(1, round((1 - SPARED_RATIO) * len(spells.counts)))]
    return (float(kept.sum()) + 0.5) / max(1, len(kept) * len(spells.rows))


def _judge(view: RunView, column: int, spells: Spells) -> Slow | None:
    steps = view.series.steps[spells.rows]
    slow = np.flatnonzero(spells.slow[:, column])
    began = _find_begin(spells.slow[:, column])
    slow = slow[slow >= began]
    chance = chance_of(int(spells.counts[column]), len(steps), usual_rate(spells))
    by_chance = chance > CHANCE_MAX and not _is_slow_in_bouts(spells, column)
    excess = view.excess[spells.rows[slow], column]
    level = float(np.median(excess))
    share = len(slow) / (len(steps) - began)
    if by_chance or share * math.expm1(level) < COST_RATIO_MIN:
        return None
    rank = view.series.ranks[column]
    self_ns = view.series.self_ns[spells.rows[slow], column]
    return Slow(
        rank=rank,
        since_step=int(steps[began]),
        level_from_step=int(steps[began]),
        before_step=int(steps[began - 1]) if began > 0 else None,
        slowdown_ratio=math.exp(level),
        robust_z=-math.log10(max(chance, 1e-300)),
        persistence=share,
        self_ns=float(np.median(self_ns)),
        peers_self_ns=float(np.median(self_ns / np.exp(excess))),
        steps_looked_at=len(steps) - began,
        peers=view.peer_groups.of(rank).peers_of(rank),
        pattern="intermittent",
        slow_steps=steps[slow],
    )


def _is_slow_in_bouts(spells: Spells, column: int) -> bool:
    """Whether a few spells last long: the slow steps are then not independent, and no chance can be worked out. They
    are many times those of all other ranks, but for the ones that are spared.
    """
    slow_steps = np.sort(np.count_nonzero(spells.slow, axis=0))
    usual = int(slow_steps[: max(1, round((1 - SPARED_RATIO) * len(slow_steps)))].max())
    mine = int(np.count_nonzero(spells.slow[:, column]))
    return bool(spells.counts[column] >= BOUTS_MIN and mine >= BOUT_STEPS_MIN + BOUT_TIMES * usual)


def _cost(slow: Slow) -> float:
    return slow.persistence * (slow.slowdown_ratio - 1)


def _find_begin(slow: Flags) -> int:
    """The first slow step of the part that is likeliest to differ from what was before it in how often it is slow; the
    first of all unless another one is clearly likelier. Any part that begins with a slow step is slow a little oftener.
    """
    count = len(slow)
    at = np.flatnonzero(slow)
    before = np.arange(len(at))
    likelihood = _log_likelihood(before, at) + _log_likelihood(len(at) - before, count - at)
    best = int(np.argmax(likelihood))
    # A begin is one number more to choose: half of log(count) in the Bayesian information criterion, twice for safety.
    return int(at[best if likelihood[best] - likelihood[0] > math.log(count) else 0])


def _log_likelihood(slow: Ints, steps: Ints) -> Floats:
    """The largest log-likelihood of so many slow steps of so many, whatever their rate."""
    rate = np.clip(slow / np.maximum(steps, 1), 1e-12, 1 - 1e-12)
    return np.asarray(slow * np.log(rate) + (steps - slow) * np.log1p(-rate))


def chance_of(spells: int, steps: int, rate: float) -> float:
    """The probability of so many spells or more in so many steps, each of which begins one at this rate.

    >>> round(chance_of(2, 2, 0.5), 3), chance_of(0, 5, 0.1)
    (0.25, 1.0)
    """
    if spells <= 0:
        return 1.0
    rate = min(rate, 0.5)
    logs = [
        math.lgamma(steps + 1) - math.lgamma(k + 1) - math.lgamma(steps - k + 1)
        + k * math.log(rate) + (steps - k) * math.log1p(-rate)
        for k in range(spells, steps + 1)
    ]  # fmt: skip
    return min(1.0, math.fsum(math.exp(log) for log in logs))


def count_known_between(view: RunView, slow_steps: Ints) -> int:
    """The usual distance between the begins of spells, in steps whose excess is known of any rank."""
    return find_period(np.searchsorted(view.series.steps[view.is_known], slow_steps))[0]


def find_period(slow_steps: Ints) -> tuple[int, bool]:
    """The usual distance between the begins of spells in steps, and whether they come at that distance regularly.

    >>> find_period(np.array([10, 14, 18, 22, 23]))
    (4, True)
    """
    begins = slow_steps[np.diff(slow_steps, prepend=slow_steps[0] - 2) > 1]
    gaps = np.diff(begins)
    if len(gaps) == 0:
        return 0, False
    usual = int(np.median(gaps))
    return usual, bool(np.mean(gaps == usual) >= PERIODIC_RATIO)
