"""Admit each numbered message once and in order, and count those that never came. No socket, no clock.

    sequence == expected    Admitted      into the run state; acknowledge
    sequence <  expected    Duplicate     the acknowledgement was lost; acknowledge again
    sequence >  expected    SequenceGap   not admitted; ask the peer for a Hello, once
    no Hello before         UnknownPeer   ask the peer for a Hello

A gap alone does not show what happened to the messages in it. Either a broken connection lost them, and the agent still
holds them; or they were dropped from its full buffer, and waiting for them would never end. Guessing is dangerous: the
acknowledgement of the message after the gap would cover messages that the agent holds, and nothing would count them.
(Believing a gap that is seen a second time fails too: a connection that breaks twice at the same place looks the same.)
So a gap asks for a Hello: its `first_sequence` is the oldest message the agent can still send, and whatever before it
has not arrived is missing, which is a fact and is counted. Should the question be lost, the agent sends a Hello by
itself after a silence (uplink/delivery.py).

For each rank process, at any time: `admitted + missing = last_sequence - first_sequence + 1`.

A rank process belongs to the sender of its first Hello: to the client key of that connection where it is encrypted
(CURVE), else to its routing id. Messages of any other sender in its name are refused and counted. A run belongs to the
key that began it, until it is over: the next run of its name may have another. Room for all ranks of a run is reserved
when its first rank comes: the state of a run is as large as its world, and a Hello of a hundred bytes may claim any.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import Hello, Refused, Welcome

REFUSED_FULL = "full"
REFUSED_REPLACED = "replaced"
"""May resolve by themselves: the agent tries again after its longest pause. After any other reason it gives up."""

REFUSED_RANK_OUTSIDE_WORLD = "rank_outside_world"
REFUSED_IDENTITY_CHANGED = "identity_changed"
REFUSED_IDENTITY_TAKEN = "identity_taken"
REFUSED_RUN_TAKEN = "run_taken"

ORPHANED_MAX: Final = 2048
"""Orphaned rank processes admitted beyond `ranks_max`: each sidecar delivers the reports of one at a time, and 16,384
ranks have this many nodes. A rank process takes 2 KB."""

DETAIL_LENGTH_MAX = 1024
"""Longest text that `messages.Text` allows; the names of runs and nodes in it come from a stranger."""


class Admitted(msgspec.Struct, frozen=True, gc=False):
    """The expected message, for the state of `identity`; `through` can be acknowledged once it is there."""

    identity: RankIdentity
    through: int


class Duplicate(msgspec.Struct, frozen=True, gc=False):
    """A message that was admitted before, or given up. `through` is to be acknowledged again."""

    identity: RankIdentity
    through: int


class SequenceGap(msgspec.Struct, frozen=True, gc=False):
    """A message that is not admitted because `missing` messages between `through` and it have not arrived.

    `hello_wanted`: send a HelloWanted now. True once for each Hello, however many messages follow the gap.
    """

    identity: RankIdentity
    through: int
    missing: int
    hello_wanted: bool


class UnknownPeer(msgspec.Struct, frozen=True, gc=False):
    """No Hello has come under this routing id, or the rank process was forgotten. Send a HelloWanted."""


Verdict = Admitted | Duplicate | SequenceGap | UnknownPeer


class ProcessCounts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Counts of the numbered messages of one rank process.

    `first_sequence` is the number its first Hello began with, `last_sequence` the last one admitted or given up (one
    below `first_sequence` before any). `missing` counts messages given up, `gaps` those not admitted because one before
    them was missing, which are no loss.
    """

    first_sequence: int
    last_sequence: int
    admitted: int
    missing: int
    duplicates: int
    gaps: int


NO_OWNER: Final = b""
"""The routing id of a restored rank process that has not sent a Hello yet: no real one is empty."""


