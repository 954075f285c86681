"""Tells what this process may still have: threads, files, address space.

Where a library in C++ cannot have a thread or a file of its own it ends the process: torch's worker server without a
thread, ZeroMQ without a thread or an epoll(7), the C library without memory for a thread's own data. So the agent
begins none of these where little is left.
"""

import contextlib
import os
import resource
from typing import Final

from rankscope.agent.cgroups import find_cgroup_folders
from rankscope.measure.errors import UnavailableError

THREADS_FACTOR: Final = 8
"""Required ratio of available to needed threads: other ranks of the node need theirs too."""
FILES_FACTOR: Final = 4
"""The same of files, which are this process's alone."""
ADDRESS_BYTES_MIN: Final = 2 << 30
"""Address space without which the agent does not start: a thread reserves 72 MB, and the agent may have twenty."""


def require_address_space() -> None:
    """Raise UnavailableError where a limit leaves too little address space for the agent."""
    room = find_address_room()
    if room is not None and room < ADDRESS_BYTES_MIN:
        raise UnavailableError(
            f"this process may have {room >> 20:,} MiB more of address space (ulimit -v), and its threads may need "
            f"{ADDRESS_BYTES_MIN >> 20:,} MiB."
        )


def find_obstacle(*, threads: int, files: int = 0) -> str:
    """Return why something that needs so many threads and files is not begun; empty where there is room for it."""
    room = find_thread_room()
    if room is not None and room < threads * THREADS_FACTOR:
        return f"it needs {threads} threads, and at most {room} more processes and threads are allowed"
    room = find_file_room() if files else None
    if room is not None and room < files * FILES_FACTOR:
        return f"it takes {files} files where {files * FILES_FACTOR} more may be open, and not {room} (ulimit -n)"
    return ""


def find_thread_room(cgroup: str = "/proc/self/cgroup", mounts: str = "/sys/fs/cgroup") -> int | None:
    """Return how many more processes and threads the known limits allow at most; None without a limit.

    Running ones are subtracted from the limit of a cgroup, not from RLIMIT_NPROC.
    """
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    rooms = [] if limit == resource.RLIM_INFINITY or os.getuid() == 0 else [limit]
    folders = find_cgroup_folders(cgroup, "pids", mounts)
    for folder in folders.own + folders.shared:
        most, present = _read_number(f"{folder}/pids.max"), _read_number(f"{folder}/pids.current")
        if most is not None and present is not None:
            rooms.append(most - present)
    return min(rooms, default=None)


def find_file_room() -> int | None:
    """Return how many more files this process may open; None without a limit, or where those it has are not known."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    try:
        return max(0, limit - len(os.listdir("/proc/self/fd")))
    except FileNotFoundError:
        return None
    except OSError:  # there is none left to list them by
        return 0


def find_address_room() -> int | None:
    """Return the bytes of address space that this process may still have; None without a limit (`ulimit -v`)."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    with contextlib.suppress(OSError, ValueError), open("/proc/self/statm", "rb") as file:
        return max(0, limit - int(file.read().split()[0]) * resource.getpagesize())
    return None


def _read_number(path: str) -> int | None:
    with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as file:
        return int(file.read())
    return None
