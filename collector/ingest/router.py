"""A ZeroMQ ROUTER as the collector and the relays use it: its options, who gets in, and which connection says what.

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

from rankscope.collector.ingest.connections import Connection, Connections
from rankscope.collector.ingest.curve import CurveServer
from rankscope.collector.ingest.refusal_reasons import Refuse
from rankscope.collector.ingest.zap import NUMBER, ZAP_DOMAIN, ZapHandler
from rankscope.measure.clock import Clock
from rankscope.measure.errors import UnavailableError
from rankscope.measure.settings import IPC
from rankscope.measure.units import NS_PER_MS

RECEIVE_HWM: Final = 16
"""Messages of one peer that libzmq reads ahead. An unread one takes its own size: libzmq's 1,000 of each of 16,384
ranks would be 16 GB. With no limit libzmq 4.3.5 did not abort (SECURITY.md), but eight flooders that came back at once
left more unread than this process drops, some 40,000 tiny messages a second: it grew by 0.8 GiB in 10 s."""

SEND_HWM: Final = 64
"""Answers kept for a peer that does not read them. Acknowledgements are cumulative: losing some does no harm."""

BACKLOG: Final = 4096
"""Connections that may wait to be accepted. With libzmq's own 100, thousands of 16,384 ranks that start together were
still unconnected after 20 s. The kernel's net.core.somaxconn caps it."""

SPEAK_WITHIN_MS: Final = 15_000
"""After its handshake a connection has so long to send its first message. Agents say Hello at once."""

ZERO_COPY_RECV: Final = 10
"""libzmq's number for an option of its contexts (zmq_ctx_set(3)) that pyzmq has no name for. As it is by itself, a
message is a piece of the 8 KiB into which its connection was read, and pins all of them until it is taken: 8.2 KiB
measured for one of 0.9. Off, it is copied out of a buffer that the connection keeps: 0.9 KiB."""

UNROUTABLE: Final = "unroutable"
FULL: Final = "full"
"""Why something was not sent: there is no such peer any more, or it does not read."""

_KEEP_ALIVE: Final = {
    # A peer whose machine is gone leaves a connection that looks open. The kernel asks after a minute of silence and
    # closes it after two, also when something that was sent there is not confirmed: by itself it would send that again
    # for a quarter of an hour. It costs nobody a timer of libzmq's.
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
"""Sockets and files about which there is something to do, as a poller reports them."""


class Heard(NamedTuple):
    """A message. `name` is the routing id of its sender, which answers are addressed to; `key` is empty where there are
    no keys. `body` is that of a message of one part, `size_bytes` that of all parts.
    """

    name: bytes
    body: bytes
    parts: int
    size_bytes: int
    key: str
    connection: Connection


class Router:
    """Listens at `endpoint`. A part of a message above `part_bytes_max` ends its connection before it is read, and so
    does a handshake of more than `handshake_ms`.

    `refused` is called for each connection that was not let in. With a `poller` its owner polls, and hands what is
    ready to `begin_pass`. Raises UnavailableError when the endpoint cannot be listened at.
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
        with contextlib.suppress(zmq.ZMQError):  # a libzmq that does not know it only takes more memory
            self._context.set(ZERO_COPY_RECV, 0)
        self._socket = self._context.socket(zmq.ROUTER)
        options = {
            # A rank that reconnects takes its routing id over; otherwise its new connection is ignored in silence.
            zmq.ROUTER_HANDOVER: 1,
            # An answer to a peer that is gone is an error to count, and not dropped in silence.
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
        self._connections = Connections(
            self._context,
            self._socket,
            refused,
            has_keys=curve is not None,
            speak_within_ns=(handshake_ms + SPEAK_WITHIN_MS) * NS_PER_MS,
            connections_max=connections_max,
        )
        self._zap = _guard(self._context, self._socket, curve, refused, self._number_newcomer)
        self._poller = poller or zmq.Poller()
        self._sockets = [self._socket, self._connections.socket, self._zap.socket]
        self._bind(endpoint)
        for one in self._sockets:
            self._poller.register(one, zmq.POLLIN)

    @property
    def endpoint(self) -> str:
        """Where it listens, with the real port."""
        return self._endpoint

    @property
    def connections(self) -> int:
        """How many are open, those included that are not let in yet."""
        return len(self._connections)

    def watch(self, file: int) -> None:
        """Let `wait` return, too, when this file can be read."""
        self._poller.register(file, zmq.POLLIN)

    def wait(self, timeout_ms: int) -> Ready:
        """Return what there is to do, after at most that time."""
        return dict(self._poller.poll(self._connections.limit_wait_ms(timeout_ms)))

    def has_messages(self, ready: Ready) -> bool:
        """Return whether there are messages among what is ready."""
        return self._socket in ready

    def begin_pass(self, ready: Ready) -> bool:
        """Let in and cut off whoever is to be; return whether there are messages to receive."""
        if self._zap.socket in ready:
            self._zap.answer()
        has_messages = self._socket in ready
        if not has_messages:
            self._connections.note_empty()
        self._connections.follow(self._clock.monotonic_ns())
        return has_messages

    def receive(self) -> Heard | None:
        """Return the next message, None when there is none for now.

        Part by part this takes 3 us, with `recv_multipart` 7.5; only libzmq's frames know the key and the connection.
        """
        try:
            name: bytes = self._socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            self._connections.note_empty()
            return None
        frame = self._socket.recv(copy=False)  # after the routing id there is a part, and all parts are there at once
        parts, size_bytes = 1, len(frame)
        while frame.more:
            frame = self._socket.recv(copy=False)
            parts += 1
            size_bytes += len(frame)
        key = str(frame.get("User-Id")) if self._has_keys else ""
        number = int(frame.get(NUMBER))
        found = self._connections.find(number)
        if found is None:
            found = self._connections.meet(number, int(frame.get(zmq.SRCFD)), self._clock.monotonic_ns())
        self._connections.note_name(found, name)
        return Heard(name, frame.bytes if parts == 1 else b"", parts, size_bytes, key, found)

    def cut(self, heard: Heard, reason: str) -> None:
        """End the connection of a message; what it has sent before may still come, and is to be dropped."""
        self._connections.cut(heard.connection, reason, heard.key)

    def send(self, name: bytes, body: bytes) -> str | None:
        """Send a message to a peer; return why that is not possible, or None."""
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

    def _number_newcomer(self) -> int:
        return self._connections.number_newcomer(self._clock.monotonic_ns())

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
    number_newcomer: Callable[[], int],
) -> ZapHandler:
    """Have a socket number whom it lets in: with keys only whom these allow."""
    if curve is not None:
        router.setsockopt(zmq.CURVE_SERVER, 1)
        router.setsockopt(zmq.CURVE_SECRETKEY, curve.pair.secret.encode())
    router.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
    # Where nobody answers nobody is let in; without it everybody would be.
    router.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
    return ZapHandler(context, None if curve is None else curve.is_allowed, refused, number_newcomer)


def _check_path(path: Path) -> None:
    """Raise OSError for a path at which somebody listens, or where there is something else: libzmq would remove it."""
    try:
        is_socket = stat.S_ISSOCK(path.stat().st_mode)
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as visitor, contextlib.suppress(ConnectionRefusedError):
        if is_socket:
            visitor.connect(os.fspath(path))
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
