"""How a process ended that is not our child, from the kernel.

    while it is a zombie        the last field of /proc/PID/stat, until its parent has taken it (torchrun: within 0.1 s)
    after that, Linux >= 6.15   ioctl PIDFD_GET_INFO on a pidfd that was opened while it lived

Both give the status as waitpid does. Tried on Linux 6.18: `tests/unit/agent/test_exit_status.py`.
"""

import contextlib
import fcntl
import os
import struct
from typing import Final, NamedTuple

# include/uapi/linux/pidfd.h: _IOWR(0xFF, 11, struct pidfd_info), whose first version has 64 bytes: mask and cgroup id,
# eleven numbers of 32 bits (process ids and credentials), and the exit status.
_INFO: Final = struct.Struct("=QQ11Ii")
_PIDFD_GET_INFO: Final = (3 << 30) | (_INFO.size << 16) | (0xFF << 8) | 11
_PIDFD_INFO_EXIT: Final = 1 << 3

_AFTER_NAME_STATE, _AFTER_NAME_START_TICKS, _AFTER_NAME_EXIT = 0, 19, 49
"""Places after the name in /proc/PID/stat: its fields 3, 22 and 52."""


class ExitStatus(NamedTuple):
    """How a process ended: its exit code, or else the signal that ended it."""

    exit_code: int | None
    signal: int | None
    core_dumped: bool


def parse_status(status: int) -> ExitStatus:
    """The status of waitpid.

    >>> parse_status(3 << 8), parse_status(11 | 0x80)[1:]
    (ExitStatus(exit_code=3, signal=None, core_dumped=False), (11, True))
    """
    number = status & 0x7F
    if number == 0:
        return ExitStatus((status >> 8) & 0xFF, None, core_dumped=False)
    return ExitStatus(None, number, bool(status & 0x80))


def open_process(pid: int) -> int | None:
    """A pidfd, readable once the process has ended; None where the kernel or a filter does not allow it."""
    with contextlib.suppress(OSError, AttributeError):
        return os.pidfd_open(pid)
    return None


def read_start_ticks(pid: int, proc: str = "/proc") -> int | None:
    """When the process started, in the kernel's ticks: with the id it names one process for good."""
    fields = _read_stat(pid, proc)
    return int(fields[_AFTER_NAME_START_TICKS]) if fields else None


def has_ended(pid: int, start_ticks: int | None, proc: str = "/proc") -> bool:
    """Whether that process does not run any more: gone, a zombie, or its id is another one's by now."""
    fields = _read_stat(pid, proc)
    if not fields or fields[_AFTER_NAME_STATE] in {"Z", "X"}:
        return True
    return start_ticks is not None and int(fields[_AFTER_NAME_START_TICKS]) != start_ticks


def read_exit_status(pid: int, start_ticks: int | None, pidfd: int | None, proc: str = "/proc") -> ExitStatus | None:
    """How the process ended; None where nobody can say any more. Works once its parent has not, or has, taken it."""
    fields = _read_stat(pid, proc)
    if fields and fields[_AFTER_NAME_STATE] in {"Z", "X"} and len(fields) > _AFTER_NAME_EXIT:
        is_same = start_ticks is None or int(fields[_AFTER_NAME_START_TICKS]) == start_ticks
        if is_same:
            return parse_status(int(fields[_AFTER_NAME_EXIT]))
    return None if pidfd is None else _ask_kernel(pidfd)


def _ask_kernel(pidfd: int) -> ExitStatus | None:
    block = bytearray(_INFO.size)
    struct.pack_into("=Q", block, 0, _PIDFD_INFO_EXIT)
    with contextlib.suppress(OSError):
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, block)
        mask, *_, status = _INFO.unpack(block)
        if mask & _PIDFD_INFO_EXIT:
            return parse_status(status)
    return None


def _read_stat(pid: int, proc: str) -> list[str]:
    """The fields after the process's name, which may hold anything. Empty when there is no such process."""
    with contextlib.suppress(OSError), open(f"{proc}/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()
    return []
