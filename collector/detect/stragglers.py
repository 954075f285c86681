"""Who is the straggler: whose own work takes persistently longer than its twins' (docs/definitions.md section 4).

In synchronous training every rank's step takes the same time, because the others wait for the slow one. So ranks are
compared by their *self time*: the step less the waiting that others caused (`waits.py`).

    x[step] = log(self time of the rank / median self time of its twins)

A rank is slow when, over the stretch of steps since the last change of level in x,

    exp(median x)            >= slowdown_ratio_min        the effect is large enough to matter
    median x / sigma         >= robust_z_min              it stands out of the noise, where sigma is the largest of
                                                            - the spread between the twins: 1.4826 MAD of their medians
                                                            - the error of the rank's own median over time
                                                            - SIGMA_FLOOR
    share of steps above half the effect's minimum >= persistence_ratio

It stays called slow until the median of its last steps is below `slowdown_close_ratio` (hysteresis).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rankscope.collector.detect.change_point import find_change
from rankscope.collector.detect.finding import Abstain
from rankscope.collector.detect.peers import Peers

Floats = npt.NDArray[np.float64]

MAD_TO_SIGMA = 1.4826
"""A normal distribution's standard deviation over its median absolute deviation."""
MEDIAN_ERROR = 1.2533
"""sqrt(pi / 2): the standard error of a median over that of a mean, for normal noise."""
CORRELATION_MAX = 0.9
"""Beyond it a short series says nothing about its own correlation."""
SIGMA_FLOOR = 0.01
"""1 %: what identical ranks differ by for reasons nobody can act on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """When a rank is called slow, and when no longer. The collector's configuration documents each."""

    steps: int = 32
    steps_min: int = 12
    slowdown_ratio_min: float = 1.10
    slowdown_close_ratio: float = 1.05
    robust_z_min: float = 4.0
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
    """A rank that passes every test, with the numbers it passed them by. Times are medians since `since_step`."""

    rank: int
    since_step: int
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
    excess = {rank: log_excess(series, rank, peers[rank]) for rank in series.ranks}
    found = [_judge(series, rank, peers[rank], excess, thresholds) for rank in series.ranks]
    return tuple(sorted((slow for slow in found if slow is not None), key=lambda slow: -slow.slowdown_ratio))


def log_excess(series: StepSeries, rank: int, peers: Peers) -> Floats:
    """log(self time / median of the peers' self times) for each step, shape (n,); NaN where not known."""
    columns = [series.ranks.index(peer) for peer in peers.ranks]
    others = series.self_ns[:, columns]
    complete = ~np.isnan(others).any(axis=1)
    excess = np.full(len(series.steps), np.nan)
    mine = np.maximum(series.self_ns[complete, series.ranks.index(rank)], 1.0)
    excess[complete] = np.log(mine / np.maximum(np.median(others[complete], axis=1), 1.0))
    return excess


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
    if len(known) < thresholds.steps_min:
        return None
    since = _stretch_since_change(excess[rank][known], thresholds)
    rows = known[since:]
    stretch = excess[rank][rows]
    level = float(np.median(stretch))
    half = math.log(1 + (thresholds.slowdown_ratio_min - 1) / 2)
    persistence = float(np.mean(stretch > half))
    robust_z = level / _sigma(rows, stretch, peers, excess)
    is_slow = (
        level >= math.log(thresholds.slowdown_ratio_min)
        and robust_z >= thresholds.robust_z_min
        and persistence >= thresholds.persistence_ratio
    )
    if not is_slow:
        return None
    peer_columns = np.array([series.ranks.index(peer) for peer in peers.ranks], dtype=np.int64)
    return Slow(
        rank=rank,
        since_step=int(series.steps[rows[0]]),
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

    A change so recent that fewer than `steps_min` steps follow it is left to the next ticks.
    """
    change = find_change(excess)
    after, before = excess[change:], excess[:change]
    if change == 0 or len(after) < thresholds.steps_min:
        return 0
    shift = abs(float(np.median(after)) - float(np.median(before)))
    return change if shift > _chance_shift(before, after) else 0


def _chance_shift(before: Floats, after: Floats) -> float:
    """How far the two sides' medians may lie apart by chance: three standard errors, at least the floor."""
    error = sum(_median_error(side) ** 2 for side in (before, after))
    return max(3 * math.sqrt(error), SIGMA_FLOOR)


def _median_error(values: Floats) -> float:
    """The standard error of the median of a series. Neighbouring steps are alike (the same batch sizes, the same
    other load on the machine), so n values count as n (1 - r) / (1 + r), r their correlation with the next ones.
    """
    centred = values - np.median(values)
    deviation = MAD_TO_SIGMA * float(np.median(np.abs(centred)))
    bounded = np.clip(centred, -3 * deviation, 3 * deviation)
    power = float(np.sum(bounded**2))
    correlation = float(np.sum(bounded[1:] * bounded[:-1])) / power if power > 0 else 0.0
    correlation = min(max(correlation, 0.0), CORRELATION_MAX)
    independent = max(1.0, len(values) * (1 - correlation) / (1 + correlation))
    return MEDIAN_ERROR * deviation / math.sqrt(independent)


def _sigma(rows: npt.NDArray[np.int64], stretch: Floats, peers: Peers, excess: Mapping[int, Floats]) -> float:
    levels = np.array([np.nanmedian(excess[peer][rows]) for peer in peers.ranks])
    between = MAD_TO_SIGMA * float(np.median(np.abs(levels - np.median(levels))))
    return max(between, _median_error(stretch), SIGMA_FLOOR)
