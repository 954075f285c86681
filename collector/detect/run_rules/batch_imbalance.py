"""Work that comes unevenly: in every step another rank is the slowest, and all the others wait for it.

No rank is to blame where who is slowest changes at random: batches of samples of different length do that. What it
costs is in each step

    gap = the most that a rank's self time is above the median of its peers

It is said when the gap is at the median a tenth of the step, and when who is slowest is left to chance:

- no rank is the slowest more often than one of equal ranks would be: of n steps and m such ranks, one is the slowest
  in k steps or more with a probability of at most m P(X >= k), X binomial with n and 1/m;
- no rank is in most steps above its peers by half of the gap: several slow ranks would take turns in being the slowest.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from rankscope.collector.detect.finding import Abstain, Finding
from rankscope.collector.detect.past import WHEN, put_in_past
from rankscope.collector.detect.stragglers.cost import Cost, price
from rankscope.collector.detect.stragglers.sentence import say_cost
from rankscope.collector.detect.view import Candidate, RunView
from rankscope.collector.steps.step_series import Floats, Ints
from rankscope.measure.units import format_duration

UNEVEN_WORK: Final = "uneven_work"
RANKS_MIN: Final = 4
"""Of three ranks chance lets one be the slowest in more than half of the steps."""
STEPS_LOOKED_AT: Final = 64
"""Who is slowest is looked for in so many of the last steps: of eight ranks chance lets one be it in 19 of them."""
STEPS_MIN: Final = 32
"""With fewer steps chance lets one of eight ranks be the slowest in more than a third of them."""
UNATTRIBUTED_STEPS_MIN: Final = 128
"""Without a cause it must have gone on for so long: other load on the machines does the same for a while (seen: 16 % of
the step for four ranks on two cores that had others' work to do)."""
CHANCE_MAX: Final = 0.001
"""How improbable it must be that one of equal ranks is the slowest so often, before that rank is taken for slow."""
CLOSE_SHARE: Final = 0.5
"""An open finding closes when half of the smallest cost is gone (hysteresis), as with slow ranks."""
CORRELATION_MIN: Final = 0.7
"""Half of the variance of the one goes with the other: 0.7 squared."""
STEADY_SHARE_MAX: Final = 0.5
"""A rank that is above its peers by half of the gap in every other step makes more of it than all chance together."""
PAIRS_MIN: Final = 100
"""So many pairs of a step and a rank leave a correlation of 0 below 0.3 (three standard errors, 1 / sqrt(n))."""
RANKS_ASKED_MAX: Final = 256
"""What goes together is asked of so many ranks at most, evenly spread: more would not tell it better."""
SUGGESTION: Final = (
    "Give every rank as much work in a step: bucket the samples by length, pack them into sequences of one length, or "
    "make batches of so many tokens instead of so many samples."
)


class Gaps(NamedTuple):
    """The last known steps: their rows in the series, how far the slowest rank is from its peers, as `ns` and over the
    step, in how many steps the rank that is the slowest most often is so, and whether that is left to chance.
    """

    rows: Ints
    ns: Floats
    step_ratio: float
    most_often: int
    is_random: bool


class BatchImbalance:
    """The detector of work that differs from step to step. `cost_ratio_min` is the smallest gap over the step."""

    kinds = frozenset({UNEVEN_WORK})

    def __init__(self, cost_ratio_min: float) -> None:
        self._cost_ratio_min = cost_ratio_min

    def find(self, view: RunView, explained: Sequence[Finding]) -> Sequence[Candidate] | Abstain:
        """One finding about the run, about no rank; or why no verdict can be given."""
        ranks = len(view.series.ranks)
        if ranks < max(RANKS_MIN, view.world_size):
            return Abstain(f"{ranks} of {view.world_size} ranks have reported, and at least {RANKS_MIN} are needed")
        gaps = find_gaps(view)
        if gaps is None:
            return Abstain(f"fewer than {STEPS_MIN} steps are known of all ranks")
        if not self._costs(gaps):
            return []
        known = next((finding for finding in explained if finding.kind == UNEVEN_WORK), None)
        candidate = _describe(view, gaps, known)
        if known is None and candidate.finding.cause == "unattributed" and not self._has_gone_on(view):
            return []
        return [candidate]

    def _costs(self, gaps: Gaps) -> bool:
        return gaps.is_random and gaps.step_ratio >= self._cost_ratio_min

    def _has_gone_on(self, view: RunView) -> bool:
        gaps = find_gaps(view, UNATTRIBUTED_STEPS_MIN)
        return gaps is not None and len(gaps.rows) == UNATTRIBUTED_STEPS_MIN and self._costs(gaps)

    def has_passed(self, view: RunView, finding: Finding, _explained: Sequence[Finding]) -> bool:  # noqa: ARG002 - there is only one
        """Whether the steps lose little any more, or to one rank; False when nobody knows."""
        gaps = find_gaps(view)
        return gaps is not None and (not gaps.is_random or gaps.step_ratio < CLOSE_SHARE * self._cost_ratio_min)


def find_gaps(view: RunView, steps: int = STEPS_LOOKED_AT) -> Gaps | None:
    """How far the slowest rank was from its peers in so many of the last steps; None when too few are known of all."""
    known = ~np.isnan(view.series.self_ns).any(axis=1) & ~np.isnan(view.longest_ns)
    rows = np.flatnonzero(known)[-steps:]
    if len(rows) < STEPS_MIN:
        return None
    beyond_ns = view.excess_ns[rows]
    gap_ns = np.maximum(np.max(beyond_ns, axis=1), 0.0)
    gap = float(np.median(gap_ns))
    most_often = int(np.bincount(beyond_ns.argmax(axis=1)).max())
    steady = float(np.median(beyond_ns, axis=0).max())
    is_random = most_often < find_chance_limit(len(rows), len(view.series.ranks)) and steady < STEADY_SHARE_MAX * gap
    step = max(float(np.median(view.longest_ns[rows])), 1.0)
    return Gaps(rows, gap_ns, gap / step, most_often, is_random)


def _beyond_peers(view: RunView, values: Floats) -> Floats:
    """How far each rank's value is above the median of those that it is compared with, shape (n, ranks) as `values`."""
    beyond = np.empty_like(values)
    for comparison in view.peer_groups.comparisons:
        members = view.series.columns_of(comparison.members)
        usual = np.median(values[:, view.series.columns_of(comparison.against)], axis=1, keepdims=True)
        beyond[:, members] = values[:, members] - usual
    return beyond


def find_chance_limit(steps: int, ranks: int) -> int:
    """The smallest number of steps in which one of equal ranks is the slowest with a probability of CHANCE_MAX at most.

    >>> find_chance_limit(64, 8), find_chance_limit(32, 8)
    (20, 13)
    """
    share, tail, count = 1 / ranks, 0.0, steps + 1
    while ranks * tail <= CHANCE_MAX:
        count -= 1
        tail += math.comb(steps, count) * share**count * (1 - share) ** (steps - count)
    return count + 1


def correlate_with_batches(view: RunView, rows: Ints) -> float | None:
    """How far a rank's self time over these steps goes with the size of its batches: Spearman's correlation over all
    steps and ranks, -1 to 1. None where too little is known or nothing varies.

    With the tokens, where they are counted. Else of the forward phase with the rest of the self time: a larger batch
    makes all parts longer. (Where forward waits for other ranks, that hides it.)
    """
    self_ns, tokens = view.series.self_ns[rows], view.series.tokens
    if tokens is not None and not np.isnan(tokens[rows]).all():
        return _correlate(view, tokens[rows], self_ns)
    forward_ns = view.series.phases_ns.get("forward")
    return None if forward_ns is None else _correlate(view, forward_ns[rows], self_ns - forward_ns[rows])


def _correlate(view: RunView, one: Floats, other: Floats) -> float | None:
    """Of two amounts, shape (n, ranks), as logarithms less what is usual among the peers in the step and of the rank in
    all steps: neither steps that are longer for all nor ranks that are always slower correlate anything.
    """
    parts = np.stack([one, other])
    known = (parts > 0).all(axis=(0, 2))
    if np.count_nonzero(known) * parts.shape[2] < PAIRS_MIN:
        return None
    every = -(-parts.shape[2] // RANKS_ASKED_MAX)
    apart = [_beyond_peers(view, np.log(part[known]))[:, ::every] for part in parts]
    orders = [_order((part - np.median(part, axis=0)).ravel()) for part in apart]
    if any(order.min() == order.max() for order in orders):
        return None
    return float(np.asarray(np.corrcoef(orders))[0, 1])


def _order(values: Floats) -> Floats:
    """The place of each value, shape (n,), among all of them, equal ones in the middle of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    middles: Floats = np.cumsum(counts) - (counts + 1) / 2
    return middles[inverse]


def _describe(view: RunView, gaps: Gaps, known: Finding | None) -> Candidate:
    """The finding. Its cause and first step stay those that it was opened with."""
    correlation = correlate_with_batches(view, gaps.rows)
    together = correlation is not None and correlation >= CORRELATION_MIN
    cause, since_step = "data_imbalance" if together else "unattributed", int(view.series.steps[gaps.rows[0]])
    if known is not None and known.since_step is not None:
        cause, since_step = known.cause, known.since_step
    lost_ns = np.full(len(view.series.steps), np.nan)
    lost_ns[gaps.rows] = gaps.ns
    cost = price(lost_ns, view, since_step)
    evidence = {
        "gap_ns": float(np.median(gaps.ns)),
        "gap_step_ratio": gaps.step_ratio,
        "most_often_slowest_ratio": gaps.most_often / len(gaps.rows),
        "steps_looked_at": float(len(gaps.rows)),
    }
    finding = Finding(
        kind=UNEVEN_WORK,
        since_step=since_step,
        cause=cause,
        sentence=_write_sentence(gaps, cause, cost),
        past=_write_sentence(gaps, cause, cost, is_over=True),
        severity="warning" if cause == "data_imbalance" else "info",
        suggestion=SUGGESTION if cause == "data_imbalance" else "",
        run_slowdown_ratio=cost.run_slowdown_ratio,
        evidence=evidence if correlation is None else {**evidence, "correlation": correlation},
    )
    return Candidate(finding, lost_ns)


def _write_sentence(gaps: Gaps, cause: str, cost: Cost, *, is_over: bool = False) -> str:
    because = {
        "data_imbalance": "a rank takes longer in steps in which its batch is larger, or its forward pass longer",
        "unattributed": "it is not seen to depend on the size of the batches",
    }[cause]
    changes, wait = "changes from step to step", "wait"
    if is_over:
        because, changes, wait = put_in_past(because), f"changed from step to step{WHEN}", "waited"
    text = (
        f"The slowest rank {changes}, and all others {wait} for it: {100 * gaps.step_ratio:.0f} % of a step, "
        f"{format_duration(float(np.median(gaps.ns)))}; cause {cause}: {because}."
    )
    return text + say_cost(cost, is_over=is_over)
