"""Read a memory snapshot in a child process with limits of memory, time and output.

A snapshot is a pickle, and may come from anywhere: what reads it must not be this process.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Final

import msgspec

from rankscope.collector.memory.read_snapshot import ANSWER_BYTES_MAX, CPU_S_MAX, FLOW, NO_FLOW, Answer
from rankscope.collector.memory.snapshot_report import SnapshotResult
from rankscope.measure.child_command import build_child_command
from rankscope.measure.errors import UnavailableError

CHILD_S_MAX: Final = float(2 * CPU_S_MAX)
"""Longest time, where the machine is busy."""
MODULE: Final = "rankscope.collector.memory.read_snapshot"
ERROR_CHARACTERS_MAX: Final = 300
_ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def read_snapshot(path: str, *, with_flow: bool = False, child_s_max: float = CHILD_S_MAX) -> SnapshotResult:
    """Return the report of a snapshot's file. Raises UnavailableError, naming the file, for one that cannot be read or
    is refused.
    """
    command = build_child_command(sys.executable, MODULE, str(Path(path).absolute()), FLOW if with_flow else NO_FLOW)
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(  # noqa: S603 - our own program
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            env={**os.environ, **_ONE_THREAD},
            start_new_session=True,
        )
        try:
            status = child.wait(child_s_max)
        except subprocess.TimeoutExpired:
            raise UnavailableError(f"{path}: reading it took longer than {child_s_max:.0f} s") from None
        finally:
            with contextlib.suppress(OSError):  # it has ended
                child.kill()
            child.wait()
        answer = _decode(output) if status == 0 else Answer(problem=_describe_end(status, errors))
    if answer.result is None:
        raise UnavailableError(f"{path}: {answer.problem}")
    report = msgspec.structs.replace(answer.result.report, file=path)
    return SnapshotResult(report, answer.result.flows)


def _decode(output: IO[bytes]) -> Answer:
    output.seek(0)
    try:
        return msgspec.msgpack.decode(output.read(ANSWER_BYTES_MAX), type=Answer)
    except msgspec.DecodeError as error:
        return Answer(problem=f"the process that reads it gave no answer: {error}")


def _describe_end(status: int, errors: IO[bytes]) -> str:
    """Return how the child ended: by a signal where it reached a limit."""
    if status in {-signal.SIGXCPU, -signal.SIGKILL}:
        return "reading it was ended: it took too much CPU time for its size, or the machine has no memory left"
    errors.seek(0)
    said = errors.read(1 << 16).decode(errors="replace").strip().splitlines()
    last = f": {said[-1][:ERROR_CHARACTERS_MAX]}" if said else ""
    return f"the process that reads it ended with status {status}{last}"
