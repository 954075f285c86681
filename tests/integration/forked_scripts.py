"""Scripts that start the agent themselves, in forks of one process for each worker that tests: see
scripts/fork_server.py. Whatever is launched, killed or measured by its memory has a process of its own: `torchrun.run`.
"""

import atexit
import contextlib
import functools
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

import psutil

from tests.integration.serving import wait_for
from tests.integration.torchrun import LEAVING_S, SCRIPTS, Ended, describe, environment_of, find_marked

ROOT = Path(__file__).parents[2]


class ForkServer:
    """The process that forks. Made by `find_server`."""

    def __init__(self) -> None:
        self._one_at_a_time = threading.Lock()
        self._server = subprocess.Popen(
            [sys.executable, "fork_server.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=SCRIPTS,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        )

    def close(self) -> None:
        """End it; scripts that still run go on."""
        self._server.communicate()

    def fork(self, words: list[str], environment: Mapping[str, str], folder: Path) -> int:
        """Start a script and return its process group."""
        with self._one_at_a_time:
            assert self._server.stdin is not None
            assert self._server.stdout is not None
            request = {"words": words, "environment": dict(environment), "folder": str(folder)}
            self._server.stdin.write(json.dumps(request) + "\n")
            self._server.stdin.flush()
            return int(self._server.stdout.readline())


@functools.cache
def find_server() -> ForkServer:
    """Return the server of this process, started by the first who asks."""
    server = ForkServer()
    atexit.register(server.close)
    return server


def run_forked(*words: str, environment: Mapping[str, str]) -> Ended:
    """Run a script in a fork of the server and wait for its end; fail after the deadline of any job."""
    mark = secrets.token_hex(8)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        group = find_server().fork(list(words), environment_of(environment, mark), folder)
        try:
            status = wait_for(
                lambda: read(folder / "status") or None, lambda: f"not over; stderr: {read(folder / 'stderr')}"
            )
            _, left = psutil.wait_procs(find_marked(mark), LEAVING_S)
            described = tuple(text for text in map(describe, left) if text)
            return Ended(int(status), read(folder / "stdout"), read(folder / "stderr"), described)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
            for process in find_marked(mark):
                with contextlib.suppress(psutil.Error):
                    process.kill()


def read(path: Path) -> str:
    """Return the text of a file; empty while there is none."""
    return path.read_text(errors="replace") if path.exists() else ""
