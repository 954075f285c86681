"""Detection of ended processes, with real ones."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankscope.measure.proc_stat import is_gone

WAIT_S_MAX = 300.0
NO_PID = 2**22 + 1
"""Linux gives out none above 2**22."""


@pytest.fixture
def child() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that ends once its standard input does."""
    process = subprocess.Popen([sys.executable, "-S", "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    yield process
    process.communicate(timeout=WAIT_S_MAX)


def end_without_reaping(process: "subprocess.Popen[bytes]") -> None:
    """Let it end, and leave it a zombie."""
    assert process.stdin is not None
    process.stdin.close()
    process.stdin = None
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def test_this_process_is_not_gone() -> None:
    assert not is_gone(os.getpid())


def test_child_is_not_gone_while_it_runs(child: "subprocess.Popen[bytes]") -> None:
    assert not is_gone(child.pid)


def test_zombie_child_is_gone(child: "subprocess.Popen[bytes]") -> None:
    end_without_reaping(child)
    assert is_gone(child.pid)


def test_reaped_child_is_gone(child: "subprocess.Popen[bytes]") -> None:
    child.communicate(timeout=WAIT_S_MAX)
    assert is_gone(child.pid)


@pytest.mark.parametrize("pid", [NO_PID, 2**31, 2**62])
def test_pid_without_a_process_is_gone(pid: int) -> None:
    assert is_gone(pid)


def test_process_hidden_by_proc_is_not_gone(tmp_path: Path) -> None:
    # As with hidepid=2, the mount option by which users do not see each other's processes.
    assert not is_gone(os.getpid(), proc=tmp_path)
    assert is_gone(NO_PID, proc=tmp_path)


def test_hidden_process_of_another_user_is_not_gone(tmp_path: Path) -> None:
    # Only root may signal the first process of the machine, and to whom it may not that is an answer too.
    assert not is_gone(1, proc=tmp_path)


def test_process_that_may_not_be_signaled_is_not_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What the kernel answers anybody but root about it, also where these tests are run by root.
    asked: list[tuple[int, int]] = []

    def refuse(pid: int, number: int) -> None:
        asked.append((pid, number))
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "kill", refuse)
    assert not is_gone(1, proc=tmp_path)
    assert asked == [(1, 0)], "nothing is sent to the process"


@pytest.mark.parametrize(
    ("name", "state", "gone"),
    [("python", "S", False), ("a) Z (b", "R", False), ("a) R (b", "Z", True), ("x", "X", True)],
)
def test_state_follows_the_last_bracket_whatever_the_name(tmp_path: Path, name: str, state: str, gone: bool) -> None:
    (tmp_path / "42").mkdir()
    (tmp_path / "42" / "stat").write_text(f"42 ({name}) {state} 1 42 42 0 -1 4194560\n", encoding="utf-8")
    assert is_gone(42, proc=tmp_path) == gone
