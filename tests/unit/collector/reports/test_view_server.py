"""The page of `rankscope view`, asked over real HTTP."""

import http.client
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankscope.collector.reports.view_server import CONNECTIONS_MAX, ViewServer, check_perfetto, read_size
from rankscope.measure.errors import SettingError, UnavailableError

PERFETTO = "http://perfetto.example/ui/"
CONTENT = b"\x1f\x8b" + bytes(range(256)) * 4096
"""1 MiB, more than a socket takes at once."""
LIMIT_S = 300.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ViewServer]:
    (tmp_path / "merged.json.gz").write_bytes(CONTENT)
    (tmp_path / "secret").write_bytes(b"other")
    with ViewServer(tmp_path / "merged.json.gz", perfetto=PERFETTO) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


class Answer:
    """Status, fields and body that the server gives for a path."""

    def __init__(self, server: ViewServer, path: str, *, method: str = "GET", host: str | None = None) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=LIMIT_S)
        connection.putrequest(method, path, skip_host=True)
        connection.putheader("Host", host or f"127.0.0.1:{server.server_address[1]}")
        connection.endheaders()
        answer = connection.getresponse()
        self.status, self.fields, self.body = answer.status, answer.headers, answer.read()
        connection.close()


def test_file_comes_whole_and_as_it_is(server: ViewServer) -> None:
    answer = Answer(server, f"/{server.token}/trace")
    assert (answer.status, answer.body == CONTENT) == (200, True)
    assert answer.fields["Content-Encoding"] is None
    assert answer.fields["Content-Type"] == "application/octet-stream"


def test_page_names_the_file_its_size_and_the_perfetto(server: ViewServer) -> None:
    answer = Answer(server, f"/{server.token}/")
    assert answer.status == 200
    text = answer.body.decode()
    assert "merged.json.gz, 1.0 MB" in text
    assert f'data-perfetto="{PERFETTO}"' in text


def test_head_has_no_body(server: ViewServer) -> None:
    for path, size in (("trace", len(CONTENT)), ("", len(server.page))):
        answer = Answer(server, f"/{server.token}/{path}", method="HEAD")
        assert (answer.status, answer.fields["Content-Length"], answer.body) == (200, str(size), b"")


@pytest.mark.parametrize(
    "path", ["/", "/trace", "//trace", "/{}/secret", "/{}/../secret", "/{}/trace/", "/{}x/trace", "/\xe9/trace", "/{}"]
)
def test_nothing_but_the_page_and_the_file_is_served(server: ViewServer, path: str) -> None:
    with socket.create_connection(("127.0.0.1", server.server_address[1]), LIMIT_S) as asking:
        asking.sendall(f"GET {path.format(server.token)} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode("latin-1"))
        answer = asking.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.0 404")
    assert b"other" not in answer


@pytest.mark.parametrize(
    ("host", "status"), [("evil.example", 403), ("127.0.0.1.evil.example:80", 403), ("localhost:9999", 200)]
)
def test_only_names_of_this_machine_are_answered(server: ViewServer, host: str, status: int) -> None:
    assert Answer(server, f"/{server.token}/trace", host=host).status == status


def test_request_without_a_host_is_refused(server: ViewServer) -> None:
    with socket.create_connection(("127.0.0.1", server.server_address[1]), LIMIT_S) as asking:
        asking.sendall(f"GET /{server.token}/trace HTTP/1.0\r\n\r\n".encode())
        assert asking.makefile("rb").read().startswith(b"HTTP/1.0 403")


def test_other_methods_are_refused(server: ViewServer) -> None:
    assert Answer(server, f"/{server.token}/", method="POST").status == 501


def test_page_may_load_nothing_and_be_framed_by_nobody(server: ViewServer) -> None:
    answer = Answer(server, f"/{server.token}/")
    policy = answer.fields["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "frame-ancestors 'none'" in policy
    assert answer.fields["Referrer-Policy"] == "no-referrer"
    assert answer.fields["Cross-Origin-Opener-Policy"] is None, "with it Perfetto could not answer"


def test_file_that_went_away_is_said(server: ViewServer) -> None:
    server.file.unlink()
    answer = Answer(server, f"/{server.token}/trace")
    assert (answer.status, answer.body) == (404, b"the file cannot be read any more: No such file or directory\n")


def test_connection_that_is_one_too_many_is_closed(server: ViewServer) -> None:
    address = ("127.0.0.1", server.server_address[1])
    silent = [socket.create_connection(address, LIMIT_S) for _ in range(CONNECTIONS_MAX)]
    with socket.create_connection(address, LIMIT_S) as one_more:
        assert one_more.recv(1) == b""
    for connection in silent:
        connection.close()


def test_token_is_another_one_each_time(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(CONTENT)
    tokens = set()
    for _ in range(2):
        with ViewServer(tmp_path / "a", perfetto=PERFETTO) as server:
            tokens.add(server.token)
    assert [len(token) for token in tokens] == [22, 22], "128 bits as base64"


def test_name_of_the_file_is_escaped(tmp_path: Path) -> None:
    (tmp_path / '"><script>alert(1)<').write_bytes(CONTENT)
    with ViewServer(tmp_path / '"><script>alert(1)<', perfetto=PERFETTO) as server:
        assert b"<script>alert" not in server.page
        assert b'data-title="&quot;&gt;&lt;script&gt;alert(1)&lt;"' in server.page


@pytest.mark.parametrize("url", ["ui.perfetto.dev", "javascript:alert(1)", "file:///x", "https://", "http://a:x/", ""])
def test_perfetto_must_be_the_address_of_a_page(url: str) -> None:
    with pytest.raises(SettingError, match=r"--perfetto is .*; it is the http or https address of a Perfetto"):
        check_perfetto(url)


def test_file_must_be_there_and_hold_something(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for name, reason in (
        ("none", "cannot be read: No such file"),
        ("empty", "is empty"),
        (".", "is a folder; give a trace file"),
        ("/dev/null", "is no regular file"),
    ):
        with pytest.raises(UnavailableError, match=reason):
            read_size(tmp_path / name)


def test_port_in_use_and_impossible_port_are_said(server: ViewServer) -> None:
    port = server.server_address[1]
    with pytest.raises(UnavailableError, match=rf"127\.0\.0\.1:{port} \(from --port\) cannot be listened at"):
        ViewServer(server.file, perfetto=PERFETTO, port=port)
    with pytest.raises(SettingError, match="--port is 70000; it must be from 0"):
        ViewServer(server.file, perfetto=PERFETTO, port=70_000)
