"""No invalid read or write that the same training without the agent has not: tiny jobs under valgrind, with a session
of torch's profiler on when they end. 10 minutes on two idle cores, so only `make soak` has them.
"""

import contextlib
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.integration.faults import IS_SOAK
from tests.integration.listening_collector import listening
from tests.integration.serving import find_fixed_port
from tests.integration.torchrun import AGENT, ALONE, OFTEN, SCRIPTS, Ended, python, started

pytestmark = [
    pytest.mark.skipif(not IS_SOAK, reason="10 minutes; make soak has it"),
    pytest.mark.timeout(7200),
]

DEADLINE_S = 3600.0
FRAMES = 5
"""Innermost functions by which two errors are one."""
VALGRIND = (
    "valgrind", "--tool=memcheck", "--undef-value-errors=no", "--child-silent-after-fork=yes", "--num-callers=20",
    "--xml=yes", "--show-leak-kinds=none",  # with XML it looks for leaks, which are hundreds of MB of text
)  # fmt: skip
OF_VALGRIND = {
    "PYTHONMALLOC": "malloc",  # which valgrind knows
    "ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_DEBUG_CPU_TYPE": "4",  # no AVX-512 in it
    "OMP_NUM_THREADS": "1",
}  # fmt: skip
ONCE = {"RANKSCOPE_SIDECAR": "false"}
"""The sidecar is a process of its own, and what it thinks of a rank that is fifty times slower is of no interest."""

Stack = tuple[str, ...]


def run_under_valgrind(
    shape: str, errors: Path, environment: Mapping[str, str], *words: str
) -> tuple[Ended, set[Stack]]:
    """Run the script, a second rank beside it if it needs one, and return what valgrind has found in the first."""
    command = [*VALGRIND, f"--xml-file={errors}", *python(*words, "on_threads.py", shape)]
    with contextlib.ExitStack() as jobs:
        if shape == "gloo":
            pair = {"WORLD_SIZE": "2", "MASTER_PORT": str(find_fixed_port())}
            environment = {**environment, **pair}
            beside = {**environment, "RANK": "1", "LOCAL_RANK": "1"}
            jobs.enter_context(started(python(*words, "on_threads.py", shape), beside, folder=SCRIPTS))
        job = jobs.enter_context(started(command, {**environment, **OF_VALGRIND}, folder=SCRIPTS))
        ended = job.wait(DEADLINE_S)
    return ended, read_errors(errors)


def read_errors(path: Path) -> set[Stack]:
    """Return the kinds and innermost functions of the errors in a file of valgrind's."""
    found = set()
    for error in ET.parse(path).getroot().iter("error"):  # noqa: S314 - a file of our own child
        stack = error.find("stack")
        frames = [] if stack is None else stack.findall("frame")[:FRAMES]
        names = (frame.findtext("fn") or frame.findtext("obj") or "?" for frame in frames)
        kind = error.findtext("kind") or "?"
        if kind.startswith("Invalid"):  # reads, writes, frees and jumps
            found.add((kind, *names))
    return found


@pytest.mark.parametrize("shape", ["thread", "idle", "gloo"])
def test_no_invalid_access_that_plain_training_has_not(shape: str, tmp_path: Path) -> None:
    plain, known = run_under_valgrind(shape, tmp_path / "plain.xml", ALONE)
    with listening() as collector:
        given = {
            **ALONE,
            **OFTEN,
            **ONCE,
            "RANKSCOPE_COLLECTOR": collector.endpoint,
            "RANKSCOPE_CONSTANT_WARMUP_STEPS": "2",
        }
        watched, found = run_under_valgrind(shape, tmp_path / "watched.xml", given, *AGENT)
    assert (plain.exit_code, watched.exit_code) == (0, 0), watched.stderr
    assert "1 on" in watched.stdout
    assert found - known == set()
