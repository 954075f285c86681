"""The plugin of node-problem-detector, as a process that asks a real API: status, message, and what it withstands."""

import contextlib
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import pytest

from rankscope.collector.publish.http_auth import HttpAuth
from rankscope.collector.publish.http_listener import listen_http
from rankscope.collector.publish.http_server import HttpServer
from rankscope.collector.runs.snapshot import Snapshot
from tests.integration.serving import DEADLINE_S, find_fixed_port
from tests.unit.collector.incidents.bad_node import keep_bad_node

PLUGIN: Final = Path(__file__).parents[2] / "deploy" / "k8s" / "node-condition" / "check-node.sh"
OK, EXCLUDE, UNKNOWN = 0, 1, 2
MESSAGE_BYTES_MAX: Final = 80
"""What node-problem-detector keeps of a message (`max_output_length`)."""


class Told(NamedTuple):
    """How the plugin ended, and its message."""

    status: int
    message: str


def check(address: str, node: str, **settings: str) -> Told:
    """Run the plugin as node-problem-detector does, by its path and with no arguments."""
    environment = {
        "PATH": os.environ["PATH"], "RANKSCOPE_HTTP": address, "NODE_NAME": node, "RANKSCOPE_WAIT_S": "20", **settings,
    }  # fmt: skip
    done = subprocess.run(
        [str(PLUGIN)], env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.stderr == ""
    message = done.stdout.removesuffix("\n")
    assert "\n" not in message
    assert len(message.encode()) <= MESSAGE_BYTES_MAX
    return Told(done.returncode, message)


@contextmanager
def serving(store: Path | None, token: str = "") -> Iterator[str]:
    """A collector's HTTP server with this store; its address."""
    snapshot = Snapshot(wall_s=0.0, version="0")
    server = HttpServer(
        listen_http("127.0.0.1:0"), lambda: snapshot, tuple, is_healthy=lambda: None, is_ready=lambda: None,
        access=HttpAuth(token=token), store=store,
    )  # fmt: skip
    with closing(server):
        yield urlsplit(server.url).netloc


@contextmanager
def answering(body: bytes | None) -> Iterator[str]:
    """A server that answers each request with these bytes; None: never."""

    def answer() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connections.append(connection)
            if body is not None:
                with connection, contextlib.suppress(OSError):  # it reads only so much
                    connection.recv(4_096)
                    connection.sendall(body)

    connections: list[socket.socket] = []
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        for connection in connections:
            connection.close()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in which node-b held up three of four runs, and node-a none."""
    return keep_bad_node(tmp_path_factory.mktemp("store"))


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ("node-b", Told(EXCLUDE, "recommendation to exclude it: held up 3 of its last 4 runs")),
        ("node-a", Told(OK, "held up 0 of its last 4 runs")),
        ("node-of-no-run.example.com", Told(OK, "no run in the store used this node")),
    ],
)
def test_plugin_says_what_the_store_knows_of_its_node(store: Path, node: str, expected: Told) -> None:
    with serving(store) as address:
        assert check(address, node) == expected


def test_plugin_sends_the_token(store: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-of-32-characters-or-so-ok\n")
    with serving(store, "a-token-of-32-characters-or-so-ok") as address:
        assert check(address, "node-b", RANKSCOPE_TOKEN_FILE=str(token)).status == EXCLUDE
        assert check(address, "node-b") == Told(UNKNOWN, "the collector answers: 401 Unauthorized")
        token.write_text("two words")
        assert check(address, "node-b", RANKSCOPE_TOKEN_FILE=str(token)).message == "the token file has no token"


def test_collector_without_a_store_is_unknown() -> None:
    with serving(None) as address:
        assert check(address, "node-b") == Told(UNKNOWN, "the collector answers: 404 Not Found")


def test_collector_that_is_gone_is_unknown() -> None:
    told = check(f"127.0.0.1:{find_fixed_port()}", "node-b")
    assert told == Told(UNKNOWN, "no answer from the collector within 20 s")


def test_collector_that_does_not_answer_is_unknown_in_time() -> None:
    with answering(None) as address:
        told = check(address, "node-b", RANKSCOPE_WAIT_S="1")
    assert told == Told(UNKNOWN, "no answer from the collector within 1 s")


HEAD: Final = b"HTTP/1.0 200 OK\r\n\r\n"


@pytest.mark.parametrize(
    "body",
    [
        b"\x00\xff\n" * 100_000,
        b"HTTP/1.0 500 " + b"x" * 300 + b"\r\n\r\n",
        HEAD,
        HEAD + b'{"nodes":[]}',
        HEAD + b'{"node":"node-b","runs":4,"runs_held_up":3,"ratio_low":0.3}',
        HEAD + b'{"node":"\\"exclude\\":true","runs":4,"runs_held_up":3,"ratio_low":0.3}',
        HEAD + b'{"node":"node-b","runs":4,"runs_held_up":3,"exclude":true',
    ],
    ids=["bytes", "long", "empty", "another", "earlier release", "in a text", "cut"],
)
def test_answer_that_is_no_record_is_unknown(body: bytes) -> None:
    with answering(body) as address:
        assert check(address, "node-b").status == UNKNOWN


@pytest.mark.parametrize("node", ["", "node b", "node-b\r\nX: y", "../runs", "$(id)"])
def test_name_that_is_no_node_is_not_sent(node: str) -> None:
    assert check("127.0.0.1:1", node) == Told(UNKNOWN, "NODE_NAME is no name of a node")


@pytest.mark.parametrize("address", ["", "http://c:1", "c", "c:port"])
def test_address_that_is_none_is_unknown(address: str) -> None:
    assert check(address, "node-b") == Told(UNKNOWN, "RANKSCOPE_HTTP is not HOST:PORT")
