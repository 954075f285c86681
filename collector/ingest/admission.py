"""Which numbered messages are taken in: each once, in order, and what never came is counted. No socket, no clock.

    sequence == expected    Admitted      into the job's state; acknowledge
    sequence <  expected    Duplicate     the acknowledgement was lost; acknowledge again
    sequence >  expected    SequenceGap          not taken in; ask the peer for a Hello, once
    nobody said Hello       UnknownPeer   ask the peer for a Hello

A jump alone does not tell what happened to the messages before it. Either a broken connection took them, and the agent
still holds them; or they fell out of its full buffer, and waiting for them would be for ever. Guessing is dangerous: a
message that is passed over while the agent holds it is acknowledged with the next one, and nobody has counted it.
(Tried: to believe a jump whose number is seen a second time while the expected one is still not there. A connection
that breaks twice at the same place shows just that, and a report that was held was gone.) So a jump raises the question
and only a Hello answers it: its `first_sequence` is the oldest message the agent can still send, and whatever before it
has not arrived is missing, which is a fact and is counted. Should the question be lost, the agent says Hello by itself
after a silence (uplink/delivery.py).

For each life of a rank, at any time: `admitted + missing = last_sequence - first_sequence + 1`.

A life belongs to who said its first Hello: to the client key of that connection where the wire is encrypted (CURVE),
else to its routing id. What somebody else says in its name is refused and counted. A run belongs to the key that began
it, until it is over: the next run of its name may have another. Room for all ranks of a run is set aside when its first
rank comes: the state of a run is as large as its world, and a Hello of a hundred bytes may say any.
"""

from typing import Final

import msgspec

from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import Hello, Refused, Welcome

REFUSED_FULL = "full"
"""May pass by itself: the agent asks again after its longest pause. After any other reason it gives up."""

REFUSED_RANK_OUTSIDE_WORLD = "rank_outside_world"
REFUSED_IDENTITY_CHANGED = "identity_changed"
REFUSED_IDENTITY_TAKEN = "identity_taken"
REFUSED_RUN_TAKEN = "run_taken"

LEFT_BEHIND_MAX: Final = 2048
"""Each sidecar delivers one life at a time: so many nodes have 16,384 ranks. A life takes 2 KB."""

DETAIL_LENGTH_MAX = 1024
"""Longest text that `messages.Text` lets through; the names of runs and nodes are a stranger's."""


class Admitted(msgspec.Struct, frozen=True, gc=False):
    """The expected message. It belongs into the state of `identity`, and `through` can be acknowledged then."""

    identity: RankIdentity
    through: int


class Duplicate(msgspec.Struct, frozen=True, gc=False):
    """This message was admitted before, or given up. `through` is to be acknowledged again."""

    identity: RankIdentity
    through: int


class SequenceGap(msgspec.Struct, frozen=True, gc=False):
    """`missing` messages before this one have not arrived, and it is not admitted; everything up to `through` is.

    `hello_wanted`: send a HelloWanted now. It is so once for each Hello, however many messages follow the jump.
    """

    identity: RankIdentity
    through: int
    missing: int
    hello_wanted: bool


class UnknownPeer(msgspec.Struct, frozen=True, gc=False):
    """Nobody has said Hello under this routing id, or the life was forgotten. Send a HelloWanted."""


Verdict = Admitted | Duplicate | SequenceGap | UnknownPeer


