"""Tests of how the end of a script is found out."""

import os
import sys

import pytest

from rankscope.agent.reporting.builder import ScriptEnd
from rankscope.agent.shutdown.script_exit import ScriptExit, _stop


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (None, ScriptEnd("finished", "", 0)),
        (0, ScriptEnd("finished", "", 0)),
        (3, ScriptEnd("failed", "SystemExit", 3)),
        ("no data", ScriptEnd("failed", "SystemExit", 1)),
    ],
)
def test_exit_code_decides_whether_the_script_failed(code: object, expected: ScriptEnd) -> None:
    script_exit = ScriptExit()
    script_exit.note_exit(code)
    assert script_exit.end == expected


def test_script_without_exception_has_finished() -> None:
    assert ScriptExit().end == ScriptEnd("finished")


def test_uncaught_exception_fails_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    passed_on = []
    monkeypatch.setattr(sys, "excepthook", lambda *found: passed_on.append(found))
    script_exit, error = ScriptExit(), ValueError("no data")
    script_exit.install()
    sys.excepthook(ValueError, error, None)
    script_exit.remove()
    assert script_exit.end == ScriptEnd("failed", "ValueError: no data", 1)
    assert passed_on == [(ValueError, error, None)]
    sys.excepthook(ValueError, error, None)
    assert len(passed_on) == 2, "the previous hook is there again"


def test_excepthook_of_the_script_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    script_exit = ScriptExit()
    script_exit.install()
    sys.excepthook = of_script = lambda *_found: None
    script_exit.remove()
    assert sys.excepthook is of_script


def test_ctrl_c_interrupts_the_script() -> None:
    script_exit = ScriptExit()
    script_exit.note_error(KeyboardInterrupt())
    assert script_exit.end.reason == "interrupted"


def test_forked_child_notes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    script_exit = ScriptExit()
    monkeypatch.setattr(os, "getpid", lambda: 1)
    script_exit.note_error(ValueError())
    assert script_exit.end == ScriptEnd("finished")


def test_finalizer_notes_the_exception_behind_an_exit_code() -> None:
    """As with torch.multiprocessing.spawn, which exits with 1 after an exception of the rank."""
    script_exit, ends = ScriptExit(), []
    error = SystemExit(1)
    error.__context__ = ValueError("no data")
    try:
        raise error
    except SystemExit:
        _stop(script_exit, lambda: ends.append(script_exit.end))
    assert ends == [ScriptEnd("failed", "ValueError: no data", 1)]
