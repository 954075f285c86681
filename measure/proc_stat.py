"""What Linux says of a process, or of one of its threads, in the file `stat` of /proc: proc(5)."""

import contextlib
from typing import Final, NamedTuple

_STATE, _USER_TICKS, _SYSTEM_TICKS, _START_TICKS, _EXIT_STATUS = 0, 11, 12, 19, 49
"""Places after the name: fields 3, 14, 15, 22 and 52."""
_ENDED: Final = frozenset({"Z", "X"})


class ProcessStat(NamedTuple):
    """A process or thread: its name, the letter of its state, its CPU time and the time of its start in the kernel's
    ticks, and the status of waitpid, which is 0 as long as it runs. None: the file ends before that.
    """

    name: str
    state: str
    cpu_ticks: int | None
    start_ticks: int | None
    exit_status: int | None

    @property
    def has_ended(self) -> bool:
        """Whether it only waits for its parent to notice."""
        return self.state in _ENDED


def read_stat(folder: str) -> ProcessStat | None:
    """What stands there of a process, `/proc/PID`, or of a thread, `/proc/PID/task/TID`; None when nothing does."""
    with contextlib.suppress(OSError), open(f"{folder}/stat", encoding="utf-8", errors="replace") as file:
        return parse_stat(file.read())
    return None


def parse_stat(text: str) -> ProcessStat | None:
    """The content of such a file; None when it is none. The name, in brackets, may hold anything, brackets too.

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
