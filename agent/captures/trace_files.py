"""Write captures to files, on the agent thread: `FOLDER/RUN/steps-FIRST-LAST/rank-R.pt.trace.json.gz`, after elastic
restarts `FOLDER/RUN/restart-N/...`, since steps begin with 0 again.

torch writes the trace, and holds the GIL meanwhile: 5 to 30 us an event, which is part of what a capture costs. It is
compressed afterwards, without the GIL. Until the file is whole its name begins with a dot.
"""

import contextlib
import gzip
import os
import re
import tempfile
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from rankscope.agent.capture_settings import CaptureSteps
from rankscope.agent.captures.trace_recording import RawCapture
from rankscope.agent.guard import describe
from rankscope.agent.private_folder import PRIVATE_FILE, make_parents
from rankscope.agent.temporary_folders import CAPTURE

LAST_BYTES: Final = 64
"""A whole trace has its closing brace among so many last bytes. On a full disk torch writes a part, in silence."""
TOO_LARGE: Final = "the captures of this rank would exceed the agent's capture_bytes_max"
CHUNK_BYTES: Final = 1 << 18
SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 - a private folder in it
NAME_MAX: Final = 32
"""Characters of a run's name in that of a temporary folder."""
FREE_BYTES_MIN: Final = 1 << 30
"""Free bytes from which /dev/shm has room: of a container it has 64 MiB, and a trace is 10 to 20 times as large before
it is compressed."""
LEVEL: Final = 1
"""Traces are 10 to 20 times smaller at any level of compression."""


class Written(NamedTuple):
    """A capture that has been written, or could not be. `pause_ns`: for how long it has stopped training, the writing
    by torch included. `problem`: why there is no file; empty if there is.
    """

    steps: CaptureSteps
    path: str
    size_bytes: int
    pause_ns: int
    problem: str = ""


class TraceFiles:
    """The files of one rank, of at most `bytes_max` together; without a folder, each in a temporary one of its own,
    which the caller removes with it. Files and folders that are made are for this user alone: traces have lines of
    source.
    """

    def __init__(
        self,
        folder: str,
        run: str,
        rank: int,
        *,
        bytes_max: int,
        restart_count: int = 0,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._folder = folder
        self._parts = name_folders(run, restart_count)
        self.is_temporary = not folder
        self._rank = rank
        self._bytes_max = bytes_max
        self._monotonic_ns = monotonic_ns
        self.written_bytes = 0
        """The size of all files so far."""
        self.is_full = False
        """Whether a file would have exceeded the largest size, so that there are no more."""

    def write(self, capture: RawCapture, bytes_max: int = 0) -> Written:
        """Write one, of at most `bytes_max` bytes (0: no other limit than that of all). Never raises."""
        steps = capture.steps
        begin_ns, size_bytes, problem = self._monotonic_ns(), 0, ""
        end_ns = begin_ns
        folder = path = plain = packed = ""
        try:
            folder = self._make_folder(steps)
            path = os.path.join(folder, f"rank-{self._rank}.pt.trace.json.gz")
            plain, packed = (os.path.join(folder, f".rank-{self._rank}.{part}") for part in ("json", "gz"))
            capture.profile.export_chrome_trace(plain)
            os.chmod(plain, PRIVATE_FILE)
            end_ns = self._monotonic_ns()
            check_whole(plain)
            size_bytes = compress(plain, packed, self._bytes_max - self.written_bytes, bytes_max)
            os.replace(packed, path)
            if not self.is_temporary:
                self.written_bytes += size_bytes
        except Exception as error:  # noqa: BLE001 - torch's and the disk's: the capture is lost, training goes on
            problem = str(error) if isinstance(error, TraceLostError) else describe(error)
            self.is_full |= problem == TOO_LARGE and not self.is_temporary
        finally:
            for left in (plain, packed):
                with contextlib.suppress(OSError):
                    os.unlink(left)
            if problem and folder and self.is_temporary:
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
        pause_ns = capture.pause_ns + max(0, end_ns - begin_ns)
        return Written(steps, path, size_bytes, pause_ns, problem)

    def _make_folder(self, steps: CaptureSteps) -> str:
        """Make the folder for the file of these steps where it is missing, and return it. Raises OSError."""
        if self.is_temporary:
            return make_temporary(self._parts[0])
        folder = os.path.join(self._folder, *self._parts, f"steps-{steps.first_step}-{steps.last_step}")
        make_parents(folder)
        return folder


def make_temporary(run: str) -> str:
    """Make a folder, private to this user, for one capture of a run that stays until the collector has it, and return
    it: in memory where there is room, else in TMPDIR. Raises OSError.

    No two processes share one: a rank removes its own while others of its node write theirs, and another job may have a
    run, steps and a rank of the same names.
    """
    place = tempfile.gettempdir()
    with contextlib.suppress(OSError):
        shared = os.statvfs(SHARED_MEMORY)
        if shared.f_bavail * shared.f_frsize >= FREE_BYTES_MIN:
            place = SHARED_MEMORY
    return tempfile.mkdtemp(prefix=f"{CAPTURE}{run[:NAME_MAX]}-", dir=place)


class TraceLostError(Exception):
    """A capture that is not kept; its text is the reason."""


def name_folders(run: str, restart_count: int) -> tuple[str, ...]:
    """Return the folders of a run's files in that of captures, `RUN` and after elastic restarts `restart-N` in it."""
    again = (f"restart-{restart_count}",) if restart_count else ()
    return (make_name(run), *again)


def make_name(run: str) -> str:
    """Return the name of a run as that of a folder.

    >>> make_name("team/llama 7b"), make_name("..")
    ('team_llama_7b', '_.')
    """
    return re.sub(r"[^\w.-]|^\.", "_", run) or "run"


def check_whole(path: str) -> None:
    """Raise TraceLostError unless the file ends as a trace does."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LAST_BYTES))
        if not file.read().rstrip().endswith(b"}"):
            raise TraceLostError(f"its file was cut after {size:,} bytes; the disk may be full")


def compress(source: str, target: str, room_bytes: int, bytes_max: int = 0) -> int:
    """Compress a file and return the new one's size in bytes. Raises TraceLostError above `room_bytes`, what is left
    for all captures, and above `bytes_max` unless that is 0; and OSError.
    """
    limit = min(room_bytes, bytes_max or room_bytes)
    file = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE_FILE)
    with os.fdopen(file, "wb") as raw, open(source, "rb") as plain:
        with gzip.GzipFile("", "wb", LEVEL, raw, 0) as packed:
            while (chunk := plain.read(CHUNK_BYTES)) and raw.tell() <= limit:
                packed.write(chunk)
        if raw.tell() > limit:
            raise TraceLostError(
                TOO_LARGE
                if limit == room_bytes
                else f"its file exceeds the {bytes_max:,} bytes of the order: order fewer steps or ranks"
            )
        return raw.tell()
