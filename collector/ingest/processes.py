"""Check whether a process of this machine still runs: a rank may end without any message."""

import os
from pathlib import Path

from rankscope.measure.proc_stat import read_stat

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
