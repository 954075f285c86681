"""The HTTP server, with real sockets: what it answers, and what it withstands."""

import gzip
import http.client
import json
import select
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlsplit

import msgspec
import pytest

from rankscope.collector.incidents.incident import Incident
from rankscope.collector.incidents.store import read_store
from rankscope.collector.publish.http_connections import HttpLimits
from rankscope.collector.publish.http_listener import listen_http
from rankscope.collector.publish.http_server import HttpServer
from rankscope.collector.runs.snapshot import RankSnapshot, RunSnapshot, Snapshot
from rankscope.measure.errors import SettingError, UnavailableError
from rankscope.measure.identity import RankIdentity
from rankscope.measure.records import Totals
from tests.integration.serving import wait_for
from tests.unit.collector.incidents.bad_node import keep_bad_node
from tests.unit.collector.runs.kept_runs import keep_run

DEADLINE_S = 300.0
"""Far beyond what anything here takes: a test that fails waits for it, a test that passes does not."""

SHORT_TIMEOUT_S = 2.0
"""For tests in which it has to pass; an honest request must never need so long, also on busy cores."""

NAME = "bert/large 100% ü"


class Answer(NamedTuple):
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def error(self) -> str:
        """The text of a JSON error."""
        assert self.headers["Content-Type"] == "application/json"
        return str(json.loads(self.body)["error"])


class World:
    """What the server is given, for the test to change."""

    def __init__(self) -> None:
        self.snapshot = Snapshot(wall_s=0.0, version="0", runs=(run_of(NAME),))
        self.incidents: tuple[Incident, ...] = ()
        self.illness: str | None = None
        self.unready: str | None = None
        self.read: Callable[[], Snapshot] = lambda: self.snapshot
        self.read_incidents: Callable[[], tuple[Incident, ...]] = lambda: self.incidents

    def read_snapshot(self) -> Snapshot:
        """What `read` gives at this moment."""
        return self.read()

    def list_incidents(self) -> tuple[Incident, ...]:
        """What `read_incidents` gives at this moment."""
        return self.read_incidents()

    @contextmanager
    def serve(
        self, address: str = "127.0.0.1:0", limits: HttpLimits | None = None, store: Path | None = None
    ) -> Iterator[HttpServer]:
        """A server of this world."""
        server = HttpServer(
            listen_http(address), self.read_snapshot, self.list_incidents,
            is_healthy=lambda: self.illness, is_ready=lambda: self.unready, limits=limits,
            store=store,
        )  # fmt: skip
        try:
            yield server
        finally:
            server.close()


@pytest.fixture
def world() -> World:
    """A world with one run."""
    return World()


@pytest.fixture
def server(world: World) -> Iterator[HttpServer]:
    """A server at a free port."""
    with world.serve() as server:
        yield server


def run_of(name: str) -> RunSnapshot:
    """A run of two ranks, one of them up, with 12 and 9 steps."""
    ranks = tuple(
        RankSnapshot(
            identity=RankIdentity(
                run=name, rank=rank, local_rank=rank, world_size=2, node="n", restart_count=0,
                boot_id=f"boot-of-{rank}", pid=7,
            ),
            up=rank == 0, ended=None if rank == 0 else "finished", reports_admitted=1,
            totals=Totals(steps=12 - 3 * rank),
        )
        for rank in (0, 1)
    )  # fmt: skip
    return RunSnapshot(run=name, world_size=2, restart_count=0, ranks=ranks)


def ask(server: HttpServer, path: str, method: str = "GET", **headers: str) -> Answer:
    """One request. An underscore in a header's name stands for a hyphen."""
    where = urlsplit(server.url)
    with closing(http.client.HTTPConnection(where.hostname or "", where.port, timeout=DEADLINE_S)) as connection:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return Answer(answer.status, dict(answer.getheaders()), answer.read())


def connect(server: HttpServer) -> socket.socket:
    """A bare connection."""
    where = urlsplit(server.url)
    return socket.create_connection((where.hostname, where.port), timeout=DEADLINE_S)


def read_all(connection: socket.socket) -> bytes:
    """Everything until the server closes. It may reset a connection on which it has left bytes unread."""
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