class Admission:
    """The peers by their routing id, and the next number expected from each.

    At most `runs_max` runs and `ranks_max` rank processes are known, and the worlds of all runs together have no more
    than `ranks_max` ranks. For a further run those that no rank reports for are forgotten, as many as it needs, in the
    order of `may_forget`; where that is not enough it is refused, and none is forgotten. No other that is known is
    dropped, with two exceptions: a restarted rank takes the place of its own earlier process, and superseded processes
    (of earlier restarts, or with orphaned reports) are dropped first. ORPHANED_MAX more orphaned ones are admitted
    beyond `ranks_max`. The owner forgets what ended long ago.

    `key` is everywhere the client key of the connection, empty without keys; for a rank behind a relay relays.py
    determines it.
    """

    def __init__(self, runs_max: int, ranks_max: int) -> None:
        if runs_max < 1 or ranks_max < 1:
            text = f"runs_max is {runs_max} and ranks_max is {ranks_max}; the smallest allowed is 1 for both"
            raise ValueError(text)
        self._runs_max = runs_max
        self._ranks_max = ranks_max
        self._runs: dict[str, RankIdentity] = {}  # with the identity that its world size is from
        self._run_keys: dict[str, str] = {}
        self._processes = _RankProcesses()
        self._forgettable: dict[str, None] = {}
        self._forgotten: list[str] = []
        self.refused: dict[str, int] = {}
        """Hellos refused, by reason, and messages and notices in the name of another sender's rank."""
        self.unknown_processes = 0
        """Notices about a rank process that is not known."""

    def may_forget(self, names: Iterable[str]) -> None:
        """Set the runs that may be forgotten for others, in that order: none of their ranks reports."""
        self._forgettable = dict.fromkeys(names)

    def pop_forgotten(self) -> list[str]:
        """Return the names of the runs that were forgotten for others since the last call."""
        forgotten, self._forgotten = self._forgotten, []
        return forgotten

    def hello(self, peer: bytes, hello: Hello, key: str = "") -> Welcome | Refused:
        """Admit a rank process, or one that is known again, and give up the messages it can no longer send."""
        identity = hello.identity
        if not hello.left_behind:
            self._forgettable.pop(identity.run, None)
        process = self._processes.by_boot_id.get(identity.boot_id)
        refusal = _find_contradiction(identity, process) or self._find_theft(peer, identity, process, key)
        if refusal is None and process is None:
            refusal = self._make_room(identity, orphaned=hello.left_behind)
        if refusal is not None:
            self._count_refused(refusal.reason)
            return refusal
        if process is not None and process.peer == NO_OWNER:
            process.key = self._run_keys[identity.run] = key
        if process is None:
            process = self._begin_process(peer, identity, hello.first_sequence, key, orphaned=hello.left_behind)
        self._processes.bind(process, peer)
        process.apply_hello(hello)
        return Welcome(admitted_through=process.last_sequence, hello_number=hello.hello_number)

    def number(self, peer: bytes, sequence: int, key: str = "") -> Verdict:
        """Return whether a numbered message of a peer is admitted."""
        process = self._find_process(peer, key)
        return UnknownPeer() if process is None else process.number(sequence)

    def restore(self, identity: RankIdentity, counts: ProcessCounts) -> bool:
        """Add a rank process that a previous collector knew; return whether there is room for it.

        It has to send a Hello before anything of it is admitted; the sender of the first one becomes its owner.
        """
        if self._make_room(identity, orphaned=False) is not None:
            return False
        process = self._begin_process(NO_OWNER, identity, counts.first_sequence, "", orphaned=False)
        process.restore(counts)
        return True

    def identity(self, peer: bytes, key: str = "") -> RankIdentity | None:
        """Return the identity of the rank with this routing id; None before a Hello."""
        process = self._find_process(peer, key)
        return None if process is None else process.identity

    def run_of(self, peer: bytes, key: str) -> str:
        """Return the run of the rank with this routing id and key; empty where there is none."""
        process = self._processes.by_peer.get(peer)
        return "" if process is None or process.key != key else process.identity.run

    def knows(self, identity: RankIdentity, key: str = "") -> bool:
        """Return whether a sidecar with this key may report about exactly this rank process.

        A sidecar has the key of its ranks; another key is counted in `refused`. The process must be known, from a Hello
        or restored; one that is not is counted in `unknown_processes`.
        """
        process = self._processes.by_boot_id.get(identity.boot_id)
        if process is None or process.identity != identity:
            self.unknown_processes += 1
            return False
        if process.peer != NO_OWNER and process.key != key:
            self._count_refused(REFUSED_IDENTITY_TAKEN)
            return False
        return True

    def report_interval_ns(self, peer: bytes) -> int:
        """Return how far apart the reports of this peer are; 0 for one that is not known or delivers orphaned
        reports.
        """
        process = self._processes.by_peer.get(peer)
        return 0 if process is None else process.report_interval_ns

    def peer_of(self, boot_id: str) -> bytes | None:
        """Return the peer of a rank process; None where it is not known or has not sent a Hello since it was
        restored.
        """
        process = self._processes.by_boot_id.get(boot_id)
        return None if process is None or process.peer == NO_OWNER else process.peer

    def counts(self, boot_id: str) -> ProcessCounts | None:
        """Return the counts of a rank process; None when it is not known."""
        process = self._processes.by_boot_id.get(boot_id)
        return None if process is None else process.counts()

    def world_size(self, run: str) -> int | None:
        """Return how many ranks a run has, by the last Hello with the highest restart count.

        None when the run is not known. Ranks of one restart may disagree on their count: torchrun counts failures of
        its own node only.
        """
        newest = self._runs.get(run)
        return None if newest is None else newest.world_size

    def begin_run(self, identity: RankIdentity) -> None:
        """Note that a new run of this name began: its restarts count from those of this rank process. The processes
        of earlier runs of the name stay known.
        """
        self._runs[identity.run] = identity

    def end_run(self, name: str) -> None:
        """Note that every rank of the latest run of this name has ended: the next one may have another key."""
        self._run_keys.pop(name, None)

    def forget(self, run: str) -> None:
        """Forget the runs of this name and all their rank processes, whose peers are unknown from then on."""
        self._runs.pop(run, None)
        self._run_keys.pop(run, None)
        for process in self._processes.of_run(run):
            self._processes.drop(process)

    def forget_peer(self, boot_id: str) -> None:
        """Forget one rank process. Its run stays known until `forget`."""
        process = self._processes.by_boot_id.get(boot_id)
        if process is not None:
            self._processes.drop(process)

    def refuse_replaced(self, boot_id: str, detail: str) -> tuple[Refused, str]:
        """Count that the run of a rank process ignores it; return what to tell it, and its run."""
        self._count_refused(REFUSED_REPLACED)
        process = self._processes.by_boot_id.get(boot_id)
        run = "" if process is None else process.identity.run
        return Refused(reason=REFUSED_REPLACED, detail=detail[:DETAIL_LENGTH_MAX]), run

    def _find_process(self, peer: bytes, key: str) -> "_RankProcess | None":
        """Return the rank process of a peer. Another key means that another client has replaced its connection."""
        process = self._processes.by_peer.get(peer)
        if process is not None and process.key != key:
            self._count_refused(REFUSED_IDENTITY_TAKEN)
            return None
        return process

    def _find_theft(
        self, peer: bytes, identity: RankIdentity, process: "_RankProcess | None", key: str
    ) -> Refused | None:
        if (
            process is not None
            and process.peer != NO_OWNER
            and (process.key != key or (not key and process.peer != peer))
        ):
            detail = (
                f"rank {identity.rank} of run {identity.run!r}, boot id {identity.boot_id}, has sent its Hello on a "
                f"connection with another {'key' if key or process.key else 'routing id'}; only that one may report "
                "for it. Restart the agent there: it makes a new boot id."
            )
            return Refused(reason=REFUSED_IDENTITY_TAKEN, detail=detail[:DETAIL_LENGTH_MAX])
        if self._run_keys.get(identity.run, key) != key:
            detail = (
                f"run {identity.run!r} was started with another client key. All ranks of a run share one key; give the "
                "run another name, or every rank the same key_file."
            )
            return Refused(reason=REFUSED_RUN_TAKEN, detail=detail[:DETAIL_LENGTH_MAX])
        return None

    def _make_room(self, identity: RankIdentity, *, orphaned: bool) -> Refused | None:
        refusal = self._make_room_for_run(identity)
        if refusal is not None:
            return refusal
        count = len(self._processes.by_boot_id)
        if count >= self._ranks_max + (ORPHANED_MAX if orphaned else 0):
            earlier = None if orphaned else self._processes.latest.get((identity.run, identity.rank))
            spare = earlier or next(iter(self._processes.superseded.values()), None)
            if spare is None:
                return _refuse_full("ranks", count, self._ranks_max)
            self._processes.drop(spare)
        return None

    def _make_room_for_run(self, identity: RankIdentity) -> Refused | None:
        """Forget as many runs as this one needs room; none where that is not enough."""
        newest = self._runs.get(identity.run)
        # One of fewer restarts may begin a new run of this name, and then needs all the room of its world.
        is_newest = newest is None or identity.restart_count >= newest.restart_count
        needs_world = newest is None or is_newest or identity.world_size > newest.world_size
        runs_max, ranks_max = self._runs_max - 1, self._ranks_max - identity.world_size
        runs = len(self._runs)
        ranks = others = sum(one.world_size for run, one in self._runs.items() if run != identity.run)
        spare = [name for name in self._forgettable if name in self._runs and name != identity.run]
        forgotten: list[str] = []
        while (newest is None and runs > runs_max) or (needs_world and ranks > ranks_max):
            if len(forgotten) == len(spare):
                is_full = newest is None and len(self._runs) > runs_max
                refuse_runs = _refuse_full("runs", len(self._runs), self._runs_max)
                return refuse_runs if is_full else _refuse_world(identity, others, self._ranks_max)
            name = spare[len(forgotten)]
            forgotten.append(name)
            runs, ranks = runs - 1, ranks - self._runs[name].world_size
        for name in forgotten:
            self._forgettable.pop(name)
            self.forget(name)
        self._forgotten += forgotten
        return None

    def _count_refused(self, reason: str) -> None:
        self.refused[reason] = self.refused.get(reason, 0) + 1

    def _begin_process(
        self, peer: bytes, identity: RankIdentity, first_sequence: int, key: str, *, orphaned: bool
    ) -> "_RankProcess":
        process = _RankProcess(peer, identity, first_sequence, key)
        newest = self._runs.get(identity.run)
        is_superseded = orphaned and newest is not None
        self._processes.add(process, is_latest=not is_superseded)
        if is_superseded:
            return process
        if newest is None or identity.restart_count >= newest.restart_count:
            self._runs[identity.run] = identity
        if peer != NO_OWNER:
            self._run_keys[identity.run] = key
        return process


