"""Build the findings about stragglers, with nodes whose ranks are nearly all slow as one finding."""

import math
import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import numpy as np

from rankscope.collector.detect.finding import (
    PERIODIC_WORK,
    SLOW_LINK,
    STRAGGLER,
    Abstain,
    Finding,
)
from rankscope.collector.detect.finding_memory import FindingMemory, recall, remember
from rankscope.collector.detect.finding_words import describe_begin
from rankscope.collector.detect.stragglers import intermittent
from rankscope.collector.detect.stragglers.begin import date_begin, find_since_range, was_slow
from rankscope.collector.detect.stragglers.cost import (
    Healthy,
    find_pipeline_before,
    lost_to,
    lost_together,
    price,
    spared_by,
)
from rankscope.collector.detect.stragglers.doubt import describe_doubt
from rankscope.collector.detect.stragglers.host_times import is_held_up_alike
from rankscope.collector.detect.stragglers.late_compilation import find_late_compilation
from rankscope.collector.detect.stragglers.more_work import MORE_WORK
from rankscope.collector.detect.stragglers.periodic_work import OwnWork, describe_own_work, find_own_work
from rankscope.collector.detect.stragglers.persistent import (
    SlowRank,
    Thresholds,
    find_stragglers,
    has_recovered,
    keep_steps_to_close,
    steps_to_close,
)
from rankscope.collector.detect.stragglers.recompilation import RECOMPILATION
from rankscope.collector.detect.stragglers.recording import add_recorded
from rankscope.collector.detect.stragglers.recurring_stalls import describe_recurring, find_recurring
from rankscope.collector.detect.stragglers.root_cause import (
    COMPUTE_EXCESS,
    CPU_PRESSURE,
    IDLE_EXCESS,
    Cause,
    find_cause,
)
from rankscope.collector.detect.stragglers.sentence import (
    describe_level,
    describe_own,
    describe_slow_layer,
    name_others,
    write_what,
    write_who,
)
from rankscope.collector.detect.stragglers.slow_nodes import find_slow_nodes
from rankscope.collector.detect.stragglers.slow_sets import SlowSet, join_alike, join_nodes
from rankscope.collector.detect.stragglers.turns import find_in_turns, is_turn
from rankscope.collector.detect.stragglers.witness import is_contradicted, read_witness
from rankscope.collector.detect.suggestions import UNATTRIBUTED, suggest
from rankscope.collector.detect.view import Candidate, RunView
from rankscope.collector.steps.step_series import Floats
from rankscope.measure.units import NS_PER_S

EXPLAINED_RATIO_MAX: Final = 1.25
"""Ratio of a rank's excess to its transfers' up to which the transfers explain it: both are medians of noisy steps."""
DESCRIBED_MAX: Final = 64
"""Slow ranks and nodes described in one detection pass, the slowest first. Of more, those that became slow together are
one before their causes are known."""
LASTED_S: Final = 3.0
"""How long a steady slowness lasts before its rank is named: less is nothing to act on, and where ranks take turns
another one's may have begun.
"""
LASTED_SHARE: Final = 0.25
"""Share of the steps of a run that is over, from which on it is named all the same: a run may be of a few seconds."""
CAUSES_READ_MAX: Final = 8
"""Ranks of a slow node whose causes are looked for."""
GAP: Final = "gap_steps"
"""Evidence key of an intermittent slowness: the usual gap between its slow periods, in steps."""
LEVEL_FROM: Final = "level_from_step"
"""Evidence key: the first step of the present level of a slowness that was larger or smaller before."""


