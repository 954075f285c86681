"""Relays: who may be one, what comes through them, and what goes back. No socket, no clock.

A relay carries whole frames of many ranks over its one connection. Each is taken in as if it had come alone, from a
peer whose name tells the way back: the relay's routing id and the rank's. So an answer always goes the way the question
came, and nobody who says another's name on another way gets that one's answers.

Where the wire has keys, only a key that is marked as a relay's may send such batches. A relay says with which key each
of its ranks has connected to it, and that key must be allowed here too; a rank that has connected to its relay without
one has the relay's. Everything that admission asks of keys it asks of these.

What a relay has dropped or refused it says itself, counted since it started. The sums over all relays never decrease:
they are made of what each has said more than before.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from rankscope.collector.ingest.refusal_reasons import CUT_REASONS, FRAME_REASONS, HANDSHAKE_REASONS
from rankscope.measure.codec import encode
from rankscope.measure.errors import DecodeReason
from rankscope.measure.messages import (
    RELAYED_MAX,
    Message,
    Refused,
    RelayCounts,
    Relayed,
    RelayedFrame,
    RelayHello,
    Welcome,
)

RELAYS_MAX: Final = 16_384
"""Relays known at a time; beyond, the one that has been known longest has to say Hello again. At 8 ranks a node twice
what one collector is meant to hold."""

NAME_BYTES_MIN: Final = 8
"""A relay's routing id has at least so many bytes. With that no address of a rank behind a relay is as short as the ids
that libzmq makes itself, which begin with a zero byte too, and have five."""

NO_COLLECTOR: Final = "no_collector"
PEER_QUOTA: Final = "peer_quota"
FULL: Final = "full"
NO_HELLO: Final = "no_hello"
REPLY_FAILED: Final = "reply_failed"
UNEXPECTED: Final = "unexpected"
OTHER: Final = "other"
"""Why a relay drops a frame: its collector is not there, one rank or all of them together have sent more than it keeps,
or it does not know to which collector it belongs; and an
answer, when its rank is gone or does not read. It refuses a message that no rank sends as `unexpected`. Whatever a
later release of it says is `other` here: a peer may not make up labels."""

_KNOWN_REASONS: Final = frozenset(
    {
        NO_COLLECTOR,
        PEER_QUOTA,
        FULL,
        NO_HELLO,
        REPLY_FAILED,
        UNEXPECTED,
        *(reason.value for reason in DecodeReason),
    }
    | HANDSHAKE_REASONS
    | CUT_REASONS
    | FRAME_REASONS
)

RELAY_NOT_ALLOWED: Final = "relay_not_allowed"
RELAYED_KEY_NOT_ALLOWED: Final = "relayed_key_not_allowed"

_MARK: Final = b"\0"


class FromRank(NamedTuple):
    """A frame of a rank behind a relay. `peer` is the rank's address, `key` the client key that it counts as having."""

    peer: bytes
    frame: bytes
    key: str
    age_ns: int


class RelayTotals(NamedTuple):
    """All relays together: how many are known, batches taken in, and what they said they have dropped and refused."""

    relays: int
    batches: int
    dropped: Mapping[str, int]
    refused: Mapping[str, int]


def to_address(relay: bytes, peer: bytes) -> bytes:
    """The name of a rank behind a relay among all peers of this collector. libzmq lets nobody choose a routing id that
    begins with a zero byte.
    """
    return _MARK + bytes((len(relay),)) + relay + peer


def split_address(name: bytes) -> tuple[bytes, bytes] | None:
    r"""The relay and the rank behind it; None for a peer that has its own connection.

    >>> split_address(to_address(b"relay-n1", b"boot-one"))
    (b'relay-n1', b'boot-one')
    >>> split_address(b"boot-one"), split_address(b"\0\x08abc")
    (None, None)
    """
    if not name.startswith(_MARK) or len(name) <= NAME_BYTES_MIN + 2:
        return None
    end = 2 + name[1]
    return name[2:end], name[end:]


def is_anybody(_key: str) -> bool:
    """Whether a key is allowed where there are none: everybody is trusted there."""
    return True


