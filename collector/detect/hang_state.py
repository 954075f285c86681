"""Describe the state of one rank in a hang: its end, its stall, its progress in each process group."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, NamedTuple

from rankscope.collector.detect.finding import BUSY_RANK, DATA_WAIT
from rankscope.measure.node_messages import RankUnresponsive
from rankscope.measure.stalls import (
    EXCUSED_ACTIVITIES,
    EXCUSED_FACTOR,
    UNRECORDED_SEQUENCE,
    GroupStatus,
    PendingCollective,
    StackFrame,
    Stall,
    ThreadStack,
    is_transfer,
)
from rankscope.measure.units import NS_PER_S

EXIT_UNKNOWN: Final = "exit_unknown"
"""End of a rank whose process has ended, and of which nothing else is known."""
DIED: Final = frozenset({"killed", "out_of_memory", "crashed", EXIT_UNKNOWN})
"""Ends that a rank cannot report itself."""
DEATH_SEEN_DELAY_NS: Final = 5 * NS_PER_S
"""The kernel closes the sockets of a dying process seconds before the process is gone, so the exceptions of its peers
may come this long before its own end is seen."""
COLLECTIVE_TIMEOUT: Final = "collective_timeout"
"""End of a rank that has waited for another one."""


def date_failure(reason: str, ended_collector_ns: int, *, is_only_seen: bool) -> int:
    """Return when a failure began: at the end of the rank, or DEATH_SEEN_DELAY_NS before where the rank died without
    reporting it. A collective's timeout is never dated back.

    `is_only_seen`: the sidecar saw the end, and the rank had not reported it.

    >>> date_failure("killed", 9 * NS_PER_S, is_only_seen=True) == 4 * NS_PER_S
    True
    """
    is_unreported = reason in DIED or is_only_seen
    return ended_collector_ns - (DEATH_SEEN_DELAY_NS if is_unreported and reason != COLLECTIVE_TIMEOUT else 0)


SILENT: Final = "silent"
"""State of a rank that no longer reports, when it is not known whether its process is alive."""
MAYBE_ALIVE_ENDS: Final = frozenset({SILENT, "stopped", COLLECTIVE_TIMEOUT})
"""Ends after which a rank may still take part (it only stopped reporting), or had waited itself."""
UNRECORDED_WAITS: Final = frozenset({"collective", "process_group", "store"})
"""Activities of a rank that may wait for others without a record of it (gloo's point to point, new groups, a key of the
store, `monitored_barrier`)."""
STOPPED_STATES: Final = frozenset({"T", "t", "D"})
"""States of a main thread in which its process runs nothing: stopped by a signal or a debugger; blocked in the kernel.
Only where torch's worker server, on a thread of its own, does not answer either."""
UNLABELED_PREFIX: Final = "#"
"""Prefix of the name of a group without a label, which cannot be matched between ranks."""


class Wait(NamedTuple):
    """A collective of a group in which a rank waits; `op` is empty where it is known from counters only."""

    group: str
    sequence: int
    op: str = ""


