"""Orders of captures over HTTP, with real sockets: who may order, what is refused, and files of captures."""

import contextlib
import http.client
import json
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec
import pytest

from rankscope.collector.captures.capture import Around, Capture, CaptureFile, CaptureRefusal, CaptureRequest
from rankscope.collector.publish.http_auth import OPEN, HttpAuth, read_http_auth
from rankscope.collector.publish.http_listener import listen_http
from rankscope.collector.publish.http_server import HttpServer
from rankscope.collector.runs.snapshot import Snapshot
from rankscope.measure.errors import SettingError, UnavailableError

DEADLINE_S: Final = 300.0
READ: Final = "read-0123456789abcdef"
CONTROL: Final = "control-0123456789abcdef"
ORDERS: Final = "/api/v1/runs/bert/captures"
JSON: Final = {"Content-Type": "application/json"}
ALLOWED: Final = {**JSON, "Authorization": f"Bearer {CONTROL}"}
CONTROLLED: Final = HttpAuth(control_token=CONTROL)
TRACE: Final = bytes(range(256)) * 1_000
"""256,000 bytes: more than one part of an answer."""

KEPT: Final = Capture(
    id="c1", run="bert", run_id="bert@1", state="complete", asked_wall_s=5.0, changed_wall_s=9.0,
    files=(
        CaptureFile("rank-1.pt.trace.json.gz", len(TRACE)), CaptureFile("report.html", 6), CaptureFile("linked", 1),
        CaptureFile("gone", 1), CaptureFile("../secret", 1), CaptureFile("folder", 1),
    ),
)  # fmt: skip
OTHER: Final = Capture(id="c2", run="gpt", run_id="gpt@1", state="ordered", asked_wall_s=4.0, changed_wall_s=4.0)


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def error(self) -> str:
        return str(json.loads(self.body)["error"])


