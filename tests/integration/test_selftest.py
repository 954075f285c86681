"""`rankscope selftest`: faults in real trainings of four ranks, and what is said of each. With SOAK all, five times."""

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankscope.collector.commands.selftest import NOT_REACHED
from rankscope.collector.selftest.cases import CASES
from tests.integration.cpu_quotas import cpu_quotas, why_none
from tests.integration.serving import wait_for
from tests.integration.torchrun import python, run, started

IS_LONG = os.environ.get("SOAK") == "1"
KINDS = tuple(CASES) if IS_LONG else ("hang", "exit")
TIMES = 5 if IS_LONG else 1
DEADLINE_S = 300.0
"""The command's own limit for a kind is 180 s and the end of its training."""


@contextlib.contextmanager
def cores_of_its_own(kind: str) -> Iterator[list[str]]:
    """Yield the beginning of a command that has two cores, whatever else this machine does, where the kind needs that
    and control groups can be made; else nothing.
    """
    if not CASES[kind].needs_cores or why_none():
        yield []
        return
    with cpu_quotas([2.0]) as (group,):
        yield ["/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs")]


@pytest.mark.parametrize("time", range(TIMES))
@pytest.mark.parametrize("kind", KINDS)
def test_the_right_sentence_is_said_of_the_fault(kind: str, time: int) -> None:
    with cores_of_its_own(kind) as prefix:
        command = [*prefix, *python("-m", "rankscope.collector", "selftest", "--kind", kind)]
        ended = run(command, deadline_s=DEADLINE_S)
    if ended.exit_code == NOT_REACHED and kind in ("gil_spin", "cpu_hog"):
        assert "not reached: other processes used" in ended.stdout
        pytest.skip("this machine is busy: " + ended.stdout.splitlines()[-1])
    assert (ended.exit_code, ended.left) == (0, ()), f"time {time}: {ended.stdout}{ended.stderr}"
    assert re.search(rf"^right  {kind} +after \d+ steps of the fault", ended.stdout, re.MULTILINE)
    assert f"Injected on purpose on rank 2: {kind} " in ended.stdout


def test_sigterm_ends_the_collector_and_every_rank() -> None:
    with started(python("-m", "rankscope.collector", "selftest", "--kind", "hang", "--json")) as job:
        # Itself, a collector of two processes, torchrun, and the first rank.
        wait_for(lambda: len(job.find_members()) >= 5 or None, lambda: str(job.find_members()), DEADLINE_S)
        job.launcher.send_signal(signal.SIGTERM)
        ended = job.wait(DEADLINE_S)
    assert (ended.exit_code, ended.left) == (128 + signal.SIGTERM, ())
    assert ended.stdout == ""  # JSON is printed when it is complete


def test_without_torch_the_command_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util\nfind = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *more: None if name == 'torch' else find(name, *more)\n"
    )
    environment = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    ended = run(python("-m", "rankscope.collector", "selftest", "--kind", "exit"), environment)
    assert ended.exit_code == 1
    assert ended.stderr.splitlines()[-1] == (
        "rankscope: the selftest trains a model and needs PyTorch in this environment: pip install torch"
    )