class Stragglers:
    """The detector of stragglers, and of ranks that are slow for work of their own."""

    kinds = frozenset({STRAGGLER, PERIODIC_WORK})

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds

    def find(self, view: RunView, explained: Sequence[Finding]) -> Sequence[Candidate] | Abstain:
        """Return every rank or node that is slow now, slowest first, without those that slow links explain, and those
        that a second witness contradicts.
        """
        reason = describe_lags(view, self._thresholds.steps_min)
        if reason:
            return Abstain(reason)
        known = {rank: finding for finding in explained if finding.kind in self.kinds for rank in finding.ranks}
        steadily = [
            rank for rank, finding in known.items() if finding.kind == STRAGGLER and finding.pattern != "intermittent"
        ]
        of_nodes = find_slow_nodes(view, self._thresholds, steadily)
        verdict = find_stragglers(view, self._thresholds, steadily, among=of_nodes.not_explained(view.series.ranks))
        if view.samples.are_of_traces:
            verdict = add_recorded(view, verdict, self._thresholds)
        if isinstance(verdict, Abstain):
            return verdict
        verdict = of_nodes.add_to(verdict)
        steady = {slow.rank for slow in verdict}
        intermittently = intermittent.find_intermittent(view, self._thresholds, steady)
        loaded = {rank for finding in explained if finding.kind == MORE_WORK for rank in finding.ranks}
        slow_ranks = [
            slow
            for slow in verdict
            if slow.rank not in loaded
            and (slow.rank in known or _has_lasted(slow, view))
            and not is_explained_by_links(slow, view, explained)
        ]
        intermittently = tuple(slow for slow in intermittently if slow.rank not in loaded)
        if slow_ranks or intermittently:
            turns = find_in_turns(view, self._thresholds)
            in_turns = {rank: turn for rank, turn in turns.items() if rank not in known}
            slow_ranks = [
                slow for slow in slow_ranks if slow.rank not in in_turns or not is_turn(slow, in_turns[slow.rank], view)
            ]
            intermittently = tuple(slow for slow in intermittently if slow.rank not in in_turns)
        joined = [
            *join_nodes([slow for slow in slow_ranks if not is_contradicted(slow, view.series)], view.nodes),
            *join_nodes([slow for slow in intermittently if not is_contradicted(slow, view.series)], view.nodes),
        ]
        if len(joined) > DESCRIBED_MAX:
            joined = join_alike(joined, [""] * len(joined), known)
        described = [
            SlowSet(slow_set.nodes, _date_begins(slow_set.ranks, view, explained))
            for slow_set in joined[:DESCRIBED_MAX]
        ]
        with_causes = [
            (slow_set, cause)
            for slow_set, cause in _join_with_causes(view, described, known)
            if not _is_of_all(slow_set, cause, known)
        ]
        described, causes = [slow_set for slow_set, _ in with_causes], [cause for _, cause in with_causes]
        works = [
            _find_own_work(view, slow_set.ranks, cause, known)
            for slow_set, cause in zip(described, causes, strict=True)
        ]
        slower = [position for position, work in enumerate(works) if work is None]
        together = _Together(view, [described[position] for position in slower], known)
        accused = steady.union(slow.rank for slow_set in described for slow in slow_set.ranks)
        recurring = self._find_recurring(view, accused, known)
        accused |= {rank for one in recurring for rank in one.finding.ranks}
        accused |= {rank for rank, one in known.items() if one.cause != RECOMPILATION}
        candidates = [
            *recurring,
            *find_late_compilation(view, accused, known),
            *(_describe(view, together, number, causes[position], known) for number, position in enumerate(slower)),
            *(
                _describe_own_work(view, slow_set, cause, work, known)
                for slow_set, cause, work in zip(described, causes, works, strict=True)
                if work is not None
            ),
        ]
        doubt = "" if candidates or known or view.samples.are_of_traces else describe_doubt(view)
        return Abstain(doubt) if doubt else candidates

    def _find_recurring(self, view: RunView, named: Collection[int], known: Mapping[int, Finding]) -> list[Candidate]:
        """Return the ranks that stop now and then, of those that are not `named` by what the kept steps show."""
        found = find_recurring(view.long_steps, len(view.series.ranks), known)
        steady = {rank for rank, one in known.items() if one.pattern != "intermittent"}
        return [
            describe_recurring(view, one, known.get(one.rank))
            for one in found
            if one.rank not in named and one.rank not in steady
        ]

    def has_passed(self, view: RunView, finding: Finding, explained: Sequence[Finding]) -> bool:
        """Return whether every rank of the finding has recovered, or the other kind of finding is about it now."""
        if _is_replaced(finding, explained):
            return True
        if recall(finding).holds_while_found:
            return True  # else `find` had found it again
        ranks = [rank for rank in finding.ranks if view.series.has(rank)]
        if finding.pattern == "intermittent":
            return intermittent.has_passed(view, ranks, self._thresholds, recall(finding).gap_known_steps)
        steps = steps_to_close(finding)
        return all(has_recovered(view.excess_of(rank), self._thresholds, steps) for rank in ranks)


