"""Read one memory snapshot in a process of its own: it limits itself, then writes its answer to stdout.

Run by `snapshot_process.py`. Nothing of the file is read before the limits hold.
"""

import os
import resource
import stat
import sys
from collections.abc import Sequence
from typing import Final

import msgspec

from rankscope.collector.memory.plain_pickle import load_plain
from rankscope.collector.memory.snapshot_events import check_snapshot
from rankscope.collector.memory.snapshot_report import SnapshotResult, build_report
from rankscope.measure.errors import TraceError

FILE_BYTES_MAX: Final = 512 << 20
"""Largest snapshot: some millions of events. Unpickled it takes ten times as much or more."""
MEMORY_BYTES_MAX: Final = 4 << 30
"""Most address space of this process."""
CPU_S_MAX: Final = 1_200
CPU_S_MIN, CPU_S_A_MIB = 20, 2
"""Most CPU time for a file of so many MiB: ten times of what one takes."""
ANSWER_BYTES_MAX: Final = 64 << 20
FLOW, NO_FLOW = "flow", "no_flow"


class Answer(msgspec.Struct, frozen=True):
    """What was read, or why it could not be."""

    result: SnapshotResult | None = None
    problem: str = ""


def main(arguments: Sequence[str]) -> int:
    """Read the file of the first argument, with charts if the second one is `flow`; return the exit status 0."""
    path, wanted = arguments
    limit_process()
    try:
        answer = Answer(build_report(check_snapshot(load_plain(_read(path))), path, with_flow=wanted == FLOW))
    except TraceError as error:
        answer = Answer(problem=str(error))
    except MemoryError:
        answer = Answer(problem=f"reading it takes more than {MEMORY_BYTES_MAX >> 30} GiB of memory")
    except OSError as error:
        answer = Answer(problem=f"it cannot be read: {error.strerror}")
    sys.stdout.buffer.write(msgspec.msgpack.encode(answer))
    return 0


def limit_process() -> None:
    """Limit the memory, CPU time and output of this process."""
    for kind, most in (
        (resource.RLIMIT_AS, MEMORY_BYTES_MAX),
        (resource.RLIMIT_CPU, CPU_S_MAX),
        (resource.RLIMIT_FSIZE, ANSWER_BYTES_MAX),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most))


def _read(path: str) -> bytes:
    """Return the content of a regular file. Raises TraceError for others, and for one that is too large."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # opening a pipe would wait for its writer
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise TraceError("it is no regular file")
        if found.st_size > FILE_BYTES_MAX:
            raise TraceError(
                f"refused: it has {found.st_size >> 20:,} MiB, and at most {FILE_BYTES_MAX >> 20} MiB are read. "
                "Record with a smaller max_entries"
            )
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S_MIN + CPU_S_A_MIB * (found.st_size >> 20), CPU_S_MAX))
        return file.read(FILE_BYTES_MAX)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
