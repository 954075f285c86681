"""A ZeroMQ ROUTER as the collector and the relays use it: its options, who may connect, and whose each message is.

libzmq reads and writes on a thread of its own, takes a message of each peer in turn, and keeps a bounded number of them
for each. What is done with a message is up to its owner (receiver.py).
"""

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import zmq

from rankscope.collector.ingest.connections import AcceptedConnection, AcceptedConnections
from rankscope.collector.ingest.curve import CurveServer
from rankscope.collector.ingest.refusal_reasons import Refuse
from rankscope.collector.ingest.zap import NUMBER, ZAP_DOMAIN, ZapHandler
from rankscope.measure.clock import Clock
from rankscope.measure.errors import UnavailableError
from rankscope.measure.settings import IPC
from rankscope.measure.units import NS_PER_MS

RECEIVE_HWM: Final = 16
"""Messages of one peer that libzmq reads ahead. An unread one takes its own size: libzmq's default of 1,000 for each of
16,384 ranks would be 16 GB. Without a limit a few flooding peers fill the memory faster than this process drops their
messages (SECURITY.md)."""

SEND_HWM: Final = 64
"""Answers kept for a peer that does not read them. Acknowledgements are cumulative: losing some is harmless."""

BACKLOG: Final = 4096
"""Connections that may wait to be accepted; with libzmq's default of 100, thousands of 16,384 ranks that start together
take more than 20 s to connect. The kernel's net.core.somaxconn caps it."""

FIRST_MESSAGE_WITHIN_MS: Final = 15_000
"""Time for a connection to send its first message after the handshake. Agents send a Hello at once."""

ZERO_COPY_RECV: Final = 10
"""libzmq's number for an option of its contexts (zmq_ctx_set(3)) that pyzmq has no name for. By default a message is a
piece of the 8 KiB into which its connection was read, and pins all of them until it is received. With the option off it
is copied out of a buffer of the connection, and takes only its own size."""

UNROUTABLE: Final = "unroutable"
FULL: Final = "full"
"""Reasons why a message was not sent. UNROUTABLE: the peer is gone. FULL: it does not read."""

