"""Bytes that a connection holds for incomplete messages, over a connection of this machine's kernel."""

import contextlib
import socket
from collections.abc import Iterator

import pytest

from rankscope.collector.ingest.held_bytes import ConnectionBytes, HeapGrowth

SIZE_BYTES = 40_000
ROUNDING_BYTES = 2_000
"""What is taken off for a handshake and for what is in no message."""


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Who sends, and who has accepted."""
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        sender = stack.enter_context(socket.create_connection(listening.getsockname()))
        accepted, _ = listening.accept()
        yield sender, stack.enter_context(accepted)


def send(ends: tuple[socket.socket, socket.socket], size_bytes: int) -> None:
    """Send so much; when this returns it has come, of which the kernel keeps count."""
    sender, accepted = ends
    sender.sendall(bytes(size_bytes))
    accepted.recv(size_bytes, socket.MSG_WAITALL)


def test_bytes_of_an_incomplete_message_are_held(ends: tuple[socket.socket, socket.socket]) -> None:
    held = ConnectionBytes()
    held.measure(ends[1].fileno())
    send(ends, SIZE_BYTES)
    assert held.measure(ends[1].fileno()) == 0  # it has only just come
    assert SIZE_BYTES - ROUNDING_BYTES < held.measure(ends[1].fileno()) <= SIZE_BYTES


def test_connection_whose_messages_are_read_holds_nothing(ends: tuple[socket.socket, socket.socket]) -> None:
    held = ConnectionBytes()
    for _ in range(4):  # each time a quarter of what comes is read: the rest is a backlog
        send(ends, SIZE_BYTES)
        held.note_message(SIZE_BYTES // 4)
        assert held.measure(ends[1].fileno()) == 0


def test_held_bytes_stay_held_in_every_measurement(ends: tuple[socket.socket, socket.socket]) -> None:
    held = ConnectionBytes()
    send(ends, SIZE_BYTES)
    measured = [held.measure(ends[1].fileno()) for _ in range(1000)]  # a hundred seconds
    assert SIZE_BYTES - ROUNDING_BYTES < measured[-1] <= SIZE_BYTES


def test_held_frames_cost_their_size_and_empty_parts_32_times_it() -> None:
    frames, parts = HeapGrowth(), HeapGrowth()
    assert [frames.update(held, 1_000 + held) for held in (0, 100, 250)] == [0, 100, 250]
    assert [parts.update(held, 1_000 + 64 * held) for held in (0, 100, 250)] == [0, 3_200, 8_000]


def test_what_grows_without_held_bytes_is_not_their_cost() -> None:
    memory = HeapGrowth()
    assert [memory.update(held, heap) for held, heap in ((0, 0), (10, 10), (10, 9_000), (20, 9_010))] == [0, 10, 10, 20]


def test_cost_goes_with_the_bytes() -> None:
    memory = HeapGrowth()
    assert [memory.update(held, 64 * held) for held in (0, 100, 25, 0, 100)] == [0, 3_200, 800, 0, 3_200]


def test_heartbeats_do_not_add_up(ends: tuple[socket.socket, socket.socket]) -> None:
    held = ConnectionBytes()
    measured = []
    for _ in range(1000):
        send(ends, 44)  # a heartbeat in a box of CURVE
        measured.append(held.measure(ends[1].fileno()))
    assert measured[-1] == 0


def test_backlog_that_was_read_is_no_longer_held(ends: tuple[socket.socket, socket.socket]) -> None:
    held = ConnectionBytes()
    send(ends, SIZE_BYTES)
    held.measure(ends[1].fileno())
    held.note_message(SIZE_BYTES)
    held.measure(ends[1].fileno())
    assert held.measure(ends[1].fileno()) == 0
