"""Whether the process of a rank on this very machine still lives: it may have ended without a word."""

import os
from pathlib import Path

from rankscope.measure.proc_stat import read_stat

PROC = Path("/proc")


def is_gone(pid: int, proc: Path = PROC) -> bool:
    """Whether no such process runs any more; one that has ended and waits for its parent to notice is gone too.

    Only meaningful for a process of this machine and process namespace.
    """
    stat = read_stat(f"{proc}/{pid}")
    return not _is_known(pid) if stat is None else stat.has_ended


def _is_known(pid: int) -> bool:
    """Whether the kernel knows the process. /proc may hide those of other users (its mount option `hidepid`)."""
    try:
        os.kill(pid, 0)  # signal 0 does nothing
    except PermissionError:
        pass  # it is another user's
    except (ProcessLookupError, OverflowError):
        return False
    return True
