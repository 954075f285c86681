"""Decode the messages of a ZeroMQ ROUTER (router.py) and encode the answers, in one thread at a time.

Whatever arrives, `poll` raises nothing: invalid frames and refused connections are counted by reason. Answers that
cannot be sent are counted too: an agent that misses an answer asks again by itself.

With keys (curve.py) everything is encrypted, only clients whose key is allowed may connect, and each message comes with
the key of its sender.

Frames of a relay (relays.py) are unpacked here, and answers to them packed, so that each rank is a peer of its own. The
answers are sent together with the next `poll`.
"""

import resource
from collections import deque
from collections.abc import Iterator
from typing import Final

import msgspec
import zmq

from rankscope.collector.ingest.connections import REFUSED_FRAMES_MAX
from rankscope.collector.ingest.curve import CurveServer
from rankscope.collector.ingest.refusal_log import LoggedRefusal
from rankscope.collector.ingest.refusal_reasons import FORGED_ADDRESS, OVER_BUDGET, TOO_MANY_REFUSED
from rankscope.collector.ingest.relays import Relays, split_address
from rankscope.collector.ingest.router import UNROUTABLE, Ready, RoutedMessage, Router
from rankscope.measure.clock import Clock, SystemClock
from rankscope.measure.codec import FRAME_BYTES_MAX, decode, encode
from rankscope.measure.errors import DecodeError, DecodeReason, SettingError
from rankscope.measure.messages import HelloWanted, Message, Refused
from rankscope.measure.node_messages import Relayed, RelayHello
from rankscope.measure.settings import find_endpoint_problem

HANDSHAKE_MS: Final = 30_000
"""Longest handshake: of 16,384 encrypted connections at once the last ones take more than 10 s where ranks share the
cores."""

FILES_KEPT_RATIO: Final = 0.5
FILES_KEPT_MAX: Final = 128
"""Open files that are no connections of peers: a share of the limit, and a maximum. About 40 are the collector's own;
the others are for HTTP clients, and for connections that libzmq has accepted and that are to be closed."""

REFUSALS_KEPT_MAX: Final = 256
"""Refusals of one pass that are logged; all of them are counted."""

_PROTOCOL_REASONS: Final = frozenset({DecodeReason.PROTOCOL_TOO_OLD, DecodeReason.PROTOCOL_TOO_NEW})


