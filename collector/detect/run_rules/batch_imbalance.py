"""Find work that varies from step to step: the slowest rank changes at random, and all others wait for it.

No single rank is slow then: batches of samples of different length have this effect. Its cost in each step is

    gap = the largest excess of a rank's own time over the median of its peers

A finding needs a median gap of a tenth of the step, and a slowest rank that changes at random:

- no rank is the slowest more often than one of equal ranks would be: of n steps and m such ranks, one is the slowest
  in k steps or more with a probability of at most m P(X >= k), X binomial with n and 1/m;
- no rank is above its peers by half of the gap in most steps: several slow ranks would alternate as the slowest.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from rankscope.collector.detect.finding import RUN_SLOWDOWN, STRAGGLER, Abstain, Finding
from rankscope.collector.detect.finding_memory import recall
from rankscope.collector.detect.machine_growth import spread
from rankscope.collector.detect.run_rules.turns_finding import DATA_LOADING, describe_turns, find_turns_share
from rankscope.collector.detect.statistics.begin_range import find_rise
from rankscope.collector.detect.stragglers.cost import price
from rankscope.collector.detect.stragglers.host_times import CORE_WAIT, share_of_time
from rankscope.collector.detect.stragglers.persistent import Thresholds
from rankscope.collector.detect.stragglers.root_cause import CPU_PRESSURE, EXPLAINS
from rankscope.collector.detect.stragglers.turns import Turns, find_turns
from rankscope.collector.detect.suggestions import UNATTRIBUTED, suggest
from rankscope.collector.detect.view import Candidate, RunView
from rankscope.collector.steps.step_series import Floats, Ints
from rankscope.measure.units import format_duration

UNEVEN_WORK: Final = "uneven_work"
RANKS_MIN: Final = 4
"""With three ranks one is by chance the slowest in more than half of the steps."""
STEPS_JUDGED: Final = 64
"""Last steps judged: one of eight ranks is by chance the slowest in up to 19 of them."""
STEPS_MIN: Final = 32
"""With fewer steps one of eight ranks is by chance the slowest in more than a third of them."""
UNATTRIBUTED_STEPS_MIN: Final = 128
"""Least steps of a finding without a cause: other load on the machines has the same effect for a while."""
CHANCE_MAX: Final = 0.001
"""Probability below which a rank that is the slowest so often is a slow rank, and not so by chance."""
CLOSE_SHARE: Final = 0.5
"""An open finding closes when half of the smallest cost is gone (hysteresis), as with slow ranks."""
CORRELATION_MIN: Final = 0.7
"""Half of the variance is common: 0.7 squared."""
STEADY_SHARE_MAX: Final = 0.5
"""A rank that is above its peers by half of the gap in every other step causes more of it than chance does."""
PAIRS_MIN: Final = 100
"""Least pairs of a step and a rank: an estimate of zero correlation stays below 0.3 (three standard errors)."""
RANKS_SAMPLED_MAX: Final = 256
"""Ranks, evenly spread, over which the correlation is computed at most."""


class Gaps(NamedTuple):
    """The gaps of the last known steps: their rows in the series, the gaps in `ns`, their median over the step, in how
    many steps the rank that is most often the slowest is so, and whether that is by chance.
    """

    rows: Ints
    ns: Floats
    step_ratio: float
    most_often: int
    is_random: bool


class BatchImbalance:
    """The detector of work that varies from step to step. `cost_ratio_min` is the smallest gap over the step."""

    kinds = frozenset({UNEVEN_WORK})

    def __init__(self, cost_ratio_min: float, thresholds: Thresholds) -> None:
        self._cost_ratio_min = cost_ratio_min
        self._thresholds = thresholds

    def find(self, view: RunView, explained: Sequence[Finding]) -> Sequence[Candidate] | Abstain:
        """Return at most one finding, about the run and no rank; or why no verdict can be given."""
        ranks = len(view.series.ranks)
        if ranks < max(RANKS_MIN, view.world_size):
            in_turns = self._find_turns(view, explained) if ranks >= view.world_size else []
            if in_turns or any(_is_of_turns(finding) for finding in explained):
                return in_turns
            if ranks < view.world_size:
                return Abstain(f"no steps of {view.world_size - ranks} of {view.world_size} ranks are known")
            return Abstain(f"the run has {ranks} ranks, and at least {RANKS_MIN} are needed")
        gaps = find_gaps(view)
        if gaps is None:
            return Abstain(f"fewer than {STEPS_MIN} steps are known of all ranks")
        if not self._costs(gaps):
            return self._find_turns(view, explained)
        return self._describe(view, gaps, explained)

    def _describe(self, view: RunView, gaps: Gaps, explained: Sequence[Finding]) -> list[Candidate]:
        """Return the finding about a slowest rank that changes at random; without a cause that about turns, where these
        have one, and else none while it may be other load on the machines.
        """
        known = next((finding for finding in explained if finding.kind == UNEVEN_WORK), None)
        candidate = _describe(view, gaps, known, self._cost_ratio_min)
        if candidate.finding.cause != UNATTRIBUTED:
            return [candidate]
        in_turns = self._find_turns(view, explained)
        if in_turns and in_turns[0].finding.cause != UNATTRIBUTED:
            return in_turns
        return [candidate] if known is not None or self._has_lasted(view) else []

    def _find_turns(self, view: RunView, explained: Sequence[Finding]) -> list[Candidate]:
        """Return the costliest turns of ranks, unless a slower run with their cause explains them, or they may be those
        of a busy machine: turns of a few steps are told only where their loaders explain them.
        """
        found = [one for one in find_turns(view, self._thresholds, also_short=True) if _are_frequent(view, one)]
        if not found:
            return []
        turns = max(found, key=lambda one: (not one.are_short, float(one.excess_ns.sum())))
        known = next((finding for finding in explained if finding.kind == UNEVEN_WORK), None)
        ease = 1.0 if known is None else CLOSE_SHARE
        if find_turns_share(view, turns) < ease * self._cost_ratio_min:
            return []
        core_wait_ns = find_core_wait(view, int(view.series.steps[turns.rows[0]]))
        candidate = describe_turns(view, turns, UNEVEN_WORK, core_wait_ns, known)
        cause = candidate.finding.cause
        if turns.are_short and (cause != DATA_LOADING or len(turns.ranks) == 1 or _is_of_one(explained)):
            return []
        if known is None and any(one.kind == RUN_SLOWDOWN and one.cause == cause for one in explained):
            return []
        needed = UNATTRIBUTED_STEPS_MIN if cause == UNATTRIBUTED and known is None else STEPS_MIN
        return [candidate] if np.count_nonzero(view.is_known[turns.rows[0] :]) >= needed else []

    def _costs(self, gaps: Gaps) -> bool:
        return gaps.is_random and gaps.step_ratio >= self._cost_ratio_min

    def _has_lasted(self, view: RunView) -> bool:
        gaps = find_gaps(view, UNATTRIBUTED_STEPS_MIN)
        return gaps is not None and len(gaps.rows) == UNATTRIBUTED_STEPS_MIN and self._costs(gaps)

    def has_passed(self, view: RunView, finding: Finding, _explained: Sequence[Finding]) -> bool:
        """Return whether the steps lose little now, or lose it to one rank; False when not known."""
        if _is_of_turns(finding):
            return True  # else `find` had found them again
        gaps = find_gaps(view)
        return gaps is not None and (not gaps.is_random or gaps.step_ratio < CLOSE_SHARE * self._cost_ratio_min)


def _is_of_one(explained: Sequence[Finding]) -> bool:
    """Return whether a rank is known to wait for its loader in all steps: stalls of others are no turns beside it."""
    return any(one.kind == STRAGGLER and one.cause == DATA_LOADING for one in explained)


def _is_of_turns(finding: Finding) -> bool:
    """Return whether it is the finding about turns, not about a slowest rank that changes at random."""
    return finding.kind == UNEVEN_WORK and recall(finding).holds_while_found


def find_gaps(view: RunView, steps: int = STEPS_JUDGED) -> Gaps | None:
    """Return the gaps of the last `steps` known steps; None when too few are known of all ranks."""
    rows = _find_known(view)[-steps:]
    if len(rows) < STEPS_MIN:
        return None
    beyond_ns = view.excess_ns[rows]
    gap_ns = np.clip(np.max(beyond_ns, axis=1), 0.0, view.longest_ns[rows])
    gap = float(np.median(gap_ns))
    most_often = int(np.bincount(beyond_ns.argmax(axis=1)).max())
    steady = float(np.median(beyond_ns, axis=0).max())
    is_random = most_often < find_chance_limit(len(rows), len(view.series.ranks)) and steady < STEADY_SHARE_MAX * gap
    step = max(float(np.median(view.longest_ns[rows])), 1.0)
    return Gaps(rows, gap_ns, gap / step, most_often, is_random)


def _find_known(view: RunView) -> Ints:
    """Return the rows of the steps that are known of all ranks."""
    return np.flatnonzero(~np.isnan(view.series.own_ns).any(axis=1) & ~np.isnan(view.longest_ns))


def _are_frequent(view: RunView, turns: Turns) -> bool:
    """Return whether most steps since the first slow one are slow: stalls that each rank has now and then are not."""
    return 2 * len(turns.rows) > int(np.count_nonzero(view.is_known[turns.rows[0] :]))


def _beyond_peers(view: RunView, values: Floats) -> Floats:
    """Return by how much each rank's value exceeds the median of its peers, shape (n, ranks) as `values`."""
    beyond = np.empty_like(values)
    for comparison in view.peer_groups.comparisons:
        members = view.series.columns_of(comparison.members)
        usual = np.median(values[:, view.series.columns_of(comparison.against)], axis=1, keepdims=True)
        beyond[:, members] = values[:, members] - usual
    return beyond


