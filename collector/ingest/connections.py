"""Track the open connections of a ROUTER by libzmq's monitor, and close single ones.

libzmq offers no call that ends the connection of one peer. The monitor reports the file of each accepted connection, so
this process can shut that file down by the kernel's call; libzmq then sees the end of the stream and closes the
connection as if the peer had. File numbers are reused as soon as they are closed: before a shutdown the file must still
be the connection that was accepted, by the addresses of both its ends.
"""

import contextlib
import socket
import struct
from collections import deque
from collections.abc import Iterator
from typing import Final

import zmq

from rankscope.collector.ingest.held_bytes import (
    HELD_BYTES_FREE,
    HELD_BYTES_MAX,
    MEASURE_NS_EACH,
    MEASURE_NS_MIN,
    MEMORY_BYTES_MAX,
    ConnectionBytes,
    HeapGrowth,
)
from rankscope.collector.ingest.refusal_reasons import (
    BROKEN_HANDSHAKE,
    NO_KEYS,
    OPEN_FILES,
    REPLACED,
    SILENT,
    TOO_MUCH_HELD,
    UNEXPECTED_KEYS,
    WRONG_COLLECTOR_KEY,
    Refuse,
)
from rankscope.collector.process_tuning import read_heap_bytes
from rankscope.measure.units import NS_PER_MS

EVENTS_PER_PASS_MAX: Final = 32_768
"""More than 16,384 ranks cause between two passes when they all connect at once."""

ENDED_KEPT_MAX: Final = 4096
"""Ended connections that are remembered, for their messages that are still unread."""

NO_FILE: Final = -1

FRAMES_PER_PASS_MAX: Final = 512
BYTES_PER_PASS_MAX: Final = 32 * 1024 * 1024
"""Most messages, and bytes, of one connection in one pass. An agent has at most 64 unacknowledged messages, and a pass
reads 2,048 of all connections."""

READS_UNTIL_NOTICED_MAX: Final = 128
"""libzmq notices within 100 reads (inbound_poll_rate) which connections have messages again, and then reads one message
of each: after this many reads and one for each connection, every connection with a message has been read."""

LOOK_MS: Final = 100
"""Longest wait while there are connections. A pass without messages takes 0.1 ms."""

REFUSED_FRAMES_MAX: Final = 64
"""Invalid frames of one connection. An agent of another release sends a few, and then gives up."""

_ENDPOINT: Final = "inproc://rankscope-connections"
_EVENT: Final = struct.Struct("=HI")
_EVENTS: Final = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_ACCEPT_FAILED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)
"""Events of the monitor that are read. Refusals of a key are not among them: zap.py reports those, with the key."""


class AcceptedConnection:
    """One accepted connection. `name` is the routing id of its messages, empty before the first one."""

    __slots__ = (
        "_bytes_in_pass", "_frames_in_pass", "_pass", "address", "cut_reason", "file", "first_number", "frames_refused",
        "held", "name", "number", "own_address", "since_ns",
    )  # fmt: skip

    def __init__(self, file: int, since_ns: int, first_number: int = 0) -> None:
        self.file = file
        self.first_number = first_number
        """The lowest number that it can have; messages with a lower one belong to an earlier connection."""
        self.number = 0
        """The number of its messages, 0 before the first one."""
        self.since_ns = since_ns
        self.own_address, self.address = _find_addresses(file)
        self.name = b""
        self.cut_reason = ""
        """Why it was closed, empty while it was not: messages that still arrive from it are to be dropped."""
        self.frames_refused = 0
        self.held = ConnectionBytes()
        self._pass = self._frames_in_pass = self._bytes_in_pass = 0

    def spend(self, number: int, size_bytes: int) -> bool:
        """Count a message in the pass of that number; return whether the connection is within its budget."""
        if number != self._pass:
            self._pass, self._frames_in_pass, self._bytes_in_pass = number, 0, 0
        self._frames_in_pass += 1
        self._bytes_in_pass += size_bytes
        self.held.note_message(size_bytes)
        return self._frames_in_pass <= FRAMES_PER_PASS_MAX and self._bytes_in_pass <= BYTES_PER_PASS_MAX


