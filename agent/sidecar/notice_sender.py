"""Carries the sidecar's notices to the collectors: each until it is acknowledged, at most ATTEMPTS times.

Runs in the sidecar's one thread and never waits. There is nothing to be kept in order, and a collector takes a notice
that comes twice for one: so a notice is simply sent again after a while. Most sidecars never have one, so ZeroMQ is
loaded with the first.
"""

import os
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import msgspec

from rankscope.measure.codec import decode, encode
from rankscope.measure.errors import DecodeError
from rankscope.measure.key_files import ClientKeys
from rankscope.measure.messages import Ack, RankEnded, RankUnresponsive
from rankscope.measure.units import NS_PER_MS, NS_PER_S
from rankscope.uplink.curve_client import set_keys

Notice = RankEnded | RankUnresponsive

ATTEMPTS: Final = 6
RESEND_NS: Final = 700 * NS_PER_MS
NOTICES_MAX: Final = 256
"""Notices kept for one collector; the oldest makes room, and is counted."""
RECEIVES_PER_TURN_MAX: Final = 64


class _PendingNotice:
    def __init__(self, notice: Notice) -> None:
        self.notice = notice
        self.attempts = 0
        self.due_ns = 0


class NoticeSender:
    """One for each collector. `dropped` counts notices that no collector acknowledged."""

    def __init__(self, endpoint: str, open_socket: Callable[[str], Any] | None = None) -> None:
        self._endpoint = endpoint
        self.keys: ClientKeys | None = None
        """With which the collector is spoken to; to be set before the first notice is posted."""
        self._open_socket = open_socket or (lambda endpoint: _open_dealer(endpoint, self.keys))
        self._socket: Any = None
        self._letters: deque[_PendingNotice] = deque()
        self._sequence = 0
        self.dropped = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to deliver."""
        return not self._letters

    def post(self, notice: Notice) -> None:
        """Take a notice; it goes out with the next turn, under a number of its own."""
        self._sequence += 1
        if len(self._letters) >= NOTICES_MAX:
            self._letters.popleft()
            self.dropped += 1
        self._letters.append(_PendingNotice(msgspec.structs.replace(notice, sequence=self._sequence)))

    def take_turn(self, now_ns: int) -> None:
        """Send what is due, take in what was acknowledged."""
        if self._letters and self._socket is None:
            self._socket = self._open_socket(self._endpoint)
        if self._socket is None:
            return
        self._receive()
        for letter in list(self._letters):
            if now_ns < letter.due_ns:
                continue
            if letter.attempts >= ATTEMPTS:
                self._letters.remove(letter)
                self.dropped += 1
                continue
            self._send(letter, now_ns)

    def close(self) -> None:
        """Drop what is left."""
        if self._socket is not None:
            self._socket.close(0)
            self._socket = None

    def _send(self, letter: _PendingNotice, now_ns: int) -> None:
        import zmq  # noqa: PLC0415 - see the head of the file

        letter.attempts += 1
        letter.due_ns = now_ns + RESEND_NS
        try:
            self._socket.send(encode(letter.notice), zmq.NOBLOCK)
        except zmq.ZMQError:
            return  # no connection yet: that was an attempt too, or a dead collector would be tried for ever

    def _receive(self) -> None:
        import zmq  # noqa: PLC0415

        for _ in range(RECEIVES_PER_TURN_MAX):
            try:
                message = decode(self._socket.recv(zmq.NOBLOCK))
            except DecodeError:
                continue
            except zmq.ZMQError:
                return
            if isinstance(message, Ack):
                self._letters = deque(one for one in self._letters if one.notice.sequence != message.through)


def _open_dealer(endpoint: str, keys: ClientKeys | None) -> Any:
    import zmq  # noqa: PLC0415

    dealer: Any = zmq.Context.instance().socket(zmq.DEALER)
    options = {
        zmq.IMMEDIATE: 1, zmq.LINGER: 0, zmq.SNDHWM: NOTICES_MAX, zmq.RCVHWM: NOTICES_MAX, zmq.MAXMSGSIZE: 64 * 1024,
        zmq.RECONNECT_IVL: 100, zmq.RECONNECT_IVL_MAX: 5_000, zmq.CONNECT_TIMEOUT: 2_000,
    }  # fmt: skip
    for option, value in options.items():
        dealer.setsockopt(option, value)
    dealer.setsockopt(zmq.IDENTITY, b"sidecar-" + os.urandom(8).hex().encode())
    set_keys(dealer, keys)
    dealer.connect(endpoint)
    return dealer


TURN_NS: Final = 50 * NS_PER_MS
"""How often turns are taken while something is to be delivered."""
GIVE_UP_NS: Final = ATTEMPTS * RESEND_NS + NS_PER_S
"""After this time nothing that was posted before is left."""
