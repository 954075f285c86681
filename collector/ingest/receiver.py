"""The collector's end of the wire: a ZeroMQ ROUTER that turns bytes into messages and back, in one thread at a time.

Whatever arrives, `poll` raises nothing: what is not a message is counted by reason, and so is a connection that is not
let in. What cannot be sent is counted too: an agent that lacks an answer asks again by itself.

With keys (curve.py) everything is encrypted, only clients whose key is allowed get in, and each message comes with the
key of its sender.

Frames that come through a relay (relays.py) are unpacked here, and answers to them packed: whoever takes the messages
sees one peer for each rank. Answers to them go out with the next `poll`, together.
"""

import contextlib
import errno
import os
import resource
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
import zmq

from rankscope.collector.ingest.curve import CurveServer, FailedHandshakes, ZapHandler
from rankscope.collector.ingest.listeners import listen
from rankscope.collector.ingest.relays import Relays, split_address
from rankscope.measure.clock import Clock, SystemClock
from rankscope.measure.codec import FRAME_BYTES_MAX, decode, encode
from rankscope.measure.errors import DecodeError, DecodeReason, SettingError, UnavailableError
from rankscope.measure.messages import HelloWanted, Message, Refused, Relayed, RelayHello
from rankscope.measure.settings import find_endpoint_problem

SEND_HWM: Final = 64
"""Answers kept for a peer that does not read them. Acknowledgements are cumulative: losing some does no harm."""

BACKLOG: Final = 4096
"""Connections that may wait to be accepted. With ZeroMQ's own 100, thousands of 16,384 ranks that start together were
still unconnected after 20 s. The kernel's net.core.somaxconn caps it."""

ZERO_COPY_RECV: Final = 10
"""ZeroMQ's number for an option of its contexts (zmq_ctx_set(3)) that pyzmq has no name for. As it is by itself, a
message is a piece of the 8 KiB into which its connection was read, and pins all of them until it is taken: 8.2 KiB
measured for one of 0.9. Off, it is copied out of a buffer that the connection keeps: 0.9 KiB."""

HANDSHAKE_MS: Final = 30_000
"""A connection that has not said who it is by then is closed: ZeroMQ's own default. Of 16,384 encrypted connections at
once the last ones take more than 10 s."""

_KEEP_ALIVE: Final = {
    # A peer whose machine is gone leaves a connection that looks open. The kernel asks after a minute of silence and
    # closes it after two, also when something that was sent there is not confirmed: by itself it would send that again
    # for a quarter of an hour. It costs nobody a timer of ZeroMQ's.
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 60,
    zmq.TCP_KEEPALIVE_INTVL: 15,
    zmq.TCP_KEEPALIVE_CNT: 4,
    zmq.TCP_MAXRT: 120_000,
}

_CURES: Final = {
    errno.EADDRINUSE: "Another program listens there: stop it, or choose another port.",
    errno.EACCES: "Ports below 1024 need a privilege: choose a higher one.",
    errno.EADDRNOTAVAIL: "This machine has no such address: give one of its own, or * for all.",
    errno.ENODEV: "This machine has no such address: give one of its own, or * for all.",
}

UNROUTABLE: Final = "unroutable"
_SEND_FAILURES: Final = {errno.EHOSTUNREACH: UNROUTABLE, errno.EAGAIN: "full"}

FORGED_ADDRESS: Final = "forged_address"

_PROTOCOL_REASONS: Final = frozenset({DecodeReason.PROTOCOL_TOO_OLD, DecodeReason.PROTOCOL_TOO_NEW})