class LifeCounts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What has come in of one life of a rank.

    `first_sequence` is the number its first Hello began with, `last_sequence` the last one admitted or given up (one
    below `first_sequence` before any). `missing` counts messages given up, `jumps` those sent back because one before
    them lacked, which are no loss.
    """

    first_sequence: int
    last_sequence: int
    admitted: int
    missing: int
    duplicates: int
    jumps: int


UNCLAIMED: Final = b""
"""The routing id of a restored life for which nobody speaks yet: no real one is empty."""


class Admission:
    """Knows the peers by their routing id and what is to come next from each.

    At most `runs_max` runs and `ranks_max` lives of ranks are known, and the worlds of all runs together have no more
    than `ranks_max` ranks; a further one is refused, and nobody who is known has to go for it, except that a restarted
    rank takes the place of its own earlier life. The owner forgets what has ended. Lives whose rank lives on in another
    one, of earlier restarts or with reports left on a disk, are in nobody's way: they give way first, and
    LEFT_BEHIND_MAX more have room for what they have left, also where the living ones fill the collector.

    `key` is everywhere the client key of the connection, empty where there is none; of a rank behind a relay it is what
    relays.py says.
    """

    def __init__(self, runs_max: int, ranks_max: int) -> None:
        if runs_max < 1 or ranks_max < 1:
            text = f"runs_max is {runs_max} and ranks_max is {ranks_max}; the smallest allowed is 1 for both"
            raise ValueError(text)
        self._runs_max = runs_max
        self._ranks_max = ranks_max
        self._runs: dict[str, RankIdentity] = {}  # each with the identity that tells its world size
        self._run_keys: dict[str, str] = {}
        self._lives: dict[str, _Life] = {}
        self._lives_by_peer: dict[bytes, _Life] = {}
        self._latest_lives: dict[tuple[str, int], _Life] = {}
        self._superseded: dict[str, _Life] = {}  # those that are not the latest of their rank, the oldest first
        self.refused: dict[str, int] = {}
        """Hellos refused, by reason, and messages and notices in the name of somebody else's rank."""
        self.unknown_lives = 0
        """Notices about a life that nobody knows."""

    def hello(self, peer: bytes, hello: Hello, key: str = "") -> Welcome | Refused:
        """A peer introduces itself, for the first time or again. What it says is missing is given up here."""
        identity = hello.identity
        life = self._lives.get(identity.boot_id)
        refusal = _find_contradiction(identity, life) or self._find_theft(peer, identity, life, key)
        if refusal is None and life is None:
            refusal = self._make_room(identity, left_behind=hello.left_behind)
        if refusal is not None:
            self._count_refused(refusal.reason)
            return refusal
        if life is not None and life.peer == UNCLAIMED:
            life.key = self._run_keys[identity.run] = key
        if life is None:
            life = self._begin_life(peer, identity, hello.first_sequence, key, left_behind=hello.left_behind)
        self._bind(peer, life)
        life.hear_hello(hello)
        return Welcome(admitted_through=life.last_sequence, hello_number=hello.hello_number)

    def number(self, peer: bytes, sequence: int, key: str = "") -> Verdict:
        """A numbered message has come from a peer: may it be taken in?"""
        life = self._find_life(peer, key)
        return UnknownPeer() if life is None else life.number(sequence)

    def restore(self, identity: RankIdentity, counts: LifeCounts) -> bool:
        """A life that a collector knew which is no more; whether there is a place for it. It has to say Hello before
        anything of it is taken in, and is then told from where on to send. Who says it first has the life.
        """
        if self._make_room(identity, left_behind=False) is not None:
            return False
        life = self._begin_life(UNCLAIMED, identity, counts.first_sequence, "", left_behind=False)
        life.restore(counts)
        return True

    def identity(self, peer: bytes, key: str = "") -> RankIdentity | None:
        """Who speaks under this routing id; None when nobody has said Hello."""
        life = self._find_life(peer, key)
        return None if life is None else life.identity

    def run_of(self, peer: bytes, key: str) -> str:
        """Return the run of the rank that speaks under this routing id; empty where that is nobody with this key."""
        life = self._lives_by_peer.get(peer)
        return "" if life is None or life.key != key else life.identity.run

    def knows(self, identity: RankIdentity, key: str = "") -> bool:
        """Whether exactly this life has said Hello. Others may speak about such a life only (a sidecar does); what they
        say about any other is counted as `unknown_lives`. A sidecar has the key of its ranks.
        """
        life = self._lives.get(identity.boot_id)
        if life is None or life.identity != identity:
            self.unknown_lives += 1
            return False
        if life.peer != UNCLAIMED and life.key != key:
            self._count_refused(REFUSED_IDENTITY_TAKEN)
            return False
        return True

    def report_interval_ns(self, peer: bytes) -> int:
        """How far apart this peer makes reports; 0 for a peer that is not known, and for one that delivers what a rank
        has left behind: it makes none.
        """
        life = self._lives_by_peer.get(peer)
        return 0 if life is None else life.report_interval_ns

    def peer_of(self, boot_id: str) -> bytes | None:
        """The peer that speaks for a life now; None for a life that is not known, or that nobody speaks for yet."""
        life = self._lives.get(boot_id)
        return None if life is None or life.peer == UNCLAIMED else life.peer

    def counts(self, boot_id: str) -> LifeCounts | None:
        """What has come in of a life; None when it is not known."""
        life = self._lives.get(boot_id)
        return None if life is None else life.counts()

    def world_size(self, run: str) -> int | None:
        """How many ranks a run has by its newest restart: of the highest restart count, the last to say Hello.

        None when the run is not known. Ranks of one restart may disagree on their count: torchrun counts failures of
        its own node only.
        """
        newest = self._runs.get(run)
        return None if newest is None else newest.world_size

    def begin_run(self, identity: RankIdentity) -> None:
        """A new run of this name has begun: its restarts are counted from those of this life on. Lives of the runs
        before it stay known.
        """
        self._runs[identity.run] = identity

    def end_run(self, name: str) -> None:
        """Every rank of the latest run of this name has ended: whoever begins the next one may have another key."""
        self._run_keys.pop(name, None)

    def forget(self, run: str) -> None:
        """Let go of the runs of this name and of every life in it. What still comes from them is from unknown peers."""
        self._runs.pop(run, None)
        self._run_keys.pop(run, None)
        for life in [life for life in self._lives.values() if life.identity.run == run]:
            self._drop(life)

    def forget_peer(self, boot_id: str) -> None:
        """Let go of one life. Its run stays known until `forget`."""
        life = self._lives.get(boot_id)
        if life is not None:
            self._drop(life)

    def _find_life(self, peer: bytes, key: str) -> "_Life | None":
        """Who speaks. With another key somebody has put himself in the place of the connection that said Hello."""
        life = self._lives_by_peer.get(peer)
        if life is not None and life.key != key:
            self._count_refused(REFUSED_IDENTITY_TAKEN)
            return None
        return life

    def _find_theft(self, peer: bytes, identity: RankIdentity, life: "_Life | None", key: str) -> Refused | None:
        if life is not None and life.peer != UNCLAIMED and (life.key != key or (not key and life.peer != peer)):
            detail = (
                f"rank {identity.rank} of run {identity.run!r}, boot id {identity.boot_id}, has said Hello on a "
                f"connection with another {'key' if key or life.key else 'routing id'}, and nobody else may speak for "
                "it. Start the agent anew there: it makes an id of its own."
            )
            return Refused(reason=REFUSED_IDENTITY_TAKEN, detail=detail[:DETAIL_LENGTH_MAX])
        if self._run_keys.get(identity.run, key) != key:
            detail = (
                f"run {identity.run!r} was begun with another client key. All ranks of a run have one key; give the "
                "run another name, or every rank the same key_file."
            )
            return Refused(reason=REFUSED_RUN_TAKEN, detail=detail[:DETAIL_LENGTH_MAX])
        return None

    def _make_room(self, identity: RankIdentity, *, left_behind: bool) -> Refused | None:
        newest = self._runs.get(identity.run)
        if newest is None and len(self._runs) >= self._runs_max:
            return _refuse_full("runs", len(self._runs), self._runs_max)
        # One of fewer restarts may begin a new run of this name, and then needs all the room of its world.
        is_newest = newest is None or identity.restart_count >= newest.restart_count
        if newest is None or is_newest or identity.world_size > newest.world_size:
            others = sum(one.world_size for run, one in self._runs.items() if run != identity.run)
            if others + identity.world_size > self._ranks_max:
                return _refuse_world(identity, others, self._ranks_max)
        if len(self._lives) >= self._ranks_max + (LEFT_BEHIND_MAX if left_behind else 0):
            earlier = None if left_behind else self._latest_lives.get((identity.run, identity.rank))
            spare = earlier or next(iter(self._superseded.values()), None)
            if spare is None:
                return _refuse_full("ranks", len(self._lives), self._ranks_max)
            self._drop(spare)
        return None

    def _count_refused(self, reason: str) -> None:
        self.refused[reason] = self.refused.get(reason, 0) + 1

    def _begin_life(
        self, peer: bytes, identity: RankIdentity, first_sequence: int, key: str, *, left_behind: bool
    ) -> "_Life":
        life = _Life(peer, identity, first_sequence, key)
        self._lives[identity.boot_id] = life
        newest = self._runs.get(identity.run)
        if left_behind and newest is not None:
            self._superseded[identity.boot_id] = life
            return life
        earlier = self._latest_lives.get((identity.run, identity.rank))
        if earlier is not None:
            self._superseded[earlier.identity.boot_id] = earlier
        self._latest_lives[identity.run, identity.rank] = life
        if newest is None or identity.restart_count >= newest.restart_count:
            self._runs[identity.run] = identity
        if peer != UNCLAIMED:
            self._run_keys[identity.run] = key
        return life

    def _bind(self, peer: bytes, life: "_Life") -> None:
        if self._lives_by_peer.get(life.peer) is life:
            del self._lives_by_peer[life.peer]
        life.peer = peer
        self._lives_by_peer[peer] = life

    def _drop(self, life: "_Life") -> None:
        key = (life.identity.run, life.identity.rank)
        del self._lives[life.identity.boot_id]
        self._superseded.pop(life.identity.boot_id, None)
        if self._latest_lives.get(key) is life:
            del self._latest_lives[key]
        if self._lives_by_peer.get(life.peer) is life:
            del self._lives_by_peer[life.peer]


