"""Liveness where the process has no descriptor left: new connections wait, and cost nothing meanwhile."""

import contextlib
import errno
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rankscope.collector.publish import liveness
from rankscope.collector.publish.http_listener import HttpListener
from rankscope.collector.publish.liveness import PATH, answering_liveness
from rankscope.measure.units import NS_PER_S

DEADLINE_S = 300.0
GET = f"GET {PATH} HTTP/1.1\r\n\r\n".encode()


class Listening(socket.socket):
    """A listening socket that cannot accept while `problem` is an errno."""

    problem = 0
    refused = 0

    def __init__(self) -> None:
        super().__init__()
        self.has_refused = threading.Event()
        self.bind(("127.0.0.1", 0))
        self.listen()

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection, or fail."""
        if self.problem:
            self.refused += 1
            self.has_refused.set()
            raise OSError(self.problem, "as the test wants")
        return super().accept()


@pytest.fixture
def listening() -> Iterator[Listening]:
    """A socket at which liveness is answered."""
    found = Listening()
    with answering_liveness(HttpListener(found, "127.0.0.1"), lambda: None):
        yield found


def connect(listening: Listening) -> socket.socket:
    return socket.create_connection(listening.getsockname(), DEADLINE_S)


def ask(connection: socket.socket) -> bytes:
    connection.sendall(GET)
    return b"".join(iter(lambda: connection.recv(4096), b"")).partition(b"\r\n")[0]


@pytest.mark.parametrize("problem", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS])
def test_accept_is_not_tried_at_once_where_nothing_is_left(
    listening: Listening, problem: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "ACCEPT_PAUSE_NS", 3600 * NS_PER_S)
    with contextlib.ExitStack() as held:
        first, second = (held.enter_context(connect(listening)) for _ in range(2))
        with connect(listening) as probe:
            assert ask(probe) == b"HTTP/1.1 200 OK", "those before it are accepted by now"
        listening.problem = problem
        held.enter_context(connect(listening))
        assert listening.has_refused.wait(DEADLINE_S)
        # Each of these answers takes a pass of the thread, in which the other connection still waits to be accepted.
        assert [ask(one) for one in (first, second)] == [b"HTTP/1.1 200 OK"] * 2
    assert listening.refused == 1


def test_connection_that_waited_is_answered_after_the_pause(
    listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "ACCEPT_PAUSE_NS", NS_PER_S // 1000)
    listening.problem = errno.EMFILE
    with connect(listening) as waiting:
        assert listening.has_refused.wait(DEADLINE_S)
        listening.problem = 0
        assert ask(waiting) == b"HTTP/1.1 200 OK"


def test_connection_that_is_gone_costs_no_pause(listening: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "ACCEPT_PAUSE_NS", 3600 * NS_PER_S)
    listening.problem = errno.ECONNABORTED
    with connect(listening) as waiting:
        assert listening.has_refused.wait(DEADLINE_S)
        listening.problem = 0
        assert ask(waiting) == b"HTTP/1.1 200 OK"
