"""Find a whole stage, or the whole run, that has become slower than before.

    stage_slowdown   all ranks that do the same work (a pipeline stage, an expert group) have become slower than they
                     were, and than the others have
    run_slowdown     the steps of the run have become longer than they were, and nothing else explains it

Both are changes of level in log(time) against its own past, judged like a straggler's: large enough
(`slowdown_ratio_min`), clear of the noise (`robust_z_min` standard errors of the medians before and after), and in most
steps (`persistence_ratio` of them above half of the rise). They have passed once the last `steps_min` steps are back
within `slowdown_close_ratio` of the level before.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from rankscope.collector.detect.finding import Abstain, Finding, format_ranks
from rankscope.collector.detect.past import WHEN, put_in_past
from rankscope.collector.detect.run_rules.device_models import SLOW_MODEL
from rankscope.collector.detect.run_rules.unseen_waits import MOSTLY, find_unseen_share
from rankscope.collector.detect.statistics.change_points import SIGMA_FLOOR, find_last_change
from rankscope.collector.detect.statistics.noise import measure_noise
from rankscope.collector.detect.stragglers.cost import price
from rankscope.collector.detect.stragglers.persistent import Thresholds
from rankscope.collector.detect.stragglers.regression_cause import find_cause_of_change
from rankscope.collector.detect.stragglers.sentence import describe_cost
from rankscope.collector.detect.view import Candidate, RunView
from rankscope.collector.steps.peer_groups import middle_of_ranks
from rankscope.collector.steps.step_series import Floats, sum_computing
from rankscope.measure.units import format_duration

STAGE, RUN = "stage_slowdown", "run_slowdown"
NO_RANK: Final = "and no single rank is to blame"
NOT_KNOWN_YET: Final = "and whether one rank is to blame is not known yet"
UNSEEN: Final = "and which rank is to blame is not known, as most of a step is waiting that is not seen"
BEFORE: Final = "before_ns"
"""Evidence key: the level before the change, in ns."""
EXPLAINED_SHARE: Final = 0.5
"""A finding that costs at least this share of the added time explains it."""
PATIENCE: Final = 8
"""Self times are waited for over this many times the steps of a verdict: windows may be that rare."""
RISE_SHARE: Final = 0.5
"""Share of a stage's rise over the others that must be a rise over its own past, else the others have become faster.
In any case it must be `slowdown_ratio_min` of its own past."""
PAST_STEPS_MIN: Final = 24
"""Least steps of the past for a run that is compared only with its past: the variation of a young run's steps is not
known yet."""


class _Change(NamedTuple):
    """A rise of level: first step, level before and after in ns, and size in standard errors."""

    since_step: int
    before_ns: float
    after_ns: float
    robust_z: float


class StageSlowdowns:
    """The detector of peer groups that have become slower as a whole."""

    kinds = frozenset({STAGE})

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds

    def find(self, view: RunView, explained: Sequence[Finding]) -> Sequence[Candidate] | Abstain:
        """Return every peer group that has become slower than before and than the other groups."""
        groups = view.peer_groups.works
        if not groups:
            return Abstain("no two ranks are known to do the same work: there is no stage to compare")
        if len(groups[0]) == len(view.series.ranks):
            return Abstain("all ranks do the same work: there is no stage to compare")
        known = {finding.ranks: finding for finding in explained if finding.kind == STAGE}
        found = [self._judge(view, ranks, known.get(ranks)) for ranks in groups]
        return [candidate for candidate in found if candidate is not None]

    def _judge(self, view: RunView, ranks: tuple[int, ...], known: Finding | None) -> Candidate | None:
        mine_ns = _median_self_ns(view, ranks)
        chosen = set(ranks)
        others_ns = _median_self_ns(view, tuple(rank for rank in view.series.ranks if rank not in chosen))
        change = _find_rise(view, mine_ns, mine_ns / others_ns, self._thresholds)
        if change is None:
            return None
        nodes = {view.nodes[rank] for rank in ranks}
        alone = not any(view.nodes[rank] in nodes for rank in view.series.ranks if rank not in chosen)
        who = f"Ranks {format_ranks(ranks)}, which {{do}} the same work, {{are}}"
        return _describe(
            view, change, known, mine_ns, kind=STAGE, who=who, ranks=ranks,
            nodes=tuple(sorted(nodes)) if alone and len(nodes) == 1 else (),
        )  # fmt: skip

    def has_passed(self, view: RunView, finding: Finding, _explained: Sequence[Finding]) -> bool:
        """Return whether the ranks are back at their level before."""
        ranks = tuple(rank for rank in finding.ranks if view.series.has(rank))
        return _is_back(_median_self_ns(view, ranks), finding, self._thresholds)


class RunSlowdown:
    """The detector of a run that is slower than its own past."""

    kinds = frozenset({RUN})

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds

    def find(self, view: RunView, explained: Sequence[Finding]) -> Sequence[Candidate] | Abstain:
        """Return the run, if its steps have become longer and no other finding explains it."""
        steps_ns = view.longest_ns.copy()
        steps_ns[: view.series.earlier_count] = np.nan  # over a long past slow growth would look like a change
        change = _find_rise(view, steps_ns, steps_ns, self._thresholds, past_steps_min=PAST_STEPS_MIN)
        if change is None or _is_explained(change.after_ns / change.before_ns, explained):
            return []
        are_compared = _are_compared(view, change, self._thresholds.steps_min)
        if not are_compared and not _is_overdue(view, change, self._thresholds.steps_min):
            return []
        known = next((finding for finding in explained if finding.kind == RUN), None)
        blame = NO_RANK if are_compared else NOT_KNOWN_YET
        if (find_unseen_share(view, change.since_step) or 0.0) >= MOSTLY:
            blame = UNSEEN
        who = "The steps of the whole run {are}"
        return [_describe(view, change, known, view.longest_ns, kind=RUN, who=who, blame=blame)]

    def has_passed(self, view: RunView, finding: Finding, explained: Sequence[Finding]) -> bool:
        """Return whether the steps are as short as before, or other findings explain now why not."""
        return _is_explained(finding.slowdown_ratio or 1.0, explained) or _is_back(
            view.longest_ns, finding, self._thresholds
        )


def _median_self_ns(view: RunView, ranks: Sequence[int]) -> Floats:
    """Return the middle self time of these ranks in each step, shape (n,) in ns; NaN where fewer than half of them are
    known.
    """
    self_ns = view.series.self_ns[:, view.series.columns_of(ranks)]
    found = np.full(len(self_ns), np.nan)
    enough = 2 * np.count_nonzero(~np.isnan(self_ns), axis=1) >= max(1, len(ranks))
    if enough.any():
        found[enough] = np.maximum(middle_of_ranks(self_ns[enough]), 1.0)
    return found


def _find_rise(
    view: RunView, times_ns: Floats, ratios: Floats, thresholds: Thresholds, *, past_steps_min: int = 0
) -> _Change | None:
    """Return the last change of level of `ratios` if it is a rise, also of `times_ns`, and lasts; both of shape
    (n,).
    """
    known = np.flatnonzero(~np.isnan(ratios))
    if len(known) < 2 * thresholds.steps_min:
        return None
    logs = np.log(ratios[known])
    since = find_last_change(logs, thresholds.steps_min)
    if since < max(thresholds.steps_min, past_steps_min):
        return None
    noise = measure_noise(logs, since)
    rise = float(np.median(logs[since:]) - np.median(logs[:since]))
    error = math.hypot(noise.median_error(since), noise.median_error(len(logs) - since), SIGMA_FLOOR)
    before_ns, after_ns = float(np.median(times_ns[known[:since]])), float(np.median(times_ns[known[since:]]))
    if np.median(logs[-thresholds.steps_min :]) - np.median(logs[:since]) < math.log(thresholds.slowdown_close_ratio):
        return None  # it is over
    own_rise_min = max(RISE_SHARE * rise, math.log(thresholds.slowdown_ratio_min))
    is_large = rise >= math.log(thresholds.slowdown_ratio_min) and rise >= thresholds.robust_z_min * error
    lasts = np.mean(logs[since:] > np.median(logs[:since]) + rise / 2) >= thresholds.persistence_ratio
    if not (is_large and lasts) or math.log(after_ns / before_ns) < own_rise_min:
        return None
    return _Change(int(view.series.steps[known[since]]), before_ns, after_ns, rise / error)


def _are_compared(view: RunView, change: _Change, steps_min: int) -> bool:
    """Return whether enough self times are known since the change to name a slow rank: waits are known later than
    steps.
    """
    compared = (view.series.steps >= change.since_step) & view.is_known
    return len(view.series.ranks) == 1 or bool(np.count_nonzero(compared) >= steps_min)


def _is_overdue(view: RunView, change: _Change, steps_min: int) -> bool:
    """Return whether PATIENCE is used up and the ranks' phases, which are known, do not differ."""
    made = np.count_nonzero(view.series.steps >= change.since_step)
    return bool(made >= PATIENCE * steps_min) and not _have_grown_apart(view, change)


