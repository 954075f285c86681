"""Tests of waiting for gloo threads at the end of a process."""

import threading
from pathlib import Path

import pytest

from rankscope.agent.shutdown.gloo_drain import THREAD_NAME, drain_gloo_threads

LONG_S = 60.0


def put(tasks: Path, thread: int, name: str, state: str) -> None:
    """A thread, as /proc shows it."""
    folder = tasks / str(thread)
    folder.mkdir(exist_ok=True)
    written = folder / "new"
    written.write_text(f"{thread} ({name}) {state} 1 1 1 0 -1\n")
    written.replace(folder / "stat")


@pytest.mark.parametrize(
    ("name", "state", "expected"),
    [
        (THREAD_NAME, "S", True), (THREAD_NAME, "R", False), ("python", "R", True), (f"x ({THREAD_NAME}", "S", True),
        (f") {THREAD_NAME}", "R", True),
    ],
)  # fmt: skip
def test_only_runnable_gloo_threads_are_awaited(tmp_path: Path, name: str, state: str, expected: bool) -> None:
    put(tmp_path, 7, "python", "R")
    put(tmp_path, 8, name, state)
    assert drain_gloo_threads(0.0, str(tmp_path)) is expected


def test_it_is_waited_for_until_it_has_nothing_to_do(tmp_path: Path) -> None:
    put(tmp_path, 8, THREAD_NAME, "R")
    threading.Timer(0.05, put, (tmp_path, 8, THREAD_NAME, "S")).start()
    assert drain_gloo_threads(LONG_S, str(tmp_path))


def test_vanished_thread_and_missing_proc_are_no_errors(tmp_path: Path) -> None:
    (tmp_path / "8").mkdir()
    assert drain_gloo_threads(0.0, str(tmp_path))
    assert drain_gloo_threads(0.0, str(tmp_path / "nowhere"))
    assert drain_gloo_threads(LONG_S)
