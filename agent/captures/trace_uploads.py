"""Upload the files of captures, on the agent thread: one after another, each in a child process. Never waits, but at
the end of the process.
"""

import contextlib
import json
import os
import shutil
import signal
import tempfile
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from rankscope.agent.captures.trace_files import Written
from rankscope.agent.captures.upload_file import TIME_LIMIT_S, command_line, make_environment
from rankscope.agent.guard import describe, find_last_error
from rankscope.agent.spawned_child import Child, SpawnedChild
from rankscope.agent.temporary_folders import UPLOADS, hold
from rankscope.measure.units import s_to_ns

WAITING_MAX: Final = 16
"""Files that may wait for the upload before them. Their bytes are in capture_bytes_max."""
GRACE_S: Final = 10
"""A child that has not been ended by its own time limit after so long is ended."""
POLL_S: Final = 0.02
BEHIND: Final = "too many files were waiting for their upload"
AT_END: Final = "the process ended before its upload, and drain_s has passed"
TOO_SLOW: Final = f"the upload was not over after {TIME_LIMIT_S} s"


class Upload(NamedTuple):
    """A file that is uploaded: as it was written here, where it goes, and why it ended early, if it did."""

    written: Written
    target: str
    cut: str


class Uploaded(NamedTuple):
    """An upload that is over. `problem`: why the file did not arrive; empty if it did."""

    upload: Upload
    problem: str


def spawn(request: bytes) -> Child:
    """Start the child for this request. Raises OSError when it cannot be started."""
    return SpawnedChild(command_line(), request, make_environment(os.environ))


class TraceUploads:
    """The uploads of one rank to `url`. Files are written to `folder` first, which is private to the user."""

    def __init__(
        self,
        url: str,
        *,
        spawn_child: Callable[[bytes], Child] = spawn,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self.folder = os.path.join(tempfile.gettempdir(), f"{UPLOADS}{os.urandom(8).hex()}")
        self._held: int | None = None
        self._url = url.rstrip("/")
        self._spawn = spawn_child
        self._monotonic_ns = monotonic_ns
        self._wait = wait
        self._waiting: deque[Upload] = deque()
        self._running: tuple[Child, Upload, int] | None = None
        self._over: list[Uploaded] = []
        self.cpu_ns = 0
        """CPU time of the children that have ended."""

    def submit(self, written: Written, cut: str) -> None:
        """Upload this file after those before it."""
        if self._held is None:
            self._held = hold(self.folder)
        path = os.path.relpath(written.path, self.folder)
        self._waiting.append(Upload(written, f"{self._url}/{path}", cut))
        if len(self._waiting) > WAITING_MAX:
            self._close(self._waiting.popleft(), BEHIND)

    def collect(self) -> list[Uploaded]:
        """Return the uploads that are over since the last call, and begin the next one. Never waits."""
        self._poll()
        self._start_next()
        over, self._over = self._over, []
        return over

    def finish(self, deadline_ns: int) -> list[Uploaded]:
        """Upload what can be until the deadline, and return what has become of all others."""
        over = self.collect()
        while self._running is not None and self._monotonic_ns() < deadline_ns:
            self._wait(POLL_S)
            over += self.collect()
        if self._running is not None:
            child, upload, _ = self._running
            self._running = None
            child.kill()
            self._close(upload, AT_END)
        while self._waiting:
            self._close(self._waiting.popleft(), AT_END)
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._held is not None:
            os.close(self._held)
            self._held = None
        over += self._over
        self._over = []
        return over

    def _start_next(self) -> None:
        while self._running is None and self._waiting:
            upload = self._waiting.popleft()
            request = json.dumps({"source": upload.written.path, "target": upload.target}).encode()
            try:
                self._running = self._spawn(request), upload, self._monotonic_ns()
            except (OSError, TypeError, ValueError) as error:  # no memory, or no known interpreter
                self._close(upload, describe(error))

    def _poll(self) -> None:
        if self._running is None:
            return
        child, upload, began_ns = self._running
        ended = child.poll()
        if ended is not None:
            self._running = None
            self.cpu_ns += ended.cpu_ns
            self._close(upload, explain_end(ended.exit_code, ended.errors.decode(errors="replace")))
        elif self._monotonic_ns() - began_ns > s_to_ns(TIME_LIMIT_S + GRACE_S):
            self._running = None
            child.kill()
            self._close(upload, TOO_SLOW)

    def _close(self, upload: Upload, problem: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(upload.written.path)
        self._over.append(Uploaded(upload, problem))


def explain_end(exit_code: int, errors: str) -> str:
    """Return why a child with this end has not uploaded its file; empty if it has.

    >>> explain_end(0, ""), explain_end(-9, "")
    ('', 'its process ended with exit code -9')
    """
    if exit_code == 0:
        return ""
    if exit_code == -signal.SIGALRM:
        return TOO_SLOW
    return find_last_error(errors) or f"its process ended with exit code {exit_code}"
