"""Who is the straggler: whose own work takes persistently longer than its twins' (docs/definitions.md section 4).

In synchronous training every rank's step takes the same time, because the others wait for the slow one. So ranks are
compared by their *self time*: the step less the waiting that others caused (`waits.py`).

    x[step] = log(self time of the rank / median self time of its twins)

A rank is slow when, over the stretch of steps since the last change of level in x,

    exp(median x)            >= slowdown_ratio_min        the effect is large enough to matter
    median x / sigma         >= robust_z_min              it stands out of the noise, where sigma is the largest of
                                                            - the spread between the twins: 1.4826 MAD of their medians
                                                            - the error of the rank's own median over time
                                                            - the same error as the twins' noise would have it
                                                            - SIGMA_FLOOR
    share of slow steps      >= persistence_ratio         a slow step is nearer to the median than to no effect

and when it has not recovered. It has once the median of its last `steps_min` steps is below `slowdown_close_ratio`;
until then it stays called slow (hysteresis).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rankscope.collector.detect.change_point import find_change
from rankscope.collector.detect.finding import Abstain
from rankscope.collector.detect.noise import MAD_TO_SIGMA, Floats, Noise, measure_noise
from rankscope.collector.detect.peers import Peers

Ints = npt.NDArray[np.int64]

SIGMA_FLOOR = 0.01
"""1 %: what identical ranks differ by for reasons nobody can act on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """When a rank is called slow, and when no longer. The collector's configuration documents each."""

    steps: int = 32
    steps_min: int = 12
    slowdown_ratio_min: float = 1.05
    slowdown_close_ratio: float = 1.025
    robust_z_min: float = 5.0
    persistence_ratio: float = 0.7


class StepSeries(NamedTuple):
    """The same steps of all ranks: `steps` has shape (n,), the times (n, ranks), in ns; NaN where not known.

    `self_is_measured` is False where waiting could not be measured and phases without communication stand in.
    """

    steps: npt.NDArray[np.int64]
    ranks: tuple[int, ...]
    step_ns: Floats
    self_ns: Floats
    cpu_ns: Floats
    phases_ns: Mapping[str, Floats]
    self_is_measured: bool


class Slow(NamedTuple):
    """A rank that passes every test, with the numbers it passed them by. They are medians since `level_from_step`.

    `since_step` is the first slow step, `level_from_step` the first of the present level: they differ when a slow rank
    has become slower or less slow. `change_is_seen`: whether the steps before `since_step` are known too, so that it is
    where the slowness began and not merely where the known steps begin.
    """

    rank: int
    since_step: int
    level_from_step: int
    change_is_seen: bool
    slowdown_ratio: float
    robust_z: float
    persistence: float
    self_ns: float
    peers_self_ns: float
    steps_looked_at: int
    peers: Peers


def find_stragglers(
    series: StepSeries, peers: Mapping[int, Peers], thresholds: Thresholds
) -> tuple[Slow, ...] | Abstain:
    """Every rank that is slow now, slowest first; or why no verdict can be given."""
    if len(series.ranks) < 2:  # noqa: PLR2004 - a comparison takes two
        return Abstain("1 rank reports: there is nobody to compare it with")
    known = int(np.count_nonzero(~np.isnan(series.self_ns).any(axis=1)))
    if known < thresholds.steps_min:
        return Abstain(f"{known} steps are known of all {len(series.ranks)} ranks, {thresholds.steps_min} are needed")
    excess = find_excess(series, peers)
    found = [_judge(series, rank, peers[rank], excess, thresholds) for rank in series.ranks]
    return tuple(sorted((slow for slow in found if slow is not None), key=lambda slow: -slow.slowdown_ratio))


def find_excess(series: StepSeries, peers: Mapping[int, Peers]) -> dict[int, Floats]:
    """`log_excess` of every rank in `peers`, which for one without peers is not known.

    Ranks that are compared with each other share one sorting: 1,024 ranks in 0.1 s, not in 10 s.
    """
    groups: dict[frozenset[int], list[int]] = {}
    for rank, its_peers in peers.items():
        groups.setdefault(frozenset((rank, *its_peers.ranks)), []).append(rank)
    return {
        rank: excess
        for group, ranks in groups.items()
        for rank, excess in _compare(series, sorted(group), ranks).items()
    }


def log_excess(series: StepSeries, rank: int, peers: Peers) -> Floats:
    """log(self time / median of the peers' self times) for each step, shape (n,); NaN where not known."""
    return find_excess(series, {rank: peers})[rank]


def _compare(series: StepSeries, group: Sequence[int], ranks: Sequence[int]) -> dict[int, Floats]:
    """The excess of these members of a group over the group's other members."""
    times = series.self_ns[:, [series.ranks.index(member) for member in group]]
    complete = ~np.isnan(times).any(axis=1)
    excess = np.full(times.shape, np.nan)
    if len(group) > 1:
        known = np.maximum(times[complete], 1.0)
        excess[complete] = np.log(known / _median_of_others(known))
    return {rank: excess[:, group.index(rank)] for rank in ranks}