class _Life:
    """One life of one rank: what has come from it, and what is to come next."""

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
        self._jumps = 0
        self._asked = False

    def restore(self, counts: LifeCounts) -> None:
        """Go on with these counts."""
        self.last_sequence, self._admitted = counts.last_sequence, counts.admitted
        self._missing, self._duplicates, self._jumps = counts.missing, counts.duplicates, counts.jumps

    def hear_hello(self, hello: Hello) -> None:
        """Everything before its `first_sequence` that has not arrived will not come any more."""
        self._asked = False
        self.report_interval_ns = 0 if hello.left_behind else hello.report_interval_ns
        given_up = max(0, hello.first_sequence - 1 - self.last_sequence)
        self._missing += given_up
        self.last_sequence += given_up

    def number(self, sequence: int) -> Verdict:
        """See Admission.number."""
        if sequence == self.last_sequence + 1:
            self.last_sequence = sequence
            self._admitted += 1
            return Admitted(self.identity, sequence)
        if sequence <= self.last_sequence:
            self._duplicates += 1
            return Duplicate(self.identity, self.last_sequence)
        self._jumps += 1
        hello_wanted = not self._asked
        self._asked = True
        return SequenceGap(self.identity, self.last_sequence, sequence - 1 - self.last_sequence, hello_wanted)

    def counts(self) -> LifeCounts:
        """The counts of this moment."""
        return LifeCounts(
            first_sequence=self._first_sequence,
            last_sequence=self.last_sequence,
            admitted=self._admitted,
            missing=self._missing,
            duplicates=self._duplicates,
            jumps=self._jumps,
        )