def _date_begins(slow_ranks: Sequence[SlowRank], view: RunView, findings: Sequence[Finding]) -> tuple[SlowRank, ...]:
    """Return slow ranks with their begins; those that were judged as one node are dated once."""
    dated: dict[int, SlowRank] = {}
    for slow in slow_ranks:
        if id(slow.slow_steps) not in dated:
            dated[id(slow.slow_steps)] = date_begin(slow, view, findings)
    return tuple(_begin_as(slow, dated[id(slow.slow_steps)]) for slow in slow_ranks)


def _begin_as(slow: SlowRank, other: SlowRank) -> SlowRank:
    return slow._replace(
        since_step=other.since_step,
        before_step=other.before_step,
        level_from_step=other.level_from_step,
        since_range=other.since_range,
    )


def _has_lasted(slow: SlowRank, view: RunView) -> bool:
    """Return whether a steady slowness is old enough to be told."""
    lasted_ns = float(np.nansum(view.longest_ns[view.series.steps >= slow.since_step]))
    if view.is_last and lasted_ns >= LASTED_SHARE * float(np.nansum(view.longest_ns)):
        return True
    return lasted_ns >= LASTED_S * NS_PER_S


def _is_replaced(finding: Finding, explained: Sequence[Finding]) -> bool:
    """Return whether an intermittent straggler is known as work of its own now, or the other way round, or a slow rank
    to have more work.
    """
    if {rank for one in explained if one.kind == MORE_WORK for rank in one.ranks}.issuperset(finding.ranks):
        return True
    other = {STRAGGLER: PERIODIC_WORK, PERIODIC_WORK: STRAGGLER}[finding.kind]
    return finding.pattern == "intermittent" and any(
        one.kind == other and one.ranks == finding.ranks and one.pattern == finding.pattern for one in explained
    )


def describe_lags(view: RunView, steps_min: int) -> str:
    """Return why the waits of no rank are known since some rank left out a collective, after `steps_min` steps of it;
    empty where that is not so.
    """
    series = view.series
    if not series.lags:
        return ""
    lag = min(series.lags, key=lambda lag: lag.since_step)
    since = series.steps >= lag.since_step
    if np.count_nonzero(since) < steps_min or view.is_known[since].any():
        return ""
    others = len({one.rank for one in series.lags} - {lag.rank})
    more = f"; so {'have' if others > 1 else 'has'} {others} more rank{'s' if others > 1 else ''}" if others else ""
    begin = describe_begin(lag.since_step, (lag.since_step_min, lag.since_step), is_gradual=False)
    return (
        f"rank {lag.rank} is {lag.distance} in group {lag.group} since {begin}: it has called "
        f"{'fewer' if lag.behind > 0 else 'more'} of them than the other members, so that their waits cannot be matched"
        f"{more}"
    )


def read_usual(findings: Sequence[Finding]) -> dict[int, float]:
    """Return the usual excess of ranks without peers from open findings; it may predate the step table."""
    return {rank: value for finding in findings for rank, value in recall(finding).usual.items()}


def is_explained_by_links(slow: SlowRank, view: RunView, explained: Sequence[Finding]) -> bool:
    """Return whether open findings about links explain a slow rank: its excess is no more than that of the transfers of
    its groups.

    Where it is not known how much of a collective was exposed, the transfer counts as own time (`wait_times.py`), and
    all members of a group with a slow link look slow, beside ranks of other groups. Where it is known, and beside peers
    of the same group, a slow link makes no member look slow.
    """
    if view.series.own_is_measured and not view.series.own_has_transfers:
        return False
    transfer_ns = sum(
        excess_ns
        for finding in explained
        if finding.kind == SLOW_LINK
        for group, excess_ns in recall(finding).transfer_excesses_ns.items()
        if _is_set_apart(slow, view.groups.get(group, ()))
    )
    return slow.excess_ns <= EXPLAINED_RATIO_MAX * transfer_ns


