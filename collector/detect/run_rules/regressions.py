"""Find a whole stage, or the whole run, that has become slower than before.

    stage_slowdown   all ranks that do the same work (a pipeline stage, an expert group) have become slower than they
                     were, and than the others have
    run_slowdown     the steps of the run have become longer than they were, beyond what all other findings explain

Both are changes of level in log(time) against its own past, judged like a straggler's: large enough
(`slowdown_ratio_min`), clear of the noise (`robust_z_min` standard errors of the medians before and after), and in most
steps (`persistence_ratio` of them above half of the rise). Slow growth is a ramp instead of a change of level, from the
level before its begin to that of the last `steps_min` steps. Growth over more steps than are kept is found in the
levels of the whole run (`slow_growth.py`). They have passed once the steps are back within
`slowdown_close_ratio` of the level before, for as many steps as had shown the rise.

What is judged is what remains of a step without what other findings explain (`explained.py`). While a rank that is
not found yet may explain half of it, or ranks only differ more, nothing is said until PATIENCE is used up; then in the
first case that it is not known whether one rank is to blame. More work in each step, by its tokens, is no slowdown.
"""

import math
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import numpy as np

from rankscope.collector.detect.finding import (
    BLAME,
    DRIFTING,
    NOBODY,
    NOBODY_ELSE,
    NOT_KNOWN,
    RUN_SLOWDOWN,
    SLOW_LINK,
    SLOW_MODEL,
    STRAGGLER,
    Abstain,
    Finding,
    name_ranks,
)
from rankscope.collector.detect.finding_memory import FindingMemory, recall, remember
from rankscope.collector.detect.run_rules.change import Blame, LevelChange, Subject, write_what
from rankscope.collector.detect.run_rules.explained import (
    EXPLAINED_SHARE,
    MOSTLY,
    find_explained_ns,
    find_growths,
    find_slow_ranks,
    find_suspects,
    find_unseen_share,
    find_unsure_ns,
    name_explaining,
)
from rankscope.collector.detect.run_rules.slow_growth import find_slow_growth
from rankscope.collector.detect.run_rules.work_growth import (
    MORE_TOKENS,
    find_compared,
    find_growth_since,
    find_present_tokens,
    keep_alike,
)
from rankscope.collector.detect.statistics.begin_range import find_begin_range, to_since_range
from rankscope.collector.detect.statistics.change_points import SIGMA_FLOOR, find_last_change, fit_ramp
from rankscope.collector.detect.statistics.noise import measure_noise, rank_sum_deviations
from rankscope.collector.detect.stragglers.cost import find_step_before, price
from rankscope.collector.detect.stragglers.persistent import (
    CLOSE_STEPS_MAX,
    Thresholds,
    has_recovered,
    keep_steps_to_close,
    steps_to_close,
)
from rankscope.collector.detect.stragglers.regression_cause import (
    UNATTRIBUTED,
    Compared,
    find_cause_of_change,
    find_undecided,
)
from rankscope.collector.detect.stragglers.root_cause import UNSEEN_WAIT, Cause
from rankscope.collector.detect.suggestions import suggest
from rankscope.collector.detect.view import Candidate, RunView
from rankscope.collector.steps.peer_groups import PEERS_SAMPLED_MAX, middle_of_ranks
from rankscope.collector.steps.step_series import Floats, sum_computing

