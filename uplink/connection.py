"""A ZeroMQ DEALER to one collector, made anew when ZeroMQ has given it up. No thread: whoever owns it polls it.

The socket is never a place to keep things: with IMMEDIATE it takes messages only while there is a connection, and what
it does not take stays with the owner. While no collector is there, ZeroMQ tries to connect every few seconds on its own
thread.
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
"""Largest frame taken from a collector; its largest honest one for a rank, a Refused with two texts of 1,024
characters, is under 9 KiB."""

REDIAL_NS: Final = 30 * NS_PER_S
"""After so long a connection is tried anew that ZeroMQ has given up: keys are changed by people."""

SILENCE_NS: Final = 40 * NS_PER_S
"""After so long without a word from a collector to which something was sent, the connection is tried anew. It answers
a report within eight seconds or so; one that stands still for longer loses nothing by it. Another peer that takes this
one's name over leaves it a connection on which nobody answers."""
SILENCE_JITTER: Final = 0.5
"""Up to so much longer, by chance: thousands of ranks of one collector fall silent at one moment."""

_OPTIONS: Final = {
    zmq.IMMEDIATE: 1,
    zmq.LINGER: 0,
    # Messages in the socket are lost with the connection and sent again after a silence: few, but enough to keep a
    # connection busy while a backlog is sent.
    zmq.SNDHWM: 16,
    zmq.RCVHWM: 64,
    # Otherwise an address that swallows packets is given about two minutes before it is tried again.
    zmq.CONNECT_TIMEOUT: 5_000,
    # A machine that is gone is noticed by the kernel: by what it does not acknowledge within 30 s, and on an idle
    # connection by four unanswered probes. Not by ZeroMQ's heartbeats: libzmq 4.3.5 aborts a collector when a
    # connection breaks while one of them waits there among unread messages.
    zmq.TCP_MAXRT: 30_000,
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 10,
    zmq.TCP_KEEPALIVE_INTVL: 5,
    zmq.TCP_KEEPALIVE_CNT: 4,
}  # fmt: skip


_READABLE: Final = int(zmq.POLLIN)
"""As a plain number: the flags of an enumeration take as long to compare as the socket to ask."""


class Connection:
    """Connects `poller`'s owner to `endpoint`, encrypted when there are keys, as the peer `name`.

    `socket` and `handshakes.socket` are registered with the poller for reading; both change with each redial. Raises
    zmq.ZMQError for an endpoint that ZeroMQ cannot read.
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
        """When `redial_when_due` has something to do; None: nothing for now."""
        self.refusal: Refusal | None = None
        """Why there is no connection, once that is known; whoever is welcomed clears it."""
        self._watches_for = (False, True)
        self._dial()

    def redial_when_due(self) -> None:
        """Connect anew, some time after ZeroMQ has given up, or when nobody answers."""
        now_ns = self._clock.monotonic_ns()
        since_ns = self._unanswered_since_ns
        is_silent = since_ns is not None and now_ns - since_ns >= self._silence_ns
        if not is_silent and (self.redial_due_ns is None or now_ns < self.redial_due_ns):
            return
        self.redial_due_ns = None
        self._hang_up()
        self._dial()

    def handle_failure(self) -> None:
        """A handshake failed; to be called when `handshakes.socket` is readable."""
        failure = self.handshakes.read()
        self.refusal = failure.refusal or self.refusal
        if failure.gave_up:
            self.redial_due_ns = self._clock.monotonic_ns() + self._redial_after_ns

    def try_send(self, frame: bytes) -> bool:
        """Whether the socket took it: not while there is no connection, or SNDHWM messages are waiting."""
        try:
            self.socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            return False
        if self._unanswered_since_ns is None:
            self._unanswered_since_ns = self._clock.monotonic_ns()
        return True

    def receive(self) -> bytes | None:
        """The next frame from the collector; None when there is none for now."""
        # To ask first takes 3 us; to be told by an exception that there is nothing takes 6.
        if not int(self.socket.getsockopt(zmq.EVENTS)) & _READABLE:
            return None
        try:
            frame = self.socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None
        self._unanswered_since_ns = None
        return frame

    def watch_for_room(self, *, wanted: bool, reads: bool = True) -> None:
        """Whether the poller is to wait for the socket to take more, besides failed handshakes and, unless `reads` is
        False, messages: those wait in the socket, and when that is full with whoever sends them.
        """
        if (wanted, reads) != self._watches_for:
            self._watches_for = wanted, reads
            self._poller.register(self.socket, (zmq.POLLIN if reads else 0) | (zmq.POLLOUT if wanted else 0))

    def close(self) -> None:
        """Drop the connection, and whatever the socket holds."""
        self._hang_up()

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
        self._watches_for = (False, True)
        self.socket: zmq.Socket[bytes] = dealer

    def _hang_up(self) -> None:
        for registered in (self.socket, self.handshakes.socket):
            if registered in self._poller:
                self._poller.unregister(registered)
        self.handshakes.close()
        self.socket.close(linger=0)