class _Together:
    """Slow ranks and nodes of one pass, and what they cost: the first one states the cost of all, each other one its
    own. `lost_ns`: what each step lost to each of them, shape (n,) in ns. Ranks of open findings that do not pass every
    test in this pass are slow as well.
    """

    def __init__(self, view: RunView, found: Sequence[SlowSet], known: Mapping[int, Finding]) -> None:
        self._view = view
        self._known = known
        self.found = found
        self._slow = known.keys() | {slow.rank for one in found for slow in one.ranks}
        begins = [slow.since_step for one in found for slow in one.ranks]
        begins += [one.since_step for one in known.values() if one.since_step is not None]
        self._before_step = min(begins, default=0)
        before_ns = find_pipeline_before(view, self._before_step, known.values())
        self._healthy = Healthy(view, self._slow, before_ns)
        self.lost_ns = [self._lost_to(one.ranks) for one in found]

    def _lost_to(self, slow_ranks: Sequence[SlowRank]) -> Floats:
        """Return what each step lost to a set. Ranks that became slow together hide each other: of several no step is
        charged to one of them.
        """
        if len(slow_ranks) > 1:
            return lost_together([slow_ranks], self._view, self._healthy, self._before_step)
        return lost_to(slow_ranks[0], self._view, self._healthy)

    def price(self, number: int, since_step: int) -> float:
        """Return the cost of one of them, of the first that of all, since a step."""
        priced = range(len(self.found)) if number == 0 else (number,)
        lost_ns = self.lost_ns[number]
        if len(self.found) > 1:
            sets = [self.found[place].ranks for place in priced]
            lost_ns = lost_together(sets, self._view, self._healthy, self._before_step)
        others = sorted(rank for rank in self._slow - self._ranks_of(number) if self._view.series.has(rank))
        if number and others:
            rest_ns = self._healthy.usual_rest_ns(self.found[number].ranks[0], self._before_step)
            lost_ns = spared_by(lost_ns, self._view, others, rest_ns)
        return price(lost_ns, self._view, since_step)

    @property
    def step_before_ns(self) -> float | None:
        """Return what the cost of a pipeline's rank stands on, for the passes after this one; None for any other."""
        return self._healthy.step_before_ns

    def _ranks_of(self, number: int) -> set[int]:
        """Return the ranks of one of them, with those that an open finding about any of them has."""
        mine = {one.rank for one in self.found[number].ranks}
        return mine.union(*(self._known[rank].ranks for rank in mine if rank in self._known))

    def others(self, number: int) -> tuple[int, ...]:
        """Return the ranks, ascending, whose slowness is in the cost that one of them states beside its own."""
        return tuple(sorted(slow.rank for one in self.found[1:] for slow in one.ranks)) if number == 0 else ()


def _is_set_apart(slow: SlowRank, members: Collection[int]) -> bool:
    """Return whether a rank is a member of a group, and more than half of its peers are not."""
    among = set(members)
    return slow.rank in among and 2 * len(among.intersection(slow.peers.ranks)) < len(slow.peers.ranks)


