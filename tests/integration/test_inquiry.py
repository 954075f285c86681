"""Commands that ask a collector, where another server answers at its address."""

import contextlib
import json
import socketserver
import threading
from collections.abc import Iterator

import pytest

from rankscope.collector import client
from rankscope.collector.commands.main import main

A_PAGE = b"<!doctype html><title>Sign in</title>"
AT_ANY_PAGE = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(A_PAGE), A_PAGE)
OF_ANOTHER_KIND = b'HTTP/1.1 200 OK\r\nContent-Length: 19\r\nConnection: close\r\n\r\n{"runs": ["a", "b"]}'
NO_TEXT = b'HTTP/1.1 200 OK\r\nContent-Length: 19\r\nConnection: close\r\n\r\n{"runs": ["a\xff", "b"]'
ENDS_EARLY = b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\nConnection: close\r\n\r\n{"runs"'
FAILS_EARLY = b'HTTP/1.1 503 Unavailable\r\nContent-Length: 1000\r\nConnection: close\r\n\r\n{"err'
AGENTS_WIRE = b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x01NULL" + bytes(48) + b"\r\n"
NOTHING = b""

COMMANDS = (
    ("status",),
    ("status", "--json"),
    ("incidents",),
    ("report", "a run"),
    ("top", "--once"),
)


@contextlib.contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """A server that says this to whoever asks, and its address."""

    class Answer(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline().strip():
                pass
            self.wfile.write(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("answer", [AT_ANY_PAGE, OF_ANOTHER_KIND, NO_TEXT], ids=["a page", "another kind", "no text"])
def test_other_server_is_not_a_collector(
    command: tuple[str, ...], answer: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(answer) as url:
        assert main([*command, "--url", url]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"rankscope: what answers at {url}/api/v1/")
    assert " is no rankscope collector, or one of another version: " in shown.err
    assert shown.err.endswith(". --url (RANKSCOPE_URL) must name the collector's HTTP address.\n")
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize("command", COMMANDS[:2], ids=" ".join)
@pytest.mark.parametrize("answer", [ENDS_EARLY, AGENTS_WIRE, NOTHING], ids=["ends early", "agents' wire", "nothing"])
def test_invalid_answer_is_not_a_collectors(
    command: tuple[str, ...], answer: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(answer) as url:
        assert main([*command, "--url", url]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"rankscope: no collector answers at {url}/api/v1/")


def test_endless_answer_is_cut_off(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ANSWER_BYTES_MAX", 16)
    with answering(AT_ANY_PAGE) as url:
        assert main(["status", "--url", url]) == 1
    assert capsys.readouterr().err == (
        f"rankscope: what answers at {url}/api/v1/runs is no rankscope collector: its answer has more than 16 bytes. "
        "--url (RANKSCOPE_URL) must name the collector's HTTP address.\n"
    )


def test_truncated_refusal_is_reported_by_its_number(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(FAILS_EARLY) as url:
        assert main(["status", "--url", url]) == 1
    assert capsys.readouterr().err == f"rankscope: the collector at {url}/api/v1/runs answers 503: Unavailable\n"


def test_doctor_reports_other_servers(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(AT_ANY_PAGE) as url:
        main(["doctor", "--url", url, "--json"])
    (found,) = (check for check in json.loads(capsys.readouterr().out) if check["name"] == "http")
    assert "is no rankscope collector" in found["found"]
