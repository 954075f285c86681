"""Reads the exit status of a process that is not a child, from the kernel.

    while it is a zombie        the last field of /proc/PID/stat, until its parent reaps it (torchrun: within 0.1 s)
    after that, Linux >= 6.15   ioctl PIDFD_GET_INFO on a pidfd that was opened while it was running

Both give the status in the format of waitpid.
"""

import contextlib
import fcntl
import os
import struct
from typing import Final, NamedTuple

from rankscope.measure.proc_stat import read_stat

# include/uapi/linux/pidfd.h: _IOWR(0xFF, 11, struct pidfd_info), whose first version has 64 bytes: mask and cgroup id,
# eleven numbers of 32 bits (process ids and credentials), and the exit status.
_INFO: Final = struct.Struct("=QQ11Ii")
_PIDFD_GET_INFO: Final = (3 << 30) | (_INFO.size << 16) | (0xFF << 8) | 11
_PIDFD_INFO_EXIT: Final = 1 << 3


class ExitStatus(NamedTuple):
    """The exit code of a process, or the signal that ended it."""

    exit_code: int | None
    signal: int | None
    core_dumped: bool


def parse_status(status: int) -> ExitStatus:
    """Parse a status in the format of waitpid.

    >>> parse_status(3 << 8), parse_status(11 | 0x80)[1:]
    (ExitStatus(exit_code=3, signal=None, core_dumped=False), (11, True))
    """
    number = status & 0x7F
    if number == 0:
        return ExitStatus((status >> 8) & 0xFF, None, core_dumped=False)
    return ExitStatus(None, number, bool(status & 0x80))


def open_process(pid: int) -> int | None:
    """Open a pidfd, which is readable once the process has ended; None if the kernel or a filter denies it."""
    with contextlib.suppress(OSError, AttributeError):
        return os.pidfd_open(pid)
    return None


def read_start_ticks(pid: int, proc: str = "/proc") -> int | None:
    """Return the start time of a process in clock ticks, which together with its id identifies it."""
    stat = read_stat(f"{proc}/{pid}")
    return None if stat is None else stat.start_ticks


def close_process(pidfd: int) -> None:
    """Close a handle of `open_process`. An error does not matter: nothing was written to it."""
    with contextlib.suppress(OSError):
        os.close(pidfd)


def has_ended(pid: int, start_ticks: int | None, proc: str = "/proc") -> bool:
    """Return whether the process has ended: it is gone, a zombie, or its id belongs to another process."""
    stat = read_stat(f"{proc}/{pid}")
    return stat is None or stat.has_ended or start_ticks not in {None, stat.start_ticks}


def read_exit_status(pid: int, start_ticks: int | None, pidfd: int | None, proc: str = "/proc") -> ExitStatus | None:
    """Return how the process ended, before or after its parent has reaped it; None if that is not known any more."""
    stat = read_stat(f"{proc}/{pid}")
    if stat is None or not stat.has_ended or stat.exit_status is None or start_ticks not in {None, stat.start_ticks}:
        return None if pidfd is None else _ask_kernel(pidfd)
    return parse_status(stat.exit_status)


def _ask_kernel(pidfd: int) -> ExitStatus | None:
    block = bytearray(_INFO.size)
    struct.pack_into("=Q", block, 0, _PIDFD_INFO_EXIT)
    with contextlib.suppress(OSError):
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, block)
        mask, *_, status = _INFO.unpack(block)
        if mask & _PIDFD_INFO_EXIT:
            return parse_status(status)
    return None