def _describe(view: RunView, together: _Together, number: int, cause: Cause, known: Mapping[int, Finding]) -> Candidate:
    """Build the finding about one rank, or about the ranks of one node with the numbers of the slowest."""
    nodes, slow_ranks = together.found[number]
    cause = _recall_cause(cause, known.get(slow_ranks[0].rank))
    slow = _align_begin(view, slow_ranks, known)
    cost = together.price(number, slow.since_step if slow.pattern == "intermittent" else slow.level_from_step)
    others = together.others(number)
    witness = read_witness(slow, view.series)
    evidence = {
        **cause.evidence,
        **({} if witness is None else witness.evidence),
        **_wait_caused(view, slow_ranks, slow),
        "own_ns": slow.own_ns,
        "peers_own_ns": slow.peers_own_ns,
        **slow.tests,
    }
    level_from_step = slow.level_from_step if slow.level_is_seen and slow.level_from_step > slow.since_step else None
    if level_from_step is not None:
        evidence[LEVEL_FROM] = float(level_from_step)
    is_intermittent = slow.pattern == "intermittent"
    if is_intermittent:
        evidence[GAP] = float(intermittent.find_period(slow.slow_steps)[0])
    memory = FindingMemory(
        steps_to_close=keep_steps_to_close(known.get(slow.rank), slow.steps_judged),
        step_before_ns=together.step_before_ns,
        level_from_step=level_from_step,
        told_level_step=slow.told_level_step,
        gap_known_steps=intermittent.count_known_between(view, slow.slow_steps) if is_intermittent else 0.0,
        usual={
            one.rank: float(view.usual[view.series.column_of(one.rank)])
            for one in slow_ranks
            if not one.peers.do_same_work
        },
    )
    since_min, since_max = slow.since_range or (None, slow.since_step)
    finding = Finding(
        kind=STRAGGLER,
        ranks=tuple(sorted(slow_rank.rank for slow_rank in slow_ranks)),
        nodes=nodes,
        since_step=slow.since_step,
        since_step_min=since_min,
        since_step_max=since_max,
        slowdown_ratio=slow.slowdown_ratio,
        cause=cause.name,
        pattern=slow.pattern,
        what=write_what(slow_ranks, slow, view.series),
        who=write_who(slow_ranks, nodes),
        node=view.nodes[slow.rank],
        why=cause.because,
        also=(
            *describe_level(slow),
            *(() if witness is None else (witness.describe(slow.rank),)),
            *(describe_slow_layer(view.layers, slow) if len(slow_ranks) == 1 else ()),
        ),
        cost_of=name_others(others),
        suggestion=suggest(STRAGGLER, cause.name),
        run_slowdown_ratio=cost,
        evidence=evidence,
        details=describe_own(view.series),
    )
    return Candidate(remember(finding, memory), together.lost_ns[number])


def _join_with_causes(
    view: RunView, alone: Sequence[SlowSet], known: Mapping[int, Finding]
) -> list[tuple[SlowSet, Cause]]:
    """Return the sets, those that became slow together joined, with their causes: of a joined one it is looked for
    anew.
    """
    causes = [_find_cause(view, one.ranks, known) for one in alone]
    found = {(one.ranks[0].rank, len(one.ranks)): cause for one, cause in zip(alone, causes, strict=True)}
    return [
        (one, found.get((one.ranks[0].rank, len(one.ranks))) or _find_cause(view, one.ranks, known))
        for one in join_alike(alone, [cause.name for cause in causes], known)
    ]


def _is_of_all(one: SlowSet, cause: Cause, known: Mapping[int, Finding]) -> bool:
    """Return whether a rank that no open finding is about is slow for what holds its peers up as well: machines that
    are busy with something else (`run_rules/rules.py`). Then no rank is named.
    """
    is_new = not one.nodes and one.ranks[0].rank not in known
    return is_new and cause.name == CPU_PRESSURE and is_held_up_alike(cause.evidence)


def _find_own_work(
    view: RunView, slow_ranks: Sequence[SlowRank], cause: Cause, known: Mapping[int, Finding]
) -> OwnWork | None:
    """Return the work of its own that an intermittently slow rank does; None for any other slowness."""
    slow = slow_ranks[0]
    if len(slow_ranks) > 1 or slow.pattern != "intermittent":
        return None
    return find_own_work(view, slow, cause, known.get(slow.rank))


def _describe_own_work(
    view: RunView,
    one: SlowSet,
    cause: Cause,
    work: OwnWork,
    known: Mapping[int, Finding],
) -> Candidate:
    """Build the finding about work of its own, whose cost is stated by itself."""
    slow, together = one.ranks[0], _Together(view, [one], {})
    candidate = _describe(view, together, 0, cause, known)
    cost = together.price(0, slow.since_step)
    finding = describe_own_work(candidate.finding, slow, work, cost, known=known.get(slow.rank))
    return candidate._replace(finding=finding)