STAGE, RUN = "stage_slowdown", RUN_SLOWDOWN
NO_CHANGE: Final = frozenset({RUN, SLOW_MODEL})
"""Kinds of finding that explain no change: a slow model of GPU has been one from the begin."""
NO_RANK: Final = Blame(NOBODY, "no single rank to blame")
NO_OTHER_RANK: Final = Blame(NOBODY_ELSE, "no other rank to blame")
NOT_KNOWN_YET: Final = Blame(NOT_KNOWN, "whether one rank is to blame: not known yet")
UNSEEN: Final = Blame(
    NOT_KNOWN,
    "which rank is to blame: not known, since half of a step or more is unaccounted for on half of the ranks",
)
OF_UNSEEN: Final = Blame(NOT_KNOWN, "which rank is to blame: not known, since what they wait for is not measured")
KNOWN_SHARE_MIN: Final = 0.5
"""Share of the steps since a change whose waits are known, below which the sentence says how many those are: a rank
that is slow in some of the others would not show."""
FOUND_EARLIER: Final = "found earlier, not comparable now"
NOT_KEPT: Final = "steps before it no longer kept when found"
RANKED_MIN: Final = 4.0
"""Standard deviations by which the steps after a change must rank above those before. Where all ranks stall now and
then, half of the steps have a stall, and their median moves from one kind of step to the other by chance: of 360 series
of 256 steps of 2 to 64 ranks 19 had such a change, of up to 36 errors of a median, and none ranked by more than 3.3."""
RANKED_SHARE: Final = 0.9
"""Of few steps even complete separation is less: then as much of that."""
EXPLAINED_RATIO_MIN: Final = 0.01
"""Least share of the present step that findings explain for the sentence to name them."""
PATIENCE: Final = 8
"""Own times are waited for over this many times the steps of a verdict: windows may be that rare."""
RISE_SHARE: Final = 0.5
"""Share of a stage's rise over the others that must be a rise over its own past, else the others have become faster.
In any case it must be `slowdown_ratio_min` of its own past."""
PAST_STEPS_MIN: Final = 24
"""Least steps of the past for a run that is compared only with its past: the variation of a young run's steps is not
known yet."""


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
        found = [self._judge(view, ranks, known.get(ranks), explained) for ranks in groups]
        return [candidate for candidate in found if candidate is not None]

    def _judge(
        self, view: RunView, ranks: tuple[int, ...], known: Finding | None, explained: Sequence[Finding]
    ) -> Candidate | None:
        slow, chosen = find_slow_ranks(explained), set(ranks)
        remaining = tuple(rank for rank in ranks if rank not in slow)
        if len(remaining) < max(2, len(ranks) / 2):
            return None  # of a stage whose ranks are found one by one nothing remains
        mine_ns = _median_own_ns(view, remaining)
        others_ns = _median_own_ns(view, tuple(rank for rank in view.series.ranks if rank not in chosen))
        change = _find_rise(view, mine_ns, mine_ns / others_ns, self._thresholds)
        if change is not None:
            change = _count_work(view, ranks, change, mine_ns, self._thresholds)
        else:
            change = _hold(view, mine_ns, known, self._thresholds)
        if change is None:
            return None
        suspects = chosen.intersection(_find_suspects(view, change, slow))
        if suspects and not _is_patience_used_up(view, change, self._thresholds.steps_min):
            return None
        nodes = {view.nodes[rank] for rank in ranks}
        alone = not any(view.nodes[rank] in nodes for rank in view.series.ranks if rank not in chosen)
        who = f"stage of {name_ranks(ranks)}"
        if len(remaining) < len(ranks):
            others = len(ranks) - len(remaining)
            who = f"stage of {name_ranks(remaining)} (without {others} slow rank{'s' if others > 1 else ''})"
        named = tuple(sorted(nodes)) if alone and len(nodes) == 1 else ()
        subject = Subject(STAGE, who, _blame(suspects, remaining, ranks), ranks, named)
        return _describe(view, change, known, mine_ns, subject)

    def has_passed(self, view: RunView, finding: Finding, explained: Sequence[Finding]) -> bool:
        """Return whether the ranks are back at their level before, those that are found to be slow excepted."""
        slow = find_slow_ranks(explained)
        ranks = tuple(rank for rank in finding.ranks if view.series.has(rank) and rank not in slow)
        return not ranks or _is_back(view, _median_own_ns(view, ranks), finding, self._thresholds)


