"""Training jobs as a user starts them, with a deadline, and the proof that nothing of them is left."""

import contextlib
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import psutil

import rankscope.agent
from tests.integration.forked_scripts import ForkedScript
from tests.integration.serving import find_fixed_port, wait_for, wait_for_ends

ROOT = Path(__file__).parents[2]
CHECKOUT = f"{ROOT / '.package'}{os.pathsep}{ROOT}"
"""PYTHONPATH of jobs that import `tests`: this checkout's package and tests, whatever the environment has installed."""
SCRIPTS = Path(__file__).parent / "scripts"
SOURCE = str(Path(rankscope.agent.__file__).parent)
DEADLINE_S = 300.0
"""How long a job may take. On two busy cores the imports of two ranks alone have taken 20 s."""

LEAVING_S = 60.0
"""How long after the launcher's end its helpers, such as multiprocessing's resource tracker, may take to see it."""

MARK = "JOB_OF_A_TEST"
"""A variable that every process of a job inherits, with a word of its own: so its processes are found wherever they
have gone (torchrun gives each rank a session of its own, orphans lose their parent), and nobody else's. A job that is
started by a job has the words of both."""


ATTENTIVE = (
    sys.executable, "-ES", "-c",
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execvp(sys.argv[1], sys.argv[1:])",
)  # fmt: skip
"""Begins a command as a terminal does: where tests run in the background SIGINT is ignored, also by children."""

AGENT = ("-m", "rankscope.agent")

ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
"""What a launcher would say to the only rank of a job: for what one process shows, starting torchrun is time lost."""

WHOLE_END = {"WHOLE_END": "1"}
"""Lets ranks and scripts of forks clear torch away at their end (scripts/quick_end.py), for tests of that end."""

OFTEN = {
    "RANKSCOPE_REPORT_INTERVAL_S": "0.1",
    "RANKSCOPE_COLLECTIVE_WINDOW_S": "0.1",
    "RANKSCOPE_OVERHEAD_RATIO_MAX": "0.9",
}
"""Windows and reports so often that a job of a second has several."""


ALL_IS_WELL = re.compile(r"rankscope: run '[^']*'( reports to tcp://|: all \d+ reports of rank 0 were delivered; )")


@dataclass(frozen=True)
class Ended:
    """How a job ended. `left` describes the processes of it that were still there; it should be empty."""

    exit_code: int
    stdout: str
    stderr: str
    left: tuple[str, ...]

    @property
    def heard_of_agent(self) -> list[str]:
        """The lines on stderr that the agent said, or that were said of its source (a warning, a traceback), without
        those that rank 0 says of a collector when all is well.
        """
        lines = [line for line in self.stderr.splitlines() if line.startswith("rankscope: ") or SOURCE in line]
        return [line for line in lines if not ALL_IS_WELL.match(line)]


@dataclass(frozen=True)
class Forked:
    """A script, or -m and a module, with its arguments that runs in a fork of a process that has imported torch, and
    what it adds to the environment. `command` is the same as a process of its own.
    """

    words: tuple[str, ...]
    adds: tuple[tuple[str, str], ...] = ()

    @property
    def command(self) -> list[str]:
        """For those who put something in front of it."""
        return ["env", *(f"{name}={value}" for name, value in self.adds), *python(*self.words)]


class Job:
    """A running job. Made by `started`."""

    launcher: "subprocess.Popen[bytes] | ForkedScript"

    def __init__(
        self, command: Sequence[str] | Forked, environment: Mapping[str, str], stderr_path: str, folder: Path
    ) -> None:
        self._mark = secrets.token_hex(8)
        self._stdout: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - end() closes it
        self._stderr: IO[bytes] = (
            Path(stderr_path).open("r+b") if stderr_path else tempfile.TemporaryFile()  # noqa: SIM115 - end() closes it
        )
        self._stderr_is_kept = not stderr_path
        marked = environment_of(environment, self._mark)
        if isinstance(command, Forked):
            self.launcher = ForkedScript(
                command.words,
                environment={**marked, **dict(command.adds)},
                folder=folder,
                stdout=self._stdout.fileno(),
                stderr=self._stderr.fileno(),
            )
        else:
            self.launcher = subprocess.Popen(
                [*ATTENTIVE, *command],
                stdin=subprocess.DEVNULL,
                stdout=self._stdout,
                stderr=self._stderr,
                cwd=folder,
                env=marked,
                start_new_session=True,
            )

    def wait(self, deadline_s: float = DEADLINE_S) -> Ended:
        """Wait for the launcher's end and for everything it started. Fails, with what was said, after the deadline."""
        try:
            exit_code = self.launcher.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not over after {deadline_s} s; stderr: {self._read(self._stderr)}") from None
        left = wait_for_ends(self.find_members(), LEAVING_S)
        described = tuple(text for text in map(describe, left) if text)
        stderr = self._read(self._stderr) if self._stderr_is_kept else ""
        return Ended(exit_code, self._read(self._stdout), stderr, described)

    def wait_for_output(self, text: str, deadline_s: float = DEADLINE_S) -> None:
        """Wait until the job has printed that."""

        def look() -> bool | None:
            return text in self.printed or None

        wait_for(look, lambda: f"{text!r} is not printed; stderr: {self._read(self._stderr)}", deadline_s)

    @property
    def printed(self) -> str:
        """What it has printed so far. Its own place in the file is left alone."""
        file = self._stdout.fileno()
        return os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")

    def find_members(self) -> list[psutil.Process]:
        """Every living process of the job."""
        members = {child.pid: child for child in _find_children(self.launcher.pid)}
        if isinstance(self.launcher, ForkedScript):  # a fork has the mark only in what it starts
            members |= {process.pid: process for process in _find_session(self.launcher.pid)}
        members |= {process.pid: process for process in find_marked(self._mark)}
        return list(members.values())

    def end(self) -> None:
        """Kill what is left, and let go of its output."""
        for member in self.find_members():
            with contextlib.suppress(psutil.Error):
                member.send_signal(signal.SIGKILL)
        self.launcher.wait()
        self._stdout.close()
        self._stderr.close()

    @staticmethod
    def _read(stream: IO[bytes]) -> str:
        stream.seek(0)
        return stream.read().decode(errors="replace")