def _median_of_others(values: Floats) -> Floats:
    """For each value the median of the others in its row; shape (n, m) both, m >= 2."""
    order = np.argsort(values, axis=1)
    place = np.argsort(order, axis=1)
    ordered = np.take_along_axis(values, order, axis=1)

    def nth_other(nth: int) -> Floats:
        return np.where(place <= nth, ordered[:, [nth + 1]], ordered[:, [nth]])

    others = values.shape[1] - 1
    return (nth_other((others - 1) // 2) + nth_other(others // 2)) / 2


def slowdown_ratio(excess: Floats, steps: int) -> float | None:
    """exp of the median over the last steps that are known; None when none is."""
    known = excess[~np.isnan(excess)][-steps:]
    return float(np.exp(np.median(known))) if len(known) else None


def has_recovered(excess: Floats, thresholds: Thresholds) -> bool:
    """Whether a rank that was called slow is so no longer."""
    known = excess[~np.isnan(excess)]
    if len(known) < thresholds.steps_min:
        return False
    return bool(np.median(known[-thresholds.steps_min :]) < math.log(thresholds.slowdown_close_ratio))


def _judge(
    series: StepSeries, rank: int, peers: Peers, excess: Mapping[int, Floats], thresholds: Thresholds
) -> Slow | None:
    known = np.flatnonzero(~np.isnan(excess[rank]))
    if len(known) < thresholds.steps_min or has_recovered(excess[rank], thresholds):
        return None
    since = _stretch_since_change(excess[rank][known], thresholds)
    rows = known[since:]
    stretch = excess[rank][rows]
    level = float(np.median(stretch))
    if level < math.log(thresholds.slowdown_ratio_min):
        return None
    noise = measure_noise(excess[rank][known], since)
    robust_z = level / _sigma(noise, known, since, peers, excess)
    persistence = _persistence(stretch, level, noise, thresholds)
    if robust_z < thresholds.robust_z_min or persistence < thresholds.persistence_ratio:
        return None
    began = _begin_of_slowness(excess[rank][known], since, thresholds)
    peer_columns = np.array([series.ranks.index(peer) for peer in peers.ranks], dtype=np.int64)
    return Slow(
        rank=rank,
        since_step=int(series.steps[known[began]]),
        level_from_step=int(series.steps[rows[0]]),
        change_is_seen=began > 0,
        slowdown_ratio=math.exp(level),
        robust_z=robust_z,
        persistence=persistence,
        self_ns=float(np.median(series.self_ns[rows, series.ranks.index(rank)])),
        peers_self_ns=float(np.median(np.median(series.self_ns[np.ix_(rows, peer_columns)], axis=1))),
        steps_looked_at=len(rows),
        peers=peers,
    )


def _stretch_since_change(excess: Floats, thresholds: Thresholds) -> int:
    """Where the stretch to be judged begins: at the last clear change of level, up or down, else at the beginning.

    The clearest change of all need not be the last one: of a slowness that has passed it is the begin. So the part
    behind a change is searched again. A change so recent that fewer than `steps_min` steps follow it is left to the
    next ticks.
    """
    since = 0
    while (change := _find_clear_change(excess[since:], thresholds)) > 0:
        since += change
    return since


def _find_clear_change(excess: Floats, thresholds: Thresholds) -> int:
    change = find_change(excess)
    after, before = excess[change:], excess[:change]
    if change == 0 or len(after) < thresholds.steps_min:
        return 0
    shift = abs(float(np.median(after)) - float(np.median(before)))
    noise = measure_noise(excess, change)
    by_chance = 3 * math.hypot(noise.median_error(len(before)), noise.median_error(len(after)))
    return change if shift > max(by_chance, SIGMA_FLOOR) else 0


def _begin_of_slowness(excess: Floats, since: int, thresholds: Thresholds) -> int:
    """The first slow value: goes back from change to change as long as the rank was already slow before."""
    while since > 0:
        before = excess[:since]
        earlier = _stretch_since_change(before, thresholds)
        level = float(np.median(before[earlier:]))
        error = max(measure_noise(before, earlier).median_error(since - earlier), SIGMA_FLOOR)
        if level < max(math.log(thresholds.slowdown_ratio_min), thresholds.robust_z_min * error):
            break
        since = earlier
    return since


def _persistence(stretch: Floats, level: float, noise: Noise, thresholds: Thresholds) -> float:
    """The share of slow steps: those nearer to the level than to no effect, and above half of the smallest effect.

    Noise carries steps far below a level that it is nearly as large as: down to one deviation that is no objection.
    """
    half_minimum = math.log(1 + (thresholds.slowdown_ratio_min - 1) / 2)
    slow_from = max(half_minimum, min(level / 2, level - noise.deviation))
    return float(np.mean(stretch > slow_from))


def _sigma(noise: Noise, known: Ints, since: int, peers: Peers, excess: Mapping[int, Floats]) -> float:
    """By how much the level of the stretch `known[since:]` may be off: see the head of this file.

    The twins' noise counts because one rank's own can look small by chance, and several ranks' hardly.
    """
    series = [excess[peer][known] for peer in peers.ranks]
    levels = np.array([np.median(values[since:]) for values in series])
    between = MAD_TO_SIGMA * float(np.median(np.abs(levels - np.median(levels))))
    count = len(known) - since
    over_time = float(np.median([measure_noise(values, since).median_error(count) for values in series]))
    return max(between, noise.median_error(count), over_time, SIGMA_FLOOR)
