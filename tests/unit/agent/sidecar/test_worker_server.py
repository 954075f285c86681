"""Tests of the worker server: its path, and missing responses."""

import socket
import threading
from pathlib import Path

import pytest

from rankscope.agent.sidecar.worker_questions import ask
from rankscope.agent.sidecar.worker_server import SOCKET_PATH_BYTES_MAX, open_server
from rankscope.measure.errors import UnavailableError


def test_too_long_socket_path_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="longer than the address of a socket may be"):
        open_server(str(tmp_path / ("x" * SOCKET_PATH_BYTES_MAX)))


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (None, TimeoutError),
        (b"", ValueError),
        (b"garbage", ValueError),
        (b"HTTP/1.1 500 Oops\r\n\r\n{}", ValueError),
        (b"HTTP/1.1 200 OK\r\n\r\nno json", ValueError),
    ],
)
def test_invalid_response_is_an_error_within_the_timeout(
    tmp_path: Path, answer: bytes | None, error: type[Exception]
) -> None:
    # The kernel takes the connection and the question while nobody accepts: as of a process that is stopped.
    with socket.socket(socket.AF_UNIX) as listening:
        path = str(tmp_path / "sock")
        listening.bind(path)
        listening.listen()
        if answer is None:
            with pytest.raises(error):
                ask(path, "ping", 0.05)
            return
        answering = threading.Thread(target=answer_one, args=(listening, answer))
        answering.start()
        with pytest.raises(error):
            ask(path, "ping", 60)
        answering.join()


def answer_one(listening: socket.socket, answer: bytes) -> None:
    connection, _ = listening.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(answer)