@contextlib.contextmanager
def started(
    command: Sequence[str] | Forked,
    environment: Mapping[str, str] | None = None,
    *,
    stderr_path: str = "",
    folder: Path = SCRIPTS,
) -> Iterator[Job]:
    """Start a command in a folder, that of the scripts; whatever happens, nothing of it outlives the block."""
    job = Job(command, environment or {}, stderr_path, folder)
    try:
        yield job
    finally:
        job.end()


def run(
    command: Sequence[str] | Forked,
    environment: Mapping[str, str] | None = None,
    *,
    stderr_path: str = "",
    deadline_s: float = DEADLINE_S,
) -> Ended:
    """Start a command and wait for its end."""
    with started(command, environment, stderr_path=stderr_path) as job:
        return job.wait(deadline_s)


def run_forked(*words: str, environment: Mapping[str, str]) -> Ended:
    """Run a script in a fork of a process that has imported torch, and wait for its end."""
    return run(Forked(words), environment)


def name_job() -> str:
    """A name for the runs of one file of tests: those of one name on a machine share a sidecar, which stays until the
    last of them has ended, also where two files are tested at the same time.
    """
    return f"job-{secrets.token_hex(4)}"


def torchrun(ranks: int, *arguments: str, options: Sequence[str] = ()) -> list[str]:
    """`torchrun` on this machine, on a port that is free; two jobs do not meet."""
    return python("-m", "torch.distributed.run", *_words_of_torchrun(ranks, arguments, options))


def forked_torchrun(ranks: int, *arguments: str, options: Sequence[str] = ()) -> Forked:
    """The same launcher in a fork. Its ranks are processes of their own that import torch themselves. Run as a script:
    a module would hand on to them that torch's autoload is over.
    """
    torch = find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    script = Path(torch.origin).parent / "distributed" / "run.py"
    return Forked((str(script), *_words_of_torchrun(ranks, arguments, options)))


def _words_of_torchrun(ranks: int, arguments: Sequence[str], options: Sequence[str]) -> tuple[str, ...]:
    here = ("--nnodes", "1", "--nproc-per-node", str(ranks))
    return (*here, "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", *options, *arguments)


def forked_ranks(count: int, *arguments: str) -> Forked:
    """So many ranks on this machine that share one import of torch (scripts/forked_ranks.py) with all other jobs of
    this process, for tests of what ranks do. Tests of launching, of endings and of restarts have `torchrun`.
    """
    adds = (("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", str(find_fixed_port())))
    return Forked((str(SCRIPTS / "forked_ranks.py"), str(count), *arguments), adds)


def python(*arguments: str) -> list[str]:
    """This very interpreter, and no launcher."""
    return [sys.executable, *arguments]


def line_of(script: str, text: str) -> int:
    """The number of the only line of a script that holds the text."""
    lines = (SCRIPTS / script).read_text().splitlines()
    (found,) = [number for number, line in enumerate(lines, 1) if text in line]
    return found


def find_marked(mark: str) -> list[psutil.Process]:
    """Return the living processes that have inherited the mark of a job."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if mark in process.environ().get(MARK, "").split():
                found.append(process)
    return found


def environment_of(given: Mapping[str, str], mark: str) -> dict[str, str]:
    """Return the environment of a job with that mark."""
    # A launcher's port gives a run its name where nobody else does. Runs of one name share a sidecar, which is there
    # until the last of them has ended.
    own_name = {"RANKSCOPE_RUN": f"alone-{mark}"} if given.get("MASTER_PORT") == ALONE["MASTER_PORT"] else {}
    marks = f"{os.environ.get(MARK, '')} {mark}".strip()
    return {**os.environ, "OMP_NUM_THREADS": "1", MARK: marks, **own_name, **given}


def describe(member: psutil.Process) -> str:
    """Describe a process that is left; empty for one that has ended meanwhile, read by its parent or not."""
    try:
        return f"{member.pid} {member.status()} {' '.join(member.cmdline())}"
    except psutil.NoSuchProcess:
        return ""


def _find_children(pid: int) -> list[psutil.Process]:
    try:
        children: list[psutil.Process] = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return children


def _find_session(leader: int) -> list[psutil.Process]:
    """Return the living processes of a session."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError):
            if os.getsid(process.pid) == leader:
                found.append(process)
    return found
