"""The commands of README.md, from its text and in its order, as a stranger types them.

With SOAK=1 the installation is one of them: from a clean clone, into an environment that has nothing but pip, without
any variable but PATH and HOME. Only torch is lent to it. Else the environment is the one of these tests.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.integration.environments import LONGEST_S, clean_environment, lend_torch, make_empty, run
from tests.integration.faults import IS_SOAK
from tests.integration.serving import WATCHING, find_fixed_port, wait_for
from tests.programs import find_program

BASH: Final = find_program("bash")
ROOT: Final = Path(__file__).parents[2]
README: Final = (ROOT / "README.md").read_text(encoding="utf-8")
QUICKSTART: Final = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
TRACE: Final = ROOT / "tests" / "traces"
SUMMARY: Final = re.compile(
    r"^rankscope: run \S+: 2 ranks, \d+ steps, median step [\d.]+ [mu]s; \d+ reports, 0 lost$", re.MULTILINE
)


def read_commands(word: str) -> list[str]:
    """The commands of the block of the README with this word in it, without their comments."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    (block,) = [text for language, text in blocks if not language and f"\n{word}" in f"\n{text}"]
    return [line.partition(" #")[0].strip() for line in block.splitlines()]


class Shell:
    """A stranger's shell: `home` is the folder with train.py, `programs` the environment's programs."""

    def __init__(self, home: Path, programs: Path, **variables: str) -> None:
        self.home = home
        path = f"{programs}:{os.environ['PATH']}"
        # README's torchrun has the default port, which two tests at one time would share.
        self.environment = clean_environment(**variables, OMP_NUM_THREADS="1", PET_STANDALONE="1") | {"PATH": path}

    def type_in(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end, which must be a good one."""
        done = run(BASH, "-c", command, cwd=self.home, env=self.environment)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done

    @contextlib.contextmanager
    def running(self, command: str) -> Iterator[None]:
        """Run it in the background meanwhile."""
        with subprocess.Popen([BASH, "-c", f"exec {command}"], cwd=self.home, env=self.environment) as child:
            try:
                yield
            finally:
                child.send_signal(signal.SIGTERM)
                child.wait(LONGEST_S)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment of the training, in which the README's first command has been run."""
    if not IS_SOAK:
        return Path(sys.executable).parent
    folder = tmp_path_factory.mktemp("stranger")
    assert run("git", "clone", "--quiet", "--no-hardlinks", ROOT, folder / "clone").returncode == 0
    made = make_empty(folder / "environment")
    install, *_ = read_commands("pip install")
    assert install.startswith("pip install ")
    Shell(folder / "clone", made).type_in(install)
    lend_torch(made)
    torchrun = made / "torchrun"  # the program that an installation of torch brings
    torchrun.write_text(f"#!{made / 'python'}\nfrom torch.distributed.run import main\nmain()\n")
    torchrun.chmod(0o755)
    return made


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with the script that the quick start offers."""
    (script,) = re.findall(r"^```python\n(import torch\n.*?)^```", QUICKSTART, re.MULTILINE | re.DOTALL)
    (tmp_path / "train.py").write_text(script)
    return tmp_path


def test_the_launch_lines_end_with_the_summary_shown(home: Path, programs: Path) -> None:
    _, by_variable, by_module = read_commands("pip install")
    assert by_variable.startswith("RANKSCOPE=1 torchrun ")
    assert f"\n{by_module.replace('torchrun', 'torchrun --standalone')}\n" in QUICKSTART  # the same there
    done = Shell(home, programs).type_in(by_module)
    said = [line for line in done.stderr.splitlines() if line.startswith("rankscope: ")]
    assert WATCHING.fullmatch(said[0])
    assert SUMMARY.fullmatch(said[1])
    assert SUMMARY.search(README)
    assert said[-1].startswith("rankscope: verdict: ")


def test_the_commands_of_the_stack_show_the_run(home: Path, programs: Path) -> None:
    wire, http = find_fixed_port(), find_fixed_port()
    ours = {"RANKSCOPE_COLLECTOR": f"tcp://127.0.0.1:{wire}", "RANKSCOPE_URL": f"http://127.0.0.1:{http}"}
    shell = Shell(home, programs, **ours)
    serve, status, top, report, doctor, analyze = read_commands("rankscope serve")
    with shell.running(f"{serve} --listen tcp://127.0.0.1:{wire} --http-listen 127.0.0.1:{http}"):
        wait_for_page(shell)
        by_variable = read_commands("pip install")[1]
        shell.type_in(by_variable.replace("RANKSCOPE=1 ", "RANKSCOPE=1 RANKSCOPE_RUN=bert "))
        assert "2 of 2 ranks: 2 finished; 200 steps" in shell.type_in(status).stdout
        shell.type_in(report.replace("RUN", "bert"))
        shell.type_in(doctor)
        if not IS_SOAK:  # rich is not installed there, and `top` alone needs a terminal
            assert "bert" in shell.type_in(f"{top} --once").stdout
    assert "<title>rankscope: run bert: 2 ranks, 200 steps" in (home / "run.html").read_text(encoding="utf-8")
    (home / "traces").mkdir()
    shutil.copy(next(TRACE.rglob("*.json*")), home / "traces")
    assert "1 rank" in shell.type_in(analyze.replace("FOLDER", "traces")).stdout


def wait_for_page(shell: Shell) -> None:
    """Wait until the collector answers."""

    def answers() -> bool | None:
        return run(BASH, "-c", "rankscope status", cwd=shell.home, env=shell.environment).returncode == 0 or None

    wait_for(answers, lambda: "the collector does not answer")