def find_chance_limit(steps: int, ranks: int) -> int:
    """Return the least number of steps in which one of equal ranks is the slowest with a probability of CHANCE_MAX at
    most.

    >>> find_chance_limit(64, 8), find_chance_limit(32, 8)
    (20, 13)
    """
    share, tail, count = 1 / ranks, 0.0, steps + 1
    while ranks * tail <= CHANCE_MAX:
        count -= 1
        tail += math.comb(steps, count) * share**count * (1 - share) ** (steps - count)
    return count + 1


def correlate_with_batches(view: RunView, rows: Ints) -> float | None:
    """Return Spearman's correlation, -1 to 1, of own time and batch size over these steps and all ranks. None where
    too little is known or nothing varies.

    The batch size is the tokens, where they are counted. Else the forward phase is correlated with the remaining self
    time: a larger batch makes both longer. (Waits for other ranks in forward hide that.)
    """
    own_ns, tokens = view.series.own_ns[rows], view.series.tokens
    if tokens is not None and _has_tokens(view, rows):
        return _correlate(view, tokens[rows], own_ns)
    forward_ns = view.series.phases_ns.get("forward")
    return None if forward_ns is None else _correlate(view, forward_ns[rows], own_ns - forward_ns[rows])


def _correlate(view: RunView, one: Floats, other: Floats) -> float | None:
    """Correlate two amounts, shape (n, ranks), as logarithms less the median of the peers in the step and of the rank
    over all steps: steps that are longer for all, and ranks that are always slower, do not count.
    """
    parts = np.stack([one, other])
    known = (parts > 0).all(axis=(0, 2))
    if np.count_nonzero(known) * parts.shape[2] < PAIRS_MIN:
        return None
    every = -(-parts.shape[2] // RANKS_SAMPLED_MAX)
    deviations = [_beyond_peers(view, np.log(part[known]))[:, ::every] for part in parts]
    places = [_rank_values((part - np.median(part, axis=0)).ravel()) for part in deviations]
    if any(place.min() == place.max() for place in places):
        return None
    return float(np.asarray(np.corrcoef(places))[0, 1])


def _rank_values(values: Floats) -> Floats:
    """Return the place of each value, shape (n,), in ascending order; equal values share the mean place."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    middles: Floats = np.cumsum(counts) - (counts + 1) / 2
    return middles[inverse]


def _describe(view: RunView, gaps: Gaps, known: Finding | None, cost_ratio_min: float) -> Candidate:
    """Build the finding. An open one keeps its first step, and its cause unless waits for CPU cores explain it."""
    correlation = correlate_with_batches(view, gaps.rows)
    is_correlated = correlation is not None and correlation >= CORRELATION_MIN
    cause = "data_imbalance" if is_correlated else "unattributed"
    core_wait_ns = find_core_wait(view, int(view.series.steps[gaps.rows[0]]))
    if known is not None and known.since_step is not None:
        cause = cause if _is_of_turns(known) else known.cause
        since_step, earliest, latest = known.since_step, known.since_step_min, known.since_step_max
    else:
        since_step, earliest, latest = _find_begin(view, cost_ratio_min)
    if core_wait_ns is not None and core_wait_ns >= EXPLAINS * np.median(gaps.ns):
        # What holds up a step as a whole makes its forward longer with the rest, as a larger batch does.
        cause = cause if is_correlated and _has_tokens(view, gaps.rows) else CPU_PRESSURE
    lost_ns = np.full(len(view.series.steps), np.nan)
    lost_ns[gaps.rows] = gaps.ns
    cost = price(lost_ns, view, since_step)
    evidence = {
        "gap_ns": float(np.median(gaps.ns)),
        "gap_step_ratio": gaps.step_ratio,
        "most_often_slowest_ratio": gaps.most_often / len(gaps.rows),
        "steps_judged": float(len(gaps.rows)),
        **({} if core_wait_ns is None else {CORE_WAIT: core_wait_ns}),
    }
    finding = Finding(
        kind=UNEVEN_WORK,
        since_step=since_step,
        since_step_min=earliest,
        since_step_max=latest,
        cause=cause,
        what=(
            "no single straggler, a different rank slowest in each step, by "
            f"{format_duration(float(np.median(gaps.ns)))} ({100 * gaps.step_ratio:.0f} % of a step)"
        ),
        why=_describe_cause(cause, core_wait_ns),
        severity="warning" if cause == "data_imbalance" else "info",
        suggestion=suggest(UNEVEN_WORK, cause),
        run_slowdown_ratio=cost,
        evidence=evidence if correlation is None else {**evidence, "correlation": correlation},
    )
    return Candidate(finding, lost_ns)


def _find_begin(view: RunView, cost_ratio_min: float) -> tuple[int, int | None, int]:
    """Return since when ranks differ by that much, with the earliest and the latest step it may be; no earliest where
    they have in all steps that are known.
    """
    rows = _find_known(view)
    ratios = np.clip(np.max(view.excess_ns[rows], axis=1), 0.0, None) / np.maximum(view.longest_ns[rows], 1.0)
    return find_rise(view.series.steps[rows], ratios, cost_ratio_min, STEPS_MIN)


def find_core_wait(view: RunView, from_step: int) -> float | None:
    """Return the wait of the training thread for a CPU core in a usual step since that step, in ns, which more than
    half of the ranks read reach; None where it is not known of half of them.
    """
    ranks = spread(view.series.ranks, RANKS_SAMPLED_MAX)
    waits, clock = view.samples.core_waits, view.samples.host_clock
    shares = (share_of_time(waits.get(rank, ()), clock.get(rank, ()), from_step) for rank in ranks)
    known = [share for share in shares if share is not None]
    step_ns = view.longest_ns[(view.series.steps >= from_step) & ~np.isnan(view.longest_ns)]
    if 2 * len(known) < len(ranks) or not len(step_ns):
        return None
    return statistics.median_low(known) * float(np.median(step_ns))


def _has_tokens(view: RunView, rows: Ints) -> bool:
    tokens = view.series.tokens
    return tokens is not None and not bool(np.isnan(tokens[rows]).all())


def _describe_cause(cause: str, core_wait_ns: float | None) -> str:
    return {
        CPU_PRESSURE: _describe_core_wait(core_wait_ns),
        "data_imbalance": "longer steps on ranks whose batch is larger, or whose forward pass is longer",
        "unattributed": "not seen to depend on the size of the batches",
    }[cause]


def _describe_core_wait(core_wait_ns: float | None) -> str:
    """Return the wait for a CPU core. An open finding keeps this cause when the wait is known no more."""
    if core_wait_ns is None:
        return "training threads of most ranks waiting for a CPU core (found earlier)"
    return f"training threads of most ranks waiting for a CPU core, {format_duration(core_wait_ns)} or more per step"
