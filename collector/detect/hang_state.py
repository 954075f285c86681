"""Where one rank stands while the job does not move: what detection needs of its life, its stall and its progress."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from rankscope.measure.messages import RankUnresponsive
from rankscope.measure.stalls import (
    EXCUSED_ACTIVITIES,
    EXCUSED_FACTOR,
    GroupStatus,
    PendingCollective,
    StackFrame,
    Stall,
    ThreadStack,
)
from rankscope.measure.units import NS_PER_S

DIED: Final = frozenset({"killed", "out_of_memory", "crashed"})
"""Ends of which a rank itself says nothing."""
HEAD_START_NS: Final = 5 * NS_PER_S
"""The kernel closes the sockets of a dying process before it is gone, and a large one takes seconds to go: by so much
the exceptions of its peers may come before its end."""
VICTIM: Final = "collective_timeout"
"""Whoever ends so has waited for another rank."""


def date_failure(reason: str, ended_collector_ns: int, *, is_only_seen: bool) -> int:
    """When an end counts as begun: HEAD_START_NS earlier for a rank that died without a word.

    `is_only_seen`: the sidecar saw the end, and the rank had not told it.

    >>> date_failure("killed", 9 * NS_PER_S, is_only_seen=True) == 4 * NS_PER_S
    True
    """
    without_a_word = reason in DIED or is_only_seen
    return ended_collector_ns - (HEAD_START_NS if without_a_word and reason != VICTIM else 0)


SILENT: Final = "silent"
"""The end of a rank that does not report any more while nobody can see whether its process lives."""
NOT_KNOWN_TO_BE_GONE: Final = frozenset({SILENT, "stopped", VICTIM})
"""Ends after which a rank may still take part (it only stopped reporting), or had waited itself."""
EXCUSED_IN_HANGS: Final = EXCUSED_ACTIVITIES | {"data"}
"""Waiting for data does not count as a hang either: it is a slowness with a cause of its own."""
UNSEEN_WAITS: Final = frozenset({"collective", "process_group"})
"""What a rank that waits for others does where the recorder does not show it (gloo's point to point, new groups)."""
UNNAMED: Final = "#"
"""A group whose label was not known is called by its number: which one it is, nobody can say."""


class Wait(NamedTuple):
    """A rank waits in a collective of a group; `op` is empty where only the counters tell."""

    group: str
    sequence: int
    op: str = ""


@dataclass(frozen=True, kw_only=True)
class RankHangState:
    """One rank at one moment. None: not known.

    `ended` is how its life ended; `failed_collector_ns` when it ended badly by itself, dated back as `date_failure`
    does, None where it did not. `is_stalled` is its own or its sidecar's last word, also of a rank that is silent now;
    `stalled_ns` how long nothing had happened by then, `since_collector_ns` since when, where its clock is known.
    `progress` is empty where the rank tells nothing, or has made no collective. The sidecar's view, `unresponsive`,
    comes before what the rank wrote down itself, which is older.
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
    stall: Stall | None = None
    unresponsive: RankUnresponsive | None = None

    @property
    def is_gone(self) -> bool:
        """Whether its process has ended, or takes part no more."""
        return self.ended is not None and self.ended not in NOT_KNOWN_TO_BE_GONE

    @property
    def is_silent(self) -> bool:
        """Whether it does not report and nobody knows why."""
        return self.ended == SILENT

    @property
    def stands_still(self) -> bool:
        """Whether it is stalled, as far as anybody has heard, and has not ended."""
        return bool(self.is_stalled) and (self.ended is None or self.is_silent)

    @property
    def activity(self) -> str | None:
        """What its main thread does, one of ACTIVITIES; None where only the kernel can be asked, or nobody."""
        return None if self.stall is None or self.unresponsive is not None else self.stall.activity

    @property
    def is_excused(self) -> bool:
        """Whether it does what may take long in a healthy job, and has not for too long."""
        if self.stall is None or self.activity not in EXCUSED_IN_HANGS:
            return False
        return self.stalled_ns is None or self.stalled_ns <= EXCUSED_FACTOR * self.stall.limit_ns

    @property
    def pending(self) -> tuple[PendingCollective, ...]:
        """What it has enqueued and what has not completed, oldest first."""
        if self.unresponsive is not None:
            return self.unresponsive.pending
        return self.stall.pending if self.stall is not None else ()

    @property
    def main_stack(self) -> ThreadStack | None:
        """The stack of its main thread; None where it is not known, as while it does not answer."""
        if self.unresponsive is not None or self.stall is None or not self.stall.stacks:
            return None
        return self.stall.stacks[0]

    @property
    def frames(self) -> tuple[StackFrame, ...]:
        """The frames of its main thread, innermost first; none where they are not known."""
        return () if self.main_stack is None else self.main_stack.frames

    @cached_property
    def _statuses(self) -> Mapping[str, GroupStatus]:
        seen = self.unresponsive.progress if self.unresponsive is not None else ()
        return {status.group: status for status in seen or self.progress}

    @property
    def _tells_absence(self) -> bool:
        """Whether a group that it does not mention is one in which it has enqueued nothing."""
        if self._statuses:
            return not any(group.startswith(UNNAMED) for group in self._statuses)
        return self.unresponsive is None and self.stall is not None and "pending" not in self.stall.absent

    def enqueued_in(self, group: str) -> int | None:
        """The last sequence that it has enqueued in a group, 0 before any; None when it does not tell."""
        status = self._statuses.get(group)
        if status is not None and status.enqueued is not None:
            return status.enqueued
        return 0 if self._tells_absence else None

    def completed_in(self, group: str) -> int:
        """The last sequence that it is known to have completed in a group, 0 before any."""
        status = self._statuses.get(group)
        return status.completed or 0 if status is not None else 0

    def started_in(self, group: str) -> int | None:
        """The last sequence that its device has begun in a group; None where the backend does not tell."""
        status = self._statuses.get(group)
        return None if status is None else status.started

    @cached_property
    def waits(self) -> tuple[Wait, ...]:
        """The first collective of each group in which it waits while it stands still, hand-overs left out: what is
        pending, and by the counters alone what comes after the last that has completed.
        """
        if not self.stands_still:
            return ()
        found: dict[str, Wait] = {}
        for one in self.pending:
            first = found.get(one.group)
            if find_handover(one) is None and (first is None or one.sequence < first.sequence):
                found[one.group] = Wait(one.group, one.sequence, one.op)
        handed = {one.group for one in self.pending if find_handover(one) is not None}
        for group, status in self._statuses.items():
            if group in found or group in handed or status.enqueued is None:
                continue
            if status.enqueued > (status.completed or 0):
                # Where no completion is told at all, the last one enqueued is the only one known to be open.
                first_open = status.enqueued if status.completed is None else status.completed + 1
                found[group] = Wait(group, first_open)
        return tuple(found.values())

    @property
    def oldest(self) -> tuple[str, int] | None:
        """Group and sequence of what it waits in first; None where it waits in nothing that is known."""
        if not self.stands_still:
            return None
        if self.pending:
            return self.pending[0].group, self.pending[0].sequence
        return self.waits[0][:2] if self.waits else None

    @cached_property
    def handovers(self) -> tuple[tuple[PendingCollective, "Handover"], ...]:
        """The pending sends and receives of a rank that stands still."""
        if not self.stands_still:
            return ()
        found = ((one, find_handover(one)) for one in self.pending)
        return tuple((one, handover) for one, handover in found if handover is not None)


class Handover(NamedTuple):
    """One end of a transfer from rank to rank: whether this is the sender, and the other end's place in the group (None
    where it is not told).
    """

    is_send: bool
    peer: int | None


def find_handover(one: PendingCollective) -> Handover | None:
    """What NCCL's names of point to point operations say; None for a collective.

    >>> one = PendingCollective(group="mesh_pp", op="recv 1<-0", sequence=3, age_ns=0)
    >>> find_handover(one)
    Handover(is_send=False, peer=0)
    """
    verb, _, places = one.op.partition(" ")
    if verb not in {"send", "recv"}:
        return None
    peer = places.rpartition("->" if verb == "send" else "<-")[2]
    return Handover(verb == "send", int(peer) if peer.isascii() and peer.isdigit() else None)
