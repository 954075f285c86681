"""Liveness at a port of its own: it answers while the HTTP server does not, and no client can keep it from doing so."""

import contextlib
import http.client
import signal
import socket
from collections.abc import Callable, Iterator

import psutil
import pytest

from rankscope.collector.publish import liveness
from rankscope.collector.publish.http_listener import HttpListener, listen_http
from rankscope.collector.publish.liveness import CONNECTIONS_MAX, PATH, REQUEST_BYTES_MAX, answering_liveness
from rankscope.collector.publish.snapshot_messages import Health
from rankscope.measure.units import NS_PER_S
from tests.integration.serving import find_fixed_port, read_url, serving, wait_for

DEADLINE_S = 300.0
SHORT_S = 0.5
GET = f"GET {PATH} HTTP/1.1\r\nHost: any\r\n\r\n".encode()


def connect(listener: HttpListener) -> socket.socket:
    return socket.create_connection(listener.socket.getsockname(), DEADLINE_S)


def ask(listener: HttpListener, request: bytes = GET) -> tuple[str, str]:
    """Return the first line and the body of the answer, empty where the connection was closed without one."""
    with connect(listener) as connection:
        connection.sendall(request)
        answer = b"".join(iter(lambda: connection.recv(4096), b"")).decode()
    return answer.partition("\r\n")[0], answer.partition("\r\n\r\n")[2]


@contextlib.contextmanager
def answering(find_problem: Callable[[], str | None] = lambda: None) -> Iterator[HttpListener]:
    listener = listen_http("127.0.0.1:0")
    with answering_liveness(listener, find_problem):
        yield listener


@pytest.mark.parametrize(("tick_age_s", "status"), [(9, "200 OK"), (11, "503 Service Unavailable")])
def test_probe_fails_when_the_last_tick_is_too_old(tick_age_s: int, status: str) -> None:
    with answering(Health(tick_age_s * NS_PER_S).find_problem) as listener:
        line, body = ask(listener)
    assert line == f"HTTP/1.1 {status}"
    assert body == {9: "ok\n", 11: "the last tick was 11.0 s ago\n"}[tick_age_s]


def test_other_paths_and_methods_are_not_found() -> None:
    with answering() as listener:
        for request in (b"GET /metrics HTTP/1.1\r\n\r\n", b"POST /healthz HTTP/1.1\r\n\r\n", b"\x16\x03\x01\r\n\r\n"):
            assert ask(listener, request)[0] == "HTTP/1.1 404 Not Found"
        assert ask(listener, b"HEAD /healthz HTTP/1.1\r\n\r\n") == ("HTTP/1.1 200 OK", "")
        assert ask(listener, b"GET /healthz?verbose HTTP/1.1\r\n\r\n")[1] == "ok\n"


def test_request_in_pieces_is_answered_once_it_is_whole() -> None:
    with answering() as listener, connect(listener) as connection:
        connection.sendall(GET[:20])
        assert ask(listener)[1] == "ok\n", "another one is not kept waiting"
        connection.sendall(GET[20:])
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert (answer.status, answer.read()) == (200, b"ok\n")


def test_clients_that_say_nothing_make_room_for_a_probe() -> None:
    with answering() as listener, contextlib.ExitStack() as held:
        silent = [held.enter_context(connect(listener)) for _ in range(CONNECTIONS_MAX)]
        assert ask(listener)[1] == "ok\n"
        assert silent[0].recv(1) == b"", "the oldest one was closed for it"


def test_silent_client_and_endless_head_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "REQUEST_NS_MAX", NS_PER_S // 20)
    with answering() as listener:
        with connect(listener) as silent:
            assert silent.recv(1) == b""
        assert ask(listener, b"a" * REQUEST_BYTES_MAX + b"\r\n") == ("", "")
        assert ask(listener)[1] == "ok\n"


def test_port_is_free_after_the_block() -> None:
    with answering() as listener:
        host, port = listener.socket.getsockname()
        waiting = connect(listener)
        assert ask(listener)[1] == "ok\n"  # accepted after the one before it
    with waiting:
        assert waiting.recv(1) == b""
    listen_http(f"{host}:{port}").socket.close()


def test_collector_is_alive_while_its_http_server_is_stuck() -> None:
    port = find_fixed_port()
    with serving("--health-listen", f"127.0.0.1:{port}") as served:
        assert read_url(f"{served.url}{PATH}") == b"ok\n"
        publisher = wait_for(
            lambda: next(iter(psutil.Process(served.pid).children()), None), lambda: "the collector has no child"
        )
        publisher.send_signal(signal.SIGSTOP)
        try:
            with socket.create_connection(("127.0.0.1", served.ports[1]), SHORT_S) as stuck:
                stuck.sendall(GET)
                with pytest.raises(TimeoutError):
                    stuck.recv(1)
            assert read_url(f"http://127.0.0.1:{port}{PATH}") == b"ok\n"
        finally:
            publisher.send_signal(signal.SIGCONT)
        assert read_url(f"{served.url}{PATH}") == b"ok\n"
        assert served.end(signal.SIGTERM) == 0