# -- metrics ----------------------------------------------------------------------------------------------------------


def test_metrics_are_classic_text_unless_asked_otherwise(server: HttpServer) -> None:
    answer = ask(server, "/metrics")
    assert answer.status == 200
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert b'\nrankscope_rank_up{rank="0",run="bert/large 100% \xc3\xbc"} 1.0\n' in answer.body


def test_metrics_are_openmetrics_for_whoever_prefers_it(server: HttpServer) -> None:
    answer = ask(server, "/metrics", Accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    assert answer.body.endswith(b"# EOF\n")


@pytest.mark.parametrize("offer", ["gzip", "deflate, gzip;q=0.5", "GZIP"])
def test_an_answer_is_compressed_when_that_is_accepted(server: HttpServer, offer: str) -> None:
    answer = ask(server, "/metrics", Accept_Encoding=offer)
    assert answer.headers["Content-Encoding"] == "gzip"
    assert int(answer.headers["Content-Length"]) == len(answer.body)
    assert gzip.decompress(answer.body) == ask(server, "/metrics").body


@pytest.mark.parametrize("offer", ["", "identity", "gzip;q=0", "deflate, gzip; q=0.00", "x-gzip", "gzippy"])
def test_an_answer_is_plain_otherwise(server: HttpServer, offer: str) -> None:
    answer = ask(server, "/metrics", Accept_Encoding=offer)
    assert "Content-Encoding" not in answer.headers
    assert answer.body.startswith(b"# HELP")


def test_metrics_follow_the_snapshot(server: HttpServer, world: World) -> None:
    world.snapshot = Snapshot(wall_s=0.0, version="0", runs=(run_of("other"),))
    assert b'run="other"' in ask(server, "/metrics?from=somewhere").body


# -- health -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_all_is_well(server: HttpServer, path: str) -> None:
    answer = ask(server, path)
    assert (answer.status, answer.body) == (200, b"ok\n")


def test_an_ill_collector_says_why(server: HttpServer, world: World) -> None:
    world.illness = "the last tick was 12.0 s ago"
    answer = ask(server, "/healthz")
    assert (answer.status, answer.error) == (503, "the last tick was 12.0 s ago")
    assert ask(server, "/readyz").status == 200


def test_a_collector_that_is_not_ready_says_why(server: HttpServer, world: World) -> None:
    world.unready = "stopping"
    answer = ask(server, "/readyz")
    assert (answer.status, answer.error) == (503, "stopping")
    assert ask(server, "/healthz").status == 200


# -- the runs ---------------------------------------------------------------------------------------------------------


def test_the_runs_are_listed(server: HttpServer) -> None:
    answer = ask(server, "/api/v1/runs")
    assert answer.headers["Content-Type"] == "application/json"
    assert json.loads(answer.body) == {
        "runs": [
            {
                "run": NAME,
                "run_id": NAME,
                "world_size": 2,
                "ranks_up": 1,
                "steps": 12,
                "open_findings": 0,
                "samples_per_s": None,
                "tokens_per_s": None,
                "steps_per_s": None,
                "end": None,
                "end_in_words": "",
                "age_s": None,
                "origin": {"slurm_job_id": None, "user": None, "k8s_namespace": None, "k8s_pod": None},
            }
        ]
    }


def test_a_run_is_found_by_its_encoded_name_and_comes_whole(server: HttpServer, world: World) -> None:
    answer = ask(server, f"/api/v1/runs/{quote(NAME, safe='')}")
    assert answer.status == 200
    assert msgspec.json.decode(answer.body, type=RunSnapshot) == world.snapshot.runs[0]


def test_a_run_that_is_not_known_is_404(server: HttpServer) -> None:
    answer = ask(server, "/api/v1/runs/%3Cscript%3E%FF")
    assert answer.status == 404
    assert answer.error == "no run '<script>\ufffd' is known to this collector. It has 'bert/large 100% ü'."
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_the_index_names_every_path(server: HttpServer) -> None:
    answer = ask(server, "/")
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    for path in ("/metrics", "/healthz", "/readyz", "/api/v1/runs", "/api/v1/runs/RUN", "/api/v1/incidents"):
        assert f"\n{path} " in answer.body.decode()


@pytest.mark.parametrize("path", ["/metricsx", "/api/v1/runs/", "/api", "/../etc/passwd", "*"])
def test_any_other_path_is_404(server: HttpServer, path: str) -> None:
    answer = ask(server, path)
    assert answer.status == 404
    assert answer.error


# -- methods ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/metrics", "/api/v1/runs", "/nowhere"])
def test_head_is_get_without_the_body(server: HttpServer, path: str) -> None:
    got, headed = ask(server, path), ask(server, path, "HEAD")
    assert headed.body == b""
    assert headed.status == got.status
    assert {**headed.headers, "Date": ""} == {**got.headers, "Date": ""}


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "TRACE", "BREW"])
def test_another_method_is_405_and_told_what_is_allowed(server: HttpServer, method: str) -> None:
    answer = ask(server, "/metrics", method)
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")
    assert answer.error == f"{method} is not allowed; GET and HEAD are"


