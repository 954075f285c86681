"""Temporary folders that a killed process has left are removed, and no others."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rankscope.agent.temporary_folders import AGE_S_MIN, CAPTURE, PREFIXES, UPLOADS, hold, sweep_temporary


def make(place: Path, name: str, age_s: float = AGE_S_MIN + 60) -> Path:
    folder = place / name
    (folder / "run").mkdir(parents=True)
    (folder / "run" / "file").write_text("x")
    os.utime(folder, (time.time() - age_s,) * 2)
    return folder


@pytest.mark.parametrize("prefix", PREFIXES)
def test_folder_that_was_left_is_removed(prefix: str, tmp_path: Path) -> None:
    folder = make(tmp_path, f"{prefix}run-1")
    sweep_temporary([str(tmp_path / "missing"), str(tmp_path)])
    assert not folder.exists()


def test_folder_that_is_young_or_held_or_another_s_stays(tmp_path: Path) -> None:
    young, held, other = make(tmp_path, f"{CAPTURE}1", 60), make(tmp_path, f"{UPLOADS}2"), make(tmp_path, "job-3")
    link = tmp_path / f"{CAPTURE}4"
    link.symlink_to(other)
    file = hold(str(held))
    assert file is not None
    sweep_temporary([str(tmp_path)])
    assert [folder.exists() for folder in (young, held, other, link)] == [True] * 4
    os.close(file)
    sweep_temporary([str(tmp_path)])
    assert not held.exists()


def test_hold_ends_with_a_process_that_is_killed(tmp_path: Path) -> None:
    folder = make(tmp_path, f"{UPLOADS}1")
    code = f"from rankscope.agent.temporary_folders import hold; print(hold({str(folder)!r}), flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip().isdigit()
        sweep_temporary([str(tmp_path)])
        assert folder.exists()
        holder.kill()
        holder.wait()
    sweep_temporary([str(tmp_path)])
    assert not folder.exists()


def test_no_folder_is_not_held(tmp_path: Path) -> None:
    assert hold(str(tmp_path / "missing")) is None
