"""A server of ZeroMQ's protocol, driven turn by turn, and those who are connected to it."""

import contextlib
import socket
import time
from collections.abc import Callable, Iterator

import zmq

from rankscope.collector.zmtp.frames import build_frame
from rankscope.collector.zmtp.listening import Listening
from rankscope.collector.zmtp.mechanism import Mechanism
from rankscope.collector.zmtp.null import NULL
from rankscope.collector.zmtp.server import Heard, Server
from rankscope.measure.units import NS_PER_S
from tests.driven_clock import DrivenClock
from tests.zmtp_peer import CurvePeer, NullPeer, read_frames

DEADLINE_S = 30.0
"""Far beyond what anything here takes: only a test that fails waits for it."""
HANDSHAKE_NS = 30 * NS_PER_S
PART_BYTES_MAX = 4 * 2**20
BACKLOG = 4096


class Serving:
    """A server, what it has heard, and those who are connected to it."""

    def __init__(
        self, mechanism: Mechanism = NULL, peers_max: int = 10_000, endpoint: str = "tcp://127.0.0.1:0"
    ) -> None:
        self.clock = DrivenClock()
        self.listening = Listening(endpoint, BACKLOG)
        self.endpoint = self.listening.endpoint
        self.server = Server(
            self.listening, mechanism, self.clock,
            part_bytes_max=PART_BYTES_MAX, handshake_ns=HANDSHAKE_NS, peers_max=peers_max,
        )  # fmt: skip
        self.heard: list[Heard] = []
        self._ends = contextlib.ExitStack()
        self._context: zmq.Context[zmq.Socket[bytes]] = self._ends.enter_context(zmq.Context())

    def turn(self, messages_max: int = 100) -> list[Heard]:
        """One turn; what was heard in it."""
        came = list(self.server.take(self.server.wait(5), messages_max))
        self.heard += came
        return came

    def until(self, is_there: Callable[[], object], messages_max: int = 100) -> None:
        """Turns until that is so."""
        end_s = time.monotonic() + DEADLINE_S
        while not is_there():
            assert time.monotonic() < end_s, f"heard {self.heard[-3:]}, refused {self.server.refused}"
            self.turn(messages_max)

    def hear(self, count: int) -> list[Heard]:
        """The next so many messages."""
        self.until(lambda: len(self.heard) >= count)
        came, self.heard = self.heard, []
        return came

    def dial(self, name: bytes = b"", **options: int) -> "zmq.Socket[bytes]":
        """A peer of libzmq."""
        dealer = self._context.socket(zmq.DEALER)
        self._ends.callback(dealer.close, linger=0)
        dealer.setsockopt(zmq.RCVTIMEO, int(1000 * DEADLINE_S))
        if name:
            dealer.setsockopt(zmq.IDENTITY, name)
        for option, value in options.items():
            dealer.setsockopt(getattr(zmq, option), value)
        dealer.connect(self.endpoint)
        return dealer

    def call(self) -> socket.socket:
        """Somebody who speaks byte by byte."""
        address = self.endpoint.removeprefix("tcp://").rpartition(":")
        caller = self._ends.enter_context(socket.create_connection((address[0], int(address[2])), timeout=DEADLINE_S))
        caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return caller

    def introduce(self, name: bytes) -> socket.socket:
        """Somebody who speaks byte by byte, and is let in."""
        caller = self.call()
        caller.sendall(b"".join(NullPeer(name).introduction) + build_frame(b"here"))
        self.until(lambda: self.heard and self.heard[-1].body == b"here")
        self.heard.pop()
        return caller

    def close(self) -> None:
        """End everything."""
        self._ends.close()
        self.server.close()


@contextlib.contextmanager
def closing(serving: Serving) -> Iterator[Serving]:
    """Ends it."""
    try:
        yield serving
    finally:
        serving.close()


def read_to_the_end(caller: socket.socket, serving: Serving) -> bytes:
    """What this one is told until its connection is ended."""
    caller.setblocking(False)
    told = b""

    def has_ended() -> bool:
        nonlocal told
        try:
            data = caller.recv(65536)
        except BlockingIOError:
            return False
        except ConnectionError:
            return True
        told += data
        return not data

    serving.until(has_ended)
    return told


def shake_hands(serving: Serving, peer: CurvePeer) -> socket.socket:
    """Lead a peer with keys through its handshake."""
    caller = serving.call()
    caller.setblocking(False)
    received = b""

    def has(size: int) -> Callable[[], bool]:
        def look() -> bool:
            nonlocal received
            with contextlib.suppress(BlockingIOError):
                received += caller.recv(65536)
            return len(received) >= size

        return look

    caller.sendall(peer.greeting)
    serving.until(has(64))
    received = received[64:]
    caller.sendall(peer.hello())
    serving.until(has(2 + 168))
    ((_, welcome),) = read_frames(received)
    received = b""
    caller.sendall(peer.initiate(peer.take_welcome(welcome)))
    serving.until(has(1))
    return caller