# -- rough clients ----------------------------------------------------------------------------------------------------


def test_a_client_that_never_asks_is_dropped_and_holds_up_nobody(world: World) -> None:
    with (
        world.serve(limits=HttpLimits(request_s=SHORT_TIMEOUT_S)) as server,
        connect(server) as silent,
        connect(server) as halfway,
    ):
        halfway.sendall(b"GET /metrics HTT")
        assert ask(server, "/metrics").status == 200
        assert read_all(silent) == b""
        assert read_all(halfway) == b""
        assert server.refused == {"slow_request": 2}


def test_head_in_single_bytes_is_cut_off_in_time(world: World) -> None:
    with world.serve(limits=HttpLimits(request_s=SHORT_TIMEOUT_S)) as server, connect(server) as slow:
        send_slowly(slow, b"GET /metrics HTTP/1.0\r\n" + b"A: b\r\n" * 1000)
        assert read_all(slow) == b""
        assert server.refused == {"slow_request": 1}


def test_clients_that_never_ask_give_way_to_one_that_does(world: World) -> None:
    with ExitStack() as stack, world.serve(limits=HttpLimits(request_s=2 * DEADLINE_S, asking_max=4)) as server:
        for _ in range(6):
            stack.enter_context(connect(server))
        for path in ("/healthz", "/readyz", "/metrics"):
            assert ask(server, path).status == 200
            # An answered connection counts until its thread has ended, which may be after the next one has come.
            wait_for(lambda: len(server._server.connections._found) < 4 or None, lambda: "a connection has not ended")
        assert server.refused == {"request_displaced": 3}  # 6 and the first question are 3 more than 4


def test_a_client_that_stops_reading_is_dropped(world: World) -> None:
    with unread_answer(world, HttpLimits(answer_s=SHORT_TIMEOUT_S)) as server:
        wait_for(lambda: server.refused == {"unread_response": 1} or None, lambda: str(server.refused))


def test_health_is_told_while_there_is_no_place_for_answers(world: World) -> None:
    with unread_answer(world, HttpLimits(answer_s=2 * DEADLINE_S, unread_s=2 * DEADLINE_S, answers_max=1)) as server:
        assert [ask(server, path).status for path in ("/healthz", "/readyz", "/metrics")] == [200, 200, 503]
        assert server.refused == {"busy": 1}


def test_an_unread_answer_gives_way_when_there_is_no_other_place(world: World) -> None:
    limits = HttpLimits(answer_s=2 * DEADLINE_S, unread_s=0.0, answers_max=1)
    with unread_answer(world, limits) as server:
        assert ask(server, "/metrics").status == 200
        assert server.refused == {"unread_response": 1}


def test_unread_answers_hold_no_more_memory_than_is_allowed(world: World) -> None:
    limits = HttpLimits(answer_s=2 * DEADLINE_S, unread_s=2 * DEADLINE_S, answer_bytes_max=1)
    with unread_answer(world, limits) as server:
        answer = ask(server, "/api/v1/runs")
        assert (answer.status, answer.headers["Retry-After"], server.refused) == (503, "5", {"response_memory_full": 1})
        assert answer.error == (
            "responses that clients have not read yet use up the memory for responses; try again later"
        )
        assert ask(server, "/healthz").status == 200