class Service:
    """What takes orders in a collector."""

    def __init__(self) -> None:
        self.requests: list[CaptureRequest] = []

    def order(self, request: CaptureRequest) -> Capture | CaptureRefusal:
        self.requests.append(request)
        match request.run:
            case "bert":
                return KEPT
            case "silent":
                raise UnavailableError("the collector's service has not answered within 10 s")
            case "broken":
                raise RuntimeError
            case _:
                return CaptureRefusal(409, "another capture has not ended")


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of KEPT; `linked` is a link to a file outside, as `../secret` would be one."""
    own = tmp_path / "captures" / "c1"
    (own / "folder").mkdir(parents=True)
    (own / "rank-1.pt.trace.json.gz").write_bytes(TRACE)
    (own / "report.html").write_text("<html>")
    (own / "capture.json").write_text("{}")
    (tmp_path / "captures" / "secret").write_text("s")
    (own / "linked").symlink_to(tmp_path / "captures" / "secret")
    return tmp_path / "captures"


@contextlib.contextmanager
def serve(service: Service, access: HttpAuth = CONTROLLED, folder: Path | None = None) -> Iterator[HttpServer]:
    server = HttpServer(
        listen_http("127.0.0.1:0"), lambda: Snapshot(wall_s=0.0, version="0"), tuple,
        is_healthy=lambda: None, is_ready=lambda: None, access=access,
        order_capture=service.order, read_captures=lambda: (KEPT, OTHER), captures_folder=folder,
    )  # fmt: skip
    try:
        yield server
    finally:
        server.close()


def ask(
    server: HttpServer, path: str, method: str = "GET", body: Any = None, headers: Mapping[str, str] | None = None
) -> Answer:
    """The answer to a request whose body is JSON, or bytes as they are."""
    sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    with contextlib.closing(http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=DEADLINE_S)) as connection:
        connection.request(method, path, body=sent, headers=dict(headers or {}))
        answer = connection.getresponse()
        return Answer(answer.status, dict(answer.getheaders()), answer.read())


# -- who may order ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("access", [OPEN, HttpAuth(READ)])
@pytest.mark.parametrize("path", [ORDERS, "/metrics", "/", "/healthz"])
def test_every_post_without_a_control_token_is_refused_with_cure(service: Service, access: HttpAuth, path: str) -> None:
    with serve(service, access) as server:
        answer = ask(server, path, "POST", {}, {**JSON, "Authorization": f"Bearer {READ}"})
        assert answer.status == 403
        assert "http_control_token_file" in answer.error
        assert server.refused == {"unauthorized": 1}
    assert service.requests == []


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        ("", 401),
        ("Bearer", 403),
        (f"Bearer {READ}", 403),
        (f"Bearer {CONTROL}x", 403),
        (f"Bearer {CONTROL[:-1]}", 403),
        ("Basic YTpjb250cm9sLTAxMjM0NTY3ODlhYmNkZWY=", 401),  # a:CONTROL, which a browser sends by itself
    ],
)
def test_missing_or_wrong_token_orders_nothing(service: Service, authorization: str, status: int) -> None:
    with serve(service, HttpAuth(READ, None, CONTROL)) as server:
        answer = ask(server, ORDERS, "POST", {}, {**JSON, "Authorization": authorization})
        assert answer.status == status
        assert "http_control_token_file" in answer.error
    assert service.requests == []


def test_control_token_also_reads_and_the_other_one_still_does(service: Service) -> None:
    with serve(service, HttpAuth(READ, None, CONTROL)) as server:
        tokens = {token: {"Authorization": f"Bearer {token}"} for token in (READ, CONTROL, "wrong")}
        statuses = {token: ask(server, "/api/v1/captures", headers=sent).status for token, sent in tokens.items()}
    assert statuses == {READ: 200, CONTROL: 200, "wrong": 401}


def test_foreign_host_orders_nothing(service: Service) -> None:
    with serve(service) as server:
        assert ask(server, ORDERS, "POST", {}, {**ALLOWED, "Host": "evil.example"}).status == 421
    assert service.requests == []


def test_no_answer_allows_another_origin(service: Service) -> None:
    with serve(service) as server:
        asked = {**ALLOWED, "Origin": "https://evil.example"}
        answers = [ask(server, ORDERS, "POST", {}, asked), ask(server, ORDERS, "OPTIONS", headers=asked)]
    assert [answer.status for answer in answers] == [202, 405]
    assert not [name for answer in answers for name in answer.headers if name.lower().startswith("access-control")]
    assert not [name for answer in answers for name in answer.headers if name.lower() == "set-cookie"]


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS"])
def test_path_of_orders_says_that_it_takes_a_post_only(service: Service, method: str) -> None:
    with serve(service) as server:
        answer = ask(server, ORDERS, method)
    assert (answer.status, answer.headers["Allow"]) == (405, "POST")


def test_same_token_for_both_is_refused(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(CONTROL)
    (tmp_path / "token").chmod(0o600)
    file = str(tmp_path / "token")
    with pytest.raises(SettingError, match="hold the same token"):
        read_http_auth(token_file=file, certificate_file="", key_file="", control_token_file=file)
    found = read_http_auth(token_file="", certificate_file="", key_file="", control_token_file=file)
    assert found == HttpAuth("", None, CONTROL)


def test_control_token_that_others_can_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(CONTROL)
    (tmp_path / "token").chmod(0o644)
    with pytest.raises(SettingError, match=r"http_control_token_file is .*has the mode 0644"):
        read_http_auth(token_file="", certificate_file="", key_file="", control_token_file=str(tmp_path / "token"))


# -- what is ordered --------------------------------------------------------------------------------------------------


def test_order_is_handed_over_with_who_asked(service: Service) -> None:
    wanted = {"ranks": [3, 7], "steps": 5, "options": ["shapes"], "force": True}
    with serve(service) as server:
        answer = ask(server, ORDERS, "POST", wanted, ALLOWED)
    assert (answer.status, msgspec.json.decode(answer.body, type=Capture)) == (202, KEPT)
    assert service.requests == [
        CaptureRequest(
            run="bert", ranks=(3, 7), steps=5, options=("shapes",), is_forced=True, asked_by="127.0.0.1"
        )
    ]  # fmt: skip


def test_rank_may_be_ordered_with_those_beside_it(service: Service) -> None:
    with serve(service) as server:
        assert ask(server, ORDERS, "POST", {"ranks": {"around": 3}}, ALLOWED).status == 202
    assert service.requests == [CaptureRequest(run="bert", ranks=Around(3), steps=3, asked_by="127.0.0.1")]


def test_everything_of_an_order_may_be_left_out(service: Service) -> None:
    with serve(service) as server:
        assert ask(server, ORDERS, "POST", b"", ALLOWED).status == 202
    assert service.requests == [CaptureRequest(run="bert", ranks="slowest", steps=3, asked_by="127.0.0.1")]


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/api/v1/runs/gpt%2F2/captures", {}, 409, "another capture has not ended"),
        ("/api/v1/runs/silent/captures", {}, 503, "may have been ordered all the same"),
        ("/api/v1/runs/broken/captures", {}, 500, "internal error"),
        (ORDERS, {"rank": [1]}, 400, "unknown field `rank`"),
        (ORDERS, {"ranks": ["1"]}, 400, "$.ranks"),
        (ORDERS, {"ranks": {"around": "3"}}, 400, "$.ranks"),
        (ORDERS, {"ranks": {"beside": 3}}, 400, "unknown field `beside`"),
        (ORDERS, b"{", 400, "no order of a capture"),
        (ORDERS, b"\xff", 400, "no order of a capture"),
        ("/api/v1/runs", {}, 405, "POST is not allowed here"),
        ("/api/v1/runs//captures", {}, 405, "POST is not allowed here"),
        ("/api/v1/runs/a/b/captures", {}, 405, "POST is not allowed here"),
        (f"{ORDERS}?ranks=all", {}, 405, "POST is not allowed here"),
    ],
)
def test_what_cannot_be_ordered_is_told(service: Service, path: str, body: Any, status: int, words: str) -> None:
    with serve(service) as server:
        answer = ask(server, path, "POST", body, ALLOWED)
    assert (answer.status, words in answer.error) == (status, True), answer.error


@pytest.mark.parametrize(
    ("path", "token", "line"),
    [
        (ORDERS, READ, f"refused POST {ORDERS} by 127.0.0.1 (403): this is not the token of http_control_token_file"),
        (
            "/api/v1/runs/gpt/captures", CONTROL,
            "refused POST /api/v1/runs/gpt/captures by 127.0.0.1 (409): another capture has not ended",
        ),
    ],
)  # fmt: skip
def test_refusal_is_logged_with_who_asked_and_why(
    service: Service, caplog: pytest.LogCaptureFixture, path: str, token: str, line: str
) -> None:
    with serve(service) as server:
        ask(server, path, "POST", {}, {**JSON, "Authorization": f"Bearer {token}"})
    assert [one[: len(line)] for one in caplog.messages] == [line]


@pytest.mark.parametrize("content_type", ["", "text/plain", "application/x-www-form-urlencoded"])
def test_body_a_foreign_page_could_send_by_form_is_refused(service: Service, content_type: str) -> None:
    with serve(service) as server:
        assert ask(server, ORDERS, "POST", {}, {**ALLOWED, "Content-Type": content_type}).status == 415
    assert service.requests == []


def send_raw(server: HttpServer, head: str, body: bytes) -> bytes:
    """Send a request as it is, and return what comes back."""
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=DEADLINE_S) as connection:
        fields = "".join(f"{name}: {value}\r\n" for name, value in ALLOWED.items())
        connection.sendall(f"POST {ORDERS} HTTP/1.0\r\n{fields}{head}\r\n".encode() + body)
        return b"".join(iter(lambda: connection.recv(65_536), b""))


@pytest.mark.parametrize(
    "head",
    ["", "Content-Length: -1\r\n", "Content-Length: 0x10\r\n", "Transfer-Encoding: chunked\r\nContent-Length: 2\r\n"],
)
def test_body_of_unknown_length_is_refused(service: Service, head: str) -> None:
    with serve(service) as server:
        assert b" 411 " in send_raw(server, head, b"").partition(b"\r\n")[0]
    assert service.requests == []


def test_body_is_read_up_to_the_limit_and_no_further(service: Service) -> None:
    # 64 KiB are 65,536 bytes. The client says that it has a terabyte: it is answered once the limit has arrived.
    with serve(service) as server:
        assert b" 413 " in send_raw(server, f"Content-Length: {10**12}\r\n", b" " * 65_536).partition(b"\r\n")[0]
        assert b" 202 " in send_raw(server, "Content-Length: 65536\r\n", b"{}" + b" " * 65_534).partition(b"\r\n")[0]
    assert len(service.requests) == 1


# -- what is kept -----------------------------------------------------------------------------------------------------


def test_captures_are_listed_and_found_by_run_and_id(service: Service) -> None:
    with serve(service) as server:
        listed = {
            query: [one["id"] for one in json.loads(ask(server, f"/api/v1/captures{query}").body)["captures"]]
            for query in ("", "?run=bert", "?run=gpt%401", "?run=none")
        }
        one = ask(server, "/api/v1/captures/c2")
        unknown = ask(server, "/api/v1/captures/c3")
        mistaken = ask(server, "/api/v1/captures?rnu=bert")
    assert listed == {"": ["c1", "c2"], "?run=bert": ["c1"], "?run=gpt%401": ["c2"], "?run=none": []}
    assert (one.status, msgspec.json.decode(one.body, type=Capture)) == (200, OTHER)
    assert (unknown.status, mistaken.status) == (404, 400)


def test_file_is_sent_whole(service: Service, folder: Path) -> None:
    with serve(service, folder=folder) as server:
        answer = ask(server, "/api/v1/captures/c1/files/rank-1.pt.trace.json.gz")
        headed = ask(server, "/api/v1/captures/c1/files/rank-1.pt.trace.json.gz", "HEAD")
    assert (answer.status, answer.body) == (200, TRACE)
    assert answer.headers["Content-Type"] == "application/gzip"
    assert answer.headers["Content-Disposition"] == 'attachment; filename="rank-1.pt.trace.json.gz"'
    assert (headed.headers["Content-Length"], headed.body) == ("256000", b"")


def test_report_is_shown_in_a_sandbox(service: Service, folder: Path) -> None:
    with serve(service, folder=folder) as server:
        answer = ask(server, "/api/v1/captures/c1/files/report.html")
    policy = answer.headers["Content-Security-Policy"]
    assert answer.body == b"<html>"
    assert policy.startswith("sandbox allow-scripts; default-src 'none'")
    assert "allow-same-origin" not in policy


@pytest.mark.parametrize(
    "name",
    [
        "capture.json",
        "..%2Fsecret",
        "../secret",
        "linked",
        "gone",
        "folder",
        "",
        "%2e%2e",
        "rank-1.pt.trace.json.gz/x",
        "%00",
    ],
)
def test_nothing_else_is_sent(service: Service, folder: Path, name: str) -> None:
    with serve(service, folder=folder) as server:
        assert ask(server, f"/api/v1/captures/c1/files/{name}").status == 404
        assert server.errors_contained == 0


def test_without_a_store_there_are_no_files(service: Service) -> None:
    with serve(service) as server:
        assert ask(server, "/api/v1/captures/c1/files/report.html").status == 404


def test_files_need_the_token_as_everything_does(service: Service, folder: Path) -> None:
    with serve(service, HttpAuth(READ), folder) as server:
        assert ask(server, "/api/v1/captures/c1/files/report.html").status == 401