class RunSlowdown:
    """The detector of a run that is slower than its own past."""

    kinds = frozenset({RUN})

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds

    def find(self, view: RunView, explained: Sequence[Finding]) -> Sequence[Candidate] | Abstain:
        """Return the run, if its steps have become longer and no other finding explains it."""
        others = [finding for finding in explained if finding.kind not in NO_CHANGE]
        steps_ns = _find_remaining_ns(view, others)
        known = next((finding for finding in explained if finding.kind == RUN), None)
        change = self._find_change(view, steps_ns, known)
        if change is None:
            return [] if known is not None else self._find_why_not(steps_ns) or []
        unsure_ns = find_unsure_ns(view, others, change.since_step) if known is None else 0.0
        if change.added_ns - unsure_ns < (self._thresholds.slowdown_ratio_min - 1) * change.before_ns:
            return []
        are_compared = _are_compared(view, change, self._thresholds.steps_min)
        slow = find_slow_ranks(others)
        suspects = _find_suspects(view, change, slow)
        may_be_said = are_compared and not suspects and not _have_spread(view, change, slow)
        if not may_be_said and not _is_patience_used_up(view, change, self._thresholds.steps_min):
            return []
        if not are_compared and _have_grown_apart(view, change):
            return []
        explaining = _find_explaining(view, others, change)
        blame = _blame(suspects if are_compared else view.series.ranks, explaining, ())
        if (find_unseen_share(view, change.since_step) or 0.0) >= MOSTLY:
            blame = UNSEEN
        since_step = change.since_step if known is None or known.since_step is None else known.since_step
        blame = _say_known(view, since_step, blame)
        candidate = _describe(
            view,
            change,
            known,
            steps_ns,
            Subject(RUN, "whole run", blame, besides=name_explaining(explaining) if explaining else ""),
        )
        is_of_link = candidate.finding.cause == SLOW_LINK and any(one.kind == SLOW_LINK for one in explaining)
        return [] if known is None and is_of_link else [candidate]  # what else the link costs is no second finding

    def _find_why_not(self, steps_ns: Floats) -> Abstain | None:
        """Return why a run that has only just begun cannot be compared with its past."""
        known, needed = int(np.count_nonzero(~np.isnan(steps_ns))), PAST_STEPS_MIN + self._thresholds.steps_min
        return (
            Abstain(f"{known} of the {needed} steps needed to compare the run with its own past")
            if known < needed
            else None
        )

    def _find_change(self, view: RunView, steps_ns: Floats, known: Finding | None) -> LevelChange | None:
        """Return how what remains of the steps has become longer, beyond what more tokens explain. Where batches have
        as many tokens for long enough, these steps are judged by themselves first.
        """
        alike_ns = keep_alike(view, steps_ns)
        change = None
        if alike_ns is not steps_ns:
            change = _find_rise(view, alike_ns, alike_ns, self._thresholds)
        change = change or _find_rise(view, steps_ns, steps_ns, self._thresholds, past_steps_min=PAST_STEPS_MIN)
        if change is not None:
            return _count_work(view, view.series.ranks, change, steps_ns, self._thresholds)
        if known is not None:
            return _hold(view, steps_ns, known, self._thresholds)
        return _find_slow_growth(view, steps_ns, self._thresholds)

    def has_passed(self, view: RunView, finding: Finding, explained: Sequence[Finding]) -> bool:
        """Return whether the steps, without what other findings explain now, are as short as before: for long enough,
        or, where these findings are what makes the difference, in most steps since it began, and in
        most of the latest ones.
        """
        others = [one for one in explained if one.kind not in NO_CHANGE]
        remaining_ns = _find_remaining_ns(view, others)
        if _is_back(view, remaining_ns, finding, self._thresholds):
            return True
        since = view.series.steps >= (finding.since_step or 0)
        whole_ns, remaining_ns = view.longest_ns[since], remaining_ns[since]
        whole, remaining, latest = (
            _exceed_before(view, ns, finding, self._thresholds)
            for ns in (whole_ns, remaining_ns, remaining_ns[-view.steps_min :])
        )
        return whole is True and remaining is False and latest is not True


def find_lasting_rise(
    view: RunView, others: Sequence[Finding], known: Finding | None, thresholds: Thresholds
) -> tuple[LevelChange, Floats] | None:
    """Return how the steps have become longer beyond what `others` explain, with those steps, shape (n,) in ns; None
    where they have not. With `known`, whose memory has the level before, that level is kept.
    """
    steps_ns = _find_remaining_ns(view, others)
    if known is not None:
        change = _hold(view, steps_ns, known, thresholds)
    else:
        change = _find_rise(view, steps_ns, steps_ns, thresholds, past_steps_min=PAST_STEPS_MIN)
    return None if change is None else (change, steps_ns)


def _find_remaining_ns(view: RunView, others: Sequence[Finding]) -> Floats:
    """Return the longest time of each step without what these findings explain, shape (n,) in ns. What is long past
    does not count: over it slow growth would look like a change. Nor do steps of which it is not known whether a rank
    that is slow in some of them was.
    """
    steps_ns = np.maximum(view.longest_ns - find_explained_ns(view, others), 1.0)
    steps_ns[: view.series.earlier_count] = np.nan
    begins = [one.since_step for one in others if one.kind == STRAGGLER and one.pattern == "intermittent"]
    since_step = min((step for step in begins if step is not None), default=None)
    if since_step is not None:
        steps_ns[(view.series.steps >= since_step) & ~view.is_known] = np.nan
    return np.asarray(steps_ns)