@contextmanager
def unread_answer(world: World, limits: HttpLimits) -> Iterator[HttpServer]:
    """A server one of whose answers, of some MB, is on its way to a client that does not read it."""
    world.snapshot = Snapshot(wall_s=0.0, version="0", runs=tuple(run_of("x" * 100 + str(n)) for n in range(5000)))
    with world.serve(limits=limits) as server, connect(server) as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert stuck.recv(1)
        yield server


def send_slowly(connection: socket.socket, sent: bytes) -> None:
    """A byte each 50 ms, until the server closes the connection; fails when that does not happen in time."""
    end_s = time.monotonic() + DEADLINE_S
    for position in range(len(sent)):
        readable, _, _ = select.select([connection], [], [], 0.05)
        if readable:
            return
        assert time.monotonic() < end_s, f"still open after {position} bytes"
        connection.sendall(sent[position : position + 1])


def test_after_the_first_request_of_a_connection_nothing_is_read(server: HttpServer) -> None:
    with connect(server) as rough:
        rough.sendall(
            b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" + bytes(range(256)) + b"GET /metrics HTTP/1.1\r\n\r\n"
        )
        answer = read_all(rough)
    assert answer.startswith(b"HTTP/1.0 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\nok\n")
    assert ask(server, "/healthz").status == 200


