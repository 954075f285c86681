"""Find the slow ranks of a recording, by all of its steps at once: a profiler's trace, of which no more will come.

The tests of `persistent.py` take a dozen steps, and are asked anew in every pass of a run. A recording is judged once,
and has a handful. The rank that made the others wait the most is named if its own time is longer than its peers' in
most steps, by SLOWDOWN_MIN beyond its own noise from step to step, or by STEADY_SLOWDOWN_MIN more clearly beyond it.
One or two steps show no noise: there SLOWDOWN_MIN decides.

Ranks that are slow together are last in turns, and each waits for the slowest of them. So others are named beside that
one whose excess is clear, too, and at least half of its own, if they are no more than the healthy ones. Who is slower
by less than SLOWDOWN_MIN is named only if those that are named have caused most of the waiting.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from rankscope.collector.detect.finding import Abstain
from rankscope.collector.detect.statistics.excess import OWN_NS_MIN
from rankscope.collector.detect.stragglers.intermittent import find_intermittent
from rankscope.collector.detect.stragglers.persistent import SlowRank, Thresholds
from rankscope.collector.detect.view import RunView
from rankscope.collector.steps.peer_groups import PeerComparison, Peers
from rankscope.collector.steps.step_series import Floats
from rankscope.measure.units import format_duration

SLOWDOWN_MIN: Final = 1.15
"""Healthy ranks on busy cores differ by up to 13.5 % over three steps. On overloaded ones they differ by more, in the
runs that were recorded not by more than their noise."""
STEADY_SLOWDOWN_MIN: Final = 1.05
"""Less costs little, and sizes of batches differ by it."""
STEPS_SHARE_MIN: Final = 0.6
CAUSED_SHARE_MIN: Final = 0.5
BESIDE_SHARE_MIN: Final = 0.5
"""Of the excess of the rank that made others wait the most: what is less costs little while that one is slow."""
T_98: Final = (31.82, 6.96, 4.54, 3.75, 3.36, 3.14, 3.00, 2.90, 2.82)
"""Student's t, 98 % between both sides, for 1 to 9 degrees of freedom. More: the last. With 95 %, in one of 16 recorded
runs of healthy ranks on two shared cores a rank was named."""
T_90: Final = (6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83)
"""The same for 90 %, for a rank slower by SLOWDOWN_MIN. Of eleven recorded runs on busy cores with one rank 1.2 to 1.6
times as slow, four name nobody with 98 %, and two with 90 %."""
NOISE_STEPS_MIN: Final = 3


def find_noise(excess_ns: Sequence[float] | Floats, quantiles: Sequence[float] = T_98) -> float | None:
    """Return by how much the mean of so many steps may be off, in ns: the half width of its 98 % interval, or that of
    other quantiles. None below three steps.
    """
    if len(excess_ns) < NOISE_STEPS_MIN:
        return None
    return _pick(quantiles, len(excess_ns)) * float(np.std(excess_ns, ddof=1)) / math.sqrt(len(excess_ns))


def measure_rank(view: RunView, rank: int, peers: Peers) -> SlowRank:
    """Return a rank by its excess over its peers in all steps, of which each must be known, whether it is slow or not:
    the ratio of the sums, the mean over its standard error (0 where that is not known), the share of longer steps.
    """
    steps, column = view.series.steps, view.series.column_of(rank)
    own_ns, excess_ns = np.maximum(view.series.own_ns[:, column], OWN_NS_MIN), view.excess_ns[:, column]
    error_ns = find_noise(excess_ns, (1.0,))
    return SlowRank(
        rank=rank,
        since_step=int(steps[0]),
        level_from_step=int(steps[0]),
        before_step=None,
        slowdown_ratio=float(own_ns.sum() / (own_ns.sum() - excess_ns.sum())),
        robust_z=0.0 if error_ns is None else float(excess_ns.mean()) / max(1.0, error_ns),
        persistence=float(np.mean(excess_ns > 0)),
        own_ns=float(own_ns.mean()),
        steps_judged=len(steps),
        peers=peers,
        pattern="steady",
        slow_steps=steps,
    )


def add_recorded(
    view: RunView, found: tuple[SlowRank, ...] | Abstain, thresholds: Thresholds
) -> tuple[SlowRank, ...] | Abstain:
    """Return the slow ranks of a recording, slowest first: those `found` by the tests of a run, which know the begin,
    and those of all steps at once, but such as are slow now and then; or that one is slower by much, but not by more
    than its noise.
    """
    slow = {} if isinstance(found, Abstain) else {one.rank: one for one in found}
    now_and_then = {one.rank for one in find_intermittent(view, thresholds, slow)}
    doubts = []
    for one in view.peer_groups.comparisons:
        accused = _accuse(view, one) if one.do_same_work else []
        if accused and len(view.series.steps) >= NOISE_STEPS_MIN and not _stands_out(accused[0], T_90):
            doubts.append(_describe_doubt(view, accused[0]))
        else:
            slow = {mine.rank: mine for mine in accused if mine.rank not in now_and_then} | slow
    if doubts and not slow:
        return Abstain(" ".join(doubts))
    return tuple(sorted(slow.values(), key=lambda mine: -mine.slowdown_ratio))


def _accuse(view: RunView, among: PeerComparison) -> list[SlowRank]:
    """Return those of some peers that take longer, the one that causes the most waiting first."""
    sums_ns = dict.fromkeys(among.members, 0.0)
    if view.series.wait_caused_ns is not None:
        sums_ns |= {rank: float(view.series.wait_caused_ns[:, view.series.column_of(rank)].sum()) for rank in sums_ns}
    ranks = [measure_rank(view, rank, among.peers_of(rank)) for rank in among.members]
    ranks.sort(key=lambda one: (-sums_ns[one.rank], -one.excess_ns))
    least_ns = BESIDE_SHARE_MIN * ranks[0].excess_ns
    beside = [one for one in ranks[1:] if one.excess_ns > least_ns and _is_steady(one)]
    accused = [ranks[0], *beside] if 2 * (1 + len(beside)) <= len(ranks) else ranks[:1]
    is_blamed = sum(sums_ns[one.rank] for one in accused) > CAUSED_SHARE_MIN * sum(sums_ns.values())
    found = [
        one
        for one in accused
        if one.persistence >= STEPS_SHARE_MIN
        and (one.slowdown_ratio >= SLOWDOWN_MIN or (is_blamed and _is_steady(one)))
    ]
    has_slowest = max(ranks, key=lambda one: one.excess_ns) in accused
    return found if has_slowest and ranks[0] in found else []


def _is_steady(one: SlowRank) -> bool:
    return one.slowdown_ratio >= STEADY_SLOWDOWN_MIN and _stands_out(one, T_98)


def _stands_out(one: SlowRank, quantiles: Sequence[float]) -> bool:
    """Return whether the excess is known to exceed its noise, by these quantiles."""
    return one.robust_z > _pick(quantiles, one.steps_judged)


def _pick(quantiles: Sequence[float], step_count: int) -> float:
    return quantiles[min(step_count - 1, len(quantiles)) - 1]


def _describe_doubt(view: RunView, one: SlowRank) -> str:
    noise_ns = find_noise(view.excess_ns[:, view.series.column_of(one.rank)])
    return (
        f"rank {one.rank}: without waits its steps took {one.slowdown_ratio:.2f} times as long as its peers', but the "
        f"steps differ by as much ({describe_excess(one.excess_ns, noise_ns)}): record more of them."
    )


def describe_excess(mean_ns: float, noise_ns: float | None) -> str:
    """Return the excess in a step with its noise; empty where that is not known.

    >>> describe_excess(-2e6, 5e5)
    '-2.0 ms in a step, give or take 500.0 us'
    """
    if noise_ns is None:
        return ""
    sign = "-" if mean_ns < 0 else "+"
    return f"{sign}{format_duration(abs(mean_ns))} in a step, give or take {format_duration(noise_ns)}"
