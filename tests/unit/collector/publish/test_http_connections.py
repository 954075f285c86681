"""The limits on the connections of the HTTP server, on a clock that the test drives."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from rankscope.collector.publish.http_connections import HttpConnection, HttpConnections, HttpLimits
from rankscope.measure.units import s_to_ns

LIMITS = HttpLimits(request_s=5.0, answer_s=10.0, unread_s=1.0, asking_max=2, answers_max=2, answer_bytes_max=100)


class Clients:
    """Connections of clients, and what was counted of them."""

    def __init__(self, ends: ExitStack) -> None:
        self.now_s = 0.0
        self.counted: list[str] = []
        self.connections = HttpConnections(LIMITS, self.counted.append, lambda: s_to_ns(self.now_s))
        self._ends = ends

    def connect(self, address: str = "10.0.0.1") -> HttpConnection:
        """One more connection from an address."""
        near, far = socket.socketpair()
        self._ends.enter_context(near)
        self._ends.enter_context(far)
        self.connections.accept(near, address)
        return self.connections.find(near)

    def answer(self, address: str = "10.0.0.1", size_bytes: int = 1) -> HttpConnection:
        """One more connection whose answer is being written."""
        connection = self.connect(address)
        assert self.connections.begin_answer(connection)
        assert self.connections.begin_writing(connection, size_bytes)
        return connection


@pytest.fixture
def clients() -> Iterator[Clients]:
    with ExitStack() as ends:
        yield Clients(ends)


def test_request_has_five_seconds_in_all(clients: Clients) -> None:
    connection = clients.connect()
    clients.now_s = 4.9
    clients.connections.close_late()
    assert not connection.is_closed
    clients.now_s = 5.0
    clients.connections.close_late()
    clients.connections.close_late()
    assert connection.is_closed
    assert clients.counted == ["slow_request"]
    assert connection.socket.recv(1) == b""


def test_answer_has_ten_seconds_from_its_first_byte(clients: Clients) -> None:
    connection = clients.connect()
    assert clients.connections.begin_answer(connection)
    clients.now_s = 60.0  # preparing it may take as long as it takes
    clients.connections.close_late()
    assert clients.connections.begin_writing(connection, 1)
    clients.now_s = 69.9
    clients.connections.close_late()
    assert clients.counted == []
    clients.now_s = 70.0
    clients.connections.close_late()
    assert clients.counted == ["unread_response"]


def test_event_that_was_read_leaves_the_stream_all_its_time(clients: Clients) -> None:
    connection = clients.answer()
    clients.connections.end_writing(connection)
    clients.now_s = 3600.0
    clients.connections.close_late()
    assert clients.counted == []


def test_oldest_request_of_the_busiest_address_gives_way(clients: Clients) -> None:
    first = clients.connect("10.0.0.1")
    clients.now_s = 1.0
    flood = clients.connect("10.0.0.2")
    clients.now_s = 2.0
    second = clients.connect("10.0.0.2")  # one each: the older one, of 10.0.0.1, has to go
    assert (first.is_closed, flood.is_closed, second.is_closed) == (True, False, False)
    third = clients.connect("10.0.0.1")  # two of 10.0.0.2
    assert (flood.is_closed, second.is_closed, third.is_closed) == (True, False, False)
    assert clients.counted == ["request_displaced"] * 2


def test_answer_that_is_read_gives_way_to_nobody(clients: Clients) -> None:
    first, second = clients.answer(), clients.answer()
    clients.now_s = 0.9
    assert not clients.connections.begin_answer(clients.connect())
    assert (first.is_closed, second.is_closed, clients.counted) == (False, False, ["busy"])


def test_unread_answer_gives_way_after_a_second(clients: Clients) -> None:
    first, second = clients.answer("10.0.0.1"), clients.answer("10.0.0.1")
    clients.now_s = 1.0
    assert clients.connections.begin_answer(clients.connect("10.0.0.2"))
    assert (first.is_closed, second.is_closed, clients.counted) == (True, False, ["unread_response"])


def test_answers_together_hold_no_more_than_the_limit(clients: Clients) -> None:
    large, other = clients.answer(size_bytes=60), clients.connect()
    assert clients.connections.begin_answer(other)
    assert not clients.connections.begin_writing(other, 41)
    clients.now_s = 1.0
    assert clients.connections.begin_writing(other, 41)
    assert (large.is_closed, clients.counted) == (True, ["response_memory_full", "unread_response"])


def test_answer_larger_than_the_limit_is_written_alone(clients: Clients) -> None:
    clients.answer(size_bytes=1_000)


def test_connection_that_has_left_is_neither_counted_nor_closed(clients: Clients) -> None:
    connection = clients.connect()
    clients.connections.leave(connection.socket)
    clients.now_s = 5.0
    clients.connections.close_late()
    assert (connection.is_closed, clients.counted) == (False, [])
