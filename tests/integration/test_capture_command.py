"""`rankscope capture` against a real server, with a stand-in for the service that takes orders."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from msgspec.structs import replace

from rankscope.collector.captures.capture import (
    Around,
    Capture,
    CaptureFile,
    CaptureRefusal,
    CaptureRequest,
    RankCapture,
)
from rankscope.collector.commands.capture import FAILED_POLLS_MAX, follow
from rankscope.collector.commands.main import main
from rankscope.collector.publish.http_auth import OPEN, HttpAuth
from rankscope.collector.publish.http_listener import listen_http
from rankscope.collector.publish.http_server import HttpServer
from rankscope.collector.runs.snapshot import Snapshot
from rankscope.measure.errors import UnavailableError

CONTROL: Final = "control-0123456789abcdef"
READ: Final = "read-0123456789abcdef"
TRACE: Final = bytes(range(256)) * 10_000
"""2.56 MB: more than two blocks of a download."""
TRACE_NAME: Final = "rank-3.pt.trace.json.gz"
COMPLETE: Final = Capture(
    id="c1", run="bert", run_id="bert@1", state="complete", asked_wall_s=5.0, changed_wall_s=9.0,
    first_step=501, last_step=505,
    ranks=(RankCapture(rank=3, expected_pause_s=0.25, pause_s=0.5), RankCapture(rank=7, pause_s=0.125)),
    verdict="rank 3 is slow\nby 12 %",
    files=(CaptureFile("report.html", 6), CaptureFile(TRACE_NAME, len(TRACE))),
)  # fmt: skip
ORDERED: Final = replace(
    COMPLETE, state="ordered", ranks=(RankCapture(rank=3), RankCapture(rank=7)), verdict="", files=()
)
ORDER_LINE: Final = "capture c1 of bert: ranks 3, 7, steps 501-505\n"


class Service:
    """What takes orders in a collector. `on_read` is called when captures are asked for."""

    def __init__(self, folder: Path) -> None:
        self.requests: list[CaptureRequest] = []
        self.answer: Capture | CaptureRefusal = COMPLETE
        self.kept = COMPLETE
        self.on_read: Callable[[], object] = bool
        self.folder = folder

    def order(self, request: CaptureRequest) -> Capture | CaptureRefusal:
        self.requests.append(request)
        return self.answer

    def read(self) -> tuple[Capture, ...]:
        self.on_read()
        return (self.kept,)


@pytest.fixture
def service(tmp_path: Path) -> Service:
    own = tmp_path / "captures" / "c1"
    own.mkdir(parents=True)
    (own / "report.html").write_text("<html>")
    (own / TRACE_NAME).write_bytes(TRACE)
    return Service(own.parent)


@contextlib.contextmanager
def serve(service: Service, access: HttpAuth) -> Iterator[str]:
    server = HttpServer(
        listen_http("127.0.0.1:0"), lambda: Snapshot(wall_s=0.0, version="0"), tuple,
        is_healthy=lambda: None, is_ready=lambda: None, access=access,
        order_capture=service.order, read_captures=service.read, captures_folder=service.folder,
    )  # fmt: skip
    try:
        yield server.url
    finally:
        server.close()


@pytest.fixture(autouse=True)
def only_these_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without what whoever runs the tests has set for himself; the control token is in a file."""
    for name in [name for name in os.environ if name.startswith("RANKSCOPE") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("RANKSCOPE_CONTROL_TOKEN_FILE", write_token(tmp_path / "control", CONTROL))


@pytest.fixture
def url(service: Service) -> Iterator[str]:
    with serve(service, HttpAuth(READ, None, CONTROL)) as url:
        yield url


def write_token(path: Path, token: str) -> str:
    path.write_text(token)
    path.chmod(0o600)
    return str(path)


# -- the order --------------------------------------------------------------------------------------------------------


def test_order_is_told_with_its_id_ranks_and_steps(
    service: Service, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--ranks", "7, 3", "--steps", "5", "--shapes", "--memory", "--force", "--url", url]
    assert main(["capture", "bert/2", *words]) == 0
    assert capsys.readouterr().out == f"{ORDER_LINE}{url}/api/v1/captures/c1 shows how far it is\n"
    assert service.requests == [
        CaptureRequest(
            run="bert/2", ranks=(7, 3), steps=5, options=("shapes", "memory"), is_forced=True, asked_by="127.0.0.1"
        )
    ]  # fmt: skip


@pytest.mark.parametrize("ranks", ["slowest", "all"])
def test_ranks_may_be_words(service: Service, url: str, ranks: str) -> None:
    assert main(["capture", "bert", "--ranks", ranks, "--url", url]) == 0
    assert service.requests == [CaptureRequest(run="bert", ranks=ranks, steps=3, asked_by="127.0.0.1")]


def test_rank_may_come_with_those_beside_it(service: Service, url: str) -> None:
    assert main(["capture", "bert", "--ranks", "around:3", "--url", url]) == 0
    assert service.requests == [CaptureRequest(run="bert", ranks=Around(3), steps=3, asked_by="127.0.0.1")]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--ranks", "around:3,7"],
            "--ranks has '3,7'; it must be rank numbers such as 3,7, or around:3, slowest or all.",
        ),
        (["--ranks", "3,x"], "--ranks has 'x'; it must be rank numbers such as 3,7, or around:3, slowest or all."),
        (["--ranks", "-1"], "--ranks has '-1'; it must be rank numbers such as 3,7, or around:3, slowest or all."),
        (["--ranks", ""], "--ranks has ''; it must be rank numbers such as 3,7, or around:3, slowest or all."),
        (["--steps", "0"], "--steps is 0; it must be from 1 to 100."),
        (["--steps", "101"], "--steps is 101; it must be from 1 to 100."),
    ],
)
def test_mistake_is_told_and_nothing_is_ordered(
    service: Service, url: str, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(["capture", "bert", f"{words[0]}={words[1]}", "--url", url]) == 2
    assert capsys.readouterr().err == f"rankscope: {said}\n"
    assert service.requests == []


@pytest.mark.parametrize("status", [404, 409, 422, 503])
def test_refusal_of_the_collector_is_printed_as_it_is(
    service: Service, url: str, capsys: pytest.CaptureFixture[str], status: int
) -> None:
    service.answer = CaptureRefusal(status, "capture c0 of this run has not ended. Order again when it is over")
    assert main(["capture", "bert", "--wait", "--url", url]) == 1
    asked = f"{url}/api/v1/runs/bert/captures"
    said = f"rankscope: the collector at {asked} answers {status}: {service.answer.error}\n"
    assert capsys.readouterr() == ("", said)


# -- the token --------------------------------------------------------------------------------------------------------


def test_without_a_control_token_nothing_is_asked(
    service: Service, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RANKSCOPE_CONTROL_TOKEN_FILE")
    assert main(["capture", "bert", "--url", url]) == 2
    assert capsys.readouterr().err == (
        "rankscope: control_token_file is empty; an order needs the control token. Name a copy of the file that the "
        "collector's http_control_token_file names with --control-token-file (RANKSCOPE_CONTROL_TOKEN_FILE).\n"
    )
    assert service.requests == []


def test_token_for_reading_orders_nothing(
    service: Service, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_token(tmp_path / "read", READ)
    assert main(["capture", "bert", "--control-token-file", file, "--url", url]) == 1
    assert capsys.readouterr().err == (
        f"rankscope: the collector at {url}/api/v1/runs/bert/captures answers 403: this is not the token of "
        "http_control_token_file, and only that one allows orders; the one for reading does not\n"
    )
    assert service.requests == []


def test_collector_that_takes_no_orders_says_how_it_would(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    with serve(service, OPEN) as url:
        assert main(["capture", "bert", "--url", url]) == 1
    assert (
        "answers 403: this collector takes no orders over HTTP; to allow them start it with" in capsys.readouterr().err
    )


def test_file_without_a_token_is_named_with_the_setting(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_token(tmp_path / "empty", "")
    assert main(["capture", "bert", "--control-token-file", file, "--url", url]) == 2
    assert capsys.readouterr().err == (
        f"rankscope: control_token_file is {file!r} (from the command line), which holds no token: that is one word of "
        "ASCII characters. Name a copy of the file that the collector's http_control_token_file names.\n"
    )


# -- until it has ended -----------------------------------------------------------------------------------------------


def test_capture_is_followed_to_its_end(service: Service, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    service.answer = ORDERED
    assert main(["capture", "bert", "--wait", "--url", url]) == 0
    assert capsys.readouterr().out == (
        f"{ORDER_LINE}it is expected to stop training for 250.0 ms\ncomplete\nit has stopped training for 500.0 ms\n"
        f"rank 3 is slow\nby 12 %\nreport: {url}/api/v1/captures/c1/files/report.html\n"
    )


def test_failed_capture_is_a_failure(service: Service, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    service.answer = replace(ORDERED, state="failed", problem="rank 3: a profiler of the script is on")
    assert main(["capture", "bert", "--wait", "--url", url]) == 1
    assert capsys.readouterr().out == f"{ORDER_LINE}failed: rank 3: a profiler of the script is on\n"


def test_interrupt_ends_the_command_and_not_the_capture(
    service: Service, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    service.answer = service.kept = ORDERED
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    service.on_read = lambda: signal.pthread_kill(main_thread, signal.SIGINT)
    assert main(["capture", "bert", "--wait", "--url", url]) == 130
    said = f"rankscope: a capture that has been ordered goes on; {url}/api/v1/captures/c1 shows it\n"
    assert capsys.readouterr() == (ORDER_LINE, said)
    assert len(service.requests) == 1


def test_collector_that_is_started_again_is_followed_on(capsys: pytest.CaptureFixture[str]) -> None:
    silence = [UnavailableError("no collector answers.")] * (FAILED_POLLS_MAX - 1)  # 29 polls, twice
    answers: Iterator[Capture | UnavailableError] = iter(
        [*silence, replace(ORDERED, state="fetching"), *silence, COMPLETE]
    )
    slept_s: list[float] = []
    assert follow(lambda: give(answers), ORDERED, slept_s.append) == COMPLETE
    shown = capsys.readouterr()
    assert shown.out.splitlines()[0] == "fetching: the files are on their way to the collector"
    assert shown.err == "rankscope: no collector answers. It is asked again.\n" * 2  # once for each silence
    assert slept_s == [1.0] * 60


def test_collector_that_stays_away_is_given_up() -> None:
    answers = iter([UnavailableError("no collector answers.")] * FAILED_POLLS_MAX)
    with pytest.raises(UnavailableError) as raised:
        follow(lambda: give(answers), ORDERED, lambda _: None)
    assert str(raised.value) == "no collector answers. The capture may go on all the same."
    assert next(answers, None) is None


def give(answers: "Iterator[Capture | UnavailableError] | Iterator[UnavailableError]") -> Capture:
    answer = next(answers)
    if isinstance(answer, UnavailableError):
        raise answer
    return answer


# -- its files --------------------------------------------------------------------------------------------------------


def test_files_are_downloaded_whole(
    service: Service, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "traces"
    assert main(["capture", "bert", "-o", str(folder), "--url", url]) == 0
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"report.html": b"<html>", TRACE_NAME: TRACE}
    assert capsys.readouterr().out.splitlines()[-3:] == [
        f"{folder}/report.html",
        f"{folder}/{TRACE_NAME}",
        f"report: {url}/api/v1/captures/c1/files/report.html",
    ]
    assert len(service.requests) == 1


def test_folder_with_files_is_refused_before_the_order(
    service: Service, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "mine").write_text("")
    assert main(["capture", "bert", "-o", str(tmp_path / "traces"), "--url", url]) == 2
    said = f"-o is '{tmp_path}/traces', which has files in it. Name a new or an empty folder."
    assert capsys.readouterr().err == f"rankscope: {said}\n"
    assert service.requests == []


def test_file_in_place_of_the_folder_is_refused(
    service: Service, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "traces").write_text("")
    assert main(["capture", "bert", "-o", str(tmp_path / "traces"), "--url", url]) == 2
    said = f"-o is '{tmp_path}/traces', which cannot be used: File exists. Name another."
    assert capsys.readouterr().err == f"rankscope: {said}\n"
    assert service.requests == []


@pytest.mark.parametrize("name", ["../outside", "/outside", "a\\b", ".bashrc", "..", "c:x", "a\x1b[2J", "x" * 201])
def test_name_that_could_lead_elsewhere_is_not_fetched(
    service: Service, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    service.answer = replace(COMPLETE, files=(CaptureFile(name, 6),))
    before = sorted(tmp_path.rglob("*"))
    assert main(["capture", "bert", "-o", str(tmp_path / "traces"), "--url", url]) == 1
    shown = capsys.readouterr().err
    assert shown.endswith("', which is no plain name: not fetched.\n")
    assert "\x1b" not in shown
    assert sorted(tmp_path.rglob("*")) == sorted([*before, tmp_path / "traces"])


@pytest.mark.parametrize("listed", [len(TRACE) - 1, len(TRACE) + 1])
def test_file_of_another_length_is_not_kept(
    service: Service, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], listed: int
) -> None:
    service.answer = replace(COMPLETE, files=(CaptureFile(TRACE_NAME, listed),))
    assert main(["capture", "bert", "-o", str(tmp_path / "traces"), "--url", url]) == 1
    source = f"{url}/api/v1/captures/c1/files/{TRACE_NAME}"
    words = "more" if listed < len(TRACE) else "fewer"
    said = f"rankscope: {source} has {words} bytes than the {listed} that the collector lists.\n"
    assert capsys.readouterr().err == said
    assert list((tmp_path / "traces").iterdir()) == []


def test_file_that_the_collector_has_lost_is_an_error(
    service: Service, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (service.folder / "c1" / "report.html").unlink()
    assert main(["capture", "bert", "-o", str(tmp_path / "traces"), "--url", url]) == 1
    assert f"the collector at {url}/api/v1/captures/c1/files/report.html answers 404: " in capsys.readouterr().err
    assert list((tmp_path / "traces").iterdir()) == []
