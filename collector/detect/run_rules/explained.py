"""Compute what the findings about ranks and links explain of each step, and what remains for the run or a stage.

Slow ranks and links that are at work at different places of a step add up, others hide each other, and which it is is
not known: so their sum counts. What remains is judged: *no single rank is to blame* is a claim, and may be said only of
a slowdown that no rank explains.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from rankscope.collector.detect.finding import RUN_STALLS, STRAGGLER, Finding
from rankscope.collector.detect.view import RunView
from rankscope.collector.steps.peer_groups import PEERS_SAMPLED_MAX
from rankscope.collector.steps.step_series import Floats

EXPLAINED_SHARE: Final = 0.5
"""A rank whose excess is at least this share of the added time explains it."""
MOSTLY: Final = 0.5
"""Share from which more of a step is unseen than is known."""
SUBJECTS_NAMED_MAX: Final = 4
"""Ranks, nodes and groups named as explaining something: the findings themselves have them all."""


def find_explained_ns(view: RunView, findings: Sequence[Finding]) -> Floats:
    """Return what these findings explain of each step, shape (n,) in ns, 0 before they began.

    What a slow rank explains is by how much its excess is larger than that of any healthy peer, which the step would
    last for, and what a stall carries over to the next step; in steps where its excess is not known, the usual one.
    Anything else explains the share of the step that it costs, but stops of the whole run: these make single steps
    longer, and what is judged are medians.
    """
    findings = [one for one in findings if one.kind != RUN_STALLS]
    healthiest = _Healthiest(view, find_slow_ranks(findings))
    found = np.zeros(len(view.series.steps))
    for one in findings:
        found += _explained_by_ranks(view, one, healthiest) if one.kind == STRAGGLER else _cost_ns(view, one)
    return found


def find_unsure_ns(view: RunView, findings: Sequence[Finding], since_step: int) -> float:
    """Return by how much more these findings may explain of the steps since a step, in ns: the median of the largest
    excess of healthy peers, which is taken off that of a slow rank. Where ranks wait for each other several times a
    step (FSDP) the step was longer by less than that.
    """
    healthiest, since = _Healthiest(view, find_slow_ranks(findings)), view.series.steps >= since_step
    ranks = {one.ranks[0] for one in findings if one.kind == STRAGGLER and one.ranks and view.series.has(one.ranks[0])}
    return max((float(np.median(healthiest.of(rank)[since])) for rank in ranks), default=0.0)


def find_slow_ranks(findings: Sequence[Finding]) -> frozenset[int]:
    """Return the ranks of all findings about slow ranks."""
    return frozenset(rank for one in findings if one.kind == STRAGGLER for rank in one.ranks)


def name_explaining(findings: Sequence[Finding]) -> str:
    """Return what explains a part of the added time, as text.

    >>> name_explaining([Finding(kind="straggler", ranks=(10,), cause="host_cpu", sentence="")])
    'rank 10'
    >>> name_explaining([Finding(kind="straggler", ranks=(r,), cause="host_cpu", sentence="") for r in (3, 9, 9)])
    'rank 3 and rank 9'
    >>> name_explaining([Finding(kind="garbage_collection", cause="garbage_collection", sentence="")])
    'garbage collection'
    """
    subjects = list(dict.fromkeys(_name(one) for one in findings))
    named, more = subjects[:SUBJECTS_NAMED_MAX], len(subjects) - SUBJECTS_NAMED_MAX
    parts = [*named, f"{more} more"] if more > 0 else named
    return " and ".join(part for part in (", ".join(parts[:-1]), parts[-1]) if part)


def _name(finding: Finding) -> str:
    """Return who a finding is about, or what, where that is the whole run."""
    if finding.subject != "the run":
        return finding.subject
    return {"data_bound": "waits for data loaders"}.get(finding.kind, finding.kind.replace("_", " "))


def find_suspects(
    view: RunView, since_step: int, level_from_step: int, added_ns: float, known: frozenset[int]
) -> tuple[int, ...]:
    """Return the ranks, but the `known`, whose mean excess has grown by EXPLAINED_SHARE of the added time, from the
    steps before `since_step` to those of the present level, from `level_from_step` on.

    The mean counts what a median does not: a stall in every third step.
    """
    now, before = view.series.steps >= level_from_step, view.series.steps < since_step
    if not (now & view.is_known).any():
        return ()
    grown_ns = _means(view.excess_ns[now])
    if (before & view.is_known).any():
        grown_ns -= _means(view.excess_ns[before])
    suspects = np.flatnonzero(grown_ns >= EXPLAINED_SHARE * added_ns).tolist()
    return tuple(rank for rank in (view.series.ranks[column] for column in suspects) if rank not in known)


def find_growths(
    view: RunView, since_step: int, level_from_step: int, middle_ns: Floats, known: frozenset[int]
) -> tuple[float, float]:
    """Return by how much ranks differ more than before, and by how much all of them take longer, in ns: the growth of
    the largest excess of any rank but the `known`, and of `middle_ns`, the own time of the middle rank in each step,
    shape (n,). The medians of the steps from `level_from_step` on are compared with those before `since_step`; 0 where
    a side has none.
    """
    columns = view.series.columns_of([rank for rank in view.series.ranks if rank not in known])
    largest_ns = np.fmax.reduce(view.excess_ns[:, columns], axis=1, initial=-np.inf)
    compared = np.isfinite(largest_ns) & ~np.isnan(middle_ns)
    now, before = compared & (view.series.steps >= level_from_step), compared & (view.series.steps < since_step)
    if not now.any() or not before.any():
        return 0.0, 0.0
    apart_ns, together_ns = (float(np.median(ns[now]) - np.median(ns[before])) for ns in (largest_ns, middle_ns))
    return apart_ns, together_ns


def _means(excess_ns: Floats) -> Floats:
    """Return the mean of the known values of each rank, shape (ranks,); 0 where none is known."""
    known = np.count_nonzero(~np.isnan(excess_ns), axis=0)
    return np.asarray(np.nansum(excess_ns, axis=0) / np.maximum(known, 1))


class _Healthiest:
    """The largest excess of any rank that is not slow, by peer group, each found once."""

    def __init__(self, view: RunView, slow: frozenset[int]) -> None:
        self._view = view
        self._slow = slow
        self._excess_ns: dict[int, Floats] = {}

    def of(self, rank: int) -> Floats:
        """Return it for the peer group of a rank, shape (n,) in ns, at least 0."""
        place = self._view.peer_groups.place[rank]
        if place not in self._excess_ns:
            members = self._view.peer_groups.comparisons[place].members
            columns = self._view.series.columns_of([one for one in members if one not in self._slow])
            self._excess_ns[place] = np.fmax.reduce(self._view.excess_ns[:, columns], axis=1, initial=0.0)
        return self._excess_ns[place]


def _explained_by_ranks(view: RunView, finding: Finding, healthiest: _Healthiest) -> Floats:
    """Return the largest excess of the finding's ranks in each step since it began, less the largest of their peers
    that are not slow, and of ranks that are slow in some steps what those before carry over; shape (n,) in ns.
    """
    ranks = [rank for rank in finding.ranks if view.series.has(rank)]
    if not ranks or finding.since_step is None:
        return np.zeros(len(view.series.steps))
    usual_ns = finding.evidence.get("own_ns", 0.0) - finding.evidence.get("peers_own_ns", 0.0)
    usual_ns = 0.0 if finding.pattern == "intermittent" else usual_ns
    excess_ns = view.excess_ns[:, view.series.columns_of(ranks)]
    largest_ns = np.max(np.where(np.isnan(excess_ns), usual_ns, excess_ns), axis=1)
    beyond_ns = np.maximum(largest_ns - healthiest.of(ranks[0]), 0.0)
    if finding.pattern == "intermittent":
        most_ns = finding.evidence.get("own_ns", 0.0) - finding.evidence.get("peers_own_ns", 0.0)
        beyond_ns += _carried_over_ns(view, ranks, np.where(view.is_known, beyond_ns, most_ns))
    return np.where(view.series.steps >= finding.since_step, beyond_ns, 0.0)


def _carried_over_ns(view: RunView, ranks: Sequence[int], beyond_ns: Floats) -> Floats:
    """Return by how much each step is longer because these ranks began it late, by no more than the step before was
    longer by them (`beyond_ns`); shape (n,) in ns. That before the first step kept is the most that any was.

    A stall behind the last collective of a step is in the step of the rank that stalls, and in the next one of all that
    wait for it: which the rank ends with them, and has begun later than they by as much as it is shorter.
    """
    before_ns = np.concatenate([[beyond_ns.max(initial=0.0)], beyond_ns])[:-1]
    others = [rank for rank in view.series.ranks if rank not in ranks]
    usual_ns, shortest_ns = (
        combine(np.asarray(view.series.step_ns[:, view.series.columns_of(some)]), axis=1)
        for combine, some in ((np.median, others or ranks), (np.min, ranks))
    )
    shorter_ns = np.maximum(np.nan_to_num(usual_ns - shortest_ns, nan=0.0), 0.0)
    return np.asarray(np.minimum(shorter_ns, before_ns))


def _cost_ns(view: RunView, finding: Finding) -> Floats:
    """Return the share of each step since the finding began that it costs, shape (n,) in ns."""
    if finding.since_step is None or finding.run_slowdown_ratio is None:
        return np.zeros(len(view.series.steps))
    share = 1 - 1 / max(1.0, finding.run_slowdown_ratio)
    return np.where(view.series.steps >= finding.since_step, share * np.nan_to_num(view.longest_ns, nan=0.0), 0.0)


def find_unseen_share(view: RunView, from_step: int) -> float | None:
    """Return the lower median over the ranks of their unseen share of the step, from 0 to 1, in the steps from
    `from_step` on; None where CPU times or own times are not known, or ranks have GPUs.

    On CPUs that is waiting in what no report shows (files, locks, sleep): own time less the CPU time of the training
    thread and the data phase. Own times hold such waits, so comparing them does not tell which rank the others
    wait for. The training thread of a rank with a GPU waits for the GPU.
    """
    series = view.series
    if not series.own_is_measured or any(view.samples.devices.get(rank) for rank in series.ranks):
        return None
    rows = np.flatnonzero(series.steps >= from_step)
    columns = np.arange(len(series.ranks))[:: -(-len(series.ranks) // PEERS_SAMPLED_MAX) or 1]
    cells = np.ix_(rows, columns)
    unseen_ns = series.own_ns[cells] - series.cpu_ns[cells]
    if "data" in series.phases_ns:
        unseen_ns -= series.phases_ns["data"][cells]
    shares = np.clip(unseen_ns / np.maximum(series.step_ns[cells], 1.0), 0.0, 1.0)
    known = ~np.isnan(shares).all(axis=0)
    if not known.any():
        return None
    medians = np.sort(np.nanmedian(shares[:, known], axis=0))
    return float(medians[(len(medians) - 1) // 2])
