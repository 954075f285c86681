"""A process that can have no more threads, as at a limit of its user or its cgroup."""

import threading

import pytest


def allow_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each start of a thread fail as Python does then; `monkeypatch.undo()` allows them again."""

    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
