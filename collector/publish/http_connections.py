"""Limits on the connections of the HTTP server: how many, for how long, and how much memory unread answers hold.

A connection is in one of two phases, each with limits of its own, so that one phase cannot use up the other:

    asking      from `accept` until the whole head of the request has been read, the TLS handshake included. Answers
                that need neither the state of a run nor much memory (health, page files, refusals) are sent from here.
    answering   an answer is prepared and written. Only requests that may read get here.

When a phase is full, a connection that makes no progress is closed in favor of the new one: of the client address
that has most connections the oldest. So clients that send or read nothing cannot keep others out.
"""

import contextlib
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from rankscope.measure.units import s_to_ns

_MIB: Final = 1024 * 1024

SLOW_REQUEST: Final = "slow_request"
REQUEST_DISPLACED: Final = "request_displaced"
UNREAD_RESPONSE: Final = "unread_response"
BUSY: Final = "busy"
RESPONSE_MEMORY_FULL: Final = "response_memory_full"


class HttpLimits(NamedTuple):
    """Limits on what clients may use of the HTTP server."""

    request_s: float = 5.0
    """From accepting the connection to the end of the request's head, and of an answer that needs no place."""
    answer_s: float = 10.0
    """For writing one answer, or one event of a stream: the usual scrape timeout of Prometheus."""
    unread_s: float = 1.0
    """Time after which an answer that is not read may be closed in favor of another one."""
    asking_max: int = 64
    """Connections in the phase `asking`: each has a thread, and at most 128 KiB of head."""
    answers_max: int = 32
    """Connections in the phase `answering`, half of which may be streams of events."""
    answer_bytes_max: int = 64 * _MIB
    """Memory of all answers that are being written: two scrapes of 250,000 series without compression, thirty with it.
    A larger answer is written when there is no other."""

    @property
    def connections_max(self) -> int:
        """Most threads at a time. Closed connections count until their thread has ended, hence twice `asking_max`."""
        return 2 * self.asking_max + self.answers_max


class HttpConnection:
    """State of one client's connection that the limits need. Changed only by HttpConnections."""

    __slots__ = (
        "address",
        "began_ns",
        "deadline_ns",
        "held_bytes",
        "is_answering",
        "is_closed",
        "is_writing",
        "socket",
    )

    def __init__(self, address: str, connected: socket.socket, now_ns: int, deadline_ns: int) -> None:
        self.address = address
        self.socket = connected
        self.began_ns = now_ns
        """When it was accepted, and later when the answer began to be written."""
        self.deadline_ns: int | None = deadline_ns
        self.held_bytes = 0
        self.is_answering = False
        self.is_writing = False
        self.is_closed = False
        """True once a limit has closed it: what its thread reads or writes from then on has no meaning."""


class HttpConnections:
    """All connections of a server, within `limits`. `count` is called with the reason for each that is refused or
    closed. May be called from any thread.
    """

    def __init__(
        self, limits: HttpLimits, count: Callable[[str], None], read_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self.limits = limits
        self._count = count
        self._read_ns = read_ns
        self._changing = threading.Lock()
        self._found: dict[socket.socket, HttpConnection] = {}

    def accept(self, accepted: socket.socket, address: str) -> None:
        """Register a new connection; when too many are asking, close one of the others."""
        now_ns = self._read_ns()
        with self._changing:
            asking = [each for each in self._found.values() if not each.is_answering and not each.is_closed]
            if len(asking) >= self.limits.asking_max:
                self._close(_choose(asking), REQUEST_DISPLACED)
            deadline_ns = now_ns + s_to_ns(self.limits.request_s)
            self._found[accepted] = HttpConnection(address, accepted, now_ns, deadline_ns)

    def find(self, accepted: socket.socket) -> HttpConnection:
        """Return the connection that was accepted as this socket."""
        return self._found[accepted]

    def secure(self, connection: HttpConnection, secured: socket.socket) -> None:
        """Use `secured` in the place of the socket that was accepted, which TLS has detached."""
        with self._changing:
            connection.socket = secured
            if connection.is_closed:  # meanwhile there was no socket to shut down
                _shut(secured)

    def begin_answer(self, connection: HttpConnection) -> bool:
        """Move a connection whose request has been read to the phase `answering`, unless all places are taken."""
        now_ns = self._read_ns()
        with self._changing:
            answering = [each for each in self._found.values() if each.is_answering and not each.is_closed]
            if len(answering) >= self.limits.answers_max and not self._close_unread(answering, now_ns):
                self._count(BUSY)
                return False
            connection.is_answering, connection.deadline_ns = True, None
            return True

    def begin_writing(self, connection: HttpConnection, size_bytes: int) -> bool:
        """Hold memory for an answer until it has been written, unless unread answers leave no room for it."""
        now_ns = self._read_ns()
        with self._changing:
            others = [
                each
                for each in self._found.values()
                if each.is_writing and not each.is_closed and each is not connection
            ]
            while others and sum(each.held_bytes for each in others) + size_bytes > self.limits.answer_bytes_max:
                if not self._close_unread(others, now_ns):
                    self._count(RESPONSE_MEMORY_FULL)
                    return False
                others = [each for each in others if not each.is_closed]
            connection.is_writing, connection.held_bytes, connection.began_ns = True, size_bytes, now_ns
            connection.deadline_ns = now_ns + s_to_ns(self.limits.answer_s)
            return True

    def end_writing(self, connection: HttpConnection) -> None:
        """Release the memory of an answer, or of one event, that has been written."""
        with self._changing:
            connection.is_writing, connection.held_bytes, connection.deadline_ns = False, 0, None

    def leave(self, accepted: socket.socket) -> None:
        """Forget a connection. To be called before its socket is closed, so that no other one is shut down for it."""
        with self._changing:
            self._found.pop(accepted, None)

    def close_late(self) -> None:
        """Close the connections whose deadline has passed."""
        now_ns = self._read_ns()
        with self._changing:
            for each in self._found.values():
                if each.deadline_ns is not None and now_ns >= each.deadline_ns and not each.is_closed:
                    self._close(each, UNREAD_RESPONSE if each.is_answering else SLOW_REQUEST)

    def _close_unread(self, candidates: Iterable[HttpConnection], now_ns: int) -> bool:
        unread_ns = s_to_ns(self.limits.unread_s)
        stuck = [each for each in candidates if each.is_writing and now_ns - each.began_ns >= unread_ns]
        if stuck:
            self._close(_choose(stuck), UNREAD_RESPONSE)
        return bool(stuck)

    def _close(self, connection: HttpConnection, reason: str) -> None:
        """Wake the connection's thread, which then ends; the memory it holds is counted as free from now on."""
        connection.is_closed, connection.held_bytes = True, 0
        self._count(reason)
        _shut(connection.socket)


def _choose(candidates: list[HttpConnection]) -> HttpConnection:
    """Return the oldest connection of the address that has most of them."""
    by_address = Counter(each.address for each in candidates)
    return min(candidates, key=lambda each: (-by_address[each.address], each.began_ns))


def _shut(connected: socket.socket) -> None:
    # SSLSocket.shutdown would also drop the TLS state that the connection's own thread is using.
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connected, socket.SHUT_RDWR)
