"""One upload at a time, what is lost and why, and that no file stays behind."""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rankscope.agent.capture_settings import CaptureSteps, find_folder_problem
from rankscope.agent.captures.trace_files import Written
from rankscope.agent.captures.trace_uploads import (
    AT_END,
    BEHIND,
    GRACE_S,
    TOO_SLOW,
    WAITING_MAX,
    TraceUploads,
    Uploaded,
)
from rankscope.agent.captures.upload_file import TIME_LIMIT_S, TRIES, upload
from rankscope.agent.spawned_child import Child, EndedChild
from rankscope.measure.units import NS_PER_S, s_to_ns
from tests.unit.agent.captures.test_trace_captures import make
from tests.unit.agent.captures.test_trace_captures import run as take
from tests.unit.agent.sidecar.ranks_of_a_node import identity_of

URL = "s3://bucket/captures/"
REFUSED = 'Traceback:\n  File "/a.py", line 3, in f\n    g()\nPermissionError: access denied'


class FakeChild:
    """A child that ends when `ended` is set."""

    def __init__(self, request: bytes) -> None:
        self.request: dict[str, str] = json.loads(request)
        self.ended: EndedChild | None = None
        self.is_killed = False

    def poll(self) -> EndedChild | None:
        return self.ended

    def kill(self) -> None:
        self.is_killed = True


