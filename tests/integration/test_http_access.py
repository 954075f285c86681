"""A token and TLS in front of the HTTP server, with real sockets, and the commands that ask it."""

import contextlib
import http.client
import json
import select
import socket
import ssl
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from rankscope.collector.commands.main import main
from rankscope.collector.publish.http_auth import OPEN, HttpAuth, read_http_auth
from rankscope.collector.publish.http_connections import HttpLimits
from rankscope.collector.publish.http_listener import listen_http
from rankscope.collector.publish.http_server import HttpServer
from rankscope.collector.publish.page_files import read_page_files
from rankscope.collector.runs.snapshot import Snapshot
from tests.certificates import make_certificate
from tests.integration.serving import wait_for

DEADLINE_S = 300.0
"""Far beyond what anything here takes: a test that fails waits for it, a test that passes does not."""

SHORT_TIMEOUT_S = 1.0
"""For tests in which it has to pass."""

TOKEN = "0123456789abcdef0123456789abcdef"  # noqa: S105 - of this test only
BEARER = {"Authorization": f"Bearer {TOKEN}"}
EVERY_PATH = [
    "/",
    "/metrics",
    "/api/v1/runs",
    "/api/v1/runs/a",
    "/api/v1/incidents",
    "/api/v1/debug/runs/a",
    "/nothing",
]


@contextlib.contextmanager
def serve(access: HttpAuth, limits: HttpLimits | None = None) -> Iterator[HttpServer]:
    """A server that knows no run."""
    server = HttpServer(
        listen_http("127.0.0.1:0"), lambda: Snapshot(wall_s=0.0, version="0"), lambda: (),
        is_healthy=lambda: None, is_ready=lambda: None, access=access, limits=limits,
    )  # fmt: skip
    try:
        yield server
    finally:
        server.close()


def ask(server: HttpServer, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, Mapping[str, str], str]:
    """Status, headers and body of the answer."""
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=DEADLINE_S)
    try:
        connection.request("GET", path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        connection.close()


@pytest.fixture
def secrets(tmp_path: Path) -> dict[str, str]:
    """The files of a collector with a token and a certificate of its own making, by the names of their settings."""
    certificate, key, token = (tmp_path / name for name in ("cert.pem", "key.pem", "token"))
    make_certificate(certificate, key)
    token.write_text(f"{TOKEN}\n")
    for private in (key, token):
        private.chmod(0o600)
    return {"token_file": str(token), "certificate_file": str(certificate), "key_file": str(key)}


@pytest.mark.parametrize("path", EVERY_PATH)
@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong-wrong-wrong"}])
def test_nothing_at_all_is_told_without_the_token(path: str, headers: Mapping[str, str]) -> None:
    with serve(HttpAuth(TOKEN)) as server:
        status, answered, body = ask(server, path, headers)
        assert status == 401
        assert answered["WWW-Authenticate"] == 'Bearer realm="rankscope", Basic realm="rankscope"'
        assert json.loads(body) == {"error": "this collector requires its token: send `Authorization: Bearer TOKEN`"}
        assert server.refused == {"unauthorized": 1}


@pytest.mark.parametrize("path", ["/", "/metrics", "/api/v1/runs", "/api/v1/incidents"])
def test_with_the_token_everything_is_as_without_one(path: str) -> None:
    with serve(HttpAuth(TOKEN)) as server, serve(OPEN) as open_server:
        status, _, body = ask(server, path, BEARER)
        assert (status, body) == (200, ask(open_server, path)[2])
        assert server.refused == {}


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/healthz?verbose=1"])
def test_an_orchestrator_needs_no_token(path: str) -> None:
    with serve(HttpAuth(TOKEN)) as server:
        assert ask(server, path)[::2] == (200, "ok\n")


@pytest.mark.parametrize("path", ["/", "/live/page.js", "/live/page.css"])
def test_browser_gets_the_same_page_everywhere_without_a_token(path: str) -> None:
    browser = {"Accept": "text/html,*/*;q=0.8"}
    name = path.removeprefix("/live/") if path != "/" else "index.html"
    with serve(HttpAuth(TOKEN)) as server:
        assert ask(server, path, browser)[::2] == (200, read_page_files()[name].decode())
        assert ask(server, "/live/none.js", browser)[0] == 401
        assert ask(server, "/api/v1/events", browser)[0] == 401


@pytest.mark.parametrize("path", ["/healthz/../metrics", "/%68ealthz", "/metrics?/healthz", "/healthz#/x"])
def test_a_path_that_only_looks_like_an_open_one_is_not_open(path: str) -> None:
    with serve(HttpAuth(TOKEN)) as server:
        assert ask(server, path)[0] == 401


@pytest.mark.parametrize(("method", "status"), [("POST", 403), ("PUT", 405), ("DELETE", 405), ("PATCH", 405)])
def test_nothing_can_be_changed_with_the_token_for_reading(method: str, status: int) -> None:
    with serve(HttpAuth(TOKEN)) as server:
        connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=DEADLINE_S)
        connection.request(method, "/api/v1/runs", headers=BEARER)
        assert connection.getresponse().status == status
        connection.close()