def _have_grown_apart(view: RunView, change: _Change) -> bool:
    """Return whether the phases without waits have grown by half of the added time on some rank, and on half of the
    ranks by less than half as much.
    """
    computing_ns = sum_computing(view.series.phases_ns)
    if computing_ns is None:
        return False
    known = ~np.isnan(computing_ns).any(axis=1)
    since = view.series.steps >= change.since_step
    if not (known & since).any() or not (known & ~since).any():
        return False
    grcomputing_ns = np.sort(
        np.median(computing_ns[known & since], axis=0) - np.median(computing_ns[known & ~since], axis=0)
    )
    most_ns, typical_ns = grcomputing_ns[-1], grcomputing_ns[(len(grcomputing_ns) - 1) // 2]
    return bool(most_ns >= EXPLAINED_SHARE * (change.after_ns - change.before_ns) and 2 * typical_ns < most_ns)


def _is_explained(ratio: float, explained: Sequence[Finding]) -> bool:
    """Return whether the other findings together cost at least EXPLAINED_SHARE of the added time. A slow model of GPU
    has been one from the begin, and explains no change.
    """
    theirs = sum(
        (finding.run_slowdown_ratio or 1.0) - 1 for finding in explained if finding.kind not in (RUN, SLOW_MODEL)
    )
    return theirs >= EXPLAINED_SHARE * (ratio - 1)


def _is_back(times_ns: Floats, finding: Finding, thresholds: Thresholds) -> bool:
    last_ns = times_ns[~np.isnan(times_ns)][-thresholds.steps_min :]
    if len(last_ns) < thresholds.steps_min:
        return False
    return bool(np.median(last_ns) < thresholds.slowdown_close_ratio * finding.evidence[BEFORE])


def _describe(
    view: RunView,
    change: _Change,
    known: Finding | None,
    times_ns: Floats,
    *,
    kind: str,
    who: str,
    blame: str = NO_RANK,
    ranks: tuple[int, ...] = (),
    nodes: tuple[str, ...] = (),
) -> Candidate:
    """Build the finding. An open one keeps its level before: a part of that may have left the step table."""
    since, before_ns = change.since_step, change.before_ns
    if known is not None and known.since_step is not None:
        since, before_ns = min(since, known.since_step), known.evidence[BEFORE]
    added_ns = change.after_ns - before_ns
    cause = find_cause_of_change(view, ranks or view.series.ranks, since, added_ns)
    lost_ns = np.where(view.series.steps >= since, np.maximum(times_ns - before_ns, 0.0), 0.0)
    cost = price(lost_ns, view, since)
    ratio = change.after_ns / before_ns
    where = f" (node {nodes[0]})" if nodes else ""
    slower = f"{ratio:.2f} times as slow as before step {since}{where}"
    numbers = f"{format_duration(change.after_ns)} a step against {format_duration(before_ns)}"
    finding = Finding(
        kind=kind,
        ranks=ranks,
        nodes=nodes,
        since_step=since,
        slowdown_ratio=ratio,
        cause=cause.name,
        sentence=(
            f"{who.format(do='do', are='are')} {slower}: {numbers}, {blame}; cause {cause.name}: {cause.because}."
            f"{describe_cost(cost)}"
        ),
        past=(
            f"{who.format(do='did', are='were')} {slower},{WHEN}: {numbers}, {put_in_past(blame)}; "
            f"cause {cause.name}: {put_in_past(cause.because)}.{describe_cost(cost, is_over=True)}"
        ),
        run_slowdown_ratio=cost.run_slowdown_ratio,
        evidence={**cause.evidence, BEFORE: before_ns, "after_ns": change.after_ns, "robust_z": change.robust_z},
    )
    return Candidate(finding, lost_ns)
