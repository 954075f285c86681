"""A receiver of webhooks on loopback, over HTTP or HTTPS, that answers each request as the test says."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tests.integration.serving import DEADLINE_S

Behavior = Callable[[socket.socket, threading.Event], None]
"""What a receiver does on a connection once it has read the request; the event is set when the receiver closes."""


class Request(NamedTuple):
    """A request as it came: its first line, its headers by lower-case name, and its body."""

    line: str
    headers: dict[str, str]
    body: bytes


def answering(status: int, *headers: str) -> Behavior:
    """A behavior: answer with a status and these headers."""

    def answer(connection: socket.socket, _closing: threading.Event) -> None:
        lines = (f"HTTP/1.1 {status} Text", *headers, "Content-Length: 2", "Connection: close", "", "ok")
        connection.sendall("\r\n".join(lines).encode())

    return answer


def saying(data: bytes) -> Behavior:
    """A behavior: send exactly these bytes, and close."""
    return lambda connection, _closing: connection.sendall(data)


def saying_nothing(_connection: socket.socket, closing: threading.Event) -> None:
    """A behavior: never answer."""
    closing.wait()


def saying_forever(data: bytes, again: bytes, pause_s: float = 0.0) -> Behavior:
    """A behavior: send `data`, then `again` over and over."""

    def flood(connection: socket.socket, closing: threading.Event) -> None:
        connection.sendall(data)
        while not closing.wait(pause_s):
            connection.sendall(again)

    return flood


OK = answering(200)


class WebhookReceiver:
    """Answers by the `behaviors` in order, then by OK. Made by `receiving`."""

    def __init__(self, behaviors: tuple[Behavior, ...], tls: ssl.SSLContext | None) -> None:
        self._behaviors = list(behaviors)
        self._tls = tls
        self._requests: list[Request] = []
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self.port}/hook?team=ml"
        self._thread = threading.Thread(target=self._run, name="webhook-receiver")
        self._thread.start()

    @property
    def requests(self) -> list[Request]:
        """What has come so far."""
        with self._changed:
            return list(self._requests)

    def wait_for(self, count: int) -> list[Request]:
        """The requests, once there are so many."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._requests) >= count, DEADLINE_S), self._requests
            return list(self._requests)

    def close(self) -> None:
        """End it."""
        self._closing.set()
        with contextlib.suppress(OSError):  # wakes the thread
            socket.create_connection(("127.0.0.1", self.port)).close()
        self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        while not self._closing.is_set():
            connection, _ = self._listener.accept()
            with contextlib.suppress(OSError, ValueError), contextlib.ExitStack() as ends:
                ends.enter_context(connection)
                if self._tls is not None:
                    connection = ends.enter_context(self._tls.wrap_socket(connection, server_side=True))
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as stream:
            line = stream.readline().decode().strip()
            headers = {}
            while header := stream.readline().decode().strip():
                name, _, value = header.partition(":")
                headers[name.lower()] = value.strip()
            body = stream.read(int(headers.get("content-length", 0)))
        if not line:
            return
        with self._changed:
            self._requests.append(Request(line, headers, body))
            self._changed.notify_all()
        (self._behaviors.pop(0) if self._behaviors else OK)(connection, self._closing)


@contextlib.contextmanager
def receiving(*behaviors: Behavior, tls: ssl.SSLContext | None = None) -> Iterator[WebhookReceiver]:
    """Start a receiver; it does not outlive the block."""
    receiver = WebhookReceiver(behaviors, tls)
    try:
        yield receiver
    finally:
        receiver.close()