@dataclass(frozen=True, kw_only=True)
class RankHangState:
    """The state of one rank at one time. None: not known.

    `ended` is how its process ended; `failed_collector_ns` when it failed by itself, as `date_failure` returns it, None
    where it did not. `is_stalled` is the last report of the rank or its sidecar, also of a rank that is silent now;
    `stalled_ns` how long it had made no progress by then, `since_collector_ns` since when, where its clock is known.
    `progress` is empty where the rank does not report it, or has made no collective; `progress_unchanged_ns` how long
    it had been the same by then, `group_unchanged_ns` that of groups in which it is longer. The sidecar's view,
    `unresponsive`, is newer than the rank's own reports and takes precedence.
    """

    ended: str | None = None
    ended_detail: str = ""
    ended_collector_ns: int | None = None
    failed_collector_ns: int | None = None
    is_stalled: bool | None = None
    stalled_ns: int | None = None
    since_collector_ns: int | None = None
    last_step: int | None = None
    progress: tuple[GroupStatus, ...] = ()
    progress_unchanged_ns: int | None = None
    group_unchanged_ns: Mapping[str, int] = field(default_factory=dict)
    stall: Stall | None = None
    unresponsive: RankUnresponsive | None = None

    @property
    def is_gone(self) -> bool:
        """Return whether its process has ended, or takes part no more."""
        return self.ended is not None and self.ended not in MAYBE_ALIVE_ENDS

    @property
    def is_silent(self) -> bool:
        """Return whether it does not report, for an unknown reason."""
        return self.ended == SILENT

    @property
    def is_stalled_now(self) -> bool:
        """Return whether it is stalled by its last report and is not known to have ended."""
        return bool(self.is_stalled) and (self.ended is None or self.is_silent)

    @property
    def has_old_counters(self) -> bool:
        """Return whether its counters are of its last report, some time before it stopped to report."""
        return self.is_silent or (self.unresponsive is not None and "pending" in self.unresponsive.absent)

    @property
    def is_stopped(self) -> bool:
        """Return whether its process runs nothing, so that it takes part in no collective, also in one it has
        entered.
        """
        found = self.unresponsive
        return found is not None and found.state in STOPPED_STATES and self.has_old_counters and self.is_stalled_now

    @property
    def activity(self) -> str | None:
        """Return what its main thread does, one of ACTIVITIES; None when not known or only the kernel's view is."""
        return None if self.stall is None or self.unresponsive is not None else self.stall.activity

    @property
    def is_excused(self) -> bool:
        """Return whether it does work that may take long in a healthy run, and not for too long yet."""
        return self.activity in EXCUSED_ACTIVITIES and not _lasts_very_long(self)

    @property
    def waits_for_data(self) -> bool:
        """Return whether its main thread waits for a batch, by its own reports up to now."""
        return self.activity == "data" and not self.is_silent

    @property
    def is_busy(self) -> bool:
        """Return whether it works on something without hook events, by its own reports up to now, as its samples
        show.
        """
        return self.stall is not None and self.unresponsive is None and not self.is_silent and self.stall.is_busy

    @property
    def pending(self) -> tuple[PendingCollective, ...]:
        """Return the collectives that it has enqueued and that have not completed, oldest first."""
        if self.unresponsive is not None:
            return self.unresponsive.pending
        return self.stall.pending if self.stall is not None else ()

    @property
    def is_pending_known(self) -> bool:
        """Return whether its flight recorder could be read when its stall was described."""
        seen = self.stall if self.unresponsive is None else self.unresponsive
        return seen is not None and "pending" not in seen.absent

    @property
    def main_stack(self) -> ThreadStack | None:
        """Return the stack of its main thread; None when not known, as while it does not respond."""
        if self.unresponsive is not None or self.stall is None or not self.stall.stacks:
            return None
        return self.stall.stacks[0]

    @property
    def frames(self) -> tuple[StackFrame, ...]:
        """Return the frames of its main thread, innermost first; empty when not known."""
        return () if self.main_stack is None else self.main_stack.frames

    @cached_property
    def _statuses(self) -> Mapping[str, GroupStatus]:
        progress = self.unresponsive.progress if self.unresponsive is not None else ()
        return {status.group: status for status in progress or self.progress}

    @property
    def _lists_all_groups(self) -> bool:
        """Return whether it has enqueued nothing in a group that it does not list."""
        if self._statuses:
            return not any(group.startswith(UNLABELED_PREFIX) for group in self._statuses)
        return self.is_pending_known

    def enqueued_in(self, group: str) -> int | None:
        """Return the last sequence that it has enqueued in a group, 0 before any; None when not known."""
        status = self._statuses.get(group)
        if status is not None and status.enqueued is not None:
            return status.enqueued
        return 0 if self._lists_all_groups else None

    def completed_in(self, group: str) -> int:
        """Return the last sequence that it is known to have completed in a group, 0 before any."""
        status = self._statuses.get(group)
        return status.completed or 0 if status is not None else 0

    def unchanged_in(self, group: str) -> int | None:
        """Return for how long its counters of a group had been the same by its last message; None when not known."""
        return self.group_unchanged_ns.get(group, self.progress_unchanged_ns)

    def started_in(self, group: str) -> int | None:
        """Return the last sequence that its device has started in a group; None where the backend does not report
        it.
        """
        status = self._statuses.get(group)
        return None if status is None else status.started

    @cached_property
    def waits(self) -> tuple[Wait, ...]:
        """Return the first collective of each group in which a stalled rank waits, without point-to-point operations:
        the pending one, or by counters alone the one after the last completed one. A stopped rank waits for none.
        """
        if not self.is_stalled_now or self.is_stopped:
            return ()
        found: dict[str, Wait] = {}
        for one in self.pending:
            first = found.get(one.group)
            if parse_point_to_point(one) is None and (first is None or one.sequence < first.sequence):
                found[one.group] = Wait(one.group, one.sequence, one.op)
        point_to_point = find_counted_transfers(self)
        for group, status in self._statuses.items():
            if group in found or group in point_to_point or status.enqueued is None:
                continue
            if status.enqueued > (status.completed or 0):
                # Where no completion is reported at all, only the last one enqueued is known to be open.
                first_open = status.enqueued if status.completed is None else status.completed + 1
                found[group] = Wait(group, first_open)
        return tuple(found.values())

    @property
    def oldest(self) -> tuple[str, int] | None:
        """Return group and sequence of the oldest operation it waits in; None when none is known."""
        if not self.is_stalled_now:
            return None
        if self.pending:
            return self.pending[0].group, self.pending[0].sequence
        return self.waits[0][:2] if self.waits else None

    @cached_property
    def transfers(self) -> tuple[tuple[PendingCollective, "PointToPoint"], ...]:
        """Return the pending sends and receives of a stalled rank."""
        if not self.is_stalled_now:
            return ()
        found = ((one, parse_point_to_point(one)) for one in self.pending)
        return tuple((one, transfer) for one, transfer in found if transfer is not None)

    @property
    def waits_unrecorded(self) -> bool:
        """Return whether it is stalled in a call that waits for other ranks, of which there is no record."""
        return self.is_stalled_now and self.activity in UNRECORDED_WAITS and not (self.waits or self.transfers)


