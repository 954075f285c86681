"""Manages the folder with the spill files of one user's ranks on a machine, and their locks.

    SPILL_DIR/rankscope-UID/   BOOT.lock   BOOT.00000000000000000001.spill   BOOT.00000000000000004711.spill ...

BOOT is the boot id of a rank process, the number is that of the first report in the file. The holder of a process's
lock may use its files: first the process itself, later the one that delivers its orphaned reports. The lock belongs to
the process (lockf) and not to the open file (flock), so that forked data loader workers, which may outlive the rank,
do not keep it, and the kernel releases it however the process ends.
"""

import contextlib
import fcntl
import os
import time
from typing import Final, NamedTuple

from rankscope.agent.private_folder import PRIVATE_FILE, choose_private, make_parents, make_private

SUFFIX: Final = ".spill"
LOCK_SUFFIX: Final = ".lock"

KEPT_S: Final = 86_400.0
"""Age from which unlocked files are removed, so that orphaned reports of abandoned runs do not fill the disk."""


class SpillFile(NamedTuple):
    """One file of a rank process, which begins with report `first_sequence`."""

    path: str
    first_sequence: int


def open_folder(spill_dir: str) -> str:
    """Return this user's folder in `spill_dir`, creating both as private folders if missing.

    Raise OSError, and UnavailableError if the folder is not private.
    """
    make_parents(spill_dir)
    folder = choose_private(spill_dir)
    make_private(folder, cure="set spill_dir to another place")
    return folder


def file_path(folder: str, boot_id: str, first_sequence: int) -> str:
    """Return the path of a file that begins with that report. Zero-padding makes names sort by number."""
    return os.path.join(folder, f"{boot_id}.{first_sequence:020}{SUFFIX}")


def find_boot_ids(folder: str) -> list[str]:
    """Return the boot ids that have files in the folder."""
    with contextlib.suppress(OSError):
        return sorted({name.rsplit(".", 2)[0] for name in os.listdir(folder) if name.endswith(SUFFIX)})
    return []


def find_files(folder: str, boot_id: str) -> list[SpillFile]:
    """Return the files of a rank process, in the order of their reports."""
    found = []
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(folder)):
            owner, _, number = name.removesuffix(SUFFIX).rpartition(".")
            if name.endswith(SUFFIX) and owner == boot_id and number.isdecimal():
                found.append(SpillFile(os.path.join(folder, name), int(number)))
    return found


def acquire_lock(folder: str, boot_id: str) -> int | None:
    """Return an open file that holds the lock of a rank process; None if another process holds it. Raise OSError.

    The lock is held until this process ends or closes any open file of that path, so no other code may open it.
    """
    path = os.path.join(folder, boot_id + LOCK_SUFFIX)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(file).st_ino == os.stat(path).st_ino:  # else the previous holder has removed it
            return file
    except (BlockingIOError, PermissionError, FileNotFoundError):
        pass
    except BaseException:
        os.close(file)
        raise
    os.close(file)
    return None


def remove_spill(folder: str, boot_id: str) -> None:
    """Remove all files of a rank process whose lock the caller holds, the lock last."""
    for path in (*(file.path for file in find_files(folder, boot_id)), os.path.join(folder, boot_id + LOCK_SUFFIX)):
        with contextlib.suppress(OSError):
            os.unlink(path)


def remove_old(folder: str, keep: str, now_wall_s: float | None = None) -> int:
    """Remove unlocked files older than KEPT_S, except those of `keep`; return the number of rank processes removed."""
    limit_s = (time.time() if now_wall_s is None else now_wall_s) - KEPT_S
    removed = 0
    for boot_id, written_s in _find_last_writes(folder).items():
        if boot_id == keep or written_s > limit_s:
            continue
        with contextlib.suppress(OSError):
            lock = acquire_lock(folder, boot_id)
            if lock is not None:
                remove_spill(folder, boot_id)
                os.close(lock)
                removed += 1
    return removed


def _find_last_writes(folder: str) -> dict[str, float]:
    """Return the time of the last write by boot id, in seconds since 1970.

    It reads the folder only once: after many restarts without a collector it holds files of thousands of processes.
    """
    found: dict[str, float] = {}
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(SUFFIX):
                boot_id = entry.name.rsplit(".", 2)[0]
                with contextlib.suppress(OSError):  # its process has just removed it
                    found[boot_id] = max(found.get(boot_id, 0.0), entry.stat(follow_symlinks=False).st_mtime)
    return found