class _RankProcesses:
    """The rank processes that are known, found by boot id, peer or rank."""

    def __init__(self) -> None:
        #: All of them.
        self.by_boot_id: dict[str, _RankProcess] = {}
        #: Those whose peer is known.
        self.by_peer: dict[bytes, _RankProcess] = {}
        #: The latest of each run and rank; every other one is superseded.
        self.latest: dict[tuple[str, int], _RankProcess] = {}
        #: By boot id, the oldest first.
        self.superseded: dict[str, _RankProcess] = {}

    def of_run(self, run: str) -> list["_RankProcess"]:
        """Return those of all runs of this name."""
        return [process for process in self.by_boot_id.values() if process.identity.run == run]

    def add(self, process: "_RankProcess", *, is_latest: bool) -> None:
        """Add one; the latest of its rank supersedes the one before."""
        identity = process.identity
        self.by_boot_id[identity.boot_id] = process
        if not is_latest:
            self.superseded[identity.boot_id] = process
            return
        earlier = self.latest.get((identity.run, identity.rank))
        if earlier is not None:
            self.superseded[earlier.identity.boot_id] = earlier
        self.latest[identity.run, identity.rank] = process

    def bind(self, process: "_RankProcess", peer: bytes) -> None:
        """Set its peer, which the one before is no longer."""
        if self.by_peer.get(process.peer) is process:
            del self.by_peer[process.peer]
        process.peer = peer
        self.by_peer[peer] = process

    def drop(self, process: "_RankProcess") -> None:
        """Forget one."""
        key = (process.identity.run, process.identity.rank)
        del self.by_boot_id[process.identity.boot_id]
        self.superseded.pop(process.identity.boot_id, None)
        if self.latest.get(key) is process:
            del self.latest[key]
        if self.by_peer.get(process.peer) is process:
            del self.by_peer[process.peer]


