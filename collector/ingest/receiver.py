"""The collector's end of the wire: messages of a ZeroMQ ROUTER (router.py) are decoded here, and answers encoded, in
one thread at a time.

Whatever arrives, `poll` raises nothing: what is not a message is counted by reason, and so is a connection that is not
let in. What cannot be sent is counted too: an agent that lacks an answer asks again by itself.

With keys (curve.py) everything is encrypted, only clients whose key is allowed get in, and each message comes with the
key of its sender.

Frames that come through a relay (relays.py) are unpacked here, and answers to them packed: whoever takes the messages
sees one peer for each rank. Answers to them go out with the next `poll`, together.
"""

import resource
from collections import deque
from collections.abc import Iterator
from typing import Final

import msgspec
import zmq

from rankscope.collector.ingest.connections import REFUSED_FRAMES_MAX
from rankscope.collector.ingest.curve import CurveServer
from rankscope.collector.ingest.refusal_log import Refusal
from rankscope.collector.ingest.refusal_reasons import FORGED_ADDRESS, OVER_BUDGET, TOO_MANY_REFUSED
from rankscope.collector.ingest.relays import Relays, split_address
from rankscope.collector.ingest.router import UNROUTABLE, Heard, Ready, Router
from rankscope.measure.clock import Clock, SystemClock
from rankscope.measure.codec import FRAME_BYTES_MAX, decode, encode
from rankscope.measure.errors import DecodeError, DecodeReason, SettingError
from rankscope.measure.messages import HelloWanted, Message, Refused, Relayed, RelayHello
from rankscope.measure.settings import find_endpoint_problem

HANDSHAKE_MS: Final = 30_000
"""A connection that has not said who it is by then is closed. Of 16,384 encrypted connections at once the last ones
take more than 10 s where ranks share the cores."""

FILES_KEPT_RATIO: Final = 0.5
FILES_KEPT_MAX: Final = 128
"""Open files that are no connections of peers: so much of the limit, at most so many. Some 40 are the collector's own;
the others are for who reads pages, and for connections that libzmq has accepted and that are to be cut off again."""

REFUSALS_KEPT_MAX: Final = 256
"""Refusals of one pass that are handed on to the log; all of them are counted."""

_PROTOCOL_REASONS: Final = frozenset({DecodeReason.PROTOCOL_TOO_OLD, DecodeReason.PROTOCOL_TOO_NEW})


