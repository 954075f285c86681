"""Build the graph of which ranks wait for which: the stuck collectives, the ranks in them and those missing.

A stalled rank waits, in each of its groups, in the first collective that has not completed, for the members that have
not enqueued it. Such a member may itself wait for others in another group. Followed far enough, the chain ends at a
rank that waits for no other (the *root*), in a cycle, or in a collective that all ranks have entered.

The graph has one node per stuck collective, not one per pair of ranks.

Example: ranks 0 and 1 wait in an all_reduce that rank 2 has not enqueued, and rank 2 in one of another group that rank
3 has not. By the first collective alone rank 2 would be the one that is missing; the chain ends at rank 3, the root.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from rankscope.collector.detect.hang_state import PointToPoint, RankHangState, find_counted_transfers
from rankscope.measure.stalls import PendingCollective

EQUAL_SIZE_OPS: Final = frozenset({"all_reduce", "broadcast", "reduce"})
"""Collectives to which every rank contributes the same number of bytes; in others sizes may differ."""

HangStates = Mapping[int, RankHangState]
Groups = Mapping[str, Sequence[int]]
IsGone = Callable[[RankHangState], bool]


class Stuck(NamedTuple):
    """A collective, or a transfer between two ranks, that does not complete. All ranks are in ascending order.

    `waiting` have entered it; `missing` have not, or are gone; whether `unknown` have is not known. `op` is empty where
    only counters are known. `furthest` is the last sequence that any member has enqueued in the group, `oldest_of` the
    number of waiting ranks for which it is the oldest pending one: a rank whose host runs ahead waits in several. The
    sequence of a transfer that is not recorded is UNRECORDED_SEQUENCE.
    """

    group: str
    sequence: int
    op: str
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    unknown: tuple[int, ...]
    furthest: int
    oldest_of: int = 0
    is_point_to_point: bool = False


class WaitForGraph(NamedTuple):
    """Everything that is stuck. `blocked` ranks wait for others; `roots` are waited for, and wait for no known rank."""

    stuck: tuple[Stuck, ...]
    blocked: frozenset[int]
    roots: tuple[int, ...]

    @property
    def waiting(self) -> frozenset[int]:
        """Return every rank that waits in something that is stuck."""
        return frozenset(rank for one in self.stuck for rank in one.waiting)

    def find_stuck_without(self, ranks: Collection[int], group: str | None = None) -> Stuck | None:
        """Return what is stuck because these ranks are missing: in this group, else what they would enter next; None
        when nothing is.

        What they would enter next is the oldest pending one of all that wait in it; later ones miss others as well.
        """
        missed = [one for one in self.stuck if not set(one.missing).isdisjoint(ranks)]
        return max(missed, key=lambda one: (one.group == group, _nearness(one)), default=None)

    def find_cycle(self) -> tuple[int, ...]:
        """Return ranks each of which waits for the next, and the last for the first; empty when there is a root."""
        if self.roots or not self.blocked:
            return ()
        waits_for = {rank: one.missing[0] for one in reversed(self.stuck) if one.missing for rank in one.waiting}
        path = [min(self.blocked)]
        while path[-1] not in path[:-1]:
            path.append(waits_for[path[-1]])
        return tuple(path[path.index(path[-1]) : -1])


def _nearness(one: Stuck) -> tuple[float, int, int, str, int]:
    return one.oldest_of / len(one.waiting), -len(one.missing), len(one.waiting), one.group, -one.sequence


def find_stuck(hang_states: HangStates, groups: Groups, is_gone: IsGone) -> WaitForGraph:
    """Build the graph. `is_gone` decides whether a rank that has ended counts as one that others wait for."""
    waiting: dict[tuple[str, int], list[int]] = defaultdict(list)
    ops: dict[tuple[str, int], str] = {}
    point_to_point = {group for state in hang_states.values() for group in find_counted_transfers(state)}
    for rank in sorted(hang_states):
        for wait in hang_states[rank].waits:
            key = (wait.group, wait.sequence)
            waiting[key].append(rank)
            ops[key] = ops.get(key) or wait.op
    members = _Members(hang_states, groups, is_gone)
    stuck = [
        members.find_missing(*key, ops[key], ranks, counts=key[0] not in point_to_point)
        for key, ranks in waiting.items()
    ]
    stuck += members.match_transfers()
    blocked = frozenset(rank for one in stuck if one.missing for rank in one.waiting)
    wanted = {rank for one in stuck for rank in one.missing}
    return WaitForGraph(tuple(sorted(stuck)), blocked, tuple(sorted(wanted - blocked)))


class _Members:
    """The members of each group, with their progress in it."""

    def __init__(self, hang_states: HangStates, groups: Groups, is_gone: IsGone) -> None:
        self._hang_states = hang_states
        self._groups = groups
        self._is_gone = is_gone

    def find_missing(self, group: str, sequence: int, op: str, waiting: Sequence[int], *, counts: bool) -> Stuck:
        """Find the ranks missing in a collective. Without `counts` (a group whose counters also count transfers from
        rank to rank) the progress of the others is unknown.
        """
        missing, unknown = [], []
        inside, furthest = frozenset(waiting), sequence
        for rank in sorted(self._groups.get(group, waiting)):
            state = self._hang_states.get(rank)
            enqueued = state.enqueued_in(group) if state is not None and counts else None
            furthest = max(furthest, enqueued or 0)
            if rank in inside:
                continue
            has_entered = self._has_entered(state, group, sequence, enqueued) if state is not None else None
            if has_entered is None:
                unknown.append(rank)
            elif not has_entered:
                missing.append(rank)
        oldest_of = sum(self._hang_states[rank].oldest == (group, sequence) for rank in waiting)
        return Stuck(group, sequence, op, tuple(waiting), tuple(missing), tuple(unknown), furthest, oldest_of)

    def _has_entered(self, state: RankHangState, group: str, sequence: int, enqueued: int | None) -> bool | None:
        if self._is_gone(state) or state.is_stopped:
            return state.completed_in(group) >= sequence
        if enqueued is not None and enqueued >= sequence:
            return True
        # A rank that ended after the others had stalled had waited as they do.
        return None if enqueued is None or state.is_gone else False

    def match_transfers(self) -> Iterable[Stuck]:
        """Yield the pending sends and receives, each with its peer where the place in the group is known."""
        for rank, state in sorted(self._hang_states.items()):
            for one, transfer in state.transfers:
                yield self._match_transfer(rank, one, transfer)

    def _match_transfer(self, rank: int, one: PendingCollective, transfer: PointToPoint) -> Stuck:
        members = sorted(self._groups.get(one.group, ()))
        peer = members[transfer.peer] if transfer.peer is not None and transfer.peer < len(members) else None
        state = self._hang_states.get(peer) if peer is not None else None
        peers = () if peer is None else (peer,)
        missing: tuple[int, ...] = ()
        unknown: tuple[int, ...] = ()
        if state is None or (state.is_gone and not self._is_gone(state)):
            unknown = peers
        elif not self._is_posted(state, one.group, members.index(rank) if rank in members else None, transfer):
            missing = peers
        oldest_of = int(self._hang_states[rank].oldest == (one.group, one.sequence))
        return Stuck(
            one.group, one.sequence, one.op, (rank,), missing, unknown, one.sequence, oldest_of, is_point_to_point=True
        )

    @staticmethod
    def _is_posted(state: RankHangState, group: str, place: int | None, transfer: PointToPoint) -> bool:
        """Return whether the other end of a transfer has been posted."""
        return any(
            one.group == group and other.is_send != transfer.is_send and other.peer in {place, None}
            for one, other in state.transfers
        )


def find_call(stuck: Stuck, state: RankHangState) -> PendingCollective | None:
    """Return the pending call of a waiting rank; None where only its counters show that it waits."""
    place = (stuck.group, stuck.sequence)
    return next((one for one in state.pending if (one.group, one.sequence) == place), None)


def find_calls(stuck: Stuck, hang_states: HangStates) -> dict[tuple[str, int | None], list[int]]:
    """Return which ranks have called what in a stuck collective, by (op, bytes). The size is None where it is not known
    or may differ between ranks.
    """
    calls: dict[tuple[str, int | None], list[int]] = {}
    for rank in stuck.waiting:
        one = find_call(stuck, hang_states[rank])
        if one is not None and one.op:
            size = one.bytes if one.op in EQUAL_SIZE_OPS else None
            calls.setdefault((one.op, size), []).append(rank)
    return calls


def has_mismatch(stuck: Stuck, hang_states: HangStates) -> bool:
    """Return whether ranks have called different collectives here, or one with sizes that must not differ."""
    if stuck.is_point_to_point:
        return False
    calls = find_calls(stuck, hang_states)
    return len({op for op, _ in calls}) > 1 or len({size for _, size in calls if size is not None}) > 1