def raise_open_files_limit() -> int:
    """Raise this process's limit of open files to the most it may have, and return that.

    Every connected rank is one open file. At the limit ZeroMQ accepts nobody any more and says nothing, while its
    thread spins on the connections that wait; and the usual soft limit is 1,024.
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


Ready = Mapping[object, int]
"""Sockets and files about which there is something to do, as a poller tells them."""


class Receiver:
    """Listens at `endpoint`, `tcp://HOST:PORT` or `ipc:///PATH`; the port 0 or `*` takes a free one, the host `*` every
    address.

    `receive_hwm` messages are read ahead for each peer; an unread one takes its own size. A frame above
    `message_bytes_max` is refused; the sender of one twice as large is disconnected before it is read. `curve` has the
    keys; None takes everybody in, unencrypted. `relays` are those it may have; None: a relay is a peer like others.
    With a `poller` the caller polls, and hands what is ready to `take`.
    Raises SettingError for an endpoint that is no address, UnavailableError when it cannot be listened at.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        receive_hwm: int = 16,
        message_bytes_max: int = FRAME_BYTES_MAX,
        backlog: int = BACKLOG,
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
        self.frames_received = 0
        """Frames that have come in, refused ones included."""
        self.refused: dict[str, int] = {}
        """Frames that are no message, by DecodeReason, and those of a FORGED_ADDRESS."""
        self.unsent: dict[str, int] = {}
        """Messages that could not be sent, by reason: the peer is gone (`unroutable`) or does not read (`full`)."""
        self.open_files_max = raise_open_files_limit()
        """How many files, and so roughly how many ranks, this process may have open."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        with contextlib.suppress(zmq.ZMQError):  # a ZeroMQ that does not know it only takes more memory
            self._context.set(ZERO_COPY_RECV, 0)
        self._router = self._context.socket(zmq.ROUTER)
        options = {
            # A rank that reconnects takes its routing id over; otherwise its new connection is ignored in silence.
            zmq.ROUTER_HANDOVER: 1,
            # An answer to a peer that is gone is an error to count, and not dropped in silence.
            zmq.ROUTER_MANDATORY: 1,
            zmq.LINGER: 0,
            zmq.RCVHWM: receive_hwm,
            zmq.SNDHWM: SEND_HWM,
            # Twice, so that a frame somewhat too large is counted: above this the sender is cut off without a word.
            zmq.MAXMSGSIZE: 2 * message_bytes_max,
            zmq.BACKLOG: backlog,
            zmq.IPV6: int("[" in endpoint),
            zmq.HANDSHAKE_IVL: handshake_ms,
            **_KEEP_ALIVE,
            # No heartbeats: 16,384 of their timers stall ZeroMQ's thread, and libzmq 4.3.5 may abort on one.
        }
        for option, value in options.items():
            self._router.setsockopt(option, value)
        self._relays = relays
        self._poller = poller or zmq.Poller()
        self._poller.register(self._router, zmq.POLLIN)
        self._zap: ZapHandler | None = None
        if curve is not None:
            self._zap = ZapHandler(self._context, self._poller, curve.is_allowed, clock or SystemClock())
            curve.guard(self._router)
        self._bind(endpoint)
        self._failed = FailedHandshakes(self._context, self._router, has_keys=curve is not None)
        self._poller.register(self._failed.socket, zmq.POLLIN)

    @property
    def endpoint(self) -> str:
        """Where it listens, with the real port."""
        return self._endpoint

    @property
    def connections_refused(self) -> dict[str, int]:
        """Connections that were not let in, by the reasons of curve.py."""
        return self._failed.counts

    def watch(self, file: int) -> None:
        """Let `poll` return, too, when this file can be read."""
        self._poller.register(file, zmq.POLLIN)

    def poll(self, timeout_ms: int, batch_max: int) -> list[Received]:
        """What has come in: at most `batch_max` messages, those refused included.

        Waits at most `timeout_ms` for the first frame, for somebody who wants to connect or for a watched file, and for
        no second one.
        """
        return list(self.take(self.wait(timeout_ms), batch_max))

    def wait(self, timeout_ms: int) -> Ready:
        """The first half of `poll`: what `take` then finds."""
        self._send_answers()
        return dict(self._poller.poll(timeout_ms))

    def is_among(self, ready: Ready) -> bool:
        """Whether there are messages among what is ready."""
        return self._router in ready

    def take(self, ready: Ready, batch_max: int) -> Iterator[Received]:
        """The second half of `poll`, also when somebody else has polled: each is read when it is asked for. A relay's
        batch is taken as a whole.
        """
        if self._zap is not None:
            self._zap.answer(ready)
            self._zap.tend()
        if self._failed.socket in ready:
            self._failed.count()
        if self._router not in ready:
            return
        taken = 0
        for _ in range(batch_max):
            try:
                peer, frames, key = self._receive()
            except zmq.Again:
                break
            self.frames_received += 1
            message = None if self._is_forged(peer) else self._decode(peer, frames)
            if self._relays is not None and isinstance(message, (RelayHello, Relayed)):
                for one in self._take_relayed(self._relays, peer, message, key):
                    taken += 1
                    yield one
            elif message is not None:
                taken += 1
                yield Received(peer, message, key, frames[0])
            if taken >= batch_max:
                break

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
        if not self._router.closed:
            self._failed.close()
        self._let_go()

    def _let_go(self) -> None:
        self._router.close(linger=0)
        if self._zap is not None:
            self._zap.close()
        self._context.term()

    def _is_forged(self, peer: bytes) -> bool:
        """Whether a peer has given itself the address of a rank behind a relay. ZeroMQ lets nobody do so, but who
        speaks its protocol by other means could, and what is answered to him would go to that rank.
        """
        forged = split_address(peer) is not None
        if forged:
            _count(self.refused, FORGED_ADDRESS)
        return forged

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
            inner = self._decode(peer, [frame])
            if isinstance(inner, (RelayHello, Relayed)):
                _count(self.refused, DecodeReason.BAD_BODY.value)  # no relay stands behind another one
            elif inner is not None:
                yield Received(peer, inner, rank_key, frame, age_ns)

    def _send_answers(self) -> None:
        for relay, answers in () if self._relays is None else self._relays.take_answers():
            if self._try_send(relay, encode(answers)) == UNROUTABLE and self._relays is not None:
                self._relays.forget(relay)

    def _try_send(self, peer: bytes, frame: bytes) -> str | None:
        """Why a frame could not be sent, after that was counted; None: it was."""
        try:
            self._router.send_multipart([peer, frame], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            reason = _SEND_FAILURES.get(error.errno or 0, "other")
            _count(self.unsent, reason)
            return reason
        return None

    def _receive(self) -> tuple[bytes, list[bytes], str]:
        """Routing id, parts and key of the next message. Only ZeroMQ's frames know the key. Part by part this takes
        3 us, with `recv_multipart` 7.5.
        """
        peer: bytes = self._router.recv(zmq.NOBLOCK)
        parts: list[bytes] = []
        key, has_more = "", True
        while has_more:
            # After the routing id there is at least one part, and all parts of a message are there at once.
            frame = self._router.recv(zmq.NOBLOCK, copy=False)
            parts.append(frame.bytes)
            has_more = bool(frame.more)
            if self._zap is not None and not has_more:
                key = str(frame.get("User-Id"))
        return peer, parts, key

    def _bind(self, endpoint: str) -> None:
        try:
            listen(self._router, endpoint)
        except zmq.ZMQError as error:
            self._let_go()
            number = error.errno or 0
            problem, cure = os.strerror(number), _CURES.get(number, "Check the address.")
            raise UnavailableError(f"the collector cannot listen at {endpoint}: {problem}. {cure}") from error
        self._endpoint = self._router.getsockopt_string(zmq.LAST_ENDPOINT)

    def _decode(self, peer: bytes, frames: list[bytes]) -> Message | None:
        try:
            return decode(self._find_frame(frames))
        except DecodeError as error:
            _count(self.refused, error.reason.value)
            if error.reason in _PROTOCOL_REASONS:
                # "This side" in the decoder's words is the collector, hence the quotation.
                self.send(peer, Refused(reason=error.reason.value, detail=f"the collector answers: {error}"))
            return None

    def _find_frame(self, frames: list[bytes]) -> bytes:
        if len(frames) != 1:
            raise DecodeError(DecodeReason.BAD_BODY, f"{len(frames)} parts; a frame is one")
        if len(frames[0]) > self._message_bytes_max:
            detail = f"{len(frames[0])} bytes, the limit is {self._message_bytes_max}"
            raise DecodeError(DecodeReason.TOO_LARGE, detail)
        return frames[0]


def _count(counts: dict[str, int], reason: str) -> None:
    counts[reason] = counts.get(reason, 0) + 1
