"""Tests of errors of the sidecar, which the ranks of its node log."""

from pathlib import Path

import pytest

from rankscope.agent.sidecar.directory import LOCK, open_folder, remove_folder
from rankscope.agent.sidecar.faults import FAULTS, FAULTS_MAX, SidecarFaults, read_faults
from rankscope.agent.sidecar.start import _start
from rankscope.measure.errors import UnavailableError
from tests.integration.serving import wait_for


def test_sidecar_errors_are_read_once(tmp_path: Path) -> None:
    faults = SidecarFaults(str(tmp_path))
    faults.note("watch", ValueError("no such\nrank"))
    faults.note("watch", ValueError("another one of the same type"))
    faults.note("orphaned reports", KeyError("x"))
    assert (tmp_path / FAULTS).stat().st_mode & 0o777 == 0o600
    assert read_faults(str(tmp_path)) == (
        "watch failed (ValueError: no such rank); orphaned reports failed (KeyError: 'x')"
    )
    assert read_faults(str(tmp_path)) == ""
    assert list(tmp_path.iterdir()) == []


def test_sidecar_errors_are_bounded(tmp_path: Path) -> None:
    faults = SidecarFaults(str(tmp_path))
    for number in range(FAULTS_MAX + 5):
        faults.note(f"part {number}", ValueError("x" * 10_000))
    assert len(read_faults(str(tmp_path)).split("; ")) == FAULTS_MAX


def test_where_nothing_can_be_written_nothing_is_raised(tmp_path: Path) -> None:
    SidecarFaults(str(tmp_path / "gone")).note("watch", ValueError("x"))
    assert read_faults(str(tmp_path / "gone")) == ""


def test_unread_errors_do_not_keep_the_directory(tmp_path: Path) -> None:
    folder = open_folder(str(tmp_path / "root"), "run-0")
    (Path(folder) / LOCK).write_text("")
    SidecarFaults(folder).note("watch", ValueError("x"))
    assert remove_folder(folder)


def test_failed_sidecar_start_has_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here a file of the user's stands in the place of a package that it imports, and fails."""
    (tmp_path / "msgspec.py").write_text("raise ImportError('built for another Python')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with (tmp_path / "lock").open("w") as lock, pytest.raises(UnavailableError) as caught:
        _start(str(tmp_path), lock.fileno())
    assert str(caught.value) == (
        f"the sidecar did not start (exit code 1, ImportError: built for another Python, at {tmp_path}/msgspec.py:1)"
    )


NO_POLL = """
import select, sys

def poll():
    raise OSError("no poll here")

if "rankscope.agent.sidecar" in sys.orig_argv:
    select.poll = poll
"""


def test_later_sidecar_failure_has_error_and_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = open_folder(str(tmp_path / "root"), "run-0")
    (tmp_path / "sitecustomize.py").write_text(NO_POLL)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with (Path(folder) / LOCK).open("w") as lock:
        _start(folder, lock.fileno())
    said = wait_for(lambda: read_faults(folder) or None, lambda: f"no fault in {[*Path(folder).iterdir()]}", 60)
    assert said.startswith("watch failed (OSError: no poll here, at ")
    assert "/agent/sidecar/watch.py:" in said