def _find_suspects(view: RunView, change: LevelChange, slow: frozenset[int]) -> tuple[int, ...]:
    """Return the ranks that are not found to be slow and may explain half of the change."""
    return find_suspects(view, change.since_step, change.level_from_step, change.added_ns, slow)


def _have_spread(view: RunView, change: LevelChange, slow: frozenset[int]) -> bool:
    """Return whether the steps are longer because ranks differ more, and not because all take longer: what holds them
    up at random (a machine that is busier for a while) makes the step that of the unluckiest rank. The one must have
    grown by as much as the other, and both by half of the added time together. The middle rank is that of
    PEERS_SAMPLED_MAX at most.
    """
    sampled = view.series.ranks[:: -(-len(view.series.ranks) // PEERS_SAMPLED_MAX)]
    middle_ns = _median_own_ns(view, sampled)
    apart_ns, together_ns = find_growths(view, change.since_step, change.level_from_step, middle_ns, slow)
    return apart_ns >= together_ns and apart_ns + together_ns >= EXPLAINED_SHARE * change.added_ns


def _find_explaining(view: RunView, others: Sequence[Finding], change: LevelChange) -> list[Finding]:
    """Return the findings that explain something of the last steps."""
    last = slice(-view.steps_min, None)
    return [
        one
        for one in others
        if one.kind == STRAGGLER
        or np.median(find_explained_ns(view, [one])[last]) >= EXPLAINED_RATIO_MIN * change.after_ns
    ]


def _blame(suspects: Collection[int], judged: Sequence[object], usual: Sequence[object]) -> Blame:
    """Return what is known about who is to blame; other ranks are found where what is `judged` is not the usual."""
    if suspects:
        return NOT_KNOWN_YET
    return NO_RANK if tuple(judged) == tuple(usual) else NO_OTHER_RANK


def _say_known(view: RunView, since_step: int, blame: Blame) -> Blame:
    """Return that no rank is to blame, with the steps that it is said by where they are few; anything else as it is."""
    known = view.is_known[view.series.steps >= since_step]
    if blame.verdict == NOT_KNOWN or len(view.series.ranks) == 1 or np.mean(known) >= KNOWN_SHARE_MIN:
        return blame
    by = f"waits known in {np.count_nonzero(known)} of {len(known)} steps since then"
    return blame._replace(words=f"{blame.words} ({by})")


def _count_work(
    view: RunView, ranks: Sequence[int], change: LevelChange, times_ns: Floats, thresholds: Thresholds
) -> LevelChange | None:
    """Return a change with the level before of as much work as its steps have (`work_growth.py`); None where it is no
    slowdown by `slowdown_ratio_min` then: these ranks' batches have as many more tokens as their steps are longer.
    """
    compared = find_compared(view, ranks, change.since_step, change.level_from_step)
    if compared == Compared(change.since_step):
        return change
    steps, before_ns = view.series.steps, change.before_ns * compared.more_work
    if compared.from_step:
        known = ~np.isnan(times_ns) & (steps >= compared.from_step) & (steps < change.since_step)
        before_ns = float(np.median(times_ns[known])) if known.any() else before_ns
    counted = change._replace(before_ns=before_ns, more_tokens=compared.more_work)
    return counted if counted.after_ns >= thresholds.slowdown_ratio_min * before_ns else None


def _median_own_ns(view: RunView, ranks: Sequence[int]) -> Floats:
    """Return the middle own time of these ranks in each step, shape (n,) in ns; NaN where fewer than half of them are
    known.
    """
    own_ns = view.series.own_ns[:, view.series.columns_of(ranks)]
    found = np.full(len(own_ns), np.nan)
    enough = 2 * np.count_nonzero(~np.isnan(own_ns), axis=1) >= max(1, len(ranks))
    if enough.any():
        found[enough] = np.maximum(middle_of_ranks(own_ns[enough]), 1.0)
    return found


def _find_rise(
    view: RunView, times_ns: Floats, ratios: Floats, thresholds: Thresholds, *, past_steps_min: int = 0
) -> LevelChange | None:
    """Return the last change of level of `ratios` if it is a rise, also of `times_ns`, and lasts; both of shape
    (n,).
    """
    known = np.flatnonzero(~np.isnan(ratios))
    if len(known) < 2 * thresholds.steps_min:
        return None
    logs = np.log(ratios[known])
    past_steps_min = max(thresholds.steps_min, past_steps_min)
    for find in (_find_ramp, _find_jump):
        rise = find(logs, thresholds, past_steps_min)
        if rise is None:
            continue
        before_ns = float(np.median(times_ns[known[: rise.since]]))
        after_ns = float(np.median(times_ns[known[rise.level_from :]]))
        if math.log(after_ns / before_ns) >= max(RISE_SHARE * rise.size, math.log(thresholds.slowdown_ratio_min)):
            steps = view.series.steps[known]
            since_range = to_since_range(steps, *find_begin_range(logs, rise.since, len(logs)))
            return LevelChange(
                since_step=int(steps[rise.since]),
                before_ns=before_ns,
                after_ns=after_ns,
                robust_z=rise.robust_z,
                steps=len(known) - rise.since,
                level_from_step=int(steps[rise.level_from]),
                is_gradual=rise.is_gradual,
                since_range=since_range,
            )
    return None


def _hold(view: RunView, times_ns: Floats, known: Finding | None, thresholds: Thresholds) -> LevelChange | None:
    """Return the change of an open finding with the present level; None without one, or where it is below
    `slowdown_close_ratio` of the level before.
    """
    rows = np.flatnonzero(~np.isnan(times_ns))
    if known is None or known.since_step is None or len(rows) < thresholds.steps_min:
        return None
    before_ns = _recall_before(view, known)
    if before_ns is None:
        return None
    rows = rows[find_last_change(np.log(times_ns[rows]), thresholds.steps_min) :]
    after_ns = float(np.median(times_ns[rows]))
    if after_ns < thresholds.slowdown_close_ratio * before_ns:
        return None
    return LevelChange(
        since_step=known.since_step,
        before_ns=before_ns,
        after_ns=after_ns,
        robust_z=recall(known).robust_z,
        steps=len(rows),
        level_from_step=int(view.series.steps[rows[0]]),
    )


def _find_slow_growth(view: RunView, times_ns: Floats, thresholds: Thresholds) -> LevelChange | None:
    """Return how the run has grown slower over more steps than are kept; None where it has not."""
    growth = find_slow_growth(view, times_ns, thresholds)
    if growth is None:
        return None
    return LevelChange(
        since_step=growth.since_step,
        before_ns=growth.before_ns,
        after_ns=growth.after_ns,
        robust_z=growth.robust_z,
        steps=CLOSE_STEPS_MAX,
        level_from_step=growth.level_from_step,
        is_gradual=True,
        since_range=(growth.earliest_step, growth.latest_step),
        more_tokens=growth.more_tokens,
    )


class _Rise(NamedTuple):
    """A rise of a series: the first value of it, the first of the present level, its size, and that in standard
    errors.
    """

    since: int
    level_from: int
    size: float
    robust_z: float
    is_gradual: bool


def _find_jump(logs: Floats, thresholds: Thresholds, past_steps_min: int) -> _Rise | None:
    """Return the last change of level, if it is a rise that lasts."""
    since = find_last_change(logs, thresholds.steps_min)
    if since < past_steps_min:
        return None
    noise = measure_noise(logs, since)
    before = float(np.median(logs[:since]))
    size = float(np.median(logs[since:])) - before
    error = math.hypot(noise.median_error(since), noise.median_error(len(logs) - since), SIGMA_FLOOR)
    if np.median(logs[-thresholds.steps_min :]) - before < math.log(thresholds.slowdown_close_ratio):
        return None  # it is over
    is_large = size >= math.log(thresholds.slowdown_ratio_min) and size >= thresholds.robust_z_min * error
    lasts = np.mean(logs[since:] > before + size / 2) >= thresholds.persistence_ratio
    ranked, ranked_max = rank_sum_deviations(logs[:since], logs[since:])
    is_sure = ranked >= min(RANKED_MIN, RANKED_SHARE * ranked_max)
    return _Rise(since, since, size, size / error, is_gradual=False) if is_large and lasts and is_sure else None


def _find_ramp(logs: Floats, thresholds: Thresholds, past_steps_min: int) -> _Rise | None:
    """Return the rise of a series that grows gradually to its present level."""
    level_from = len(logs) - thresholds.steps_min
    risen = float(np.median(logs[level_from:]) - np.median(logs[:past_steps_min]))
    if level_from < past_steps_min or risen < math.log(thresholds.slowdown_ratio_min):
        return None
    ramp = fit_ramp(logs)
    if not ramp.is_gradual or not past_steps_min <= ramp.begin <= level_from:
        return None
    noise = measure_noise(logs - ramp.values(logs), 0)
    size = float(np.median(logs[level_from:]) - np.median(logs[: ramp.begin]))
    error = math.hypot(noise.median_error(ramp.begin), noise.median_error(thresholds.steps_min), SIGMA_FLOOR)
    is_large = size >= math.log(thresholds.slowdown_ratio_min) and size >= thresholds.robust_z_min * error
    return _Rise(ramp.begin, level_from, size, size / error, is_gradual=True) if is_large else None


def _are_compared(view: RunView, change: LevelChange, steps_min: int) -> bool:
    """Return whether enough own times are known since the change to name a slow rank: waits are known later than
    steps.
    """
    compared = (view.series.steps >= change.since_step) & view.is_known
    return len(view.series.ranks) == 1 or bool(np.count_nonzero(compared) >= steps_min)


def _is_patience_used_up(view: RunView, change: LevelChange, steps_min: int) -> bool:
    """Return whether so many steps were made since the change that a rank to blame should have been found."""
    return bool(np.count_nonzero(view.series.steps >= change.since_step) >= PATIENCE * steps_min)


def _have_grown_apart(view: RunView, change: LevelChange) -> bool:
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
    grown_ns = np.sort(np.median(computing_ns[known & since], axis=0) - np.median(computing_ns[known & ~since], axis=0))
    most_ns, typical_ns = grown_ns[-1], grown_ns[(len(grown_ns) - 1) // 2]
    return bool(most_ns >= EXPLAINED_SHARE * change.added_ns and 2 * typical_ns < most_ns)


def _is_back(view: RunView, times_ns: Floats, finding: Finding, thresholds: Thresholds) -> bool:
    """Return whether the level is that of before again, for as many known steps as had shown the rise; True where that
    of before is not known.
    """
    before_ns = _recall_before(view, finding)
    if before_ns is None:
        return True
    logs = np.log(np.maximum(times_ns, 1.0) / before_ns)
    steps = min(steps_to_close(finding), int(np.count_nonzero(~np.isnan(logs))))
    return has_recovered(logs, thresholds, steps)


def _exceed_before(view: RunView, times_ns: Floats, finding: Finding, thresholds: Thresholds) -> bool | None:
    """Return whether the median of these times, shape (n,) in ns, is above the level before a finding by
    `slowdown_close_ratio`; None where fewer than `steps_min` are known.
    """
    known_ns, before_ns = times_ns[~np.isnan(times_ns)], _recall_before(view, finding)
    if len(known_ns) < thresholds.steps_min or before_ns is None:
        return None
    return bool(np.median(known_ns) >= thresholds.slowdown_close_ratio * before_ns)


def _recall_before(view: RunView, finding: Finding) -> float | None:
    """Return the level before that an open finding is compared with, for as many tokens as at present, in ns; None
    where it is not known.
    """
    before_ns = recall(finding).before_ns
    return None if before_ns is None else before_ns * find_growth_since(view, finding)


def _replace_unattributed(
    cause: Cause, known: Finding | None, step_before_ns: float | None, *, has_steps_before: bool
) -> Cause:
    """Return what can be said of the cause when no test passes now. One that was found stays once the steps before the
    begin, or the windows in them, are kept no more: nothing contradicts it. `step_before_ns` is None where the steps
    were kept no more when the change was found.
    """
    if known is not None and known.cause != UNATTRIBUTED:
        undecided = find_undecided(known, cause.evidence)
        if undecided or not has_steps_before:
            return Cause(known.cause, FOUND_EARLIER, {**cause.evidence, **undecided})
    return cause if has_steps_before or step_before_ns is not None else Cause(UNATTRIBUTED, NOT_KEPT, {})


def _keep_begin(view: RunView, change: LevelChange, known: Finding | None) -> LevelChange:
    """Return a change with the begin and the level before of the open finding, which may have left the step table."""
    memory = recall(known)
    if known is None or known.since_step is None or memory.before_ns is None:
        return change
    grown = find_growth_since(view, known)
    return change._replace(
        since_step=known.since_step,
        before_ns=memory.before_ns * grown,
        since_range=known.since_range,
        more_tokens=memory.more_tokens * grown,
    )


def _find_step_before(view: RunView, change: LevelChange, known: Finding | None, from_step: int) -> float | None:
    """Return the step before a change in ns, with as many tokens as those since then; None where it is not known."""
    before_ns = find_step_before(view, change.since_step, known, from_step)
    return None if before_ns is None else before_ns * change.more_tokens / recall(known).more_tokens


def _count_tokens(view: RunView, ranks: Sequence[int], change: LevelChange, known: Finding | None) -> float:
    """Return the tokens in a rank's batch that the level before counts for; 0 where they are not known."""
    if known is None:
        return find_present_tokens(view, ranks) or 0.0
    return recall(known).tokens * change.more_tokens / recall(known).more_tokens


def _describe(
    view: RunView, change: LevelChange, known: Finding | None, times_ns: Floats, subject: Subject
) -> Candidate:
    """Build the finding about a stage or the run, whose times are `times_ns`, shape (n,)."""
    change = _keep_begin(view, change, known)
    since, before_ns = change.since_step, change.before_ns
    pattern = DRIFTING if change.is_gradual or (known is not None and known.pattern == DRIFTING) else "steady"
    ranks = subject.ranks or view.series.ranks
    compared = find_compared(view, ranks, since, since)
    step_before_ns = _find_step_before(view, change, known, compared.from_step)
    cause = find_cause_of_change(view, ranks, compared, _find_added_ns(view, change, times_ns, compared, pattern))
    if cause.name == UNATTRIBUTED:
        has_steps_before = int(np.count_nonzero(view.series.steps < since)) >= view.steps_min
        cause = _replace_unattributed(cause, known, step_before_ns, has_steps_before=has_steps_before)
    if cause.name == UNSEEN_WAIT and subject.blame.verdict != NOT_KNOWN:
        subject = subject._replace(blame=OF_UNSEEN)  # it may be a rank that is late where no report shows it
    lost_ns = np.where(view.series.steps >= since, np.maximum(times_ns - before_ns, 0.0), 0.0)
    if step_before_ns is not None:  # a stage that is slow hides bubbles of the pipeline
        lost_ns = np.minimum(lost_ns, np.maximum(view.longest_ns - step_before_ns, 0.0))
    cost = price(lost_ns, view, max(since, change.level_from_step), is_over_level=True)
    tokens = _count_tokens(view, ranks, change, known)
    more_tokens = change.more_tokens if tokens else 1.0
    since_min, since_max = change.since_range or (None, None)
    finding = Finding(
        kind=subject.kind,
        ranks=subject.ranks,
        nodes=subject.nodes,
        since_step=since,
        since_step_min=since_min,
        since_step_max=since_max,
        slowdown_ratio=change.after_ns / before_ns,
        cause=cause.name,
        pattern=pattern,
        what=write_what(change, subject, pattern),
        who=subject.who,
        why=cause.because,
        also=(subject.blame.words,),
        suggestion=suggest(subject.kind, cause.name),
        run_slowdown_ratio=cost,
        evidence={
            **cause.evidence,
            "before_ns": before_ns,
            "after_ns": change.after_ns,
            "robust_z": change.robust_z,
            **({MORE_TOKENS: more_tokens} if more_tokens > 1.0 else {}),
        },
        details={BLAME: subject.blame.verdict},
    )
    memory = FindingMemory(
        steps_to_close=keep_steps_to_close(known, change.steps),
        step_before_ns=step_before_ns,
        before_ns=before_ns,
        robust_z=change.robust_z,
        tokens=tokens,
        more_tokens=more_tokens,
    )
    return Candidate(remember(finding, memory), lost_ns)


def _find_added_ns(view: RunView, change: LevelChange, times_ns: Floats, compared: Compared, pattern: str) -> float:
    """Return by how much the steps since the begin are longer than before, to compare with the parts of a step: of a
    ramp, also one that is held at its present level, those of its middle, as the parts are compared by their medians.
    """
    if pattern != DRIFTING:
        return change.added_ns
    before_ns = change.before_ns * compared.more_work / change.more_tokens
    return float(np.nanmedian(times_ns[view.series.steps >= change.since_step])) - before_ns