_KEEP_ALIVE: Final = {
    # A peer whose machine is gone leaves a connection that looks open. The kernel probes it after a minute of silence
    # and closes it after two, also when sent data is not confirmed, which it would otherwise retransmit for a quarter
    # of an hour. This needs no timers of libzmq.
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
_SEND_FAILURES: Final = {errno.EHOSTUNREACH: UNROUTABLE, errno.EAGAIN: FULL}

Ready = Mapping[object, int]
"""Sockets and files that are ready, as a poller reports them."""


class RoutedMessage(NamedTuple):
    """A message with its sender. `name` is the routing id of the sender, to which answers are addressed; `key` is empty
    where there are no keys. `body` is set for a message of one part, `size_bytes` counts all parts.
    """

    name: bytes
    body: bytes
    parts: int
    size_bytes: int
    key: str
    connection: AcceptedConnection


class Router:
    """A ZeroMQ ROUTER that listens at `endpoint`. A part of a message above `part_bytes_max` ends its connection before
    it is read, and so does a handshake of more than `handshake_ms`.

    `refused` is called for each refused connection. With a `poller` its owner polls, and passes what is ready to
    `begin_pass`. Raises UnavailableError when the endpoint cannot be bound.
    """

    def __init__(
        self,
        endpoint: str,
        refused: Refuse,
        clock: Clock,
        *,
        curve: CurveServer | None,
        part_bytes_max: int,
        handshake_ms: int,
        connections_max: int,
        poller: zmq.Poller | None = None,
    ) -> None:
        self._clock = clock
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        with contextlib.suppress(zmq.ZMQError):  # a libzmq that does not know the option only uses more memory
            self._context.set(ZERO_COPY_RECV, 0)
        self._socket = self._context.socket(zmq.ROUTER)
        options = {
            # A reconnecting rank takes over its routing id; otherwise libzmq ignores the new connection silently.
            zmq.ROUTER_HANDOVER: 1,
            # An answer to a peer that is gone is an error to count; otherwise libzmq drops it silently.
            zmq.ROUTER_MANDATORY: 1,
            zmq.LINGER: 0,
            zmq.RCVHWM: RECEIVE_HWM,
            zmq.SNDHWM: SEND_HWM,
            zmq.MAXMSGSIZE: part_bytes_max,
            zmq.BACKLOG: BACKLOG,
            zmq.IPV6: int("[" in endpoint),
            zmq.HANDSHAKE_IVL: handshake_ms,
            **_KEEP_ALIVE,
            # No heartbeats: at 16,384 connections their timers stall libzmq's thread.
        }
        for option, value in options.items():
            self._socket.setsockopt(option, value)
        self._has_keys = curve is not None
        self._connections = AcceptedConnections(
            self._context,
            self._socket,
            refused,
            has_keys=curve is not None,
            first_message_within_ns=(handshake_ms + FIRST_MESSAGE_WITHIN_MS) * NS_PER_MS,
            connections_max=connections_max,
        )
        self._zap = _guard(self._context, self._socket, curve, refused, self._number_connection)
        self._poller = poller or zmq.Poller()
        self._sockets = [self._socket, self._connections.socket, self._zap.socket]
        self._bind(endpoint)
        for watched in self._sockets:
            self._poller.register(watched, zmq.POLLIN)

    @property
    def endpoint(self) -> str:
        """The address it listens at, with the real port."""
        return self._endpoint

    @property
    def connections(self) -> int:
        """Number of open connections, including those still authenticating."""
        return len(self._connections)

    def watch(self, file: int) -> None:
        """Make `wait` return also when this file is readable."""
        self._poller.register(file, zmq.POLLIN)

    def wait(self, timeout_ms: int) -> Ready:
        """Return what is ready, after at most that time."""
        return dict(self._poller.poll(self._connections.limit_wait_ms(timeout_ms)))

    def has_messages(self, ready: Ready) -> bool:
        """Return whether messages are ready."""
        return self._socket in ready

    def begin_pass(self, ready: Ready) -> bool:
        """Answer handshakes, close connections that are due, and return whether there are messages to receive."""
        if self._zap.socket in ready:
            self._zap.answer()
        has_messages = self._socket in ready
        if not has_messages:
            self._connections.note_empty()
        self._connections.follow(self._clock.monotonic_ns())
        return has_messages

    def receive(self) -> RoutedMessage | None:
        """Return the next message, None when there is none for now.

        Reading part by part is faster than `recv_multipart`; only libzmq's frames know the key and the connection.
        """
        try:
            name: bytes = self._socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            self._connections.note_empty()
            return None
        frame = self._socket.recv(copy=False)  # after the routing id all parts are there at once
        parts, size_bytes = 1, len(frame)
        while frame.more:
            frame = self._socket.recv(copy=False)
            parts += 1
            size_bytes += len(frame)
        key = str(frame.get("User-Id")) if self._has_keys else ""
        number = int(frame.get(NUMBER))
        found = self._connections.find(number)
        if found is None:
            found = self._connections.register(number, int(frame.get(zmq.SRCFD)), self._clock.monotonic_ns())
        self._connections.note_name(found, name)
        return RoutedMessage(name, frame.bytes if parts == 1 else b"", parts, size_bytes, key, found)

    def cut(self, message: RoutedMessage, reason: str) -> None:
        """Close the connection of a message; messages it sent before may still arrive, and are to be dropped."""
        self._connections.cut(message.connection, reason, message.key)

    def send(self, name: bytes, body: bytes) -> str | None:
        """Send a message to a peer; return None, or the reason why that failed."""
        try:
            self._socket.send_multipart([name, body], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            return _SEND_FAILURES.get(error.errno or 0, "other")
        return None

    def close(self) -> None:
        """Stop listening and drop what has not been read or sent. A second call does nothing."""
        if self._socket.closed:
            return
        for one in self._sockets:
            if one in self._poller:
                self._poller.unregister(one)
        self._connections.close()
        self._socket.close(linger=0)
        self._zap.close()
        self._context.term()

    def _number_connection(self) -> int:
        return self._connections.number_connection(self._clock.monotonic_ns())

    def _bind(self, endpoint: str) -> None:
        try:
            if endpoint.startswith(IPC):
                _check_path(Path(endpoint.removeprefix(IPC)))
            self._socket.bind(endpoint)
        except (zmq.ZMQError, OSError) as error:
            self.close()
            number = error.errno or 0
            problem, cure = os.strerror(number), _CURES.get(number, "Check the address.")
            raise UnavailableError(f"the collector cannot listen at {endpoint}: {problem}. {cure}") from error
        self._endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)


def _guard(
    context: "zmq.Context[zmq.Socket[bytes]]",
    router: "zmq.Socket[bytes]",
    curve: CurveServer | None,
    refused: Refuse,
    number_connection: Callable[[], int],
) -> ZapHandler:
    """Number the connections of a socket as they authenticate; with keys only allowed clients do."""
    if curve is not None:
        router.setsockopt(zmq.CURVE_SERVER, 1)
        router.setsockopt(zmq.CURVE_SECRETKEY, curve.pair.secret.encode())
    router.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
    # Without an answer a connection is refused; without this option it would be accepted.
    router.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
    return ZapHandler(context, None if curve is None else curve.is_allowed, refused, number_connection)


def _check_path(path: Path) -> None:
    """Raise OSError for a path with a listening socket or another file, which libzmq would remove."""
    try:
        is_socket = stat.S_ISSOCK(path.stat().st_mode)
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, contextlib.suppress(ConnectionRefusedError):
        if is_socket:
            probe.connect(os.fspath(path))
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