def test_with_a_certificate_it_answers_in_tls(secrets: dict[str, str]) -> None:
    trusting = ssl.create_default_context(cafile=secrets["certificate_file"])
    with serve(read_http_auth(**secrets)) as server:
        assert server.url.startswith("https://127.0.0.1:")
        request = urllib.request.Request(f"{server.url}/metrics", headers=BEARER)
        with urllib.request.urlopen(request, timeout=DEADLINE_S, context=trusting) as answer:
            assert b"rankscope_frames_received_total" in answer.read()


def test_what_does_not_speak_tls_is_cut_off_and_counted(secrets: dict[str, str]) -> None:
    with serve(read_http_auth(**secrets)) as server:
        with socket.create_connection(("127.0.0.1", urlsplit(server.url).port or 0), DEADLINE_S) as stranger:
            stranger.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                while answered := stranger.recv(4096):
                    assert b"rankscope" not in answered
        wait_for(lambda: server.refused == {"tls_failed": 1} or None, lambda: str(server.refused))


def test_who_never_ends_its_handshake_keeps_nobody_waiting(secrets: dict[str, str]) -> None:
    trusting = ssl.create_default_context(cafile=secrets["certificate_file"])
    with serve(read_http_auth(**secrets)) as server:
        port = urlsplit(server.url).port or 0
        silent = [socket.create_connection(("127.0.0.1", port), DEADLINE_S) for _ in range(8)]
        with urllib.request.urlopen(f"{server.url}/healthz", timeout=DEADLINE_S, context=trusting) as answer:
            assert answer.status == 200
        for connection in silent:
            connection.close()


def test_handshake_in_single_bytes_is_cut_off_in_time(secrets: dict[str, str]) -> None:
    with serve(read_http_auth(**secrets), HttpLimits(request_s=SHORT_TIMEOUT_S)) as server:
        with socket.create_connection(("127.0.0.1", urlsplit(server.url).port or 0), DEADLINE_S) as slow:
            send_slowly(slow, b"\x16\x03\x01\x3f\xff" + bytes(16_384))
        wait_for(lambda: server.refused == {"slow_request": 1} or None, lambda: str(server.refused))


def send_slowly(connection: socket.socket, sent: bytes) -> None:
    """A byte each 50 ms, until the server closes the connection; fails when that does not happen in time."""
    end_s = time.monotonic() + DEADLINE_S
    for position in range(len(sent)):
        readable, _, _ = select.select([connection], [], [], 0.05)
        if readable:
            return
        assert time.monotonic() < end_s, f"still open after {position} bytes"
        connection.sendall(sent[position : position + 1])


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:18491", "localhost.evil.example", "127.0.0.1.evil.example"]
)
@pytest.mark.parametrize("path", ["/", "/metrics", "/api/v1/runs", "/api/v1/events", "/readyz", "/live/page.js"])
def test_loopback_without_a_token_answers_no_foreign_name(host: str, path: str) -> None:
    with serve(OPEN) as server:
        status, _, body = ask(server, path, {"Host": host})
        assert (status, server.refused) == (421, {"foreign_host": 1})
        assert json.loads(body) == {
            "error": f"this collector does not answer to {host.partition(':')[0]!r}: it listens at 127.0.0.1 without a "
            "token, so it answers only to localhost and to IP addresses. Use one of these in the URL, or set "
            "http_token_file."
        }


@pytest.mark.parametrize("host", ["localhost", "LocalHost:18491", "127.0.0.1", "[::1]:18491", "10.0.0.5:80", ""])
def test_loopback_without_a_token_answers_to_names_and_addresses(host: str) -> None:
    with serve(OPEN) as server:
        assert ask(server, "/metrics", {"Host": host})[0] == 200


def test_with_a_token_any_name_is_answered() -> None:
    with serve(HttpAuth(TOKEN)) as server:
        assert ask(server, "/metrics", {**BEARER, "Host": "collector.example"})[0] == 200


def test_commands_show_the_token_and_trust_the_given_certificate(
    secrets: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with serve(read_http_auth(**secrets)) as server:
        options = ["--url", server.url, "--ca-file", secrets["certificate_file"]]
        assert main(["status", *options, "--token-file", secrets["token_file"]]) == 0
        assert main(["incidents", *options, "--token-file", secrets["token_file"]]) == 0
        assert "no run has reported to this collector" in capsys.readouterr().out
        assert main(["status", *options]) == 1
        assert capsys.readouterr().err == (
            f"rankscope: the collector at {server.url}/api/v1/runs answers 401: it requires its token. Name the file "
            "that holds it with --token-file (RANKSCOPE_TOKEN_FILE), or give the whole address that rank 0 has "
            "printed.\n"
        )


def test_a_certificate_that_is_not_trusted_is_told(secrets: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with serve(read_http_auth(**secrets)) as server:
        assert main(["status", "--url", server.url]) == 1
        assert "is not trusted: self-signed certificate" in capsys.readouterr().err
        assert main(["status", "--url", server.url, "--ca-file", secrets["token_file"]]) == 2
