"""Find the stragglers: ranks whose own time is persistently longer than their peers' (docs/definitions.md section 4).

In synchronous training all ranks' steps take the same time, because the others wait for the slow one. So ranks are
compared by their *own time*: the step less the waits that others caused (`wait_times.py`).

    x[step] = log(own time of the rank / median own time of its peers)

A rank is slow when, over the steps since the last change of level in x,

    exp(median x)            >= slowdown_ratio_min        the effect is large enough to matter
    excess(median x) / sigma >= robust_z_min              it exceeds the noise, where sigma is the largest of
                                                            - the spread between the peers: 1.4826 MAD of their medians
                                                            - the error of the rank's own median over time
                                                            - the same error by the peers' noise
                                                            - SIGMA_FLOOR
    share of slow steps      >= persistence_ratio         a slow step is nearer to the median than to no effect

and has not recovered. excess(x) is x itself where that is small, as the noise of healthy ranks is, and exp(x) - 1 from
LARGE_RATIO on: by its logarithm a rank of four times would stand out of noise little more than one of two.
The noise is measured about all clear levels of the rank, since its slowness may change. A rank is not found while its
last ENDED_STEPS or more are clearly healthy: that is a slow stretch that has ended, or one of several
(`intermittent.py`). One that is found stays found, with its present numbers, until it has recovered: once the median of
as many known steps as had proven it slow (`steps_min` to CLOSE_STEPS_MAX), and that since the last change of level, are
below `slowdown_close_ratio` (hysteresis).
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from rankscope.collector.detect.finding import DRIFTING, Abstain, Finding, SinceRange
from rankscope.collector.detect.finding_memory import recall
from rankscope.collector.detect.statistics.change_points import (
    SIDE_MIN,
    SIGMA_FLOOR,
    find_clear_change,
    find_last_change,
    find_levels,
    fit_ramp,
)
from rankscope.collector.detect.statistics.noise import (
    MAD_TO_SIGMA,
    Noise,
    find_neighbor_deviations,
    measure_noise,
    measure_noises,
    median_errors,
    rank_sum_deviations,
)
from rankscope.collector.detect.stragglers.only_peer import is_peer_faster
from rankscope.collector.detect.view import RunView
from rankscope.collector.steps.peer_groups import PEERS_MIN, PEERS_SAMPLED_MAX, Peers
from rankscope.collector.steps.step_series import Flags, Floats, Ints, in_blocks

WORTH_JUDGING_Z: Final = 1.5
"""A rank is judged only if some period up to now exceeds this many errors, far below any `robust_z_min` in use: so
few healthy ranks are judged one by one."""
LARGE_RATIO: Final = 1.5
"""Ratio to the peers that the noise of healthy ranks does not reach."""
ENDED_STEPS: Final = 3
"""Healthy steps after which a slowness that is not found yet is over, where noise does not make that many by chance."""
ENDED_ERRORS: Final = 2.0
"""Standard errors by which those are below the level: waiting for one more pass by mistake costs little."""
OTHER_LEVEL_SHARE: Final = 0.2
"""Share of a rank's excess by which that of a level before must differ for the sentence to tell of two levels."""
SETTLED: Final = 2
"""The present level has `steps_min` steps this many times: where a level begins is known better with more of it."""
RANKED_MIN: Final = 4.0
RANKED_SHARE: Final = 0.9
"""Deviations of a rank sum by which the steps of the two must differ; of few steps this share of the most possible."""
CLOSE_STEPS_MAX: Final = 64
"""A finding that took long to prove closes after so many known steps at most."""
NOT_BY_DEVICE: Final = (
    "without profiler windows they are not known while a process group has several, but not all ranks"
)
"""Why nothing is known although devices are timed (`collector/steps/device_own_times.py`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """The limits at which a rank is called slow, and no longer. The collector's configuration documents each, without
    `sigma_floor`: the least error of a level, as a logarithm.
    """

    steps_min: int = 12
    slowdown_ratio_min: float = 1.05
    slowdown_close_ratio: float = 1.025
    robust_z_min: float = 5.0
    persistence_ratio: float = 0.7
    sigma_floor: float = SIGMA_FLOOR


class SlowRank(NamedTuple):
    """A rank that passes every test, with its numbers: medians since `level_from_step`, or over the slow steps of an
    intermittent slowness.

    `since_step` is the first slow step, `since_range` the steps between which that lies (None: not known),
    `level_from_step` the first of the present level: they differ when a slow rank has become slower or less slow.
    `before_step` is the last known step before `since_step`: the slowness began between the two; None where no earlier
    step is known. `level_is_seen`: a level before the present one is known; `level_is_other`: the rank was slow before
    it, too, and that level clearly differs. `told_level_step`: the begin of the level that the sentence tells of.
    `persistence` is the share of slow steps since then; `slow_steps`, shape (m,), are the steps that the numbers are
    medians of.
    """

    rank: int
    since_step: int
    level_from_step: int
    before_step: int | None
    slowdown_ratio: float
    robust_z: float
    persistence: float
    own_ns: float
    steps_judged: int
    peers: Peers
    pattern: str
    slow_steps: Ints
    level_is_seen: bool = False
    level_is_other: bool = False
    told_level_step: int | None = None
    since_range: SinceRange | None = None

    @property
    def change_is_seen(self) -> bool:
        """Return whether it is known when the slowness began."""
        return self.before_step is not None

    @property
    def peers_own_ns(self) -> float:
        """Return the own time of its peers, in ns: what its own is `slowdown_ratio` times as long as."""
        return self.own_ns / self.slowdown_ratio

    @property
    def excess_ns(self) -> float:
        """Return how much longer its own time is than that of its peers, in ns."""
        return self.own_ns - self.peers_own_ns

    @property
    def tests(self) -> dict[str, float]:
        """Return the numbers of the tests, for the evidence of a finding."""
        return {
            "robust_z": self.robust_z,
            "persistence_ratio": self.persistence,
            "steps_judged": float(self.steps_judged),
        }


def find_stragglers(
    view: RunView, thresholds: Thresholds, found: Collection[int] = (), among: Collection[int] | None = None
) -> tuple[SlowRank, ...] | Abstain:
    """Return every rank that is slow now, slowest first; or why no verdict can be given. Those `found` to be steadily
    slow before need not pass the tests again, only not have recovered. Only ranks `among` some are judged, if given.
    """
    series = view.series
    if len(series.ranks) < view.world_size:
        missing = view.world_size - len(series.ranks)
        return Abstain(f"no steps of {missing} of {view.world_size} ranks are known")
    if len(series.ranks) < 2:  # noqa: PLR2004 - a comparison takes two
        return Abstain("only 1 rank reports: there is no other rank to compare it with")
    known = int(np.count_nonzero(~np.isnan(view.excess), axis=0).max(initial=0))
    if known < thresholds.steps_min:
        count, needed = len(series.ranks), thresholds.steps_min
        text = f"{known} of {needed} comparable steps: those with the own times of all {count} ranks"
        return Abstain(f"{text} ({NOT_BY_DEVICE})" if series.is_by_device and not known else text)
    worth = np.flatnonzero(is_worth_judging(view.excess, thresholds)).tolist()
    ranks = {series.ranks[column] for column in worth}.union(rank for rank in found if series.has(rank))
    ranks = ranks if among is None else ranks.intersection(among)
    judged = [_judge(view, rank, thresholds, is_found=rank in found) for rank in sorted(ranks)]
    return tuple(sorted((slow for slow in judged if slow is not None), key=lambda slow: -slow.slowdown_ratio))


def is_worth_judging(excess: Floats, thresholds: Thresholds) -> Flags:
    """Return which ranks may be slow, shape (ranks,), from `excess`, shape (n, ranks), of which `steps_min` steps must
    be known of some rank. It is cheap, and never False for a rank that would be judged slow.

    Such a rank has not recovered, and exceeds its noise in the last `steps_min`, twice as many, ... steps: a slow
    period fills at least half of one of them. The noise is that between neighboring steps, which a change of level
    does not raise.
    """
    rows = np.flatnonzero(~np.isnan(excess).all(axis=1))
    recent = excess[rows[-thresholds.steps_min :]]
    worth: Flags = np.asarray(np.isnan(recent).any(axis=0))
    worth |= np.median(recent, axis=0) >= math.log(thresholds.slowdown_close_ratio)
    for columns in in_blocks(np.flatnonzero(worth), len(rows)):
        worth[columns] = _exceeds_noise(excess[np.ix_(rows, columns)], thresholds)
    return worth


def _exceeds_noise(excess: Floats, thresholds: Thresholds) -> Flags:
    """Return of each column whether any period up to now exceeds the noise; True where a value is missing."""
    found: Flags = np.asarray(np.isnan(excess).any(axis=0))
    known = np.nan_to_num(excess, nan=0.0)
    deviations = find_neighbor_deviations(known)
    length = min(thresholds.steps_min, len(known))
    while True:
        level = np.median(known[-length:], axis=0)
        error = np.maximum(median_errors(deviations, np.zeros_like(deviations), length), SIGMA_FLOOR)
        found |= (level >= math.log(thresholds.slowdown_ratio_min) / 2) & (np.expm1(level) >= WORTH_JUDGING_Z * error)
        if length == len(known):
            return found
        length = min(2 * length, len(known))


def has_recovered(excess: Floats, thresholds: Thresholds, steps: int = 0) -> bool:
    """Return whether a slow rank has recovered, by its last `steps` known steps, `steps_min` at least, and by all since
    the last change of level: in noise a few steps look healthy by chance. `excess`: its column, shape (n,).
    """
    known = excess[~np.isnan(excess)]
    steps = max(thresholds.steps_min, steps)
    if len(known) < steps or not _is_below(known[-steps:], thresholds):
        return False
    since = find_last_change(known, thresholds.steps_min)
    return (since == 0 or len(known) - since >= steps) and _is_below(known[since:], thresholds)


def _is_below(excess: Floats, thresholds: Thresholds) -> bool:
    return bool(np.median(excess) < math.log(thresholds.slowdown_close_ratio))


def steps_to_close(finding: Finding) -> int:
    """Return how many known steps without slowness close a finding."""
    return recall(finding).steps_to_close


def keep_steps_to_close(known: Finding | None, steps: int) -> int:
    """Return how many known steps without slowness close a finding that so many steps prove: those of the open one
    where there is one.
    """
    return recall(known).steps_to_close or min(steps, CLOSE_STEPS_MAX)


def _judge(view: RunView, rank: int, thresholds: Thresholds, *, is_found: bool) -> SlowRank | None:
    excess = view.excess_of(rank)
    known = np.flatnonzero(~np.isnan(excess))
    if len(known) < thresholds.steps_min or _is_below(excess[known[-thresholds.steps_min :]], thresholds):
        return None
    since = find_last_change(excess[known], thresholds.steps_min)
    rows = known[since:]
    recent = excess[rows]
    level = float(np.median(recent))
    if level < math.log(thresholds.slowdown_close_ratio if is_found else thresholds.slowdown_ratio_min):
        return None
    noise = measure_noise(excess[known], since)
    robust_z, persistence, passes = _test(view, rank, noise, known, since, thresholds=thresholds)
    if not passes and (levels := find_levels(excess[known[:since]], thresholds.steps_min)):
        noise = measure_noise(excess[known], *levels, since)
        robust_z, persistence, passes = _test(view, rank, noise, known, since, thresholds=thresholds)
    if not is_found and (not passes or _has_ended(recent, level, noise, thresholds)):
        return None
    began = _begin_of_slowness(excess[known], since, thresholds)
    own_ns = view.series.own_ns[rows, view.series.column_of(rank)]
    peers = view.compared.of(rank).peers_of(rank)
    if (
        not is_found
        and len(peers.ranks) == 1
        and is_peer_faster(
            view,
            rank,
            known[:began],
            rows,
            steps_min=thresholds.steps_min,
            as_fast_ratio=thresholds.slowdown_close_ratio,
        )
    ):
        return None
    ramp = fit_ramp(excess[known]) if began > 0 or (is_found and _has_grown(excess[known], thresholds)) else None
    if began > 0 and ramp is not None and ramp.is_gradual:
        began = ramp.begin
    return SlowRank(
        rank=rank,
        since_step=int(view.series.steps[known[began]]),
        level_from_step=int(view.series.steps[known[since or began]]),
        before_step=int(view.series.steps[known[began - 1]]) if began > 0 else None,
        slowdown_ratio=math.exp(level),
        robust_z=robust_z,
        persistence=persistence,
        own_ns=float(np.median(own_ns)),
        steps_judged=len(rows),
        peers=peers,
        pattern=DRIFTING if ramp is not None and ramp.is_gradual else "steady",
        slow_steps=view.series.steps[rows],
        level_is_seen=since > 0,
        level_is_other=since > began and _is_other_level(excess[known], since, noise, thresholds),
    )


def _is_other_level(excess: Floats, since: int, noise: Noise, thresholds: Thresholds) -> bool:
    """Return whether the present level, since an index, differs from the one before it by a test: by enough to matter,
    by more than noise explains, and in most steps. A clear change of level is found in noise that wanders, too.
    """
    before = excess[find_last_change(excess[:since], thresholds.steps_min) : since]
    after = excess[since:]
    if len(before) < thresholds.steps_min or len(after) < SETTLED * thresholds.steps_min:
        return False
    level, shift = float(np.median(after)), abs(float(np.median(after) - np.median(before)))
    error = math.hypot(noise.median_error(len(before)), noise.median_error(len(after)), SIGMA_FLOOR)
    least = max(math.log(thresholds.slowdown_close_ratio), OTHER_LEVEL_SHARE * level, thresholds.robust_z_min * error)
    ranked, ranked_max = rank_sum_deviations(before, after)
    return shift >= least and abs(ranked) >= min(RANKED_MIN, RANKED_SHARE * ranked_max)


def _has_ended(recent: Floats, level: float, noise: Noise, thresholds: Thresholds) -> bool:
    """Return whether the last ENDED_STEPS or more of the values `recent`, whose median is `level`, are of a healthy
    rank: their median is, and is below the level by more than noise explains.
    """
    for count in range(ENDED_STEPS, len(recent) // 2 + 1):
        last = recent[-count:]
        gap = level - float(np.median(last))
        if _is_below(last, thresholds) and gap >= ENDED_ERRORS * noise.median_error(count):
            return True
    return False


def _test(
    view: RunView, rank: int, noise: Noise, known: Ints, since: int, *, thresholds: Thresholds
) -> tuple[float, float, bool]:
    """Return z-score and share of slow steps of `known[since:]`, and whether both are large enough."""
    recent, peers = view.excess_of(rank)[known[since:]], view.compared.of(rank).peers_of(rank)
    level = float(np.median(recent))
    sigma = _sigma(view, noise, known, since, peers, floor=thresholds.sigma_floor)
    if not peers.do_same_work and since:  # what is usual is known no better than what is now
        sigma = math.hypot(sigma, noise.median_error(since))
    robust_z, persistence = measure_excess(level) / sigma, _persistence(recent, level, noise, thresholds)
    return robust_z, persistence, robust_z >= thresholds.robust_z_min and persistence >= thresholds.persistence_ratio


def measure_excess(level: float) -> float:
    """Return the excess of a rank over its peers, to compare with noise, from the logarithm of its ratio to them.

    >>> round(measure_excess(math.log(1.1)), 3), round(measure_excess(math.log(4)), 3)
    (0.095, 3.0)
    """
    return level if level < math.log(LARGE_RATIO) else math.expm1(level)


def _has_grown(excess: Floats, thresholds: Thresholds) -> bool:
    """Return whether a rank that was slow in all known steps has become slower by `slowdown_ratio_min`."""
    first, last = excess[: thresholds.steps_min], excess[-thresholds.steps_min :]
    return bool(np.median(last) - np.median(first) >= math.log(thresholds.slowdown_ratio_min))


def _begin_of_slowness(excess: Floats, since: int, thresholds: Thresholds) -> int:
    """Return the index of the first slow value: go back from change to change while the rank was already slow before.

    The period before a change may be short, as long as it is no mere outlier: a rank that becomes slower twice within
    `steps_min` steps is slow since the first time. So may the one after it, of a rank that is slow in most of its first
    `steps_min` values, but not in the first of them.
    """
    since = since or find_clear_change(excess, SIDE_MIN)
    while since > 0:
        before = excess[:since]
        earlier = find_last_change(before, SIDE_MIN)
        level = float(np.median(before[earlier:]))
        error = max(measure_noise(before, earlier).median_error(since - earlier), SIGMA_FLOOR)
        if level < max(math.log(thresholds.slowdown_ratio_min), thresholds.robust_z_min * error):
            break
        since = earlier
    return since


def _persistence(recent: Floats, level: float, noise: Noise, thresholds: Thresholds) -> float:
    """Return the share of slow steps: those nearer to the level than to no effect, and above half of the smallest
    effect. A step up to one deviation of the noise below the level counts as slow.
    """
    half_minimum = math.log(1 + (thresholds.slowdown_ratio_min - 1) / 2)
    slow_from = max(half_minimum, min(level / 2, level - noise.deviation))
    return float(np.mean(recent > slow_from))


def _sigma(view: RunView, noise: Noise, known: Ints, since: int, peers: Peers, *, floor: float) -> float:
    """Return the uncertainty of the level of `known[since:]`, `floor` at least: see the head of this file. With fewer
    than PEERS_MIN peers other ranks stand in for them.

    The peers' noise counts because one rank's noise can be small by chance, that of several ranks hardly.
    """
    series = view.excess[np.ix_(known, view.series.columns_of(_noise_ranks(view, peers)))]
    series = series[:, ~np.isnan(series).any(axis=0)]
    count = len(known) - since
    errors = [noise.median_error(count), floor]
    if series.shape[1]:
        levels = np.median(series[since:], axis=0)
        errors.append(MAD_TO_SIGMA * float(np.median(np.abs(levels - np.median(levels)))))
        errors.append(float(np.median(median_errors(*measure_noises(series, since), count))))
    return max(errors)


def _noise_ranks(view: RunView, peers: Peers) -> Sequence[int]:
    """Return the ranks whose noise counts as that of the peers: of fewer than PEERS_MIN peers that of the ranks of all
    other comparisons, where there are enough.
    """
    if len(peers.ranks) >= PEERS_MIN or not peers.do_same_work or not view.peer_groups.works:
        return peers.ranks
    others = sorted(
        rank
        for one in view.peer_groups.comparisons
        if one.do_same_work and peers.ranks[0] not in one.members
        for rank in one.members
    )
    return others[:: -(-len(others) // PEERS_SAMPLED_MAX)] if len(others) >= PEERS_MIN else peers.ranks
