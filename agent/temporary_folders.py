"""Temporary folders of ranks: the next sidecar of this user on the machine removes those whose process was killed.

They are private to the user and have names that nobody guesses. Those that live long are held by a lock of the folder
(flock), which ends with the process; the others are written within minutes.
"""

import contextlib
import fcntl
import os
import shutil
import stat
import time
from typing import Final

CAPTURE: Final = "rankscope-capture-"
UPLOADS: Final = "rankscope-captures-"
WINDOW: Final = "rankscope-window-"
PREFIXES: Final = (CAPTURE, UPLOADS, WINDOW)
"""How their names begin."""
AGE_S_MIN: Final = 900.0
"""Age from which one without a lock has been left: torch writes a trace in less."""
SWEPT_MAX: Final = 64


def hold(folder: str) -> int | None:
    """Return an open file that holds the folder while it is open; None where there is no such folder."""
    with contextlib.suppress(OSError):
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return file
    return None


def sweep_temporary(places: list[str]) -> None:
    """Remove folders in these places that were left. Never raises."""
    for place in places:
        names: list[str] = []
        with contextlib.suppress(OSError):
            names = [name for name in os.listdir(place) if name.startswith(PREFIXES)]
        for name in names[:SWEPT_MAX]:
            with contextlib.suppress(OSError):
                _sweep_one(os.path.join(place, name))


def _sweep_one(folder: str) -> None:
    found = os.lstat(folder)
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if not is_ours or time.time() - found.st_mtime < AGE_S_MIN:
        return
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(file)
