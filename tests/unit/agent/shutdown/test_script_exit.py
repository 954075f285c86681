"""Tests of how the end of a script is found out."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankscope.agent.reporting.builder import ScriptEnd
from rankscope.agent.shutdown import script_exit as module
from rankscope.agent.shutdown.script_exit import ScriptExit, _stop
from tests.unit.agent.interruptions import interrupt_each_line


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


def test_error_is_recorded_and_shown_despite_a_raising_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ValueError("no data")
    shown: list[BaseException] = []

    def make() -> ScriptExit:
        shown.clear()
        monkeypatch.setattr(sys, "excepthook", lambda _kind, error, _trace: shown.append(error))
        script_exit = ScriptExit()
        script_exit.install()
        return script_exit

    came_out_at = 0

    def check(script_exit: ScriptExit, came_out: BaseException | None) -> None:
        nonlocal came_out_at
        if came_out is not None:  # around the calls of the hook: Python then shows both itself
            came_out_at += 1
            return
        assert script_exit.end == ScriptEnd("failed", "ValueError: no data", 1)
        assert [type(one) for one in shown] == [ValueError, KeyboardInterrupt]

    lines = interrupt_each_line(make, lambda _made: sys.excepthook(ValueError, error, None), check)
    assert came_out_at < lines


def test_error_of_ours_in_finding_the_line_costs_the_line_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_error: BaseException) -> str:
        raise RuntimeError("of ours")

    monkeypatch.setattr(module, "find_raised_line", fail)
    script_exit = ScriptExit()
    assert script_exit.note_error(ValueError("no data")) is None
    assert script_exit.end == ScriptEnd("failed", "ValueError: no data", 1)
    assert "rankscope: the line of the error is not known (RuntimeError: of ours" in capsys.readouterr().err


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


PROGRAM = """
import atexit, code, sys
from rankscope.agent.shutdown.script_exit import ScriptExit

script_exit = ScriptExit()
script_exit.install()
atexit.register(lambda: print(script_exit.end.reason, script_exit.end.detail))
atexit.register(script_exit.note_unseen)
sys.excepthook = lambda *_: None
"""
"""A script with a hook of its own, which calls no other one."""


@pytest.mark.parametrize(
    ("then", "said"),
    [
        ("raise ValueError('no data')", "failed ValueError: no data"),
        ("def train():\n    raise ValueError('no data')\ntrain()", "failed ValueError: no data"),
        ("raise KeyboardInterrupt", "interrupted KeyboardInterrupt: "),
        ("code.InteractiveInterpreter().runsource('1 / 0')", "finished "),
        ("", "finished "),
    ],
)
def test_error_that_another_hook_has_shown_is_known_at_the_end(then: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM + then)
    for words in (("program.py",), ("-m", "program")):
        ended = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600
        )
        assert ended.stdout == f"{said}\n", ended.stderr