def _align_begin(view: RunView, slow_ranks: Sequence[SlowRank], known: Mapping[int, Finding]) -> SlowRank:
    """Return the slowest rank with the begin of all. That of an open finding is kept: the change may have left the step
    table, and a later one is no begin. An earlier one replaces it if the steps between were slow.
    """
    slow, begin = slow_ranks[0], statistics.median_low(one.since_step for one in slow_ranks)
    findings = [known[one.rank] for one in slow_ranks if one.rank in known]
    first = min(findings, key=lambda one: math.inf if one.since_step is None else one.since_step, default=None)
    found = None if first is None else first.since_step
    if found is not None and (begin > found or not was_slow(view, slow.rank, begin, found)):
        begin = found
    since_range = find_since_range(slow, begin, view, None if first is None else first.since_range)
    level_from_step = recall(known.get(slow.rank)).level_from_step
    if not slow.level_is_seen and level_from_step is not None:  # that has left the step table, too
        slow = slow._replace(level_from_step=level_from_step, level_is_seen=True)
    slow = slow._replace(since_step=begin, since_range=since_range)
    return slow._replace(told_level_step=_find_told_level(view, slow, known.get(slow.rank)))


def _find_told_level(view: RunView, slow: SlowRank, known: Finding | None) -> int | None:
    """Return the begin of the level that the sentence tells of: the present one, where the one before clearly differs.
    It does not move while the finding is open: after another such change there is none, which is 0. None: not yet.
    """
    told = recall(known).told_level_step
    if not slow.level_is_other or slow.level_from_step <= slow.since_step:
        return told
    if told is None:
        return slow.level_from_step
    steps = view.series.steps[~np.isnan(view.excess_of(slow.rank))]
    later = np.count_nonzero((steps >= told) & (steps < slow.level_from_step))
    return 0 if later >= view.steps_min else told


def _find_cause(view: RunView, slow_ranks: Sequence[SlowRank], known: Mapping[int, Finding]) -> Cause:
    """Return the most common cause of these ranks, of equally common ones the slowest's."""
    causes = [
        find_cause(_recall_begin(one, known), view.series, view.samples, view.machines, view.excess_ns)
        for one in slow_ranks[:CAUSES_READ_MAX]
    ]
    (name, _), *_ = Counter(cause.name for cause in causes).most_common()
    return next(cause for cause in causes if cause.name == name)


def _recall_cause(cause: Cause, finding: Finding | None) -> Cause:
    """Return the cause of an open finding where none is known now and nothing has been measured that speaks against it:
    of a slowness in bouts windows meet some.
    """
    is_measured = IDLE_EXCESS in cause.evidence or COMPUTE_EXCESS in cause.evidence
    if cause.name != UNATTRIBUTED or finding is None or not finding.cause or is_measured:
        return cause
    return Cause(finding.cause, finding.why, cause.evidence)


def _recall_begin(slow: SlowRank, known: Mapping[int, Finding]) -> SlowRank:
    """Return a slow rank with the last step before its open finding began, which may have left the step table: what was
    there when it became slow is no older for a level that begins later.
    """
    begin = known[slow.rank].since_step_min if slow.rank in known else None
    if begin is None or (slow.before_step is not None and slow.before_step < begin):
        return slow
    return slow._replace(before_step=begin - 1)


def _wait_caused(view: RunView, slow_ranks: Sequence[SlowRank], since: SlowRank) -> dict[str, float]:
    """Return what all ranks wait per step because of these, since the present level; empty when not known. It is the
    median, for an intermittent slowness the mean.
    """
    if view.series.wait_caused_ns is None:
        return {}
    rows = view.series.steps >= since.level_from_step
    columns = view.series.columns_of([slow.rank for slow in slow_ranks])
    caused_ns = view.series.wait_caused_ns[rows][:, columns].sum(axis=1)
    known = caused_ns[~np.isnan(caused_ns)]
    middle = np.mean if since.pattern == "intermittent" else np.median
    return {"wait_caused_ns": float(middle(known))} if len(known) else {}