def raise_open_files_limit() -> int:
    """Raise this process's limit of open files to the most it may have, and return that.

    Every connected rank is one open file, and the usual soft limit is 1,024.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


class Received(msgspec.Struct, frozen=True, gc=False):
    """A message, its sender's routing id (behind a relay: its address there), and the client key of its connection,
    empty where there are no keys. `frame` is the message as it came, `age_ns` how long a relay has had it, `address`
    that of the connection.
    """

    peer: bytes
    message: Message
    key: str = ""
    frame: bytes = b""
    age_ns: int = 0
    address: str = ""


class Receiver:
    """Listens at `endpoint`, `tcp://HOST:PORT` or `ipc:///PATH`; the port 0 or `*` takes a free one, the host `*` every
    address.

    A frame above `message_bytes_max` is refused; the sender of one twice as large is cut off before it is read. `curve`
    has the keys; None takes everybody in, unencrypted. `relays` are those it may have; None: a relay is a peer like
    others. With a `poller` the caller polls, and hands what is ready to `take`.

    Raises SettingError for an endpoint that is no address, UnavailableError when it cannot be listened at.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        message_bytes_max: int = FRAME_BYTES_MAX,
        curve: CurveServer | None = None,
        handshake_ms: int = HANDSHAKE_MS,
        relays: Relays | None = None,
        poller: zmq.Poller | None = None,
        clock: Clock | None = None,
    ) -> None:
        problem = find_endpoint_problem(endpoint, listening=True)
        if problem is not None:
            raise SettingError(f"the collector's endpoint is {endpoint!r}; {problem}.")
        self._message_bytes_max = message_bytes_max
        self._relays = relays
        self._pass = 0
        self._refusals: deque[Refusal] = deque(maxlen=REFUSALS_KEPT_MAX)
        self.frames_received = 0
        """Frames that have come in, refused ones included."""
        self.refused: dict[str, int] = {}
        """Frames that are no message, by DecodeReason, and those of refusal_reasons.py."""
        self.connections_refused: dict[str, int] = {}
        """Connections that were not let in, by the reasons of refusal_reasons.py."""
        self.send_failures: dict[str, int] = {}
        """Messages that could not be sent, by reason: the peer is gone (`unroutable`) or does not read (`full`)."""
        self.open_files_max = raise_open_files_limit()
        """How many files, and so roughly how many ranks, this process may have open."""
        files_kept = min(FILES_KEPT_MAX, int(FILES_KEPT_RATIO * self.open_files_max))
        self._router = Router(
            endpoint,
            self._note_not_let_in,
            clock or SystemClock(),
            curve=curve,
            # Twice, so that a frame somewhat too large is counted and its sender stays.
            part_bytes_max=2 * message_bytes_max,
            handshake_ms=handshake_ms,
            connections_max=max(1, self.open_files_max - files_kept),
            poller=poller,
        )

    @property
    def endpoint(self) -> str:
        """Where it listens, with the real port."""
        return self._router.endpoint

    @property
    def connections(self) -> int:
        """How many are open."""
        return self._router.connections

    def watch(self, file: int) -> None:
        """Let `poll` return, too, when this file can be read."""
        self._router.watch(file)

    def poll(self, timeout_ms: int, batch_max: int) -> list[Received]:
        """What has come in: at most `batch_max` messages, those refused included.

        Waits at most `timeout_ms` for the first frame, for somebody who wants to connect or for a watched file, and for
        no second one.
        """
        return list(self.receive(self.wait(timeout_ms), batch_max))

    def wait(self, timeout_ms: int) -> Ready:
        """The first half of `poll`: what `take` then finds."""
        self._send_answers()
        return self._router.wait(timeout_ms)

    def has_messages(self, ready: Ready) -> bool:
        """Whether there are messages among what is ready."""
        return self._router.has_messages(ready)

    def receive(self, ready: Ready, batch_max: int) -> Iterator[Received]:
        """The second half of `poll`, also when somebody else has polled: each is read when it is asked for. A relay's
        batch is taken as a whole, and each message in it counts: the backlog of a relay is more than one pass, in which
        it would be over its budget.
        """
        if not self._router.begin_pass(ready):
            return
        self._pass += 1
        taken = 0
        while taken < batch_max:
            heard = self._router.receive()
            if heard is None:
                return
            taken += 1
            self.frames_received += 1
            message = self._decode(heard)
            if self._relays is not None and isinstance(message, (RelayHello, Relayed)):
                for one in self._take_relayed(self._relays, heard, message):
                    taken += 1
                    yield one
            elif message is not None:
                yield Received(heard.name, message, heard.key, heard.body, address=heard.connection.address)

    def drain_refusals(self) -> list[Refusal]:
        """Return what was refused since the last call, the latest REFUSALS_KEPT_MAX of it."""
        refusals = list(self._refusals)
        self._refusals.clear()
        return refusals

    def send(self, peer: bytes, message: Message) -> None:
        """Send a message to a peer that has sent one; counted when it cannot be."""
        way = None if self._relays is None else split_address(peer)
        if self._relays is not None and way is not None:
            self._relays.answer(*way, message)
        else:
            self.send_frame(peer, encode(message))

    def send_frame(self, peer: bytes, frame: bytes) -> bool:
        """Send a whole frame to a peer with a connection of its own; whether that went, counted when not."""
        return self._try_send(peer, frame) is None

    def close(self) -> None:
        """Stop listening and drop what has not been read or sent. A second call does nothing."""
        self._router.close()

    def _take_relayed(self, relays: Relays, heard: Heard, message: RelayHello | Relayed) -> Iterator[Received]:
        relay, address = heard.name, heard.connection.address
        if isinstance(message, RelayHello):
            answer = relays.hello(relay, message, heard.key)
            if isinstance(answer, Refused):
                self._refusals.append(Refusal(answer.reason, address, heard.key, relay, text=answer.detail))
            self.send_frame(relay, encode(answer))
            return
        found = relays.unpack(relay, message, heard.key)
        if found is None:
            self.send_frame(relay, encode(HelloWanted()))
            return
        for peer, frame, rank_key, age_ns in found:
            self.frames_received += 1
            inner = self._decode_relayed(peer, frame)
            if isinstance(inner, (RelayHello, Relayed)):
                _count(self.refused, DecodeReason.BAD_BODY.value)  # no relay stands behind another one
            elif inner is not None:
                yield Received(peer, inner, rank_key, frame, age_ns, address)

    def _decode_relayed(self, peer: bytes, frame: bytes) -> Message | None:
        try:
            return self._decode_frame(peer, frame)
        except DecodeError as error:
            _count(self.refused, error.reason.value)
            return None

    def _send_answers(self) -> None:
        for relay, answers in () if self._relays is None else self._relays.drain_answers():
            if self._try_send(relay, encode(answers)) == UNROUTABLE and self._relays is not None:
                self._relays.forget(relay)

    def _try_send(self, peer: bytes, frame: bytes) -> str | None:
        """Why a frame could not be sent, after that was counted; None: it was."""
        reason = self._router.send(peer, frame)
        if reason is not None:
            _count(self.send_failures, reason)
        return reason

    def _decode(self, heard: Heard) -> Message | None:
        if not heard.connection.spend(self._pass, heard.size_bytes):
            self._router.cut(heard, OVER_BUDGET)
        reason = heard.connection.cut_reason or (FORGED_ADDRESS if self._is_forged(heard.name) else "")
        if reason:
            self._refuse(heard, reason)
            return None
        try:
            return self._decode_frame(heard.name, self._find_frame(heard))
        except DecodeError as error:
            self._refuse(heard, error.reason.value)
            return None

    def _refuse(self, heard: Heard, reason: str) -> None:
        """Count a frame that is not taken; who sends many such is cut off."""
        _count(self.refused, reason)
        if heard.connection.cut_reason:
            return
        self._refusals.append(Refusal(reason, heard.connection.address, heard.key, heard.name))
        heard.connection.frames_refused += 1
        if heard.connection.frames_refused > REFUSED_FRAMES_MAX:
            self._router.cut(heard, TOO_MANY_REFUSED)

    def _decode_frame(self, peer: bytes, frame: bytes) -> Message:
        try:
            return decode(frame)
        except DecodeError as error:
            if error.reason in _PROTOCOL_REASONS:
                # "This side" in the decoder's words is the collector, hence the quotation.
                self.send(peer, Refused(reason=error.reason.value, detail=f"the collector answers: {error}"))
            raise

    def _is_forged(self, peer: bytes) -> bool:
        """Return whether a peer has given itself the address of a rank behind a relay. libzmq lets nobody do so, but
        who speaks its protocol by other means could, and what is answered to him would go to that rank.
        """
        return split_address(peer) is not None

    def _find_frame(self, heard: Heard) -> bytes:
        if heard.parts != 1:
            raise DecodeError(DecodeReason.BAD_BODY, f"{heard.parts} parts; a frame is one")
        if len(heard.body) > self._message_bytes_max:
            detail = f"{len(heard.body)} bytes, the limit is {self._message_bytes_max}"
            raise DecodeError(DecodeReason.TOO_LARGE, detail)
        return heard.body

    def _note_not_let_in(self, reason: str, address: str, key: str) -> None:
        _count(self.connections_refused, reason)
        self._refusals.append(Refusal(reason, address, key))


def _count(counts: dict[str, int], reason: str) -> None:
    counts[reason] = counts.get(reason, 0) + 1
