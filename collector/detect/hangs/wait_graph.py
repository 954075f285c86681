"""Which collectives are stuck, who waits in them and who has not entered: the graph of who waits for whom.

A rank that stands still waits, in each of its groups, in the first collective that has not completed. A member that
has not enqueued that one is waited for. A member that waits in turn, in another group, for somebody else, only passes
the waiting on. Followed far enough, the waiting ends at a rank that waits for nobody (the *root*), in a circle, or in
a collective that all have entered.

Built once for each stuck collective, not for each pair of ranks: a job of 16,384 ranks in one group is one of them.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from rankscope.collector.detect.hang_state import Handover, RankHangState
from rankscope.measure.stalls import PendingCollective

EQUAL_SIZE_OPS: Final = frozenset({"all_reduce", "broadcast", "reduce"})
"""Collectives into which every rank puts the same number of bytes; others may be uneven by right."""

Standings = Mapping[int, RankHangState]
Groups = Mapping[str, Sequence[int]]
IsGone = Callable[[RankHangState], bool]


class Stuck(NamedTuple):
    """A collective, or a hand-over between two ranks, that does not complete. All ranks in ascending order.

    `waiting` have entered it; `missing` have not, or are gone; of `unknown` nobody can say. `op` is empty where only
    counters tell. `furthest` is the last sequence that any member has enqueued in the group, `in_front` for how many of
    those waiting it is the oldest that they wait in: ranks whose host runs ahead wait in several.
    """

    group: str
    sequence: int
    op: str
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    unknown: tuple[int, ...]
    furthest: int
    in_front: int = 0
    is_handover: bool = False


class WaitForGraph(NamedTuple):
    """All that is stuck, and what follows: `blocked` ranks wait for others, `roots` are waited for and wait for nobody
    that is known.
    """

    stuck: tuple[Stuck, ...]
    blocked: frozenset[int]
    roots: tuple[int, ...]

    @property
    def waiting(self) -> frozenset[int]:
        """Every rank that waits in something that is stuck."""
        return frozenset(rank for one in self.stuck for rank in one.waiting)

    def find_missed(self, ranks: Collection[int], group: str | None = None) -> Stuck | None:
        """Of what is stuck for want of these ranks, that in this group, or else that which they would enter next; None
        when nothing is.

        What comes next is in front for all who wait in it, while later ones are not or miss others as well.
        """
        missed = [one for one in self.stuck if not set(one.missing).isdisjoint(ranks)]
        return max(missed, key=lambda one: (one.group == group, _nearness(one)), default=None)

    def find_circle(self) -> tuple[int, ...]:
        """Ranks each of which waits for the next one, and the last for the first; empty when there is a root."""
        if self.roots or not self.blocked:
            return ()
        waits_for = {rank: one.missing[0] for one in reversed(self.stuck) if one.missing for rank in one.waiting}
        path = [min(self.blocked)]
        while path[-1] not in path[:-1]:
            path.append(waits_for[path[-1]])
        return tuple(path[path.index(path[-1]) : -1])


def _nearness(one: Stuck) -> tuple[float, int, int, str, int]:
    return one.in_front / len(one.waiting), -len(one.missing), len(one.waiting), one.group, -one.sequence


def find_stuck(hang_states: Standings, groups: Groups, is_gone: IsGone) -> WaitForGraph:
    """The graph of this moment. `is_gone`: whether a rank that has ended has to be taken for one that is waited for."""
    waiting: dict[tuple[str, int], list[int]] = defaultdict(list)
    ops: dict[tuple[str, int], str] = {}
    handed = {one.group for standing in hang_states.values() for one, _ in standing.handovers}
    for rank in sorted(hang_states):
        for wait in hang_states[rank].waits:
            key = (wait.group, wait.sequence)
            waiting[key].append(rank)
            ops[key] = ops.get(key) or wait.op
    members = _Members(hang_states, groups, is_gone)
    stuck = [members.find_missing(*key, ops[key], ranks, counts=key[0] not in handed) for key, ranks in waiting.items()]
    stuck += members.find_handovers()
    blocked = frozenset(rank for one in stuck if one.missing for rank in one.waiting)
    wanted = {rank for one in stuck for rank in one.missing}
    return WaitForGraph(tuple(sorted(stuck)), blocked, tuple(sorted(wanted - blocked)))


class _Members:
    """The members of each group, and how far they are."""

    def __init__(self, hang_states: Standings, groups: Groups, is_gone: IsGone) -> None:
        self._standings = hang_states
        self._groups = groups
        self._is_gone = is_gone

    def find_missing(self, group: str, sequence: int, op: str, waiting: Sequence[int], *, counts: bool) -> Stuck:
        """Who keeps a collective waiting. Without `counts` (transfers from rank to rank count in the same counters) the
        others are not known.
        """
        missing, unknown = [], []
        inside, furthest = frozenset(waiting), sequence
        for rank in sorted(self._groups.get(group, waiting)):
            standing = self._standings.get(rank)
            enqueued = standing.enqueued_in(group) if standing is not None and counts else None
            furthest = max(furthest, enqueued or 0)
            if rank in inside:
                continue
            has_entered = self._has_entered(standing, group, sequence, enqueued) if standing is not None else None
            if has_entered is None:
                unknown.append(rank)
            elif not has_entered:
                missing.append(rank)
        in_front = sum(self._standings[rank].oldest == (group, sequence) for rank in waiting)
        return Stuck(group, sequence, op, tuple(waiting), tuple(missing), tuple(unknown), furthest, in_front)

    def _has_entered(self, standing: RankHangState, group: str, sequence: int, enqueued: int | None) -> bool | None:
        if self._is_gone(standing):
            return standing.completed_in(group) >= sequence
        if enqueued is not None and enqueued >= sequence:
            return True
        # A rank that ended later than the others stood still had waited as they do.
        return None if enqueued is None or standing.is_gone else False

    def find_handovers(self) -> Iterable[Stuck]:
        """Sends and receives whose other end is known by its place in the group."""
        for rank, standing in sorted(self._standings.items()):
            for one, handover in standing.handovers:
                yield self._judge_handover(rank, one, handover)

    def _judge_handover(self, rank: int, one: PendingCollective, handover: Handover) -> Stuck:
        members = sorted(self._groups.get(one.group, ()))
        peer = members[handover.peer] if handover.peer is not None and handover.peer < len(members) else None
        standing = self._standings.get(peer) if peer is not None else None
        peers = () if peer is None else (peer,)
        missing: tuple[int, ...] = ()
        unknown: tuple[int, ...] = ()
        if standing is None or (standing.is_gone and not self._is_gone(standing)):
            unknown = peers
        elif not self._answers(standing, one.group, members.index(rank) if rank in members else None, handover):
            missing = peers
        in_front = int(self._standings[rank].oldest == (one.group, one.sequence))
        return Stuck(
            one.group, one.sequence, one.op, (rank,), missing, unknown, one.sequence, in_front, is_handover=True
        )

    @staticmethod
    def _answers(standing: RankHangState, group: str, place: int | None, handover: Handover) -> bool:
        """Whether the other end of a transfer has been posted."""
        return any(
            one.group == group and other.is_send != handover.is_send and other.peer in {place, None}
            for one, other in standing.handovers
        )


def find_call(stuck: Stuck, standing: RankHangState) -> PendingCollective | None:
    """What a waiting rank has called there; None where only its counters tell that it waits."""
    place = (stuck.group, stuck.sequence)
    return next((one for one in standing.pending if (one.group, one.sequence) == place), None)


def find_calls(stuck: Stuck, hang_states: Standings) -> dict[tuple[str, int | None], list[int]]:
    """Who has called what in a stuck collective, by (op, bytes), as far as it is known. The size is None where it is
    not known or may differ by right.
    """
    calls: dict[tuple[str, int | None], list[int]] = {}
    for rank in stuck.waiting:
        one = find_call(stuck, hang_states[rank])
        if one is not None and one.op:
            size = one.bytes if one.op in EQUAL_SIZE_OPS else None
            calls.setdefault((one.op, size), []).append(rank)
    return calls


def has_mismatch(stuck: Stuck, hang_states: Standings) -> bool:
    """Whether ranks have called different collectives at this place, or one with sizes that differ and must not."""
    if stuck.is_handover:
        return False
    calls = find_calls(stuck, hang_states)
    return len({op for op, _ in calls}) > 1 or len({size for _, size in calls if size is not None}) > 1
