"""A capture becomes a file that is whole, or none; the files of a rank have a largest size."""

import errno
import gzip
import os
from pathlib import Path

import pytest

from rankscope.agent.capture_settings import CaptureSteps
from rankscope.agent.captures.trace_files import TraceFiles, make_name
from rankscope.agent.captures.trace_recording import RawCapture

MIB = 1 << 20
PAUSE_NS = 7_000_000
WRITING_NS = 30_000_000


class Session:
    """A session that has ended: it writes this text as its trace, in WRITING_NS by `now_ns`."""

    def __init__(self, text: bytes = b'{"traceEvents": []}', error: OSError | None = None) -> None:
        self._text = text
        self._error = error
        self.now_ns = 0

    def export_chrome_trace(self, path: str) -> None:
        self.now_ns += WRITING_NS
        Path(path).write_bytes(self._text)
        if self._error is not None:
            raise self._error

    def start(self) -> None: ...
    def step(self) -> None: ...
    def stop(self) -> None: ...


def capture(session: Session, first_step: int = 4, last_step: int = 6) -> RawCapture:
    return RawCapture(session, CaptureSteps(first_step - 1, first_step, last_step), PAUSE_NS)


def find_all(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_file_is_found_by_run_steps_and_rank_and_holds_the_trace(tmp_path: Path) -> None:
    session = Session()
    files = TraceFiles(str(tmp_path), "team/llama", 3, bytes_max=MIB, monotonic_ns=lambda: session.now_ns)
    written = files.write(capture(session))
    assert find_all(tmp_path) == ["team_llama/steps-4-6/rank-3.pt.trace.json.gz"]
    assert gzip.decompress(Path(written.path).read_bytes()) == b'{"traceEvents": []}'
    assert written.size_bytes == Path(written.path).stat().st_size == files.written_bytes
    assert (written.problem, written.pause_ns) == ("", PAUSE_NS + WRITING_NS)


@pytest.mark.parametrize(
    ("session", "problem"),
    [
        (Session(b'{"traceEvents": [{"na'), "its file was cut after 21 bytes; the disk may be full"),
        (Session(b""), "its file was cut after 0 bytes; the disk may be full"),
        (Session(error=OSError(errno.ENOSPC, "No space left")), "OSError: [Errno 28] No space left"),
    ],
    ids=["cut", "empty", "refused"],
)
def test_trace_that_is_not_whole_leaves_nothing(tmp_path: Path, session: Session, problem: str) -> None:
    files = TraceFiles(str(tmp_path), "run", 0, bytes_max=MIB)
    assert files.write(capture(session)).problem == problem
    assert find_all(tmp_path) == []
    assert files.written_bytes == 0


def test_files_beyond_the_largest_size_are_not_kept(tmp_path: Path) -> None:
    files = TraceFiles(str(tmp_path), "run", 0, bytes_max=4096)
    noise = b'{"traceEvents": "' + os.urandom(3000).hex().encode() + b'"}'
    assert files.write(capture(Session(noise), 1, 2)).problem == ""
    assert not files.is_full
    before = files.written_bytes
    assert files.write(capture(Session(noise), 5, 6)).problem == (
        "the captures of this rank would exceed the agent's capture_bytes_max"
    )
    assert find_all(tmp_path) == ["run/steps-1-2/rank-0.pt.trace.json.gz"]
    assert (files.is_full, files.written_bytes) == (True, before)


def test_folder_that_cannot_be_made_costs_the_capture(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    files = TraceFiles(str(tmp_path), "run", 0, bytes_max=MIB)
    assert "NotADirectoryError" in files.write(capture(Session())).problem


def test_captures_after_an_elastic_restart_have_their_own_folder(tmp_path: Path) -> None:
    TraceFiles(str(tmp_path), "run", 0, bytes_max=MIB).write(capture(Session()))
    TraceFiles(str(tmp_path), "run", 0, bytes_max=MIB, restart_count=1).write(capture(Session()))
    name = "steps-4-6/rank-0.pt.trace.json.gz"
    assert find_all(tmp_path) == [f"run/restart-1/{name}", f"run/{name}"]


@pytest.mark.parametrize(
    ("run", "name"), [("a.b-c_1", "a.b-c_1"), ("../x", "_._x"), ("a/b c", "a_b_c"), ("", "run"), ("é", "é")]
)
def test_name_of_a_run_is_one_folder_below(run: str, name: str) -> None:
    assert make_name(run) == name
