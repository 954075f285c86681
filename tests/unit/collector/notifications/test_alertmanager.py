"""A test alert goes to an Alertmanager, which says whether it accepted it, and for whom."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from rankscope.collector.commands.main import main
from rankscope.collector.notifications.alertmanager import ALERT, AlertResult, send_to_alertmanager
from rankscope.measure.errors import SettingError

WALL_S = 1_800_000_000.0


class Alertmanager:
    """A strict stand-in for API v2: keeps alerts, shows those that match from the `shows_after`-th question on."""

    def __init__(self, *, shows_after: int = 1, state: str = "active", receivers: tuple[str, ...] = ("pager",)) -> None:
        self.alerts: list[dict[str, Any]] = []
        self.asked = 0
        self.shows_after, self.state, self.receivers = shows_after, state, receivers

    def answer(self, method: str, target: str, body: bytes) -> tuple[int, Any]:
        parts = urlsplit(target)
        if parts.path != "/am/api/v2/alerts":
            return 404, None
        if method == "POST":
            self.alerts += json.loads(body)
            return 200, None
        self.asked += 1
        (wanted,) = parse_qs(parts.query)["filter"]
        chosen = [one for one in self.alerts if wanted == f'run="{one["labels"]["run"]}"']
        shown = {"receivers": [{"name": name} for name in self.receivers], "status": {"state": self.state}}
        return 200, [{**one, **shown} for one in chosen] if self.asked >= self.shows_after else []


@contextmanager
def serving(stand_in: Any) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self._answer("POST", self.rfile.read(int(self.headers["Content-Length"])))

        def do_GET(self) -> None:
            self._answer("GET", b"")

        def _answer(self, method: str, body: bytes) -> None:
            status, found = stand_in.answer(method, self.path, body)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"" if found is None else json.dumps(found).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/am/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def ask(stand_in: Any) -> AlertResult:
    with serving(stand_in) as url:
        return send_to_alertmanager(url, WALL_S, wait=lambda _seconds: None, asks=3)


def test_alertmanager_says_who_is_notified() -> None:
    stand_in = Alertmanager(shows_after=2, receivers=("pager", "chat"))
    found = ask(stand_in)
    assert (found.is_accepted, found.text) == (
        True, f"accepted the alert {ALERT} for the receivers pager, chat; it ends after 5 minutes"
    )  # fmt: skip
    (alert,) = stand_in.alerts
    assert alert["labels"]["severity"] == "warning"
    assert (alert["startsAt"], alert["endsAt"]) == ("2027-01-15T08:00:00+00:00", "2027-01-15T08:05:00+00:00")


@pytest.mark.parametrize(
    ("stand_in", "text"),
    [
        (
            Alertmanager(state="suppressed"),
            "for the receiver pager; it is silenced or inhibited, so nobody is notified",
        ),
        (Alertmanager(receivers=()), "for no receiver"),
        (Alertmanager(shows_after=4), "did not show the alert within 10 s"),
    ],
)
def test_alert_of_which_nobody_hears_is_not_accepted(stand_in: Alertmanager, text: str) -> None:
    found = ask(stand_in)
    assert not found.is_accepted
    assert text in found.text


class Other:
    """A server that is no Alertmanager."""

    def answer(self, method: str, _target: str, _body: bytes) -> tuple[int, Any]:
        return (200, None) if method == "POST" else (200, {"status": "ok"})


def test_other_servers_and_none_are_named() -> None:
    assert "the answer is none of an Alertmanager with API v2" in ask(Other()).text
    with serving(Other()) as url:
        pass
    found = send_to_alertmanager(url, WALL_S, wait=lambda _seconds: None, asks=1)
    assert (found.is_accepted, "did not accept the alert: [Errno 111]" in found.text) == (False, True)
    for wrong in ("alertmanager:9093", "ftp://host", "http://"):
        with pytest.raises(SettingError, match="give its address, as in http://alertmanager:9093"):
            send_to_alertmanager(wrong, WALL_S)


def test_command_exits_by_whether_it_was_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Alertmanager()) as url:
        assert main(["notify", "--alertmanager", url]) == 0
    assert capsys.readouterr().out.startswith(f"alertmanager: accepted the alert {ALERT} for the receiver pager")
    assert main(["notify", "--alertmanager", url]) == 1
    assert "did not accept the alert" in capsys.readouterr().out


def test_command_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["notify"]) == 2
    assert "no receiver of notifications is set" in capsys.readouterr().err
