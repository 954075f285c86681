"""Clients that hold connections of a running collector, send slowly or do not read: scrapes and health go on.

All of them come from this machine, as the scrapes do, so no limit for each client address helps here.
"""

import contextlib
import select
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from rankscope.collector.storage.database import Database
from rankscope.collector.storage.run_store import HistoryStore
from rankscope.collector.storage.write_batch import WriteBatch
from tests.integration.serving import HTTP_TIMEOUT_S, Served, serving, wait_for
from tests.unit.collector.runs.kept_runs import life_of, run_of

MIB = 1 << 20
CONNECTIONS = 96
"""Three times as many as answers at a time, and half as many again as requests that are being read."""
SCRAPES = 5
RANKS = 8192
RESIDENT_BYTES_MAX = 384 * MIB
"""64 MiB for answers; the rest is for the snapshots and pages that are made meanwhile, and what malloc keeps."""
TOKEN = "0123456789abcdef0123456789abcdef"  # noqa: S105 - of this test only


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    """The collector's token."""
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text(TOKEN)
    return path


@contextlib.contextmanager
def connecting(served: Served, sent: bytes, again: bytes = b"") -> Iterator[None]:
    """Clients that send `sent` and read nothing; `again` every 0.1 s. Whoever is cut off connects anew at once."""
    ended = threading.Event()

    def attack() -> None:
        connections: list[socket.socket] = []
        while not ended.is_set():
            while len(connections) < CONNECTIONS:
                with contextlib.suppress(OSError):
                    connections.append(_connect(served, sent))
            connections = [each for each in connections if _go_on(each, again)]
            ended.wait(0.1)
        for each in connections:
            each.close()

    thread = threading.Thread(target=attack)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _connect(served: Served, sent: bytes) -> socket.socket:
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(HTTP_TIMEOUT_S)
    connection.connect(("127.0.0.1", served.ports[1]))
    connection.sendall(sent)
    return connection


def _go_on(connection: socket.socket, again: bytes) -> bool:
    """Send once more; whether the connection is still open. One whose answer waits to be read is."""
    events = select.poll()
    events.register(connection, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
    try:
        if events.poll(0):
            raise ConnectionResetError  # closed, as if it had been sent to
        connection.sendall(again)
    except OSError:
        connection.close()
        return False
    return True


def ask(served: Served, path: str, **headers: str) -> tuple[int, str]:
    """Status and body of an answer, whatever the status."""
    request = urllib.request.Request(f"{served.url}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=HTTP_TIMEOUT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def count_refused(page: str, reason: str) -> float:
    """How many requests a page of metrics says were refused for a reason; 0 while it is not on the page."""
    line = f'rankscope_http_refused_total{{reason="{reason}"}} '
    return next((float(text.removeprefix(line)) for text in page.splitlines() if text.startswith(line)), 0.0)


@pytest.mark.parametrize(
    ("sent", "again"), [(b"", b""), (b"GET /metrics HTTP/1.1\r\nA: ", b"a"), (b"GET /metrics HT", b"")]
)
def test_requests_that_never_end_keep_nobody_out(token_file: Path, sent: bytes, again: bytes) -> None:
    with serving("--http-token-file", str(token_file)) as served, connecting(served, sent, again):

        def scrape() -> float | None:
            assert [ask(served, path)[0] for path in ("/healthz", "/readyz")] == [200, 200]
            status, page = ask(served, "/metrics", Authorization=f"Bearer {TOKEN}")
            assert status == 200
            return count_refused(page, "request_displaced") + count_refused(page, "slow_request") or None

        for _ in range(SCRAPES):
            wait_for(scrape, lambda: "no connection was closed")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with a run of RANKS ranks that a collector goes on with: everything about it is some MB of JSON."""
    path, batch = tmp_path / "store.db", WriteBatch()
    batch.put_run(msgspec.structs.replace(run_of("large"), world_size=RANKS))
    for rank in range(RANKS):
        batch.ranks["large", rank] = 0, life_of("large", rank)
    with contextlib.closing(Database(path)) as database, contextlib.closing(HistoryStore(database)) as history:
        history.write(batch)
    return path


def test_unread_answers_hold_bounded_memory_and_scrapes_go_on(store: Path) -> None:
    """A run of 8 MB as JSON: 32 unread answers of it would be 240 MB, and more of them with each new snapshot."""
    with serving(
        "--store", str(store), "--run-kept-s", "86400", environment={"RANKSCOPE_SERVE_CONSTANT_TICK_S": "1"}
    ) as served:
        served.wait_for_run("large", lambda run: len(run.ranks) == RANKS)
        before = read_resident_bytes(served)
        seen = [""]
        with connecting(served, b"GET /api/v1/runs/large HTTP/1.1\r\n\r\n"):

            def scrape() -> bool | None:
                assert [ask(served, path) for path in ("/healthz", "/readyz")] == [(200, "ok\n")] * 2
                status, seen[0] = ask(served, "/metrics")
                return True if status == 200 and count_refused(seen[0], "unread_response") > 0 else None

            wait_for(scrape, lambda: f"no unread answer was closed: {seen[0]}")
            assert read_resident_bytes(served) - before < RESIDENT_BYTES_MAX


def read_resident_bytes(served: Served) -> int:
    """What the collector's process has in memory."""
    return int(psutil.Process(served.pid).memory_info().rss)


def test_connections_without_token_take_no_place_among_answers(token_file: Path) -> None:
    sent = b"GET /metrics HTTP/1.1\r\nAuthorization: Bearer wrong-wrong-wrong\r\n\r\n"
    with serving("--http-token-file", str(token_file)) as served, connecting(served, sent):
        for _ in range(SCRAPES):
            assert ask(served, "/metrics", Authorization=f"Bearer {TOKEN}")[0] == 200
