"""Scripts in forks of one process for each worker that tests, which has imported torch: scripts/fork_server.py.

Whatever is launched, or measured by its memory or its imports, has a process of its own.
"""

import atexit
import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SERVER = Path(__file__).parent / "scripts" / "fork_server.py"
POLL_S = 0.02


class ForkServer:
    """The process that forks. Made by `find_server`."""

    def __init__(self) -> None:
        self._one_at_a_time = threading.Lock()
        self._server = subprocess.Popen(
            [sys.executable, str(SERVER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=SERVER.parent,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SERVER.parents[3])},
        )

    def close(self) -> None:
        """End it; scripts that still run go on."""
        self._server.communicate()

    def fork(self, request: Mapping[str, Any]) -> int:
        """Start a script and return the number of its process, which leads a session of its own."""
        with self._one_at_a_time:
            assert self._server.stdin is not None
            assert self._server.stdout is not None
            self._server.stdin.write(json.dumps(request) + "\n")
            self._server.stdin.flush()
            return int(self._server.stdout.readline())


@functools.cache
def find_server() -> ForkServer:
    """Return the server of this process, started by the first who asks."""
    server = ForkServer()
    atexit.register(server.close)
    return server


class ForkedScript:
    """A script that runs in a fork, with what `subprocess.Popen` has of a child."""

    def __init__(
        self, words: Sequence[str], *, environment: Mapping[str, str], folder: Path, stdout: int, stderr: int
    ) -> None:
        self._place = Path(tempfile.mkdtemp(prefix="forked-"))
        self._status = self._place / "status"
        own = f"/proc/{os.getpid()}/fd"
        self.pid = find_server().fork({
            "words": [*words], "environment": {**environment}, "folder": str(folder), "status": str(self._status),
            "stdout": f"{own}/{stdout}", "stderr": f"{own}/{stderr}",
        })  # fmt: skip
        self._exit_code: int | None = None

    def poll(self) -> int | None:
        """Return its exit code, or the negative number of the signal that has killed it; None while it runs."""
        if self._exit_code is None:
            with contextlib.suppress(FileNotFoundError):
                self._exit_code = int(self._status.read_text())
                shutil.rmtree(self._place)
        return self._exit_code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return how it ended. Raises subprocess.TimeoutExpired."""
        end_s = None if timeout is None else time.monotonic() + timeout
        pause = threading.Event()
        while (exit_code := self.poll()) is None:
            if timeout is not None and end_s is not None and time.monotonic() > end_s:
                raise subprocess.TimeoutExpired("a forked script", timeout)
            pause.wait(POLL_S)
        return exit_code

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL to it alone."""
        self.send_signal(signal.SIGKILL)
