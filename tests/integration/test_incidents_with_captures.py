"""Incidents and findings with the captures about them: over HTTP, by `rankscope incidents`, and over a restart."""

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from rankscope.collector.captures.capture import Capture, CaptureFile, RankCapture, find_captures_folder
from rankscope.collector.captures.store import CaptureStore, KeptCapture
from rankscope.collector.commands.main import main
from rankscope.collector.incidents.incident import begin, resolve
from rankscope.collector.incidents.store import IncidentStore
from rankscope.collector.publish.http_listener import listen_http
from rankscope.collector.publish.http_server import HttpServer
from rankscope.collector.runs.snapshot import RunSnapshot, Snapshot
from tests.integration.serving import read_url, serving, wait_for
from tests.unit.collector.detect.findings import slow

RUN = "bert@20261125T103005Z"
FINDING = slow(2, number=4)
RESOLVED = resolve(begin(3, RUN, slow(2, number=1), 1_000.0), "passed", 2_000.0, lost_rank_seconds=None)
OPEN = begin(7, RUN, FINDING, 5_000.0)
ANALYZED = Capture(
    id="c1", run="bert", run_id=RUN, state="complete", asked_wall_s=1_500.0, changed_wall_s=1_600.0,
    ranks=(RankCapture(rank=1), RankCapture(rank=2)), files=(CaptureFile("report.html", 6),),
)  # fmt: skip
RECORDING = replace(ANALYZED, id="c2", state="recording", asked_wall_s=6_000.0, files=(), incident="7")
FAILED = replace(RECORDING, id="c3", state="failed", problem="rank 2: too late", asked_wall_s=5_500.0, incident="")


@pytest.fixture(autouse=True)
def only_these_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without what whoever runs the tests has set for himself."""
    for name in [name for name in os.environ if name.startswith("RANKSCOPE") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@contextlib.contextmanager
def serve(*captures: Capture) -> Iterator[str]:
    """A server of both incidents and these captures."""
    run = RunSnapshot(
        run="bert", run_id=RUN, world_size=4, restart_count=0, ranks=(), open_findings=(FINDING,), findings=(FINDING,)
    )
    server = HttpServer(
        listen_http("127.0.0.1:0"), lambda: Snapshot(wall_s=0.0, version="0", runs=[run]), lambda: (RESOLVED, OPEN),
        is_healthy=lambda: None, is_ready=lambda: None, read_captures=lambda: captures,
    )  # fmt: skip
    try:
        yield server.url
    finally:
        server.close()


def ask(url: str) -> Any:
    return json.loads(read_url(url))


def captures_by_incident(url: str) -> dict[int, list[str]]:
    return {one["id"]: one["captures"] for one in ask(f"{url}/api/v1/incidents")["incidents"]}


# -- over HTTP --------------------------------------------------------------------------------------------------------


def test_incidents_have_the_ids_of_their_captures() -> None:
    with serve(RECORDING, FAILED, ANALYZED) as url:
        assert captures_by_incident(url) == {7: ["c2", "c3"], 3: ["c1"]}


def test_findings_have_the_captures_of_their_incident() -> None:
    with serve(RECORDING, FAILED, ANALYZED) as url:
        assert [one["captures"] for one in ask(f"{url}/api/v1/runs/bert/findings")["open"]] == [["c2", "c3"]]


def test_event_has_the_captures_of_each_finding() -> None:
    with serve(RECORDING) as url:
        text = read_url(f"{url}/api/v1/events?run=bert&count=1").decode()
    event = json.loads(text.partition("data: ")[2])
    assert [one["captures"] for one in event["run"]["open_findings"]] == [["c2"]]


# -- the command ------------------------------------------------------------------------------------------------------


def test_command_shows_state_and_place_of_each(capsys: pytest.CaptureFixture[str]) -> None:
    with serve(RECORDING, FAILED, ANALYZED) as url:
        assert main(["incidents", "--url", url]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if " capture " in line]
    assert lines == [
        "capture c2: recording",
        "capture c3: failed: rank 2: too late",
        f"capture c1: complete, {url}/api/v1/captures/c1/files/report.html",
    ]


def test_json_has_the_ids(capsys: pytest.CaptureFixture[str]) -> None:
    with serve(ANALYZED) as url:
        assert main(["incidents", "--url", url, "--json"]) == 0
    assert [one["captures"] for one in json.loads(capsys.readouterr().out)] == [[], ["c1"]]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with both incidents, and a folder with two captures beside it."""
    path = tmp_path / "runs.db"
    with closing(IncidentStore(path)) as incidents:
        incidents.write([RESOLVED, OPEN], [])
    captures = CaptureStore(find_captures_folder(path), kept_s=1.0, bytes_max=1)
    for one in (ANALYZED, FAILED):
        captures.write(KeptCapture(one))
    return path


def test_command_finds_them_beside_a_store(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["incidents", "--store", str(store)]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if " capture " in line]
    assert lines == [
        "capture c3: failed: rank 2: too late",
        f"capture c1: complete, {store}-captures/c1/report.html",
    ]


def test_capture_that_was_deleted_is_not_named(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(find_captures_folder(store) / "c1")
    assert main(["incidents", "--store", str(store), "--json"]) == 0
    assert [one["captures"] for one in json.loads(capsys.readouterr().out)] == [["c3"], []]


def test_capture_that_cannot_be_read_is_named(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (find_captures_folder(store) / "c1" / "capture.json").write_text("{")
    assert main(["incidents", "--store", str(store)]) == 0
    said = capsys.readouterr()
    assert "capture c1" not in said.out
    assert said.err == f"rankscope: the capture in {store}-captures/c1 cannot be read, and is left out\n"


# -- a restart --------------------------------------------------------------------------------------------------------


def test_started_collector_has_those_that_are_kept(store: Path) -> None:
    captures = CaptureStore(find_captures_folder(store), kept_s=1.0, bytes_max=1)
    captures.write(KeptCapture(replace(ANALYZED, changed_wall_s=time.time())))  # FAILED ended in 1970, and is too old
    with serving("--store", str(store)) as served:

        def find_after_deletion() -> dict[int, list[str]] | None:
            found = captures_by_incident(served.url)
            return None if found[7] else found

        assert wait_for(find_after_deletion, lambda: "c3 is not deleted") == {7: [], 3: ["c1"]}
