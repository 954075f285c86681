"""What the launcher starts runs as `python` runs it. The differences that remain are in docs/program-shapes.md."""

import os
import py_compile
import shutil
import signal
import subprocess
import sys
import zipapp
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.integration.torchrun import AGENT, ALONE, CHECKOUT, DEADLINE_S, OFTEN, SCRIPTS, python, run, torchrun

PROGRAM = SCRIPTS / "says_itself.py"
NOBODY = {"RANKSCOPE_COLLECTOR": "tcp://127.0.0.1:1"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One program as a file, compiled, as a folder, a zipapp and a package; and things that are no program."""
    place = tmp_path_factory.mktemp("programs")
    shutil.copy(PROGRAM, place / "program.py")
    (place / "link.py").symlink_to(place / "program.py")
    for name in ("package", "folder"):
        (place / name).mkdir()
        shutil.copy(PROGRAM, place / name / "__main__.py")
    zipapp.create_archive(place / "folder", place / "program.pyz")
    zipapp.create_archive(place / "folder", place / "executable", interpreter="/usr/bin/env python3")
    py_compile.compile(str(place / "program.py"), str(place / "compiled.pyc"))
    (place / "empty").mkdir()
    (place / "wrong.py").write_text("x = (\n")
    return place


def end(folder: Path, *words: str, stdin: str = "", path: Path | None = None) -> tuple[int, str, str]:
    """Run the interpreter with these words; how it ended, and what it said besides the agent. `path`: a folder that
    modules are found in, too.
    """
    ended = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, **ALONE, **NOBODY, "PYTHONPATH": f"{CHECKOUT}{os.pathsep}{path}" if path else CHECKOUT},
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    said = [line for line in ended.stderr.splitlines(keepends=True) if not line.startswith("rankscope: ")]
    return ended.returncode, ended.stdout, "".join(said)


@pytest.mark.parametrize(
    "words",
    [
        ("program.py", "raise"),
        ("./program.py", "3"),
        ("link.py", "0"),
        ("compiled.pyc", "raise"),
        ("folder", "raise"),
        ("./folder/", "a text"),
        ("program.pyz", "raise"),
        ("executable", "3"),
        ("-m", "program", "raise"),
        ("-m", "package", "raise"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("options", [(), ("-P", "-OO", "-X", "dev")], ids=["plain", "with options"])
def test_program_finds_itself_run_as_python_runs_it(folder: Path, words: Sequence[str], options: Sequence[str]) -> None:
    if options and sys.version_info < (3, 11):
        options = options[1:]  # Python 3.11 is the first with a safe path
    plain, watched = end(folder, *options, *words), end(folder, *options, *AGENT, *words)
    # The same output, traceback and status. In safe-path mode a module of this folder is found by neither.
    assert watched == plain
    assert plain[1] or (options and "-m" in words)


def test_program_from_a_pipe_runs_as_python_runs_it(folder: Path) -> None:
    text = "import sys\nprint(sys.argv, __file__, __spec__)\nraise ValueError(1)\n"
    plain, watched = (end(folder, *agent, "/dev/stdin", "a text", stdin=text) for agent in ((), AGENT))
    assert watched == plain
    assert plain[:2] == (1, "['/dev/stdin', 'a text'] /dev/stdin None\n")


@pytest.mark.parametrize("words", [("{}/program.py", "3"), ("program.py",), ("-m", "program", "raise")], ids=" ".join)
def test_program_in_a_removed_folder_runs_as_python_runs_it(folder: Path, words: Sequence[str]) -> None:
    removed = (
        "-c",
        "import os, sys; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone'); os.execv(*eval(sys.argv[1]))",
    )
    words = [word.format(folder) for word in words]
    plain, watched = (
        end(folder, *removed, repr((sys.executable, [sys.executable, *agent, *words])), path=folder)
        for agent in ((), AGENT)
    )
    if words == ["program.py"]:
        assert (plain[0], watched[:2]) == (2, (2, ""))
    else:
        assert watched == plain
        assert plain[1]


@pytest.mark.parametrize(
    "words", [("empty",), ("-m", "missing"), ("-m", "empty"), ("wrong.py",), ("-m", "wrong")], ids=" ".join
)
def test_what_is_no_program_ends_as_under_python(folder: Path, words: Sequence[str]) -> None:
    plain, watched = end(folder, *words), end(folder, *AGENT, *words)
    assert watched == plain
    assert (plain[0], plain[1]) == (1, "")
    assert plain[2]


@pytest.mark.parametrize("words", [("-",), ("-c", "print(1)")], ids=" ".join)
def test_code_without_a_file_is_refused_in_a_line(words: Sequence[str]) -> None:
    ended = run(python(*AGENT, *words))
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"rankscope: {words[0]} is not an option of rankscope.agent.")


def test_arguments_of_the_interpreter_are_ours(folder: Path) -> None:
    (folder / "arguments.py").write_text("import sys; print(sys.orig_argv[1:])\n")
    assert end(folder, "arguments.py")[1] == "['arguments.py']\n"
    assert end(folder, *AGENT, "arguments.py")[1] == "['-m', 'rankscope.agent', 'arguments.py']\n"


CONSOLE = """
import code, sys, torch

class Console(code.InteractiveConsole):
    def write(self, data):
        print("written:", data)

Console().runsource("1 / 0")
print(sys.excepthook is sys.__excepthook__)
"""


def test_hook_for_uncaught_errors_is_the_interpreters(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "console.py").write_text(CONSOLE)
    plain = end(folder, "console.py")
    assert plain[1].endswith("True\n")
    assert end(folder, *AGENT, "console.py") == plain
    monkeypatch.setenv("RANKSCOPE", "1")
    assert end(folder, "console.py") == plain


INTERRUPTED = """
import time, torch
weight = torch.ones(3, requires_grad=True)
optimizer = torch.optim.SGD([weight])
for _ in range(5):
    weight.sum().backward()
    optimizer.step()
    time.sleep(0.005)
raise KeyboardInterrupt
"""


def test_interrupted_program_ends_by_the_signal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # At the end of so short a training parts of the agent are imported.
    (folder / "interrupted.py").write_text(INTERRUPTED)
    plain = end(folder, "interrupted.py")
    assert plain[0] == -signal.SIGINT
    assert end(folder, *AGENT, "interrupted.py") == plain
    monkeypatch.setenv("RANKSCOPE", "1")
    assert end(folder, "interrupted.py") == plain


WAITING = """
import os, signal, time, torch
weight = torch.ones(3, requires_grad=True)
optimizer = torch.optim.SGD([weight])
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
for step in range(200):
    weight.sum().backward()
    optimizer.step()
    time.sleep(0.002)
    if step == 100:
        os.kill(os.getpid(), signal.SIGUSR1)
print(signal.sigtimedwait({signal.SIGUSR1}, 0).si_signo == signal.SIGUSR1)
"""


def test_signal_that_a_program_waits_for_comes_to_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As that of a scheduler in front of the end of a job. Libraries that begin threads at their import would take it.
    for name, value in {**OFTEN, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(name, value)
    (folder / "waiting.py").write_text(WAITING)
    assert end(folder, "waiting.py") == (0, "True\n", "")
    assert end(folder, *AGENT, "waiting.py") == (0, "True\n", "")


def test_torchrun_starts_a_zipapp(folder: Path) -> None:
    command = torchrun(1, *AGENT, str(folder / "program.pyz"), "0")
    ended = run(command, NOBODY)
    assert ended.exit_code == 0
    assert "__main__.py" in ended.stdout