def _find_contradiction(identity: RankIdentity, life: _Life | None) -> Refused | None:
    if identity.rank >= identity.world_size:
        detail = (
            f"rank {identity.rank} says that its world has {identity.world_size} ranks, numbered from 0 (from RANK and "
            "WORLD_SIZE of its process). Correct the environment that the launcher gives it."
        )
        return Refused(reason=REFUSED_RANK_OUTSIDE_WORLD, detail=detail)
    if life is not None and life.identity != identity:
        known = life.identity
        detail = (
            f"boot id {identity.boot_id} is known as rank {known.rank} of run {known.run!r} on node {known.node!r}, "
            f"process {known.pid}, and is now claimed by rank {identity.rank} of run {identity.run!r} on node "
            f"{identity.node!r}, process {identity.pid}. It names one life of one process: start the agent anew there."
        )
        return Refused(reason=REFUSED_IDENTITY_CHANGED, detail=detail[:DETAIL_LENGTH_MAX])
    return None


def _refuse_full(what: str, count: int, count_max: int) -> Refused:
    detail = (
        f"this collector knows {count} {what}; {what}_max in its configuration is {count_max}. Raise it there, or wait "
        "until something that has ended is forgotten; this rank asks again by itself."
    )
    return Refused(reason=REFUSED_FULL, detail=detail)


def _refuse_world(identity: RankIdentity, others: int, ranks_max: int) -> Refused:
    detail = (
        f"run {identity.run!r} has {identity.world_size} ranks, and the other runs that this collector knows have "
        f"{others}; ranks_max in its configuration is {ranks_max}. Raise it there, or wait until something that has "
        "ended is forgotten; this rank asks again by itself."
    )
    return Refused(reason=REFUSED_FULL, detail=detail[:DETAIL_LENGTH_MAX])
