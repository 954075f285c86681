"""The collector's end of the wire: a server of ZeroMQ's protocol (rankscope.collector.zmtp) whose messages are decoded
here, and answers encoded, in one thread at a time.

Whatever arrives, `poll` raises nothing: what is not a message is counted by reason, and so is a connection that is not
let in. What cannot be sent is counted too: an agent that lacks an answer asks again by itself.

With keys (curve.py) everything is encrypted, only clients whose key is allowed get in, and each message comes with the
key of its sender.

Frames that come through a relay (relays.py) are unpacked here, and answers to them packed: whoever takes the messages
sees one peer for each rank. Answers to them go out with the next `poll`, together.
"""

import errno
import resource
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from rankscope.collector.ingest.curve import CurveServer
from rankscope.collector.ingest.relays import Relays, split_address
from rankscope.collector.zmtp.listening import Listening
from rankscope.collector.zmtp.null import NULL
from rankscope.collector.zmtp.server import UNROUTABLE, Heard, Ready, Server
from rankscope.measure.clock import Clock, SystemClock
from rankscope.measure.codec import FRAME_BYTES_MAX, decode, encode
from rankscope.measure.errors import DecodeError, DecodeReason, SettingError, UnavailableError
from rankscope.measure.messages import HelloWanted, Message, Refused, Relayed, RelayHello
from rankscope.measure.settings import find_endpoint_problem
from rankscope.measure.units import NS_PER_MS

BACKLOG: Final = 4096
"""Connections that may wait to be accepted: those of 16,384 ranks that start within some seconds come in a few hundred
at a time. The kernel's net.core.somaxconn caps it."""

HANDSHAKE_MS: Final = 30_000
"""A connection that has not said who it is by then is closed. Of 16,384 encrypted connections at once the last ones
take more than 10 s where ranks share the cores."""

FILES_KEPT: Final = 64
"""Open files that are no connections of peers: the store, pages, and whoever asks for them."""

