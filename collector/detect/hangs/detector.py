"""Find the rank that keeps a hanging run waiting, or say why none can be named (docs/definitions.md section 6).

From the graph of who waits for whom (wait_graph.py), the first of these that holds:

    dead_rank           a rank failed by itself before the others stalled, or others wait for one that is gone
    missing_rank        others wait in a collective that this rank, alive and stalled, has not enqueued; or all ranks
                        are stalled, the others in calls that wait for ranks without a record (for a key of the store,
                        in a `monitored_barrier`), and this one in none
    order_mismatch      at the same place in a group ranks have called different collectives, or with different sizes
    silent_rank         others wait for a rank that does not report; it is not known whether its process is alive
    busy_rank           others wait for a rank that works on something else: its stack moves, its CPU time grows, or its
                        main thread wakes all the time
    data_wait           others wait for a rank that waits for a batch
    deadlock            ranks wait for each other in a cycle, in different groups
    unmatched_transfer  a rank waits in a send or receive whose other end its peer has not made, which waits elsewhere
    all_in_collective   all members have enqueued a collective, which has not completed for the limit of a stall since:
                        the network, or a device
    unattributed        none of these holds

A rank that still runs while others wait is not missing until this has lasted EXCUSED_FACTOR limits; until then the
detector abstains. One that is busy (or compiles, saves or imports) or waits for data is not missing until then either,
and that is what is found. Where no rank waits in a collective, such ranks are found once all are in a pause.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from rankscope.collector.detect.finding import BUSY_RANK, DATA_WAIT, HANG, PAUSES, Abstain, Finding
from rankscope.collector.detect.hang_state import (
    DEATH_SEEN_DELAY_NS,
    DIED,
    SILENT,
    UNRECORDED_WAITS,
    RankHangState,
    add_progress_of_peers,
    find_pause,
)
from rankscope.collector.detect.hangs.report import HangFacts, write_hang
from rankscope.collector.detect.hangs.wait_graph import Stuck, WaitForGraph, find_stuck, has_mismatch
from rankscope.collector.detect.suggestions import suggest
from rankscope.collector.detect.view import Candidate, RunView
from rankscope.measure.stalls import EXCUSED_FACTOR


class Hang(NamedTuple):
    """The origin of a hang. `ranks` are named for it, in ascending order; `stuck` is what the others wait in, None when
    not known.
    """

    cause: str
    ranks: tuple[int, ...]
    stuck: Stuck | None


Verdict = Hang | Abstain | None


class Hangs:
    """The detector of hangs. It gives one finding at a time: all other stalls follow from it."""

    kinds = frozenset({HANG})

    def find(self, view: RunView, explained: Sequence[Finding]) -> Sequence[Candidate] | Abstain:
        """Return the present hang, if there is one. Once ranks end because of it, the open finding is kept."""
        known = next((finding for finding in explained if finding.kind == HANG), None)
        judge = _HangJudge(view, known)
        if known is not None and judge.times.is_shutting_down:
            return ()
        hang = judge.find_hang()
        if isinstance(hang, Abstain):
            return hang
        return () if hang is None else (Candidate(describe_hang(judge.view, judge.graph, hang, known)),)

    def has_passed(self, view: RunView, finding: Finding, _explained: Sequence[Finding]) -> bool:
        """Return whether no rank is stalled any more, nor all of them in a pause, or another hang proves to be its
        origin.
        """
        judge = _HangJudge(view, finding)
        hang = judge.find_hang()
        if not isinstance(hang, Hang):
            return not judge.times.stalled
        if judge.times.is_shutting_down:
            return False
        return not describe_hang(judge.view, judge.graph, hang, finding).is_about_the_same(finding)


class _StallTimes:
    """When the stall began, and which ranks ended before it, with it or because of it. `known` is the open finding."""

    def __init__(self, view: RunView, known: Finding | None) -> None:
        self._hang_states = view.hang_states
        self._known = known
        self._now_collector_ns = view.now_collector_ns
        self.stalled = {rank: one for rank, one in sorted(view.hang_states.items()) if one.is_stalled_now}
        self.moving = frozenset(
            rank for rank, one in view.hang_states.items() if one.ended is None and not one.is_stalled_now
        )
        """Ranks that run and are not stalled."""
        began = [began_ns for one in self.stalled.values() if (began_ns := self._find_begin(one)) is not None]
        limits = [one.stall.limit_ns for one in self.stalled.values() if one.stall is not None]
        self._began_collector_ns = min(began, default=None)
        self._limit_ns = max(limits, default=None)

    def _find_begin(self, one: RankHangState) -> int | None:
        if one.since_collector_ns is not None:
            return one.since_collector_ns
        return None if one.stalled_ns is None else self._now_collector_ns - one.stalled_ns

    def _find_lateness(self, one: RankHangState) -> int | None:
        """Return by how many ns a rank ended after the stall began; None where one of the two is not known."""
        if one.ended_collector_ns is None or self._began_collector_ns is None:
            return None
        return one.ended_collector_ns - self._began_collector_ns

    def has_ended_late(self, one: RankHangState) -> bool:
        """Return whether it ended after the stall had lasted its limit: then it ended because of the hang."""
        late_ns = self._find_lateness(one)
        return late_ns is not None and self._limit_ns is not None and late_ns > self._limit_ns

    def has_ended_long_before(self, one: RankHangState) -> bool:
        """Return whether the others continued for long without it."""
        late_ns = self._find_lateness(one)
        return late_ns is not None and self._limit_ns is not None and late_ns < -self._limit_ns

    def is_cause_gone(self, one: RankHangState) -> bool:
        """Return whether a rank is gone, and not because of the hang; a silent one may prove gone at any time."""
        return one.is_gone and (not self.has_ended_late(one) or self._was_silent(one))

    def _was_silent(self, one: RankHangState) -> bool:
        known = self._known
        return (
            known is not None
            and known.cause == "silent_rank"
            and any(self._hang_states.get(rank) is one for rank in known.ranks)
        )

    @property
    def is_shutting_down(self) -> bool:
        """Return whether ranks have ended since the stall began, by timeouts, a launcher or a person."""
        return any(
            one.ended not in {None, SILENT} and self.has_ended_late(one) and not self._was_silent(one)
            for one in self._hang_states.values()
        )


class _HangJudge:
    """The rules, applied to one view. `known` is the open finding about this hang."""

    def __init__(self, view: RunView, known: Finding | None) -> None:
        view = replace(view, hang_states=add_progress_of_peers(view.hang_states, view.groups))
        self.view = view
        self._hang_states = view.hang_states
        self._group = None if known is None else known.group
        self.times = _StallTimes(view, known)
        self.graph = find_stuck(view.hang_states, view.groups, self.times.is_cause_gone)
        # One that was busy or waited for data, and has entered a collective since, is no longer stalled there.
        entering = (
            rank
            for rank, one in view.hang_states.items()
            if find_pause(one) is not None and (one.waits or one.transfers)
        )
        self._moving = self.times.moving.union(entering)

    def find_hang(self) -> Verdict:
        """Return the first cause that holds; None while no rank is stalled, unless all compile or save."""
        if not self.times.stalled:
            return _find_common_pause(self._hang_states.values())
        rules: tuple[Callable[[], Verdict], ...] = (
            self._find_dead,
            self._find_missing,
            self._find_mismatch,
            self._find_silent,
            self._find_pause,
            self._abstain_for_excused,
            self._find_deadlock,
            self._find_unmatched,
            self._find_incomplete,
            self._abstain_until_all_stalled,
            self._find_unrecorded_wait,
        )
        found = (rule() for rule in rules)
        return next((one for one in found if one is not None), None) or self._find_unattributed()

    def _name(self, cause: str, ranks: Iterable[int]) -> Hang | None:
        named = tuple(sorted(ranks))
        return Hang(cause, named, self.graph.find_stuck_without(named, self._group)) if named else None

    def _name_group(self, cause: str, test: Callable[[Stuck], bool]) -> Hang | None:
        """Name no rank, only the group in which most ranks wait, or that of the open finding."""
        found = [one for one in self.graph.stuck if test(one)]
        most = max(found, key=lambda one: (one.group == self._group, len(one.waiting), one.group), default=None)
        return None if most is None else Hang(cause, (), most)

    def _roots(self, test: Callable[[RankHangState], bool]) -> list[int]:
        return [rank for rank in self.graph.roots if test(self._hang_states[rank])]

    def _find_dead(self) -> Hang | None:
        failed = {
            rank: one
            for rank, one in self._hang_states.items()
            if one.failed_collector_ns is not None
            and self.times.is_cause_gone(one)
            and not self.times.has_ended_long_before(one)
        }
        return self._name("dead_rank", find_first_dead(failed) if failed else self._roots(self.times.is_cause_gone))

    def _find_missing(self) -> Hang | None:
        def is_surely_missing(one: RankHangState) -> bool:
            return self._is_missing(one) and one.activity not in UNRECORDED_WAITS

        return self._name("missing_rank", self._roots(is_surely_missing))

    def _is_missing(self, one: RankHangState) -> bool:
        """Return whether others wait for it while it waits for no known rank."""
        return self._may_be_missing(one) and not one.waits and not one.transfers

    def _may_be_missing(self, one: RankHangState) -> bool:
        """Return whether a rank may be called missing: it is stalled by its last report, or is alive and has kept
        others waiting for very long.
        """
        if one.is_excused or find_pause(one) is not None:
            return False
        return one.is_stalled_now or (one.ended is None and self._lasts_very_long())

    def _lasts_very_long(self) -> bool:
        waiting = (self._hang_states[rank] for rank in self.graph.waiting)
        return any(
            one.stall is not None and one.stalled_ns is not None
            and one.stalled_ns > EXCUSED_FACTOR * one.stall.limit_ns
            for one in waiting
        )  # fmt: skip

    def _find_mismatch(self) -> Hang | None:
        return self._name_group("order_mismatch", lambda one: has_mismatch(one, self._hang_states))

    def _find_silent(self) -> Hang | None:
        return self._name("silent_rank", self._roots(lambda one: one.is_silent and not one.is_stalled_now))

    def _find_pause(self) -> Hang | None:
        """Find ranks that others wait for while they work on something else or wait for data."""

        def find(cause: str) -> Hang | None:
            return self._name(
                cause, self._roots(lambda one: find_pause(one) == cause and not one.waits and not one.transfers)
            )

        return find(DATA_WAIT) or find(BUSY_RANK)

    def _abstain_for_excused(self) -> Abstain | None:
        excused = self._roots(lambda one: one.ended is None and not self._may_be_missing(one))
        if not excused:
            return None
        return Abstain(f"rank {excused[0]} is still running; ranks that wait: {len(self.graph.waiting)}")

    def _find_deadlock(self) -> Hang | None:
        return self._name("deadlock", self.graph.find_cycle())

    def _find_unmatched(self) -> Hang | None:
        """Find a send or receive whose peer waits elsewhere for no known rank: it has left out the other end, or the
        waiting rank has made one too many. Both are named.
        """
        roots = frozenset(self._roots(lambda one: bool(one.waits or one.transfers)))
        found = [one for one in self.graph.stuck if one.is_point_to_point and not roots.isdisjoint(one.missing)]
        oldest = max(found, key=lambda one: (one.oldest_of, -one.sequence), default=None)
        return (
            None
            if oldest is None
            else Hang("unmatched_transfer", tuple(sorted((*oldest.waiting, *oldest.missing))), oldest)
        )

    def _find_incomplete(self) -> Verdict:
        """Find a collective that all have entered, none of them waiting for another rank elsewhere, and that has not
        completed for the limit of a stall since. What members that are not stalled have called there is not known yet.
        """
        moving = self._moving
        is_long = self._lasts_very_long()

        def is_incomplete(one: Stuck) -> bool:
            members = self.view.groups.get(one.group, ())
            is_open = bool(members) and not (one.missing or one.unknown or one.is_point_to_point)
            is_certain = is_long or moving.isdisjoint(members)
            return is_open and is_certain and self.graph.blocked.isdisjoint(one.waiting)

        def is_old(one: Stuck) -> bool:
            members = (self._hang_states.get(rank) for rank in self.view.groups[one.group])
            return not _is_entered_lately(one.group, [self._hang_states[rank] for rank in one.waiting], members)

        hang = self._name_group("all_in_collective", lambda one: is_incomplete(one) and is_old(one))
        late = next((one for one in self.graph.stuck if is_incomplete(one)), None)
        if hang is not None or late is None:
            return hang
        return Abstain(
            f"the last member of {late.group} has entered its collective {late.sequence} less than the limit of a "
            "stall ago"
        )

    def _abstain_until_all_stalled(self) -> Abstain | None:
        """Abstain until all ranks are stalled: the rules after this one are certain only then."""
        moving = self._moving
        if not self.graph.stuck or not moving or self._lasts_very_long():
            return None
        return Abstain(f"ranks that are not stalled: {len(moving)} of {len(self._hang_states)}")

    def _find_unrecorded_wait(self) -> Hang | None:
        return self._name("missing_rank", self._roots(self._is_missing))

    def _find_unattributed(self) -> Hang | Abstain:
        hang = self._name_group("unattributed", lambda _: True)
        if hang is not None:
            return hang
        gone = [rank for rank, one in self._hang_states.items() if one.is_gone]
        if gone:
            return Abstain(f"no rank waits in a collective; ranks that have ended: {len(gone)}")
        pause = _find_common_pause(self._hang_states.values())
        if pause is not None:
            return pause
        moving = [rank for rank, one in self._hang_states.items() if not one.is_stalled_now]
        if moving:
            return Abstain(
                "no rank waits in a collective; ranks that still run or do work that may take long: "
                f"{len(moving)} of {len(self._hang_states)}"
            )
        return self._find_elsewhere() or Hang("unattributed", (), None)

    def _find_elsewhere(self) -> Hang | None:
        """Find the ranks that are in no wait for others, where all are stalled and the others wait without a record.
        None where it is not known of one of them what is pending.
        """
        states = self._hang_states
        elsewhere = [rank for rank, one in states.items() if not one.waits_unrecorded]
        if len(elsewhere) in {0, len(states)} or not all(states[rank].is_pending_known for rank in elsewhere):
            return None
        pauses = {rank: find_pause(states[rank]) for rank in elsewhere}
        cause = next(one for one in (None, DATA_WAIT, BUSY_RANK) if one in pauses.values())
        return self._name(cause or "missing_rank", (rank for rank, pause in pauses.items() if pause == cause))


def _is_entered_lately(group: str, waiting: Iterable[RankHangState], members: Iterable[RankHangState | None]) -> bool:
    """Return whether a member may have entered a collective of this group less than the limit of a stall ago. The stall
    of those that wait there may be older: it is that of their wait for this member.
    """
    limit_ns = max((one.stall.limit_ns for one in waiting if one.stall is not None), default=0)
    ages = (one.unchanged_in(group) for one in members if one is not None and one.ended is None)
    return any(age_ns is not None and age_ns < limit_ns for age_ns in ages)


def _find_common_pause(hang_states: Iterable[RankHangState]) -> Hang | None:
    """Find a pause in which all ranks are, each by itself."""
    pauses = {find_pause(one) for one in hang_states}
    if not pauses or None in pauses:
        return None
    return Hang(DATA_WAIT if DATA_WAIT in pauses else BUSY_RANK, (), None)


def describe_hang(view: RunView, graph: WaitForGraph, hang: Hang, known: Finding | None) -> Finding:
    """Build the finding about a hang. An open one keeps its group, whatever else its ranks are missing in."""
    # A cycle goes through several groups and is about none of them.
    group = hang.stuck.group if hang.stuck is not None and hang.cause != "deadlock" else None
    if known is not None and not set(known.ranks).isdisjoint(hang.ranks):
        group = known.group
    facts = HangFacts(view, graph, hang.ranks, hang.stuck)
    words = write_hang(hang.cause, facts)
    return Finding(
        kind=HANG,
        ranks=hang.ranks,
        group=group,
        since_step=facts.since_step,
        cause=hang.cause,
        what=words.what,
        why=words.why,
        also=words.also,
        suggestion=suggest(HANG, hang.cause),
        # A stall in which no rank waits may be long work of another kind: writing text, uploading.
        severity="warning" if hang.cause in PAUSES or (hang.stuck is None and not hang.ranks) else "critical",
        evidence=facts.collect_evidence(),
        details=facts.collect_details(),
    )


def find_first_dead(failed: Mapping[int, RankHangState]) -> list[int]:
    """Return which of the ranks that failed by themselves failed first: the first one, and those that died with it
    without an exit report.
    """
    first = min(failed, key=lambda rank: (failed[rank].failed_collector_ns or 0, rank))
    if failed[first].ended not in DIED:
        return [first]
    until_ns = (failed[first].failed_collector_ns or 0) + DEATH_SEEN_DELAY_NS
    return [rank for rank, one in failed.items() if one.ended in DIED and (one.failed_collector_ns or 0) <= until_ns]