class AcceptedConnections:
    """The open connections of `router`. Create it before the router is bound.

    `refused` is called for each connection that was refused, or closed because it sent no message within
    `first_message_within_ns` or holds too much memory here (held_bytes.py). At most `connections_max` are kept: a new
    one beyond that closes the one that has sent no message for longest, or else is closed itself.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        router: "zmq.Socket[bytes]",
        refused: Refuse,
        *,
        has_keys: bool,
        first_message_within_ns: int,
        connections_max: int,
    ) -> None:
        self._router = router
        self._refused = refused
        self._mismatch = NO_KEYS if has_keys else UNEXPECTED_KEYS
        self._first_message_within_ns = first_message_within_ns
        self._connections_max = connections_max
        self._by_file: dict[int, AcceptedConnection] = {}
        self._silent: dict[int, AcceptedConnection] = {}
        """Connections that have sent no message yet, the oldest first."""
        self._by_name: dict[bytes, AcceptedConnection] = {}
        self._by_number: dict[int, AcceptedConnection] = {}
        """Connections with a received message, ended ones included."""
        self._ended: deque[int] = deque()
        self._last_number = 0
        self._measure_ns = 0
        self._read_since = 0
        """Messages since held bytes were last measured."""
        self._has_holder = False
        """Whether any connection held more than HELD_BYTES_FREE at the last measurement."""
        self._memory = HeapGrowth()
        self._was_empty = False
        """Whether there was a time since then without unread messages."""
        self._failure = ""
        self.socket = context.socket(zmq.PAIR)
        # Without a limit: at one, libzmq's thread would wait for this one, which may be waiting for it.
        self.socket.setsockopt(zmq.RCVHWM, 0)
        self.socket.setsockopt(zmq.LINGER, 0)
        router.monitor(_ENDPOINT, _EVENTS)
        self.socket.connect(_ENDPOINT)

    def __len__(self) -> int:
        """Return how many are open, those in their handshake included."""
        return len(self._by_file)

    def follow(self, now_ns: int) -> None:
        """Process the events of the monitor, and close connections that are silent for too long or hold too much."""
        self._read_events(now_ns)
        while self._silent:
            oldest = next(iter(self._silent.values()))
            if now_ns - oldest.since_ns < self._first_message_within_ns:
                break
            self.cut(oldest, SILENT)
        has_read_all = self._was_empty or self._read_since > len(self._by_file) + READS_UNTIL_NOTICED_MAX
        if now_ns >= self._measure_ns and has_read_all:
            self._measure_ns = now_ns + max(MEASURE_NS_MIN, len(self._by_file) * MEASURE_NS_EACH)
            self._read_since, self._was_empty = 0, False
            self._bound_held()

    def limit_wait_ms(self, timeout_ms: int) -> int:
        """Return how long to wait for messages at most: a message without an end wakes nobody, and is to be noticed
        while it is small; a connection that holds much is measured again soon.
        """
        if self._has_holder:
            return min(timeout_ms, MEASURE_NS_MIN // NS_PER_MS)
        return min(timeout_ms, LOOK_MS) if self._by_file else timeout_ms

    def note_empty(self) -> None:
        """Note that there is no unread message now."""
        self._was_empty = True

    def number_connection(self, now_ns: int) -> int:
        """Return a number for a connection in its handshake, which libzmq attaches to each of its messages.

        Unread messages of a connection still arrive after its end, with the number of its file, which the next
        connection may have by then. This number tells them apart: it is given after the connection was accepted, and
        lower ones belong to earlier connections.
        """
        self._read_events(now_ns)
        self._last_number += 1
        return self._last_number

    def find(self, number: int) -> AcceptedConnection | None:
        """Return the connection of a message that has been read, by its number; None before `register`."""
        self._read_since += 1
        return self._by_number.get(number)

    def register(self, number: int, file: int, now_ns: int) -> AcceptedConnection:
        """Give a connection the number of its first message and return it; one without file and address where it has
        ended.
        """
        connection = self._by_file.get(file)
        if connection is None or connection.number or number < connection.first_number:
            connection = AcceptedConnection(NO_FILE, now_ns)
            self._note_ended(number)
        self._silent.pop(connection.file, None)
        connection.number = number
        self._by_number[number] = connection
        return connection

    def _read_events(self, now_ns: int) -> None:
        has_accept_failed = False
        for _ in range(EVENTS_PER_PASS_MAX):
            try:
                event, value = _EVENT.unpack(self.socket.recv_multipart(zmq.NOBLOCK)[0])
            except zmq.Again:
                break
            self._handle_event(event, value, now_ns)
            has_accept_failed = has_accept_failed or event == zmq.EVENT_ACCEPT_FAILED
        if has_accept_failed:  # libzmq tries again at once and reports each try: count one refusal
            self._refused(OPEN_FILES, "", "")

    def cut(self, connection: AcceptedConnection, reason: str, key: str = "") -> None:
        """Close a connection; messages that it sent before may still arrive."""
        if connection.cut_reason:
            return
        connection.cut_reason = reason
        self._silent.pop(connection.file, None)
        if reason != REPLACED:  # by its own peer: no refusal
            self._refused(reason, connection.address, key)
        if self._by_file.get(connection.file) is not connection:
            return
        with contextlib.suppress(OSError), _borrow(connection.file) as found:
            if _addresses_of(found) == (connection.own_address, connection.address):
                found.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Stop monitoring; call it before the ROUTER is closed."""
        self._router.disable_monitor()
        self.socket.close(linger=0)

    def _handle_event(self, event: int, value: int, now_ns: int) -> None:
        if event == zmq.EVENT_ACCEPTED:
            self._accept(AcceptedConnection(value, now_ns, self._last_number + 1))
        elif event == zmq.EVENT_DISCONNECTED:
            self._forget(value)
        elif event != zmq.EVENT_ACCEPT_FAILED and not self._failure:  # of the connection whose end is reported next
            self._failure = self._find_reason(event, value)

    def _accept(self, connection: AcceptedConnection) -> None:
        oldest = next(iter(self._silent.values()), None)
        has_room = len(self._by_file) < self._connections_max
        self._by_file[connection.file] = self._silent[connection.file] = connection
        if not has_room:
            self.cut(oldest or connection, OPEN_FILES)

    def note_name(self, connection: AcceptedConnection, name: bytes) -> None:
        """Note the routing id of a message: a connection has one from its first message on.

        libzmq lets a new connection take over the routing id of an open one, as a peer needs that reconnects before its
        old connection is known to be broken. The old one is useless after that: it is closed, so that its peer, if it
        still exists, reconnects at once. Messages under the routing id with another client key are refused
        (admission.py).
        """
        if connection.name == name or self._by_file.get(connection.file) is not connection:
            return
        # Names that begin with a zero byte are libzmq's own: it has renamed this one, for a new connection of that
        # name.
        if connection.name[:1] not in {b"", b"\0"} and name[:1] == b"\0":
            self.cut(connection, REPLACED)
            return
        before = self._by_name.get(name)
        connection.name = name
        self._by_name[name] = connection
        if before is not None:
            self.cut(before, REPLACED)

    def _bound_held(self) -> None:
        """Close the connections that hold most, while all together hold too much, or cost too much memory."""
        measured = [(one.held.measure(one.file), one) for one in self._by_file.values() if not one.cut_reason]
        now_bytes = sum(one.held.now_bytes for _, one in measured if one.held.now_bytes > HELD_BYTES_FREE)
        self._has_holder = now_bytes > 0
        cost_bytes = self._memory.update(now_bytes, self._read_heap_bytes())
        limit_bytes = HELD_BYTES_MAX
        if cost_bytes > MEMORY_BYTES_MAX:
            limit_bytes = min(limit_bytes, now_bytes * MEMORY_BYTES_MAX // cost_bytes)
        holders = [(held, one) for held, one in measured if held > HELD_BYTES_FREE]
        held_bytes = sum(held for held, _ in holders)
        for held, connection in sorted(holders, key=lambda holder: holder[0], reverse=True):
            if held_bytes <= limit_bytes:
                return
            held_bytes -= held
            self.cut(connection, TOO_MUCH_HELD)

    @staticmethod
    def _read_heap_bytes() -> int:
        with contextlib.suppress(OSError):
            return read_heap_bytes()
        return 0  # not known: the number of bytes is bounded all the same

    def _forget(self, file: int) -> None:
        connection = self._by_file.pop(file, None)
        self._silent.pop(file, None)
        if connection is not None and connection.number:
            self._note_ended(connection.number)
        if connection is not None and self._by_name.get(connection.name) is connection:
            del self._by_name[connection.name]
        reason = self._failure
        if not reason and connection is not None and not self._may_be_admitted(connection):
            reason = BROKEN_HANDSHAKE  # libzmq reports nothing for bytes that are no greeting of its protocol
        if reason and (connection is None or not connection.cut_reason):
            self._refused(reason, "" if connection is None else connection.address, "")
        self._failure = ""

    def _may_be_admitted(self, connection: AcceptedConnection) -> bool:
        """Return whether a number was given since the connection was accepted, which may be its own."""
        return connection.number > 0 or self._last_number >= connection.first_number

    def _note_ended(self, number: int) -> None:
        self._ended.append(number)
        if len(self._ended) > ENDED_KEPT_MAX:
            self._by_number.pop(self._ended.popleft(), None)

    def _find_reason(self, event: int, value: int) -> str:
        if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
            return self._mismatch
        if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and value == zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC:
            return WRONG_COLLECTOR_KEY
        return BROKEN_HANDSHAKE


@contextlib.contextmanager
def _borrow(file: int) -> Iterator[socket.socket]:
    """Use a file of libzmq as a socket in this context. It is not duplicated: there may be no other file left."""
    found = socket.socket(fileno=file)
    try:
        yield found
    finally:
        found.detach()


def _find_addresses(file: int) -> tuple[str, str]:
    if file == NO_FILE:
        return "", ""
    try:
        with _borrow(file) as found:
            return _addresses_of(found)
    except OSError:  # it is closed already
        return "", ""


def _addresses_of(found: socket.socket) -> tuple[str, str]:
    """Return the addresses of this side and of the peer."""
    return _format(found.getsockname()), _format(found.getpeername())


def _format(address: "tuple[str, int] | str | bytes") -> str:
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else str(address)