class _RankProcess:
    """One rank process: the counts of its messages and the next number expected."""

    def __init__(self, peer: bytes, identity: RankIdentity, first_sequence: int, key: str) -> None:
        self.peer = peer
        self.identity = identity
        self.key = key
        self.last_sequence = first_sequence - 1
        self.report_interval_ns = 0
        self._first_sequence = first_sequence
        self._admitted = 0
        self._missing = 0
        self._duplicates = 0
        self._gaps = 0
        self._hello_asked = False

    def restore(self, counts: ProcessCounts) -> None:
        """Continue from these counts."""
        self.last_sequence, self._admitted = counts.last_sequence, counts.admitted
        self._missing, self._duplicates, self._gaps = counts.missing, counts.duplicates, counts.gaps

    def apply_hello(self, hello: Hello) -> None:
        """Give up every message before its `first_sequence` that has not arrived."""
        self._hello_asked = False
        self.report_interval_ns = 0 if hello.left_behind else hello.report_interval_ns
        given_up = max(0, hello.first_sequence - 1 - self.last_sequence)
        self._missing += given_up
        self.last_sequence += given_up

    def number(self, sequence: int) -> Verdict:
        """Return whether a numbered message is admitted."""
        if sequence == self.last_sequence + 1:
            self.last_sequence = sequence
            self._admitted += 1
            return Admitted(self.identity, sequence)
        if sequence <= self.last_sequence:
            self._duplicates += 1
            return Duplicate(self.identity, self.last_sequence)
        self._gaps += 1
        hello_wanted = not self._hello_asked
        self._hello_asked = True
        return SequenceGap(self.identity, self.last_sequence, sequence - 1 - self.last_sequence, hello_wanted)

    def counts(self) -> ProcessCounts:
        """Return the present counts."""
        return ProcessCounts(
            first_sequence=self._first_sequence,
            last_sequence=self.last_sequence,
            admitted=self._admitted,
            missing=self._missing,
            duplicates=self._duplicates,
            gaps=self._gaps,
        )