@pytest.mark.parametrize(
    ("garbage", "status"),
    [
        (bytes(range(256)) + b"\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),  # the beginning of TLS
        (b"GET\r\n\r\n", b"400"),
        (b"GET / HTTP/3.0\r\n\r\n", b"505"),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", b"431"),
        (b"GET / HTTP/1.1\r\nA: " + b"b" * 70_000 + b"\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\n" + (b"A: " + b"b" * 8_000 + b"\r\n") * 9 + b"\r\n", b"431"),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", b"414"),
    ],
    ids=["bytes", "tls", "no path", "version", "many headers", "long header", "long headers", "long request line"],
)
def test_what_is_no_request_is_refused_in_json(server: HttpServer, garbage: bytes, status: bytes) -> None:
    with connect(server) as rough:
        rough.sendall(garbage)
        head, _, body = read_all(rough).partition(b"\r\n\r\n")
    assert head.split(b" ")[1] == status
    assert json.loads(body)["error"]
    assert ask(server, "/healthz").status == 200


def test_one_request_too_many_is_turned_away(world: World) -> None:
    inside, released = threading.Semaphore(0), threading.Event()

    def read_slowly() -> tuple[Incident, ...]:
        inside.release()
        assert released.wait(DEADLINE_S)
        return ()

    world.read_incidents = read_slowly
    with world.serve(limits=HttpLimits(answers_max=2)) as server:
        asking = [threading.Thread(target=ask, args=(server, "/api/v1/incidents")) for _ in range(2)]
        for thread in asking:
            thread.start()
            assert inside.acquire(timeout=DEADLINE_S)
        answer = ask(server, "/api/v1/runs")
        assert (answer.status, answer.error) == (503, "2 requests are being answered; try again later")
        assert server.refused == {"busy": 1}
        assert ask(server, "/healthz").status == 200
        released.set()
        for thread in asking:
            thread.join(DEADLINE_S)


def test_a_place_is_free_again_when_its_answer_is_out(world: World) -> None:
    with world.serve(limits=HttpLimits(answers_max=1)) as server:
        assert ask(server, "/api/v1/runs").status == 200
        wait_for(lambda: ask(server, "/api/v1/runs").status == 200 or None, lambda: str(server.refused))


def test_a_mistake_of_ours_costs_one_request_and_is_counted(server: HttpServer, world: World) -> None:
    def fail() -> Snapshot:
        raise ZeroDivisionError

    world.read = fail
    answer = ask(server, "/api/v1/runs")
    assert (answer.status, answer.error) == (500, "internal error of the collector; see its log")
    assert server.errors_contained == 1
    assert ask(server, "/healthz").status == 200


def test_repeated_mistake_is_counted_each_time_and_logged_once(
    server: HttpServer, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> Snapshot:
        raise ZeroDivisionError

    world.read = fail
    for _ in range(3):
        assert ask(server, "/api/v1/runs").status == 500
    assert server.errors_contained == 3
    assert len([one for one in caplog.records if one.exc_info and "could not be answered" in one.getMessage()]) == 1


def test_requests_at_the_same_time_are_answered_at_the_same_time(world: World) -> None:
    both_are_in = threading.Barrier(2, timeout=DEADLINE_S)

    def read_together() -> tuple[Incident, ...]:
        both_are_in.wait()
        return ()

    world.read_incidents = read_together
    with world.serve() as server:
        first = threading.Thread(target=ask, args=(server, "/api/v1/incidents"))
        first.start()
        assert ask(server, "/api/v1/incidents").status == 200
        first.join(DEADLINE_S)


def test_nothing_is_written_to_stderr(server: HttpServer, capfd: pytest.CaptureFixture[str]) -> None:
    ask(server, "/metrics")
    ask(server, "/nowhere")
    with connect(server) as rough:
        rough.sendall(b"\x00\r\n\r\n")
        read_all(rough)
    assert capfd.readouterr() == ("", "")


# -- listening --------------------------------------------------------------------------------------------------------


def test_the_url_has_the_real_port(server: HttpServer) -> None:
    with urllib.request.urlopen(f"{server.url}/healthz", timeout=DEADLINE_S) as answer:
        assert answer.read() == b"ok\n"


def test_listening_everywhere_the_url_has_the_machine_s_name(world: World) -> None:
    with world.serve("*:0") as server:
        assert urlsplit(server.url).hostname == socket.gethostname().lower()
        with closing(
            http.client.HTTPConnection("127.0.0.1", urlsplit(server.url).port, timeout=DEADLINE_S)
        ) as connection:
            connection.request("GET", "/healthz")
            assert connection.getresponse().status == 200


def test_a_taken_port_is_told_with_the_cure(server: HttpServer, world: World) -> None:
    address = server.url.removeprefix("http://")
    with pytest.raises(UnavailableError) as raised, world.serve(address):
        pass
    assert str(raised.value) == (
        f"the collector's HTTP server cannot listen at {address}: Address already in use. Stop what listens there, or "
        "give another address of this machine."
    )


def test_an_address_without_a_port_is_the_user_s_mistake() -> None:
    with pytest.raises(SettingError, match="the collector's HTTP address is 'localhost'; it must be HOST:PORT"):
        listen_http("localhost")


def test_close_frees_port_ends_thread_and_may_be_called_twice(world: World) -> None:
    before = set(threading.enumerate())
    with world.serve() as server:
        address = server.url.removeprefix("http://")
        assert {thread.name for thread in set(threading.enumerate()) - before} == {"rankscope-http", "rankscope-live"}
        server.close()
        server.close()
        assert set(threading.enumerate()) <= before
        with world.serve(address) as again:
            assert ask(again, "/healthz").status == 200


def test_scrape_reads_the_nodes_of_the_store(world: World, tmp_path: Path) -> None:
    with world.serve(store=keep_run(tmp_path, "bert", steps=1)) as server:
        assert server.nodes is None
        assert ask(server, "/metrics").status == 200
        found = wait_for(lambda: server.nodes, lambda: "the nodes were not read")
        assert [(node.node, node.runs, node.runs_held_up) for node in found.nodes] == [("node-a", 1, 0)]


def test_incidents_have_the_history_of_their_nodes(world: World, tmp_path: Path) -> None:
    path = keep_bad_node(tmp_path)
    world.incidents = read_store(path).incidents
    text = "node-b has held up 3 of its last 4 runs: consider excluding it (rankscope nodes --exclude-file)"
    with world.serve(store=path) as server:
        found = json.loads(ask(server, "/api/v1/incidents").body)["incidents"]
        assert [one["node_history"] for one in found] == [[text]] * 3
    path.unlink()
    with world.serve(store=path) as server:
        found = json.loads(ask(server, "/api/v1/incidents").body)["incidents"]
        assert [one["node_history"] for one in found] == [[]] * 3
