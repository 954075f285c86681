"""A peer of a collector that a test drives message by message: a good rank, or a bad one."""

import contextlib
import re
import time
from collections.abc import Iterator
from typing import TypeVar

import zmq

from rankscope.measure.codec import decode, encode
from rankscope.measure.identity import RankIdentity
from rankscope.measure.key_files import ClientKeys
from rankscope.measure.messages import Ack, Hello, Message, Report, Welcome
from rankscope.uplink.curve_client import set_keys
from tests.integration.serving import Served

ANSWER_MS_MAX = 30_000
"""Far beyond what an answer takes: only a test that fails waits for it."""

REJOIN_MS = 300
STANDSTILL_MS = 1_000
REJOINS_MAX = 100

M = TypeVar("M", bound=Message)


def identity_of(boot_id: str, run: str = "good", rank: int = 0, world_size: int = 1) -> RankIdentity:
    """One life of a rank."""
    return RankIdentity(
        run=run, rank=rank, local_rank=0, world_size=world_size, node="n", restart_count=0, boot_id=boot_id, pid=1
    )


def hello_of(identity: RankIdentity, first_sequence: int = 1) -> Hello:
    """Its Hello: with no interval between reports each is acknowledged at once."""
    return Hello(identity=identity, first_sequence=first_sequence, host_ns=0, wall_ns=0, report_interval_ns=0)


class Peer:
    """Somebody who is connected. `sequence` is that of its last report."""

    def __init__(self, dealer: "zmq.Socket[bytes]", boot_id: str) -> None:
        self._dealer = dealer
        self.identity = identity_of(boot_id)
        self.sequence = 0
        self.longest_answer_s = 0.0
        """The longest that an acknowledgement has taken."""

    def send(self, message: Message) -> None:
        """Send a message."""
        self.send_bytes(encode(message))

    def send_bytes(self, *parts: bytes) -> None:
        """Send what may be no message."""
        self._dealer.send_multipart(parts)

    def try_to_send(self, message: Message) -> None:
        """Send a message if there is a connection; somebody who is not let in has none, sooner or later."""
        with contextlib.suppress(zmq.Again):
            self._dealer.send(encode(message), zmq.NOBLOCK)

    def await_answer(self, kind: type[M]) -> M:
        """The next answer of that kind; what else comes (the collector asks for the clock) is passed over."""
        while True:
            assert self._dealer.poll(ANSWER_MS_MAX), f"no {kind.__name__} came"
            answer = decode(self._dealer.recv())
            if isinstance(answer, kind):
                return answer

    def join(self) -> "Peer":
        """Say Hello, and be welcomed."""
        self.send(hello_of(self.identity))
        self.await_answer(Welcome)
        return self

    def rejoin(self) -> "Peer":
        """Say Hello until it is answered, as an agent does after a silence."""
        for _ in range(REJOINS_MAX):
            self.send(hello_of(self.identity))
            while self._dealer.poll(REJOIN_MS):
                if isinstance(decode(self._dealer.recv()), Welcome):
                    return self
        raise AssertionError(f"no Welcome after {REJOINS_MAX} Hellos")

    def report(self, count: int = 1) -> None:
        """Send reports, and see each acknowledged: the collector takes in what this peer sends."""
        for _ in range(count):
            self.sequence += 1
            sent_s = time.monotonic()
            self.send(Report(sequence=self.sequence, host_ns=self.sequence))
            while self.await_answer(Ack).through < self.sequence:
                pass
            self.longest_answer_s = max(self.longest_answer_s, time.monotonic() - sent_s)


@contextlib.contextmanager
def connected(endpoint: str, boot_id: str, keys: ClientKeys | None = None, **options: int) -> Iterator[Peer]:
    """A peer whose routing id is its boot id, as an agent's is. `options` are ZeroMQ's, by name."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.IDENTITY, boot_id.encode())
    for name, value in options.items():
        dealer.setsockopt(getattr(zmq, name), value)
    set_keys(dealer, keys)
    dealer.connect(endpoint)
    try:
        yield Peer(dealer, boot_id)
    finally:
        context.destroy(linger=0)


class DeafPeer:
    """Somebody who sends and never reads, over one connection after the other.

    When the buffer of a connection that nobody reads is full, Linux drops what comes there, and with it, since it lies
    beyond a window of zero, what it says of how far the other side has read: the connection may stand still in both
    directions. Then the next one is made, and what was not sent over the one before is gone with it.
    """

    def __init__(self, endpoint: str, boot_id: str) -> None:
        self._endpoint, self._boot_id = endpoint, boot_id
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._dealer = self._connect()
        self.standstills = 0
        """Connections that stood still."""

    def close(self) -> None:
        """Hang up."""
        self._context.destroy(linger=0)

    def send(self, message: Message) -> None:
        """Send a message."""
        frame = encode(message)
        while True:
            if self._dealer.poll(STANDSTILL_MS, zmq.POLLOUT):
                with contextlib.suppress(zmq.Again):
                    self._dealer.send(frame, zmq.NOBLOCK)
                    return
            else:
                self._dealer.close(linger=0)
                self.standstills += 1
                self._dealer = self._connect()

    def _connect(self) -> "zmq.Socket[bytes]":
        dealer = self._context.socket(zmq.DEALER)
        for option, value in ((zmq.RCVHWM, 1), (zmq.RCVBUF, 4096)):
            dealer.setsockopt(option, value)
        dealer.setsockopt(zmq.IDENTITY, self._boot_id.encode())
        dealer.connect(self._endpoint)
        return dealer


def read_counts(served: Served, metric: str) -> dict[str, int]:
    """A counter of the collector by its reason."""
    found = re.findall(rf'^{metric}{{reason="(\w+)"}} (\d+)\.0$', served.read_metrics(), re.MULTILINE)
    return {reason: int(count) for reason, count in found}
