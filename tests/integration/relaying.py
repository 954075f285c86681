"""A relay as an operator starts it, in a process of its own."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import IO

from tests.integration.serving import END_S_MAX, START_S_MAX, wait_for


class RunningRelay:
    """A running `rankscope relay`. Made by `relaying`."""

    def __init__(self, arguments: tuple[str, ...]) -> None:
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        self._child = subprocess.Popen(
            [sys.executable, "-m", "rankscope.collector", "relay", "--announce", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
        )
        self.pid = self._child.pid
        try:
            self.endpoint: str = json.loads(self._read_line())["endpoint"]
        except BaseException:
            self.close()
            raise

    def end(self, number: signal.Signals) -> int:
        """Send a signal and wait for the end; the exit code."""
        self._child.send_signal(number)
        return self._child.wait(END_S_MAX)

    def read_stderr(self) -> str:
        """What it has said on stderr."""
        return os.pread(self._stderr.fileno(), 1 << 20, 0).decode(errors="replace")

    def wait_for_words(self, words: str) -> None:
        """Wait until its log has them."""
        wait_for(lambda: True if words in self.read_stderr() else None, self.read_stderr)

    def close(self) -> None:
        """Make sure that it is gone."""
        if self._child.poll() is None:
            self._child.kill()
        self._child.wait()
        if self._child.stdout is not None:
            self._child.stdout.close()
        self._stderr.close()

    def _read_line(self) -> bytes:
        stdout = self._child.stdout
        assert stdout is not None
        readable, _, _ = select.select([stdout], [], [], START_S_MAX)
        line = stdout.readline() if readable else b""
        assert line, f"no relay after at most {START_S_MAX} s; stderr: {self.read_stderr()}"
        return line


@contextlib.contextmanager
def relaying(collector: str, *arguments: str, listen: str = "tcp://127.0.0.1:0") -> Iterator[RunningRelay]:
    """Start a relay, at a free port and with quick batches unless told otherwise; it does not outlive the block."""
    relay = RunningRelay(("--collector", collector, "--listen", listen, "--batch-interval-s", "0.1", *arguments))
    try:
        yield relay
    finally:
        relay.close()