_CURES: Final = {
    errno.EADDRINUSE: "Another program listens there: stop it, or choose another port.",
    errno.EACCES: "Ports below 1024 need a privilege: choose a higher one.",
    errno.EADDRNOTAVAIL: "This machine has no such address: give one of its own, or * for all.",
}

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
    empty where there are no keys. `frame` is the message as it came, `age_ns` how long a relay has had it.
    """

    peer: bytes
    message: Message
    key: str = ""
    frame: bytes = b""
    age_ns: int = 0


class Receiver:
    """Listens at `endpoint`, `tcp://HOST:PORT` or `ipc:///PATH`; the port 0 or `*` takes a free one, the host `*` every
    address.

    A frame above `message_bytes_max` is refused; the sender of one twice as large is cut off before it is read. `curve`
    has the keys; None takes everybody in, unencrypted. `relays` are those it may have; None: a relay is a peer like
    others. Raises SettingError for an endpoint that is no address, UnavailableError when it cannot be listened at.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        message_bytes_max: int = FRAME_BYTES_MAX,
        curve: CurveServer | None = None,
        handshake_ms: int = HANDSHAKE_MS,
        relays: Relays | None = None,
        clock: Clock | None = None,
    ) -> None:
        problem = find_endpoint_problem(endpoint, listening=True)
        if problem is not None:
            raise SettingError(f"the collector's endpoint is {endpoint!r}; {problem}.")
        self._message_bytes_max = message_bytes_max
        self._relays = relays
        self.frames_received = 0
        """Frames that have come in, refused ones included."""
        self._refused: dict[str, int] = {}
        self.unsent: dict[str, int] = {}
        """Messages that could not be sent, by reason: the peer is gone (`unroutable`) or does not read (`full`)."""
        self.open_files_max = raise_open_files_limit()
        """How many files, and so roughly how many ranks, this process may have open."""
        listening = _listen(endpoint)
        self._endpoint = listening.endpoint
        self._server = Server(
            listening,
            NULL if curve is None else curve.make_mechanism(),
            clock or SystemClock(),
            # Twice, so that a frame somewhat too large is counted and its sender stays.
            part_bytes_max=2 * message_bytes_max,
            handshake_ns=handshake_ms * NS_PER_MS,
            peers_max=max(1, self.open_files_max - FILES_KEPT),
        )

    @property
    def endpoint(self) -> str:
        """Where it listens, with the real port."""
        return self._endpoint

    @property
    def refused(self) -> Mapping[str, int]:
        """Frames that are no message, by DecodeReason, and peers that were cut off for what is no frame."""
        refused = dict(self._refused)
        for reason, count in dict(self._server.cut_off).items():
            refused[reason] = refused.get(reason, 0) + count
        return refused

    @property
    def connections_refused(self) -> Mapping[str, int]:
        """Connections that were not let in, by the reasons of zmtp/rejection.py."""
        return self._server.refused

    @property
    def connections(self) -> int:
        """How many are open."""
        return self._server.peers

    @property
    def is_amid(self) -> bool:
        """Whether the last `take` has left something over, which `fileno` does not show."""
        return self._server.is_amid

    def fileno(self) -> int:
        """A file that can be read when there is something for `poll` to do."""
        return self._server.fileno()

    def watch(self, file: int) -> None:
        """Let `poll` return, too, when this file can be read."""
        self._server.watch(file)

    def poll(self, timeout_ms: int, batch_max: int) -> list[Received]:
        """What has come in: at most `batch_max` messages, those refused included.

        Waits at most `timeout_ms` for the first frame, for somebody who wants to connect or for a watched file, and for
        no second one.
        """
        return list(self.take(self.wait(timeout_ms), batch_max))

    def wait(self, timeout_ms: int) -> Ready:
        """The first half of `poll`: what `take` then finds."""
        self._send_answers()
        return self._server.wait(timeout_ms)

    def is_among(self, ready: Ready) -> bool:
        """Whether there are messages among what is ready."""
        return self._server.has_peers(ready)

    def take(self, ready: Ready, batch_max: int) -> Iterator[Received]:
        """The second half of `poll`: each is read when it is asked for. A relay's batch is taken as a whole."""
        for heard in self._server.take(ready, batch_max):
            self.frames_received += 1
            message = self._decode(heard)
            if self._relays is not None and isinstance(message, (RelayHello, Relayed)):
                yield from self._take_relayed(self._relays, heard.name, message, heard.key)
            elif message is not None:
                yield Received(heard.name, message, heard.key, heard.body)

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
        self._server.close()

    def _take_relayed(
        self, relays: Relays, relay: bytes, message: RelayHello | Relayed, key: str
    ) -> Iterator[Received]:
        if isinstance(message, RelayHello):
            self.send_frame(relay, encode(relays.hello(relay, message, key)))
            return
        found = relays.unpack(relay, message, key)
        if found is None:
            self.send_frame(relay, encode(HelloWanted()))
            return
        for peer, frame, rank_key, age_ns in found:
            self.frames_received += 1
            inner = self._decode(Heard(peer, frame, 1, rank_key))
            if isinstance(inner, (RelayHello, Relayed)):
                _count(self._refused, DecodeReason.BAD_BODY.value)  # no relay stands behind another one
            elif inner is not None:
                yield Received(peer, inner, rank_key, frame, age_ns)

    def _send_answers(self) -> None:
        for relay, answers in () if self._relays is None else self._relays.take_answers():
            if self._try_send(relay, encode(answers)) == UNROUTABLE and self._relays is not None:
                self._relays.forget(relay)

    def _try_send(self, peer: bytes, frame: bytes) -> str | None:
        """Why a frame could not be sent, after that was counted; None: it was."""
        reason = self._server.send(peer, frame)
        if reason is not None:
            _count(self.unsent, reason)
        return reason

    def _decode(self, heard: Heard) -> Message | None:
        try:
            return decode(self._find_frame(heard))
        except DecodeError as error:
            _count(self._refused, error.reason.value)
            if error.reason in _PROTOCOL_REASONS:
                # "This side" in the decoder's words is the collector, hence the quotation.
                self.send(heard.name, Refused(reason=error.reason.value, detail=f"the collector answers: {error}"))
            return None

    def _find_frame(self, heard: Heard) -> bytes:
        if heard.parts != 1:
            raise DecodeError(DecodeReason.BAD_BODY, f"{heard.parts} parts; a frame is one")
        if len(heard.body) > self._message_bytes_max:
            detail = f"{len(heard.body)} bytes, the limit is {self._message_bytes_max}"
            raise DecodeError(DecodeReason.TOO_LARGE, detail)
        return heard.body


def _listen(endpoint: str) -> Listening:
    try:
        return Listening(endpoint, BACKLOG)
    except OSError as error:
        cure = _CURES.get(error.errno or 0, "Check the address.")
        text = f"the collector cannot listen at {endpoint}: {error.strerror}. {cure}"
        raise UnavailableError(text) from error


def _count(counts: dict[str, int], reason: str) -> None:
    counts[reason] = counts.get(reason, 0) + 1