class World:
    """Uploads with children that the test ends, and its clock; each wait takes a second."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.children: list[FakeChild] = []
        self.on_wait: Callable[[], None] = lambda: None
        self.uploads = TraceUploads(URL, spawn_child=self.spawn, monotonic_ns=lambda: self.now_ns, wait=self.wait)

    def spawn(self, request: bytes) -> Child:
        self.children.append(FakeChild(request))
        return self.children[-1]

    def wait(self, _seconds: float) -> None:
        self.now_ns += NS_PER_S
        self.on_wait()

    def submit(self, step: int) -> Path:
        path = Path(self.uploads.folder) / "job" / f"steps-{step}-{step}" / "rank-0.pt.trace.json.gz"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x")
        self.uploads.submit(Written(CaptureSteps(step, step, step), str(path), 1, 0), "")
        return path

    def end_last(self, exit_code: int = 0, errors: str = "") -> None:
        self.children[-1].ended = EndedChild(exit_code, 7, b"", errors.encode())


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return World()


def problems(over: list[Uploaded]) -> list[str]:
    return [one.problem for one in over]


def test_file_keeps_its_folders_below_the_url_and_is_removed(world: World) -> None:
    path = world.submit(5)
    assert world.uploads.collect() == []
    target = "s3://bucket/captures/job/steps-5-5/rank-0.pt.trace.json.gz"
    assert world.children[0].request == {"source": str(path), "target": target}
    world.end_last()
    (over,) = world.uploads.collect()
    assert (over.upload.target, over.problem) == (target, "")
    assert not path.exists()
    assert world.uploads.cpu_ns == 7


def test_second_upload_begins_when_the_first_is_over(world: World) -> None:
    world.submit(5)
    world.submit(6)
    world.uploads.collect()
    world.uploads.collect()
    assert len(world.children) == 1
    world.end_last()
    world.uploads.collect()
    assert len(world.children) == 2


@pytest.mark.parametrize(
    ("exit_code", "errors", "problem"),
    [
        (1, REFUSED, "PermissionError: access denied, at /a.py:3"),
        (-signal.SIGKILL, "", "its process ended with exit code -9"),
        (-signal.SIGALRM, "", TOO_SLOW),
    ],
)
def test_upload_that_fails_has_a_reason_and_leaves_no_file(
    world: World, exit_code: int, errors: str, problem: str
) -> None:
    path = world.submit(5)
    world.uploads.collect()
    world.end_last(exit_code, errors)
    assert problems(world.uploads.collect()) == [problem]
    assert not path.exists()


def test_child_that_outlives_its_own_limit_is_ended(world: World) -> None:
    world.submit(5)
    world.uploads.collect()
    world.now_ns = s_to_ns(TIME_LIMIT_S + GRACE_S)
    assert world.uploads.collect() == []
    world.now_ns += 1
    assert problems(world.uploads.collect()) == [TOO_SLOW]
    assert world.children[0].is_killed


def test_oldest_file_is_lost_when_too_many_wait(world: World) -> None:
    for step in range(1, WAITING_MAX + 2):
        world.submit(step)
    (lost,) = world.uploads.collect()
    assert (lost.upload.written.steps.first_step, lost.problem) == (1, BEHIND)


def test_child_that_cannot_be_started_costs_its_file(world: World) -> None:
    def fail(_request: bytes) -> Child:
        raise OSError("no memory")

    world.uploads = TraceUploads(URL, spawn_child=fail)
    path = world.submit(5)
    assert "no memory" in problems(world.uploads.collect() + world.uploads.collect())[0]
    assert not path.exists()


def test_upload_running_at_the_end_may_finish_until_the_deadline(world: World) -> None:
    world.submit(5)
    world.on_wait = world.end_last
    assert problems(world.uploads.finish(3 * NS_PER_S)) == [""]
    assert world.now_ns == NS_PER_S
    assert not Path(world.uploads.folder).exists()


def test_uploads_past_the_deadline_are_lost_and_leave_nothing(world: World) -> None:
    world.submit(5)
    world.submit(6)
    assert problems(world.uploads.finish(3 * NS_PER_S)) == [AT_END, AT_END]
    assert [child.is_killed for child in world.children] == [True]
    assert not Path(world.uploads.folder).exists()


def test_upload_writes_the_file_through_fsspec(tmp_path: Path) -> None:
    source, target = tmp_path / "a.gz", tmp_path / "new" / "folder" / "a.gz"
    source.write_bytes(b"whole")
    upload(str(source), f"file://{target}")
    assert target.read_bytes() == b"whole"


def test_upload_is_tried_again_and_then_gives_its_error(tmp_path: Path) -> None:
    waits_s: list[float] = []
    with pytest.raises(FileNotFoundError):
        upload(str(tmp_path / "missing"), f"file://{tmp_path}/a.gz", wait=waits_s.append)
    assert waits_s == [2.0, 4.0]
    assert len(waits_s) == TRIES - 1


@pytest.mark.parametrize(
    ("folder", "installed", "problem"),
    [
        ("", (), None),
        ("/shared/captures", (), None),
        ("s3://bucket/captures", ("fsspec", "s3fs"), None),
        ("s3://bucket", ("fsspec",), "for this URL this Python needs other packages: pip install fsspec s3fs"),
        ("gs://bucket", (), "for this URL this Python needs other packages: pip install fsspec gcsfs"),
        ("sftp://host/captures", ("fsspec",), None),
        ("captures", (), "it must be an absolute path, since ranks may run in different directories, or a URL"),
        ("s3://", ("fsspec", "s3fs"), "it must be an absolute path, since ranks may run in different directories"),
    ],
)
def test_folder_is_absolute_or_a_url_whose_packages_are_there(
    folder: str, installed: tuple[str, ...], problem: str | None
) -> None:
    found = find_folder_problem(folder, installed.__contains__)
    assert (found is None) if problem is None else (found or "").startswith(problem)


def test_captures_with_a_url_are_uploaded_and_said_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    captures = make(tmp_path, capture_folder=f"file://{tmp_path}/store")
    take(captures, 0, 8)
    captures.write()
    captures.finish(time.monotonic_ns() + 60 * NS_PER_S)
    folder = tmp_path / "store" / identity_of(0, pid=1).run / "steps-6-7"
    assert [path.name for path in folder.iterdir()] == ["rank-0.pt.trace.json.gz"]
    assert f"captured steps 6 to 7 into file://{folder} " in capsys.readouterr().err
    assert captures.upload_ns > 0


def test_capture_that_could_not_be_uploaded_is_said_to_be_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "store").write_text("a file is in the way")
    captures = make(tmp_path, rank=3, capture_folder=f"file://{tmp_path}/store")
    take(captures, 0, 8)
    captures.write()
    captures.finish(time.monotonic_ns())
    assert (
        "the capture of steps 6 to 7 of rank 3 was lost: it could not be uploaded to file://" in capsys.readouterr().err
    )