def raise_open_files_limit() -> int:
    """Raise this process's limit of open files to the maximum, and return that.

    Every connected rank is one open file, and the usual soft limit is 1,024.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


class Received(msgspec.Struct, frozen=True, gc=False):
    """A message with its sender: routing id (behind a relay: its address there) and client key, empty without keys.
    `frame` is the encoded message, `age_ns` how long a relay has had it, `address` that of the connection.
    """

    peer: bytes
    message: Message
    key: str = ""
    frame: bytes = b""
    age_ns: int = 0
    address: str = ""


class Receiver:
    """The receiving end of all agents and relays. Listens at `endpoint`, `tcp://HOST:PORT` or `ipc:///PATH`; port 0 or
    `*` is any free one, host `*` every address.

    A frame above `message_bytes_max` is refused; the sender of one twice as large is disconnected before it is read.
    `curve` has the keys; None accepts every client, unencrypted. `relays` unpacks the messages of relays; None: a relay
    is a peer like others. With a `poller` the caller polls, and passes what is ready to `receive`.

    Raises SettingError for an endpoint that is no address, UnavailableError when it cannot be bound.
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
        self._refusals: deque[LoggedRefusal] = deque(maxlen=REFUSALS_KEPT_MAX)
        self.frames_received = 0
        """Frames received, refused ones included."""
        self.refused: dict[str, int] = {}
        """Refused frames, by DecodeReason or a reason of refusal_reasons.py."""
        self.connections_refused: dict[str, int] = {}
        """Refused connections, by the reasons of refusal_reasons.py."""
        self.send_failures: dict[str, int] = {}
        """Messages that could not be sent, by reason: the peer is gone (`unroutable`) or does not read (`full`)."""
        self.open_files_max = raise_open_files_limit()
        """How many files, and so roughly how many ranks, this process may have open."""
        files_kept = min(FILES_KEPT_MAX, int(FILES_KEPT_RATIO * self.open_files_max))
        self._router = Router(
            endpoint,
            self._note_refused_connection,
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
        """The address it listens at, with the real port."""
        return self._router.endpoint

    @property
    def connections(self) -> int:
        """Number of open connections, including those still authenticating."""
        return self._router.connections

    def watch(self, file: int) -> None:
        """Make `poll` return also when this file is readable."""
        self._router.watch(file)

    def poll(self, timeout_ms: int, batch_max: int) -> list[Received]:
        """Return the messages that have arrived, reading at most `batch_max` frames, refused ones included.

        Waits at most `timeout_ms` for the first frame, a connecting client or a watched file, and for no second one.
        """
        return list(self.receive(self.wait(timeout_ms), batch_max))

    def wait(self, timeout_ms: int) -> Ready:
        """Send queued answers and return what is ready, for `receive`: the first half of `poll`."""
        self._send_answers()
        return self._router.wait(timeout_ms)

    def has_messages(self, ready: Ready) -> bool:
        """Return whether messages are ready."""
        return self._router.has_messages(ready)

    def receive(self, ready: Ready, batch_max: int) -> Iterator[Received]:
        """Iterate over messages, each read from the socket on demand: the second half of `poll`, also for a caller
        that polls itself. A relay's batch is received as a whole, and each message in it counts towards `batch_max`:
        otherwise the backlog of a relay would exceed its budget of one pass.
        """
        if not self._router.begin_pass(ready):
            return
        self._pass += 1
        count = 0
        while count < batch_max:
            routed = self._router.receive()
            if routed is None:
                return
            count += 1
            self.frames_received += 1
            message = self._decode(routed)
            if self._relays is not None and isinstance(message, (RelayHello, Relayed)):
                for one in self._receive_relayed(self._relays, routed, message):
                    count += 1
                    yield one
            elif message is not None:
                yield Received(routed.name, message, routed.key, routed.body, address=routed.connection.address)

    def drain_refusals(self) -> list[LoggedRefusal]:
        """Return the refusals since the last call, at most the latest REFUSALS_KEPT_MAX."""
        refusals = list(self._refusals)
        self._refusals.clear()
        return refusals

    def send(self, peer: bytes, message: Message) -> None:
        """Send a message to a peer that has sent one; count a failure."""
        path = None if self._relays is None else split_address(peer)
        if self._relays is not None and path is not None:
            self._relays.answer(*path, message)
        else:
            self.send_frame(peer, encode(message))

    def send_frame(self, peer: bytes, frame: bytes) -> bool:
        """Send an encoded frame to a peer with a connection of its own; return whether that succeeded, count a
        failure.
        """
        return self._try_send(peer, frame) is None

    def close(self) -> None:
        """Stop listening and drop what has not been read or sent. A second call does nothing."""
        self._router.close()

    def _receive_relayed(
        self, relays: Relays, routed: RoutedMessage, message: RelayHello | Relayed
    ) -> Iterator[Received]:
        relay, address = routed.name, routed.connection.address
        if isinstance(message, RelayHello):
            answer = relays.hello(relay, message, routed.key)
            if isinstance(answer, Refused):
                self._refusals.append(LoggedRefusal(answer.reason, address, routed.key, relay, text=answer.detail))
            self.send_frame(relay, encode(answer))
            return
        found = relays.unpack(relay, message, routed.key)
        if found is None:
            self.send_frame(relay, encode(HelloWanted()))
            return
        for peer, frame, rank_key, age_ns in found:
            self.frames_received += 1
            inner = self._decode_relayed(peer, frame)
            if isinstance(inner, (RelayHello, Relayed)):
                _count(self.refused, DecodeReason.BAD_BODY.value)  # a relay behind a relay is not supported
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
        """Send a frame; return None, or the reason of the failure, which is counted."""
        reason = self._router.send(peer, frame)
        if reason is not None:
            _count(self.send_failures, reason)
        return reason

    def _decode(self, routed: RoutedMessage) -> Message | None:
        if not routed.connection.spend(self._pass, routed.size_bytes):
            self._router.cut(routed, OVER_BUDGET)
        reason = routed.connection.cut_reason or (FORGED_ADDRESS if _is_forged(routed.name) else "")
        if reason:
            self._refuse(routed, reason)
            return None
        try:
            return self._decode_frame(routed.name, _find_frame(routed, self._message_bytes_max))
        except DecodeError as error:
            self._refuse(routed, error.reason.value)
            return None

    def _refuse(self, routed: RoutedMessage, reason: str) -> None:
        """Count and log a refused frame; close a connection that sends many."""
        _count(self.refused, reason)
        if routed.connection.cut_reason:
            return
        self._refusals.append(LoggedRefusal(reason, routed.connection.address, routed.key, routed.name))
        routed.connection.frames_refused += 1
        if routed.connection.frames_refused > REFUSED_FRAMES_MAX:
            self._router.cut(routed, TOO_MANY_REFUSED)

    def _decode_frame(self, peer: bytes, frame: bytes) -> Message:
        try:
            return decode(frame)
        except DecodeError as error:
            if error.reason in _PROTOCOL_REASONS:
                # "This side" in the text of the error is the collector, hence the quotation.
                self.send(peer, Refused(reason=error.reason.value, detail=f"the collector answers: {error}"))
            raise

    def _note_refused_connection(self, reason: str, address: str, key: str) -> None:
        _count(self.connections_refused, reason)
        self._refusals.append(LoggedRefusal(reason, address, key))


def _count(counts: dict[str, int], reason: str) -> None:
    counts[reason] = counts.get(reason, 0) + 1


def _is_forged(peer: bytes) -> bool:
    """Return whether a peer uses the address of a rank behind a relay as its routing id. libzmq prevents this, but
    another implementation of its protocol could do it, and answers to it would go to that rank.
    """
    return split_address(peer) is not None


def _find_frame(routed: RoutedMessage, bytes_max: int) -> bytes:
    """Return the frame of a message. Raises DecodeError for several parts, and for more than `bytes_max` bytes."""
    if routed.parts != 1:
        raise DecodeError(DecodeReason.BAD_BODY, f"{routed.parts} parts; a frame is one")
    if len(routed.body) > bytes_max:
        raise DecodeError(DecodeReason.TOO_LARGE, f"{len(routed.body)} bytes, the limit is {bytes_max}")
    return routed.body
