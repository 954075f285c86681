"""Answer GET /healthz at a port of its own, from a thread of the service's process.

A liveness probe that fails gets the collector killed. The HTTP server is another process, which may be busy with pages
of metrics, out of connections, or being started again; none of that is a reason to kill the collector, which keeps the
runs. Here the answer depends on the service's last tick only. One thread has all connections, and none makes it wait.
"""

import contextlib
import errno
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Final

from rankscope.collector.process_tuning import name_this_thread
from rankscope.collector.publish.http_listener import HttpListener
from rankscope.measure.units import NS_PER_S

CONNECTIONS_MAX: Final = 32
"""Open connections; the oldest one is closed for another."""
REQUEST_NS_MAX: Final = 5 * NS_PER_S
"""Longest time for a request."""
REQUEST_BYTES_MAX: Final = 8192
"""Longest head of a request. What a probe of Kubernetes sends has 200 bytes or so."""
ACCEPT_PAUSE_NS: Final = NS_PER_S // 10
"""Time without new connections after one could not be accepted for want of a descriptor or memory: it goes on waiting,
and would be tried without a pause."""
EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
PATH: Final = "/healthz"
END_OF_HEAD: Final = b"\r\n\r\n"


@contextlib.contextmanager
def answering_liveness(listener: HttpListener | None, find_problem: Callable[[], str | None]) -> Iterator[None]:
    """Answer at `listener` in this block, and close it then; None: do nothing. `find_problem` returns why the service
    is not healthy, or None; another thread calls it.
    """
    if listener is None:
        yield
        return
    own, theirs = socket.socketpair()
    with listener.socket, own, theirs:
        server = _LivenessServer(listener.socket, theirs, find_problem)
        thread = threading.Thread(target=server.run, name="rankscope-health", daemon=True)
        thread.start()
        try:
            yield
        finally:
            own.close()  # ends the thread
            thread.join()


class _LivenessServer:
    def __init__(self, listening: socket.socket, until: socket.socket, find_problem: Callable[[], str | None]) -> None:
        self._listening, self._until, self._find_problem = listening, until, find_problem
        listening.settimeout(0)
        self._heads: dict[socket.socket, bytearray] = {}
        """What each open connection has sent, the oldest connection first."""
        self._deadlines_ns: dict[socket.socket, int] = {}
        self._accept_again_ns: int | None = None
        """When the listening socket is watched again; None: it is."""
        self._selector = selectors.DefaultSelector()
        for watched in (listening, until):
            self._selector.register(watched, selectors.EVENT_READ)

    def run(self) -> None:
        """Answer until the other end of `until` is closed."""
        name_this_thread("health")
        with self._selector:
            while True:
                ready = [key.fileobj for key, _ in self._selector.select(self._find_wait_s())]
                if self._until in ready:
                    break
                for one in ready:
                    if one is self._listening:
                        self._accept()
                    elif isinstance(one, socket.socket) and one in self._heads:
                        self._read(one)
                self._close_late()
                self._resume()
            for connection in tuple(self._heads):
                self._close(connection)

    def _find_wait_s(self) -> float | None:
        due_ns = [*self._deadlines_ns.values()]
        if self._accept_again_ns is not None:
            due_ns.append(self._accept_again_ns)
        return max(min(due_ns) - time.monotonic_ns(), 0) / NS_PER_S if due_ns else None

    def _accept(self) -> None:
        try:
            connection, _ = self._listening.accept()
        except OSError as error:  # it is gone already, or there is no descriptor for it
            if error.errno in EXHAUSTED:
                self._selector.unregister(self._listening)
                self._accept_again_ns = time.monotonic_ns() + ACCEPT_PAUSE_NS
            return
        if len(self._heads) >= CONNECTIONS_MAX:
            self._close(next(iter(self._heads)))
        connection.settimeout(0)
        self._heads[connection] = bytearray()
        self._deadlines_ns[connection] = time.monotonic_ns() + REQUEST_NS_MAX
        self._selector.register(connection, selectors.EVENT_READ)

    def _resume(self) -> None:
        if self._accept_again_ns is not None and self._accept_again_ns <= time.monotonic_ns():
            self._selector.register(self._listening, selectors.EVENT_READ)
            self._accept_again_ns = None

    def _read(self, connection: socket.socket) -> None:
        head = self._heads[connection]
        try:
            piece = connection.recv(REQUEST_BYTES_MAX)
        except OSError:
            piece = b""
        head += piece
        if END_OF_HEAD in head:
            with contextlib.suppress(OSError):  # the buffer of a new connection has room for it
                connection.sendall(self._answer(bytes(head)))
            self._close(connection)
        elif not piece or len(head) > REQUEST_BYTES_MAX:
            self._close(connection)

    def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0].decode("latin-1")
        status, text = HTTPStatus.OK, "ok\n"
        if method not in {b"GET", b"HEAD"} or path != PATH:
            status, text = HTTPStatus.NOT_FOUND, f"only GET {PATH} is answered here\n"
        elif (problem := self._find_problem()) is not None:
            status, text = HTTPStatus.SERVICE_UNAVAILABLE, f"{problem}\n"
        fields = f"Content-Type: text/plain; charset=utf-8\r\nContent-Length: {len(text)}\r\nConnection: close"
        return (
            f"HTTP/1.1 {status.value} {status.phrase}\r\n{fields}\r\n\r\n{'' if method == b'HEAD' else text}".encode()
        )

    def _close_late(self) -> None:
        now_ns = time.monotonic_ns()
        for connection in [one for one, deadline_ns in self._deadlines_ns.items() if deadline_ns <= now_ns]:
            self._close(connection)

    def _close(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        del self._heads[connection], self._deadlines_ns[connection]
        connection.close()