class Relays:
    """The relays of one collector. `may_relay` is asked about the key of a relay's connection, `is_allowed` about those
    of its ranks; `has_keys`: whether the collector's wire has any.
    """

    def __init__(
        self,
        *,
        has_keys: bool = False,
        may_relay: Callable[[str], bool] = is_anybody,
        is_allowed: Callable[[str], bool] = is_anybody,
        relays_max: int = RELAYS_MAX,
    ) -> None:
        self._has_keys = has_keys
        self._may_relay = may_relay
        self._is_allowed = is_allowed
        self._relays_max = relays_max
        self._said: dict[bytes, _Said] = {}
        self._present: set[bytes] = set()
        self._answers: dict[bytes, list[RelayedFrame]] = {}
        self._batches = 0
        self._dropped: dict[str, int] = {}
        self._refused_there: dict[str, int] = {}
        self.refused: dict[str, int] = {}
        """Hellos of relays, and frames in their batches, that were refused here, by reason."""

    @property
    def totals(self) -> RelayTotals:
        """The counts of this moment."""
        return RelayTotals(len(self._present), self._batches, dict(self._dropped), dict(self._refused_there))

    def hello(self, relay: bytes, hello: RelayHello, key: str) -> Welcome | Refused:
        """A relay introduces itself, for the first time or again."""
        if len(relay) < NAME_BYTES_MIN or not self._may_relay(key):
            _add(self.refused, RELAY_NOT_ALLOWED, 1)
            detail = (
                f"relay {hello.name!r} has a key that is not marked as a relay's. Put its .pub file into the folder "
                "`relays` in allowed_keys of the collector; `rankscope keys FOLDER --relay NAME` does so."
            )
            return Refused(reason=RELAY_NOT_ALLOWED, detail=detail)
        before = self._said.pop(relay, None)
        while len(self._said) >= self._relays_max:
            self._evict(next(iter(self._said)))
        # One that was started anew counts from 0 again.
        is_same_life = before is not None and before.boot_id == hello.boot_id
        self._said[relay] = before if before is not None and is_same_life else _Said(hello.boot_id)
        self._present.add(relay)
        return Welcome(admitted_through=0)

    def unpack(self, relay: bytes, batch: Relayed, key: str) -> list[FromRank] | None:
        """The frames of a batch that may be looked at; None: who sent it has to say Hello as a relay first."""
        if relay not in self._present or not self._may_relay(key):
            return None
        self._batches += 1
        if batch.counts is not None:
            self._take_counts(relay, batch.counts)
        found = []
        for one in batch.frames:
            rank_key = (one.key or key) if self._has_keys else ""
            if one.key and self._has_keys and not self._is_allowed(one.key):
                _add(self.refused, RELAYED_KEY_NOT_ALLOWED, 1)
                continue
            found.append(FromRank(to_address(relay, one.peer), one.frame, rank_key, one.age_ns))
        return found

    def answer(self, relay: bytes, peer: bytes, message: Message) -> None:
        """Keep an answer for a rank behind a relay until `drain_answers`."""
        self._answers.setdefault(relay, []).append(RelayedFrame(peer, encode(message)))

    def drain_answers(self) -> list[tuple[bytes, Relayed]]:
        """Everything that is to go back, in batches, with the relay that each is for."""
        answers, self._answers = self._answers, {}
        return [
            (relay, Relayed(frames=tuple(frames[at : at + RELAYED_MAX])))
            for relay, frames in answers.items()
            for at in range(0, len(frames), RELAYED_MAX)
        ]

    def forget(self, relay: bytes) -> None:
        """It cannot be reached. When it comes back it says Hello again; what it has said of itself is remembered."""
        self._present.discard(relay)

    def _evict(self, relay: bytes) -> None:
        del self._said[relay]
        self._present.discard(relay)

    def _take_counts(self, relay: bytes, counts: RelayCounts) -> None:
        said = self._said[relay]
        before, said.counts = said.counts, counts
        _add_growth(self._dropped, counts.dropped, before.dropped)
        _add_growth(self._refused_there, counts.refused, before.refused)


class _Said:
    """What one life of a relay has said of itself so far."""

    def __init__(self, boot_id: str) -> None:
        self.boot_id = boot_id
        self.counts = RelayCounts()


def _add_growth(total: dict[str, int], now: Mapping[str, int], before: Mapping[str, int]) -> None:
    for reason, count in now.items():
        grown = count - before.get(reason, 0)
        if grown > 0:
            _add(total, reason if reason in _KNOWN_REASONS else OTHER, grown)


def _add(counts: dict[str, int], reason: str, more: int) -> None:
    counts[reason] = counts.get(reason, 0) + more
