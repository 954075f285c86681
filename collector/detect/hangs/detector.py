"""A job that does not move: which rank keeps the others waiting, or why nobody can say (docs/definitions.md section 6).

From the graph of who waits for whom (wait_graph.py), the first of these that holds:

    dead_rank           a rank has ended by itself before the others came to a standstill, or others wait for one that
                        is gone
    missing_rank        others wait in a collective that this rank, which lives and does not move, has not enqueued
    order_mismatch      at the same place in a group ranks have called different collectives, or with different sizes
    silent_rank         others wait for a rank that does not report; whether its process lives nobody can say
    deadlock            ranks wait for each other in a circle, in different groups
    all_in_collective   all members have enqueued a collective, which does not complete: the network, or a device
    unattributed        none of these can be told

A rank that waits for data, compiles, writes a checkpoint or still goes on with its work while others wait is not
missing until this has lasted EXCUSED_FACTOR limits; until then the detector abstains, and says so.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from rankscope.collector.detect.finding import HANG, Abstain, Finding
from rankscope.collector.detect.hang_state import DIED, HEAD_START_NS, SILENT, UNSEEN_WAITS, RankHangState
from rankscope.collector.detect.hangs.report import SUGGESTIONS, HangFacts, write_hang
from rankscope.collector.detect.hangs.wait_graph import Stuck, WaitForGraph, find_stuck, has_mismatch
from rankscope.collector.detect.view import Candidate, RunView
from rankscope.measure.stalls import EXCUSED_FACTOR


class Hang(NamedTuple):
    """What keeps the job from moving. `ranks` are named for it, in ascending order; `stuck` is what the others wait in,
    None where that is not known.
    """

    cause: str
    ranks: tuple[int, ...]
    stuck: Stuck | None


Verdict = Hang | Abstain | None


class Hangs:
    """The detector of hangs. It gives one finding at a time: whatever else stands still does so because of it."""

    kinds = frozenset({HANG})

    def find(self, view: RunView, explained: Sequence[Finding]) -> Sequence[Candidate] | Abstain:
        """The hang of this moment, if there is one. Once ranks end because of it, what was found stands."""
        known = next((finding for finding in explained if finding.kind == HANG), None)
        scene = _Scene(view, known)
        if known is not None and scene.is_coming_down:
            return ()
        hang = scene.judge()
        if isinstance(hang, Abstain):
            return hang
        return () if hang is None else (Candidate(describe_hang(view, scene.graph, hang, known)),)

    def has_passed(self, view: RunView, finding: Finding, _explained: Sequence[Finding]) -> bool:
        """Whether nobody stands still any more, or another hang is seen now to be the one behind it."""
        scene = _Scene(view, finding)
        if not scene.still:
            return True
        if scene.is_coming_down:
            return False
        hang = scene.judge()
        return isinstance(hang, Hang) and not describe_hang(view, scene.graph, hang, finding).is_about_the_same(finding)


class _Scene:
    """A view, and the questions put to it. `known` is the finding about this hang that is already open."""

    def __init__(self, view: RunView, known: Finding | None) -> None:
        self._standings = view.hang_states
        self._known = known
        self._group = None if known is None else known.group
        self._now_collector_ns = view.now_collector_ns
        self.still = {rank: one for rank, one in sorted(view.hang_states.items()) if one.stands_still}
        began = [began_ns for one in self.still.values() if (began_ns := self._find_begin(one)) is not None]
        limits = [one.stall.limit_ns for one in self.still.values() if one.stall is not None]
        self._began_collector_ns = min(began, default=None)
        self._limit_ns = max(limits, default=None)
        self.graph = find_stuck(view.hang_states, view.groups, self._is_cause_gone)

    # -- the past -----------------------------------------------------------------------------------------------------

    def _find_begin(self, one: RankHangState) -> int | None:
        if one.since_collector_ns is not None:
            return one.since_collector_ns
        return None if one.stalled_ns is None else self._now_collector_ns - one.stalled_ns

    def _find_lateness(self, one: RankHangState) -> int | None:
        """By how many ns a rank ended after the standstill began; None where one of the two is not known."""
        if one.ended_collector_ns is None or self._began_collector_ns is None:
            return None
        return one.ended_collector_ns - self._began_collector_ns

    def _has_ended_late(self, one: RankHangState) -> bool:
        """Whether it ended when the standstill had lasted so long as to be called one: then it ended because of it."""
        late_ns = self._find_lateness(one)
        return late_ns is not None and self._limit_ns is not None and late_ns > self._limit_ns

    def _has_ended_long_before(self, one: RankHangState) -> bool:
        """Whether the others went on for long without it."""
        late_ns = self._find_lateness(one)
        return late_ns is not None and self._limit_ns is not None and late_ns < -self._limit_ns

    def _is_cause_gone(self, one: RankHangState) -> bool:
        """Whether a rank is gone, and not because of the hang. One that was silent may be found gone at any time."""
        return one.is_gone and (not self._has_ended_late(one) or self._was_silent(one))

    def _was_silent(self, one: RankHangState) -> bool:
        known = self._known
        return (
            known is not None
            and known.cause == "silent_rank"
            and any(self._standings.get(rank) is one for rank in known.ranks)
        )

    @property
    def is_coming_down(self) -> bool:
        """Whether ranks have ended since the standstill: timeouts, a launcher, a person."""
        return any(
            one.ended not in {None, SILENT} and self._has_ended_late(one) and not self._was_silent(one)
            for one in self._standings.values()
        )

    # -- the verdict --------------------------------------------------------------------------------------------------

    def judge(self) -> Verdict:
        """The first cause that holds; None while nobody stands still."""
        if not self.still:
            return None
        rules: tuple[Callable[[], Verdict], ...] = (
            self._find_dead,
            self._find_missing,
            self._find_mismatch,
            self._find_silent,
            self._excuse,
            self._find_deadlock,
            self._find_incomplete,
            self._wait_for_all,
            self._find_unseen,
        )
        found = (rule() for rule in rules)
        return next((one for one in found if one is not None), None) or self._give_up()

    def _name(self, cause: str, ranks: Iterable[int]) -> Hang | None:
        named = tuple(sorted(ranks))
        return Hang(cause, named, self.graph.find_missed(named, self._group)) if named else None

    def _blame_group(self, cause: str, test: Callable[[Stuck], bool]) -> Hang | None:
        """Nobody is named but the group in which most wait, or that of the finding that is open."""
        found = [one for one in self.graph.stuck if test(one)]
        most = max(found, key=lambda one: (one.group == self._group, len(one.waiting), one.group), default=None)
        return None if most is None else Hang(cause, (), most)

    def _roots(self, test: Callable[[RankHangState], bool]) -> list[int]:
        return [rank for rank in self.graph.roots if test(self._standings[rank])]

    def _find_dead(self) -> Hang | None:
        failed = {
            rank: one
            for rank, one in self._standings.items()
            if one.failed_collector_ns is not None and self._is_cause_gone(one) and not self._has_ended_long_before(one)
        }
        return self._name("dead_rank", find_first_dead(failed) if failed else self._roots(self._is_cause_gone))

    def _find_missing(self) -> Hang | None:
        return self._name("missing_rank", self._roots(self._is_surely_missing))

    def _is_surely_missing(self, one: RankHangState) -> bool:
        return self._is_missing(one) and one.activity not in UNSEEN_WAITS

    def _is_missing(self, one: RankHangState) -> bool:
        """Whether others wait for it while it waits for nobody that is known."""
        return self._counts(one) and not one.waits and not one.handovers

    def _counts(self, one: RankHangState) -> bool:
        """Whether a rank is to be called missing: it does not move, by its last word, or lives and has kept others
        waiting for very long.
        """
        if one.is_excused:
            return False
        return one.stands_still or (one.ended is None and self._lasts_very_long())

    def _lasts_very_long(self) -> bool:
        waiting = (self._standings[rank] for rank in self.graph.waiting)
        return any(
            one.stall is not None and one.stalled_ns is not None
            and one.stalled_ns > EXCUSED_FACTOR * one.stall.limit_ns
            for one in waiting
        )  # fmt: skip

    def _find_mismatch(self) -> Hang | None:
        return self._blame_group("order_mismatch", lambda one: has_mismatch(one, self._standings))

    def _find_silent(self) -> Hang | None:
        return self._name("silent_rank", self._roots(lambda one: one.is_silent and not one.stands_still))

    def _excuse(self) -> Abstain | None:
        excused = self._roots(lambda one: one.ended is None and not self._counts(one))
        if not excused:
            return None
        first = self._standings[excused[0]]
        doing = f"is in {first.activity}, which may take long" if first.is_excused else "is still running"
        return Abstain(f"rank {excused[0]} {doing}; ranks that wait: {len(self.graph.waiting)}")

    def _find_deadlock(self) -> Hang | None:
        return self._name("deadlock", self.graph.find_circle())

    def _find_incomplete(self) -> Hang | None:
        """A collective that all have entered, none of whom waits for somebody elsewhere as well."""

        def is_incomplete(one: Stuck) -> bool:
            return not (one.missing or one.unknown or one.is_handover) and self.graph.blocked.isdisjoint(one.waiting)

        return self._blame_group("all_in_collective", is_incomplete)

    def _wait_for_all(self) -> Abstain | None:
        """What comes after this is sure only when everybody has said that it stands still."""
        moving = [rank for rank, one in self._standings.items() if one.ended is None and not one.stands_still]
        if not self.graph.stuck or not moving or self._lasts_very_long():
            return None
        return Abstain(f"ranks that are not stalled: {len(moving)} of {len(self._standings)}")

    def _find_unseen(self) -> Hang | None:
        return self._name("missing_rank", self._roots(self._is_missing))

    def _give_up(self) -> Hang | Abstain:
        hang = self._blame_group("unattributed", lambda _: True)
        if hang is not None:
            return hang
        gone = [rank for rank, one in self._standings.items() if one.is_gone]
        if gone:
            return Abstain(f"no rank waits in a collective; ranks that have ended: {len(gone)}")
        moving = [rank for rank, one in self._standings.items() if not one.stands_still or one.is_excused]
        if moving:
            return Abstain(
                "no rank waits in a collective; ranks that still run, wait for data or do work that may take long: "
                f"{len(moving)} of {len(self._standings)}"
            )
        return Hang("unattributed", (), None)


def describe_hang(view: RunView, graph: WaitForGraph, hang: Hang, known: Finding | None) -> Finding:
    """The finding about a hang. One that is known already keeps its group, whatever else its ranks are missed in."""
    # A circle goes through several groups and is about none of them.
    group = hang.stuck.group if hang.stuck is not None and hang.cause != "deadlock" else None
    if known is not None and not set(known.ranks).isdisjoint(hang.ranks):
        group = known.group
    facts = HangFacts(view, graph, hang.ranks, hang.stuck)
    return Finding(
        kind=HANG,
        ranks=hang.ranks,
        group=group,
        since_step=facts.since_step,
        cause=hang.cause,
        sentence=write_hang(hang.cause, facts),
        past=write_hang(hang.cause, HangFacts(view, graph, hang.ranks, hang.stuck, is_over=True)),
        suggestion=SUGGESTIONS[hang.cause],
        # A standstill in which nobody waits may be long work of another kind: writing text, uploading.
        severity="warning" if hang.stuck is None and not hang.ranks else "critical",
        evidence=facts.count(),
        details=facts.quote(),
    )


def find_first_dead(failed: Mapping[int, RankHangState]) -> list[int]:
    """Of ranks that ended badly by themselves, those that brought the others down: the first one, and those that died
    with it, without a word of their own.
    """
    first = min(failed, key=lambda rank: (failed[rank].failed_collector_ns or 0, rank))
    if failed[first].ended not in DIED:
        return [first]
    until_ns = (failed[first].failed_collector_ns or 0) + HEAD_START_NS
    return [rank for rank, one in failed.items() if one.ended in DIED and (one.failed_collector_ns or 0) <= until_ns]
