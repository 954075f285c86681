"""A child of ours imports nothing from the directory that it was started in."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankscope.measure.child_command import build_child_command

ANSWER = "import calendar, json, sys; print(json.dumps([calendar.__file__, sys.path, sys.argv[1:], __name__]))\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a working folder with a calendar.py, and beside it one for PYTHONPATH, with a program."""
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "calendar.py").write_text("raise SystemError('the calendar of the job')\n")
    (tmp_path / "program.py").write_text(ANSWER)
    return tmp_path


def start(folder: Path, python_path: str) -> list[object]:
    environment = {**os.environ, "PYTHONPATH": python_path}
    command = build_child_command(sys.executable, "program", "--all", "1")
    done = subprocess.run(
        command, cwd=folder / "job", env=environment, capture_output=True, text=True, check=False, timeout=500
    )
    assert done.returncode == 0, done.stderr
    answer: list[object] = json.loads(done.stdout)
    return answer


def test_child_runs_the_module_as_main_with_its_arguments(folder: Path) -> None:
    assert start(folder, str(folder))[2:] == [["--all", "1"], "__main__"]


def test_child_does_not_search_the_working_directory(folder: Path) -> None:
    calendar, path, *_ = start(folder, str(folder))
    assert calendar != str(folder / "job" / "calendar.py")
    assert not {"", str(folder / "job")} & set(path)  # type: ignore[call-overload]


def test_child_prefers_the_standard_library_to_python_path(folder: Path) -> None:
    assert start(folder, f"{folder / 'job'}:{folder}")[0] != str(folder / "job" / "calendar.py")
