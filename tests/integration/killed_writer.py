"""A process that writes to a store and tells of each write, killed in the middle."""

import signal
import subprocess
import sys
from pathlib import Path

from tests.integration.serving import END_S_MAX

ROOT = Path(__file__).parents[2]


def kill_writer(script: str, path: Path, writes: int) -> list[int]:
    """The numbers of the writes that the script, run with `path`, has printed, a line each, when it was killed after so
    many of them.
    """
    command = [sys.executable, "-c", script, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as writer:
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(writes)]
        writer.kill()
        lines += writer.stdout.readlines()
        assert writer.wait(END_S_MAX) == -signal.SIGKILL
    return [int(line) for line in lines if line.endswith("\n")]