def _find_contradiction(identity: RankIdentity, process: _RankProcess | None) -> Refused | None:
    if identity.rank >= identity.world_size:
        detail = (
            f"rank {identity.rank} reports a world of {identity.world_size} ranks, numbered from 0 (from RANK and "
            "WORLD_SIZE of its process). Correct the environment that the launcher gives it."
        )
        return Refused(reason=REFUSED_RANK_OUTSIDE_WORLD, detail=detail)
    if process is not None and process.identity != identity:
        known = process.identity
        detail = (
            f"boot id {identity.boot_id} is known as rank {known.rank} of run {known.run!r} on node {known.node!r}, "
            f"process {known.pid}, and is now claimed by rank {identity.rank} of run {identity.run!r} on node "
            f"{identity.node!r}, process {identity.pid}. It names one process: restart the agent there."
        )
        return Refused(reason=REFUSED_IDENTITY_CHANGED, detail=detail[:DETAIL_LENGTH_MAX])
    return None


def _refuse_full(what: str, count: int, count_max: int) -> Refused:
    detail = (
        f"this collector knows {count} {what}; {what}_max in its configuration is {count_max}. Raise it there, or wait "
        "until one has ended; this rank tries again by itself."
    )
    return Refused(reason=REFUSED_FULL, detail=detail)


def _refuse_world(identity: RankIdentity, others: int, ranks_max: int) -> Refused:
    detail = (
        f"run {identity.run!r} has {identity.world_size} ranks, and the other runs that this collector knows have "
        f"{others}; ranks_max in its configuration is {ranks_max}. Raise it there, or wait until a run has "
        "ended; this rank tries again by itself."
    )
    return Refused(reason=REFUSED_FULL, detail=detail[:DETAIL_LENGTH_MAX])
