"""Connects to one collector with a ZeroMQ DEALER, and makes a new socket when ZeroMQ has given up. Has no thread.

With IMMEDIATE the socket accepts messages only while connected; what it does not accept stays with the owner. Without a
collector ZeroMQ retries the connection every few seconds on its own thread.
"""

import random
from typing import Final

import zmq

from rankscope.measure.clock import Clock
from rankscope.measure.key_files import ClientKeys
from rankscope.measure.units import NS_PER_S
from rankscope.uplink.curve_client import set_keys
from rankscope.uplink.delivery import Refusal
from rankscope.uplink.handshake import HandshakeWatch
from rankscope.uplink.reconnect import draw_pauses

FRAME_IN_BYTES_MAX: Final = 64 * 1024
"""Largest frame accepted from a collector. The largest regular one is a RunSummary: under 32 KiB with all its
texts at their limits."""

REDIAL_NS: Final = 30 * NS_PER_S
"""Pause before a new connection after ZeroMQ has given up, which happens with wrong keys."""

SILENCE_NS: Final = 40 * NS_PER_S
"""Time without an answer after which the connection is replaced. A report is normally answered within eight seconds. A
connection whose name another peer has claimed gets no answers."""
SILENCE_JITTER: Final = 0.5
"""Random extension of SILENCE_NS, as a share of it, so that thousands of ranks do not reconnect at once."""

_OPTIONS: Final = {
    zmq.IMMEDIATE: 1,
    zmq.LINGER: 0,
    # Messages in the socket are lost with the connection and sent again later: few, but enough to keep a connection
    # busy while a backlog is sent.
    zmq.SNDHWM: 16,
    zmq.RCVHWM: 64,
    # The default for an address that drops packets is about two minutes.
    zmq.CONNECT_TIMEOUT: 5_000,
    # The kernel detects a machine that is gone: by data unacknowledged for 30 s, or four unanswered probes on an idle
    # connection. ZeroMQ's heartbeats are not used: libzmq 4.3.5 aborts a collector if a connection breaks while a
    # heartbeat is among its unread messages.
    zmq.TCP_MAXRT: 30_000,
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 10,
    zmq.TCP_KEEPALIVE_INTVL: 5,
    zmq.TCP_KEEPALIVE_CNT: 4,
}  # fmt: skip


_READABLE: Final = int(zmq.POLLIN)
"""A plain number, since comparing enumeration flags is slow."""


class Connection:
    """The connection to `endpoint` as the peer `name`, encrypted if there are keys.

    `socket` and `handshakes.socket` are registered with `poller` for reading; both change with each redial. Raise
    zmq.ZMQError for an endpoint that ZeroMQ cannot parse.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        poller: zmq.Poller,
        clock: Clock,
        endpoint: str,
        *,
        keys: ClientKeys | None,
        name: str,
        frame_in_bytes_max: int = FRAME_IN_BYTES_MAX,
        redial_ns: int = REDIAL_NS,
        silence_ns: int = SILENCE_NS,
    ) -> None:
        self._context = context
        self._poller = poller
        self._clock = clock
        self._endpoint = endpoint
        self._keys = keys
        self._name = name
        self._frame_in_bytes_max = frame_in_bytes_max
        self._redial_after_ns = redial_ns
        chance = random.Random(name)  # noqa: S311 - spreads connects, no secret
        self._silence_ns = round(silence_ns * (1 + SILENCE_JITTER * chance.random()))
        self._unanswered_since_ns: int | None = None
        self.redial_due_ns: int | None = None
        """Time of the next redial; None if none is planned."""
        self.refusal: Refusal | None = None
        """Reason why there is no connection, if known; the owner clears it after a Welcome."""
        self._polled_for = (False, True)
        self._dial()

    def redial_when_due(self) -> None:
        """Make a new connection if ZeroMQ has given up for REDIAL_NS, or if no answer came for too long."""
        now_ns = self._clock.monotonic_ns()
        since_ns = self._unanswered_since_ns
        is_silent = since_ns is not None and now_ns - since_ns >= self._silence_ns
        if not is_silent and (self.redial_due_ns is None or now_ns < self.redial_due_ns):
            return
        self.redial_due_ns = None
        self._disconnect()
        self._dial()

    def handle_failure(self) -> None:
        """Process a failed handshake. Call it when `handshakes.socket` is readable."""
        failure = self.handshakes.read()
        self.refusal = failure.refusal or self.refusal
        if failure.gave_up:
            self.redial_due_ns = self._clock.monotonic_ns() + self._redial_after_ns

    def try_send(self, frame: bytes) -> bool:
        """Send a frame; return False without a connection, or if SNDHWM messages are waiting."""
        try:
            self.socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            return False
        if self._unanswered_since_ns is None:
            self._unanswered_since_ns = self._clock.monotonic_ns()
        return True

    def receive(self) -> bytes | None:
        """Return the next frame from the collector; None if there is none now."""
        # This check takes 3 us, the exception for an empty socket 6.
        if not int(self.socket.getsockopt(zmq.EVENTS)) & _READABLE:
            return None
        try:
            frame = self.socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None
        self._unanswered_since_ns = None
        return frame

    def watch_for_room(self, *, wanted: bool, reads: bool = True) -> None:
        """Set whether the poller waits for room in the socket (`wanted`) and for messages (`reads`).

        Unread messages wait in the socket, and once it is full at their sender.
        """
        if (wanted, reads) != self._polled_for:
            self._polled_for = wanted, reads
            self._poller.register(self.socket, (zmq.POLLIN if reads else 0) | (zmq.POLLOUT if wanted else 0))

    def close(self) -> None:
        """Close the connection; frames in the socket are lost."""
        self._disconnect()

    def _dial(self) -> None:
        dealer = self._context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.IDENTITY, self._name.encode())
        pauses = draw_pauses(random.Random(self._name))  # noqa: S311 - spreads connects, no secret
        own = {
            zmq.RECONNECT_IVL: pauses.first_ms,
            zmq.RECONNECT_IVL_MAX: pauses.longest_ms,
            zmq.MAXMSGSIZE: self._frame_in_bytes_max,
        }
        for option, value in (_OPTIONS | own).items():
            dealer.setsockopt(option, value)
        set_keys(dealer, self._keys)
        self.handshakes = HandshakeWatch(self._context, dealer, self._endpoint, self._keys)
        dealer.connect(self._endpoint)
        self._unanswered_since_ns = None
        self._poller.register(self.handshakes.socket, zmq.POLLIN)
        self._poller.register(dealer, zmq.POLLIN)
        self._polled_for = (False, True)
        self.socket: zmq.Socket[bytes] = dealer

    def _disconnect(self) -> None:
        for registered in (self.socket, self.handshakes.socket):
            if registered in self._poller:
                self._poller.unregister(registered)
        self.handshakes.close()
        self.socket.close(linger=0)