def _lasts_very_long(state: RankHangState) -> bool:
    """Return whether its stall has lasted EXCUSED_FACTOR limits."""
    if state.stall is None or state.stalled_ns is None:
        return False
    return state.stalled_ns > EXCUSED_FACTOR * state.stall.limit_ns


def works_outside_collectives(state: RankHangState) -> bool:
    """Return whether a rank works outside of any collective, by its own reports: it is busy, and has none pending. Its
    counters may be behind then: gloo counts a collective as completed with Python's lock, which a loop may hold.
    """
    stall = state.stall
    return state.is_busy and stall is not None and not stall.pending and "pending" not in stall.absent


def find_pause(state: RankHangState) -> str | None:
    """Return the cause of PAUSES that a rank's stall has, and has not had for too long; None otherwise.

    A rank that compiles, saves or imports is busy also where its samples show no work: compilers run in processes of
    their own, and storage may be slow.
    """
    if state.is_excused and state.ended is None:
        return BUSY_RANK
    if not state.is_stalled_now or _lasts_very_long(state):
        return None
    if state.waits_for_data:
        return DATA_WAIT
    return BUSY_RANK if state.is_busy else None


def find_counted_transfers(state: RankHangState) -> frozenset[str]:
    """Return the groups of pending sends and receives that the rank's counters count too, as those of NCCL do."""
    return frozenset(one.group for one, _ in state.transfers if one.sequence != UNRECORDED_SEQUENCE)


class PointToPoint(NamedTuple):
    """One end of a transfer from rank to rank: whether it sends, and the peer's place in the group (None: not
    known).
    """

    is_send: bool
    peer: int | None


def parse_point_to_point(one: PendingCollective) -> PointToPoint | None:
    """Parse NCCL's name of a point-to-point operation; None for a collective.

    >>> one = PendingCollective(group="mesh_pp", op="recv 1<-0", sequence=3, age_ns=0)
    >>> parse_point_to_point(one)
    PointToPoint(is_send=False, peer=0)
    """
    if not is_transfer(one):
        return None
    verb, _, places = one.op.partition(" ")
    peer = places.rpartition("->" if verb == "send" else "<-")[2]
    return PointToPoint(verb == "send", int(peer) if peer.isascii() and peer.isdigit() else None)


def add_progress_of_peers(
    hang_states: Mapping[int, RankHangState], groups: Mapping[str, Sequence[int]]
) -> Mapping[int, RankHangState]:
    """Return the states with the counters of ranks that are heard of no more, or work outside of any collective, at
    least those that their peers show.

    The last report of a silent or stopped rank is some seconds older than the moment in which it stopped: in a training
    that communicates most of the time it fell into a collective that all have left since. What a member of a group has
    completed, every member has entered. A silent rank whose peers have completed more than it had is no longer where
    its last report saw it stalled.
    """
    outdated = {
        rank for rank, state in hang_states.items() if state.has_old_counters or works_outside_collectives(state)
    }
    if not outdated:
        return hang_states
    shown: dict[int, dict[str, int]] = {rank: {} for rank in outdated}
    for group, members in groups.items():
        if here := outdated.intersection(members):
            completed = max(hang_states[one].completed_in(group) for one in members if one in hang_states)
            for rank in here:
                shown[rank][group] = completed
    return {rank: _raise(state, shown[rank]) if rank in outdated else state for rank, state in hang_states.items()}


def _raise(state: RankHangState, completed_of_peers: Mapping[str, int]) -> RankHangState:
    ahead = {group: last for group, last in completed_of_peers.items() if last > state.completed_in(group)}
    if not ahead:
        return state
    known = {status.group: status for status in state.progress}
    for group, last in ahead.items():
        status = known.get(group, GroupStatus(group=group))
        known[group] = GroupStatus(
            group=group, enqueued=max(status.enqueued or 0, last), started=status.started, completed=last
        )
    is_stalled = False if state.is_silent else state.is_stalled
    return replace(state, progress=tuple(known.values()), is_stalled=is_stalled)
