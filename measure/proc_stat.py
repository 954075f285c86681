"""Read Linux's `stat` file of a process or a thread, proc(5), and check whether a process still runs."""

import contextlib
import os
from pathlib import Path
from typing import Final, NamedTuple

_STATE, _USER_TICKS, _SYSTEM_TICKS, _START_TICKS, _EXIT_STATUS = 0, 11, 12, 19, 49
"""Places after the name: fields 3, 14, 15, 22 and 52."""
_ENDED: Final = frozenset({"Z", "X"})


class ProcessStat(NamedTuple):
    """State of a process or thread: its name, the letter of its state, its CPU time and its start time in kernel ticks,
    and its waitpid status, which is 0 while it runs. None: the file ends before that field.
    """

    name: str
    state: str
    cpu_ticks: int | None
    start_ticks: int | None
    exit_status: int | None

    @property
    def has_ended(self) -> bool:
        """Return whether the process has exited and only waits to be reaped."""
        return self.state in _ENDED


def read_stat(folder: str) -> ProcessStat | None:
    """Return the state of a process, `/proc/PID`, or of a thread, `/proc/PID/task/TID`; None if there is none."""
    with contextlib.suppress(OSError), open(f"{folder}/stat", encoding="utf-8", errors="replace") as file:
        return parse_stat(file.read())
    return None


def parse_stat(text: str) -> ProcessStat | None:
    """Return the content of a `stat` file; None if malformed. The name, in brackets, may hold anything, brackets too.

    >>> parse_stat("7 (a) b) S 1 7 7 0 -1 0 0 0 0 0 4 2 0 0")[:3]
    ('a) b', 'S', 6)
    """
    head, _, rest = text.rpartition(")")
    fields = rest.split()
    if not fields:
        return None
    user, system, start, status = (
        int(fields[place]) if place < len(fields) else None
        for place in (_USER_TICKS, _SYSTEM_TICKS, _START_TICKS, _EXIT_STATUS)
    )
    cpu_ticks = None if user is None or system is None else user + system
    return ProcessStat(head.partition("(")[2], fields[_STATE], cpu_ticks, start, status)


PROC = Path("/proc")


def is_gone(pid: int, proc: Path = PROC) -> bool:
    """Return whether the process no longer runs; a zombie that waits for its parent counts as gone.

    Only meaningful for a process of this machine and process namespace.
    """
    stat = read_stat(f"{proc}/{pid}")
    return not _is_known(pid) if stat is None else stat.has_ended


def _is_known(pid: int) -> bool:
    """Return whether the kernel knows the process. /proc may hide those of other users (mount option `hidepid`)."""
    try:
        os.kill(pid, 0)  # signal 0 does nothing
    except PermissionError:
        pass  # it is another user's
    except (ProcessLookupError, OverflowError):
        return False
    return True
