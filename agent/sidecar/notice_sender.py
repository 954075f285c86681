"""Sends the sidecar's notices to a collector: each until it is acknowledged, at most ATTEMPTS times.

Runs on the sidecar's only thread and never waits. Notices have no order, and the collector ignores duplicates, so an
unacknowledged notice is sent again after a pause. ZeroMQ is imported with the first notice; most sidecars have none.
"""

import os
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import msgspec

from rankscope.agent.sidecar.beacon import Descriptor
from rankscope.measure.codec import decode, encode
from rankscope.measure.errors import DecodeError
from rankscope.measure.key_files import ClientKeys
from rankscope.measure.messages import Ack
from rankscope.measure.node_messages import Notice
from rankscope.measure.units import NS_PER_MS, NS_PER_S
from rankscope.uplink.curve_client import set_keys

ATTEMPTS: Final = 6
RESEND_NS: Final = 700 * NS_PER_MS
RUN_NS: Final = 50 * NS_PER_MS
"""Interval of `run_once` while notices are pending."""
GIVE_UP_NS: Final = ATTEMPTS * RESEND_NS + NS_PER_S
"""Time after which every notice is delivered or dropped."""
NOTICES_MAX: Final = 256
"""Largest number of notices kept for one collector. Above it the oldest is dropped and counted."""
RECEIVES_MAX: Final = 64


class _PendingNotice:
    def __init__(self, notice: Notice) -> None:
        self.notice = notice
        self.attempts = 0
        self.due_ns = 0


class NoticeSender:
    """The sender of notices to one collector. `dropped` counts notices that were never acknowledged."""

    def __init__(self, endpoint: str, open_socket: Callable[[str], Any] | None = None) -> None:
        self._endpoint = endpoint
        self.keys: ClientKeys | None = None
        """Keys of the connection, to be set before the first notice."""
        self._open_socket = open_socket or (lambda endpoint: _open_dealer(endpoint, self.keys))
        self._socket: Any = None
        self._pending: deque[_PendingNotice] = deque()
        self._sequence = 0
        self.dropped = 0

    @property
    def is_idle(self) -> bool:
        """True if all notices were delivered or dropped."""
        return not self._pending

    def enqueue(self, notice: Notice) -> None:
        """Number a notice and send it with the next `run_once`."""
        self._sequence += 1
        if len(self._pending) >= NOTICES_MAX:
            self._pending.popleft()
            self.dropped += 1
        self._pending.append(_PendingNotice(msgspec.structs.replace(notice, sequence=self._sequence)))

    def run_once(self, now_ns: int) -> None:
        """Receive acknowledgements and send the notices that are due."""
        if self._pending and self._socket is None:
            self._socket = self._open_socket(self._endpoint)
        if self._socket is None:
            return
        self._receive()
        for pending in list(self._pending):
            if now_ns < pending.due_ns:
                continue
            if pending.attempts >= ATTEMPTS:
                self._pending.remove(pending)
                self.dropped += 1
                continue
            self._send(pending, now_ns)

    def close(self) -> None:
        """Close the socket; pending notices are lost."""
        if self._socket is not None:
            self._socket.close(0)
            self._socket = None

    def _send(self, pending: _PendingNotice, now_ns: int) -> None:
        import zmq  # noqa: PLC0415 - see the module docstring

        pending.attempts += 1
        pending.due_ns = now_ns + RESEND_NS
        try:
            self._socket.send(encode(pending.notice), zmq.NOBLOCK)
        except zmq.ZMQError:
            return  # no connection yet; it counts as an attempt, to give up on a collector that is gone

    def _receive(self) -> None:
        import zmq  # noqa: PLC0415

        for _ in range(RECEIVES_MAX):
            try:
                message = decode(self._socket.recv(zmq.NOBLOCK))
            except DecodeError:
                continue
            except zmq.ZMQError:
                return
            if isinstance(message, Ack):
                self._pending = deque(one for one in self._pending if one.notice.sequence != message.through)


class NoticeSenders:
    """The senders of notices, by collector. `make` returns that of an endpoint."""

    def __init__(self, make: Callable[[str], NoticeSender]) -> None:
        self._make = make
        self._senders: dict[str, NoticeSender] = {}

    @property
    def is_idle(self) -> bool:
        """True if all notices were delivered or dropped."""
        return all(sender.is_idle for sender in self._senders.values())

    def enqueue(self, descriptor: Descriptor, notice: Notice) -> None:
        """Send a notice about a rank to its collector; drop it if the rank never had one."""
        endpoint = descriptor.endpoint
        if not endpoint:
            return
        if endpoint not in self._senders:
            self._senders[endpoint] = self._make(endpoint)
            self._senders[endpoint].keys = descriptor.keys
        self._senders[endpoint].enqueue(notice)

    def run_once(self, now_ns: int) -> None:
        """Send and receive what is due, without waiting."""
        for sender in self._senders.values():
            sender.run_once(now_ns)

    def close(self) -> None:
        """Close all senders."""
        for sender in self._senders.values():
            sender.close()


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
