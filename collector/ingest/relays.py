"""Unpack the messages that relays carry for ranks, and pack the answers. No socket, no clock.

A relay carries whole frames of many ranks over its one connection. Each is processed as if it had come alone, from a
peer whose address is made of the relay's routing id and the rank's. So an answer always takes the way of its question,
and a peer that uses another's name on another connection gets none of its answers.

Where connections are encrypted, only a key that is marked as a relay's may send such batches. A relay names the key
with which each of its ranks has connected to it, and that key must be allowed here too; a rank that has connected to
its relay without one counts as having the relay's. Admission uses these keys like those of direct connections.

Relays report what they have dropped or refused, counted since they started. The sums over all relays never decrease:
they add up the growth of each relay's counts. They tell who holds the GPUs of their nodes, of which the last is kept.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from rankscope.collector.ingest.refusal_reasons import CUT_REASONS, FRAME_REASONS, HANDSHAKE_REASONS
from rankscope.measure.codec import encode
from rankscope.measure.errors import DecodeReason
from rankscope.measure.held_gpus import NodeGpus
from rankscope.measure.messages import Message, Refused, Welcome
from rankscope.measure.node_messages import RELAYED_MAX, RelayCounts, Relayed, RelayedFrame, RelayHello

RELAYS_MAX: Final = 16_384
"""Relays known at a time; beyond, the one known for longest has to send a Hello again. At 8 ranks a node this is
twice what one collector is meant to hold."""

NAME_BYTES_MIN: Final = 8
"""Shortest routing id of a relay, in bytes: with it no address of a rank behind a relay is as short as the ids that
libzmq makes itself, which begin with a zero byte too, and have five."""

NO_COLLECTOR: Final = "no_collector"
PEER_QUOTA: Final = "peer_quota"
FULL: Final = "full"
NO_HELLO: Final = "no_hello"
REPLY_FAILED: Final = "reply_failed"
UNEXPECTED: Final = "unexpected"
OTHER: Final = "other"
"""Why a relay drops a frame: its collector is away, one rank or all of them together have sent more than it keeps, or
it does not know to which collector the frame belongs; and why it drops an answer: its rank is gone or does not read. It
refuses a message that no rank sends as `unexpected`. Reasons of a later release count as `other`: a peer may not make
up labels."""

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
    """A frame of a rank behind a relay: the address of the rank, its client key, and how long the relay has had it."""

    peer: bytes
    frame: bytes
    key: str
    age_ns: int


class RelayTotals(NamedTuple):
    """All relays together: how many are known, batches received, and the frames they dropped and refused, by reason."""

    relays: int
    batches: int
    dropped: Mapping[str, int]
    refused: Mapping[str, int]


def to_address(relay: bytes, peer: bytes) -> bytes:
    """Return the address of a rank behind a relay, unique among all peers: no peer can choose a routing id that begins
    with a zero byte.
    """
    return _MARK + bytes((len(relay),)) + relay + peer


def split_address(name: bytes) -> tuple[bytes, bytes] | None:
    r"""Return the relay and the rank behind it; None for a peer with a connection of its own.

    >>> split_address(to_address(b"relay-n1", b"boot-one"))
    (b'relay-n1', b'boot-one')
    >>> split_address(b"boot-one"), split_address(b"\0\x08abc")
    (None, None)
    """
    if not name.startswith(_MARK) or len(name) <= NAME_BYTES_MIN + 2:
        return None
    end = 2 + name[1]
    return name[2:end], name[end:]


def is_always_allowed(_key: str) -> bool:
    """Return True: without keys every peer is trusted."""
    return True


class Relays:
    """The relays of one collector. `may_relay` decides on the key of a relay's connection, `is_allowed` on those of its
    ranks; `has_keys`: whether the connections of this collector are encrypted.
    """

    def __init__(
        self,
        *,
        has_keys: bool = False,
        may_relay: Callable[[str], bool] = is_always_allowed,
        is_allowed: Callable[[str], bool] = is_always_allowed,
        relays_max: int = RELAYS_MAX,
    ) -> None:
        self._has_keys = has_keys
        self._may_relay = may_relay
        self._is_allowed = is_allowed
        self._relays_max = relays_max
        self._states: dict[bytes, _RelayState] = {}
        self._present: set[bytes] = set()
        self._answers: dict[bytes, list[RelayedFrame]] = {}
        self._batches = 0
        self._dropped: dict[str, int] = {}
        self._refused_there: dict[str, int] = {}
        self._gpus: dict[bytes, NodeGpus] = {}
        self.refused: dict[str, int] = {}
        """Hellos of relays, and frames in their batches, that were refused here, by reason."""

    @property
    def totals(self) -> RelayTotals:
        """The present counts."""
        return RelayTotals(len(self._present), self._batches, dict(self._dropped), dict(self._refused_there))

    @property
    def gpus(self) -> Mapping[bytes, NodeGpus]:
        """The last reading of the GPUs of each relay's node. Any thread may ask for a copy."""
        return self._gpus.copy()

    def hello(self, relay: bytes, hello: RelayHello, key: str) -> Welcome | Refused:
        """Admit a relay, for the first time or again."""
        if len(relay) < NAME_BYTES_MIN or not self._may_relay(key):
            _add(self.refused, RELAY_NOT_ALLOWED, 1)
            detail = (
                f"relay {hello.name!r} has a key that is not marked as a relay's. Put its .pub file into the folder "
                "`relays` in allowed_keys of the collector; `rankscope keys FOLDER --relay NAME` does so."
            )
            return Refused(reason=RELAY_NOT_ALLOWED, detail=detail)
        before = self._states.pop(relay, None)
        while len(self._states) >= self._relays_max:
            self._evict(next(iter(self._states)))
        # A restarted relay counts from 0 again.
        is_same_process = before is not None and before.boot_id == hello.boot_id
        self._states[relay] = before if before is not None and is_same_process else _RelayState(hello.boot_id)
        self._present.add(relay)
        return Welcome(admitted_through=0)

    def unpack(self, relay: bytes, batch: Relayed, key: str) -> list[FromRank] | None:
        """Return the frames of a batch that are allowed; None if the sender has to send a RelayHello first."""
        if relay not in self._present or not self._may_relay(key):
            return None
        self._batches += 1
        if batch.counts is not None:
            self._add_counts(relay, batch.counts)
        if batch.gpus is not None:
            self._gpus[relay] = batch.gpus
        found = []
        for one in batch.frames:
            rank_key = (one.key or key) if self._has_keys else ""
            if one.key and self._has_keys and not self._is_allowed(one.key):
                _add(self.refused, RELAYED_KEY_NOT_ALLOWED, 1)
                continue
            found.append(FromRank(to_address(relay, one.peer), one.frame, rank_key, one.age_ns))
        return found

    def answer(self, relay: bytes, peer: bytes, message: Message) -> None:
        """Queue an answer for a rank behind a relay until `drain_answers`."""
        self._answers.setdefault(relay, []).append(RelayedFrame(peer, encode(message)))

    def drain_answers(self) -> list[tuple[bytes, Relayed]]:
        """Return all queued answers in batches, each with its relay."""
        answers, self._answers = self._answers, {}
        return [
            (relay, Relayed(frames=tuple(frames[at : at + RELAYED_MAX])))
            for relay, frames in answers.items()
            for at in range(0, len(frames), RELAYED_MAX)
        ]

    def forget(self, relay: bytes) -> None:
        """Note that a relay cannot be reached. It sends a Hello when it is back; its counts stay known."""
        self._present.discard(relay)

    def _evict(self, relay: bytes) -> None:
        del self._states[relay]
        self._gpus.pop(relay, None)
        self._present.discard(relay)

    def _add_counts(self, relay: bytes, counts: RelayCounts) -> None:
        state = self._states[relay]
        before, state.counts = state.counts, counts
        _add_growth(self._dropped, counts.dropped, before.dropped)
        _add_growth(self._refused_there, counts.refused, before.refused)


class _RelayState:
    """The counts that one relay process has reported so far."""

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
