"""Tests of how the end of a script is found out."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rankscope.agent.guard import Guard
from rankscope.agent.reporting.builder import ScriptEnd
from rankscope.agent.session import finish
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


def test_error_is_recorded_despite_a_raising_handler() -> None:
    error, ends = ValueError("no data"), list[ScriptEnd]()

    def check(script_exit: ScriptExit, came_out: BaseException | None) -> None:
        if came_out is None:  # else it came around the attempts
            ends.append(script_exit.end)

    lines = interrupt_each_line(ScriptExit, lambda made: finish(Guard(9), lambda: made.note_error(error)), check)
    assert len(ends) > lines // 2
    assert set(ends) == {ScriptEnd("failed", "ValueError: no data", 1)}


def test_error_of_ours_in_finding_the_line_costs_the_line_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_error: BaseException) -> str:
        raise RuntimeError("of ours")

    monkeypatch.setattr(module, "find_raised_line", fail)
    script_exit = ScriptExit()
    script_exit.note_error(ValueError("no data"))
    assert script_exit.end == ScriptEnd("failed", "ValueError: no data", 1)
    assert "rankscope: the line of the error is not known (RuntimeError: of ours" in capsys.readouterr().err


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
atexit.register(lambda: print(script_exit.end.reason, script_exit.end.detail))
atexit.register(script_exit.keep_status)
atexit.register(eval, "None")
atexit.register(script_exit.note_uncaught)
"""
"""A script at whose end a text is executed, as by `collections.namedtuple`."""
OWN_HOOK = "sys.excepthook = lambda *_: None\n"


@pytest.mark.parametrize("hook", ["", OWN_HOOK], ids=["python", "own"])
@pytest.mark.parametrize(
    ("then", "said", "status"),
    [
        ("raise ValueError('no data')", "failed ValueError: no data", 1),
        ("def train():\n    raise ValueError('no data')\ntrain()", "failed ValueError: no data", 1),
        ("raise KeyboardInterrupt", "interrupted KeyboardInterrupt: ", -signal.SIGINT),
        ("class Own(KeyboardInterrupt): pass\nraise Own", "interrupted Own: ", 1),
        ("code.InteractiveInterpreter().runsource('1 / 0')", "finished ", 0),
        ("", "finished ", 0),
    ],
)
def test_error_is_known_at_the_end_and_the_status_is_pythons(
    then: str, said: str, status: int, hook: str, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM + hook + then)
    for words in (("program.py",), ("-m", "program")):
        ended = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600
        )
        assert (ended.stdout, ended.returncode) == (f"{said}\n", status), ended.stderr
