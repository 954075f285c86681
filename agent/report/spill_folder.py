"""The folder that the spill files of one user's ranks on a machine share, and who may touch which.

    SPILL_DIR/rankscope-UID/   BOOT.lock   BOOT.00000000000000000001.spill   BOOT.00000000000000004711.spill ...

BOOT is the boot id of a life, the number that of the first report in the file. Whoever holds the lock of a life may use
its files: the life itself as long as it lives, then one who delivers what it has left. It is a lock of the process
(lockf) and not of the open file (flock): forked data loader workers, which may live a moment longer than the rank, do
not hold it on, and the kernel lets it go however the process ends.
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
"""Files that nobody has written to for so long are removed, if nobody holds their lock: the run they belong to has not
come back within a day, and a machine must not fill up with what nobody asks for."""


class SpillFile(NamedTuple):
    """One file of a life, which begins with report `first_sequence`."""

    path: str
    first_sequence: int


def open_folder(spill_dir: str) -> str:
    """This user's folder in there, made where it is missing. Raises OSError, and UnavailableError if others get in.

    A `spill_dir` that is missing is made for this user alone too, whatever the umask is.
    """
    make_parents(spill_dir)
    folder = choose_private(spill_dir)
    make_private(folder, cure="set spill_dir to another place")
    return folder


def file_path(folder: str, boot_id: str, first_sequence: int) -> str:
    """Where a file of that life is that begins with that report. The digits make names sort by number."""
    return os.path.join(folder, f"{boot_id}.{first_sequence:020}{SUFFIX}")


def find_boot_ids(folder: str) -> list[str]:
    """The boot ids that have files in the folder."""
    with contextlib.suppress(OSError):
        return sorted({name.rsplit(".", 2)[0] for name in os.listdir(folder) if name.endswith(SUFFIX)})
    return []


def find_files(folder: str, boot_id: str) -> list[SpillFile]:
    """The files of a life, in the order of their reports."""
    found = []
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(folder)):
            owner, _, number = name.removesuffix(SUFFIX).rpartition(".")
            if name.endswith(SUFFIX) and owner == boot_id and number.isdecimal():
                found.append(SpillFile(os.path.join(folder, name), int(number)))
    return found


def take_lock(folder: str, boot_id: str) -> int | None:
    """An open file that holds the lock of a life; None when another process holds it. Raises OSError.

    It is held until the process ends or closes any open file of that path: nobody else in a process may open it.
    """
    path = os.path.join(folder, boot_id + LOCK_SUFFIX)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(file).st_ino == os.stat(path).st_ino:  # else it was removed by one who held it
            return file
    except (BlockingIOError, PermissionError, FileNotFoundError):
        pass
    except BaseException:
        os.close(file)
        raise
    os.close(file)
    return None


def remove_spill(folder: str, boot_id: str) -> None:
    """Remove all files of a life whose lock the caller holds, the lock last."""
    for path in (*(file.path for file in find_files(folder, boot_id)), os.path.join(folder, boot_id + LOCK_SUFFIX)):
        with contextlib.suppress(OSError):
            os.unlink(path)


def remove_old(folder: str, keep: str, now_wall_s: float | None = None) -> int:
    """Remove lives that have lain there for KEPT_S and that nobody holds, but for `keep`; returns how many."""
    limit_s = (time.time() if now_wall_s is None else now_wall_s) - KEPT_S
    removed = 0
    for boot_id, written_s in _find_last_writes(folder).items():
        if boot_id == keep or written_s > limit_s:
            continue
        with contextlib.suppress(OSError):
            lock = take_lock(folder, boot_id)
            if lock is not None:
                remove_spill(folder, boot_id)
                os.close(lock)
                removed += 1
    return removed


def _find_last_writes(folder: str) -> dict[str, float]:
    """When each life has last written, in seconds since 1970, from one look at the folder: after many restarts
    without a collector there are thousands of lives in it, and every new one looks.
    """
    found: dict[str, float] = {}
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(SUFFIX):
                boot_id = entry.name.rsplit(".", 2)[0]
                with contextlib.suppress(OSError):  # its life removes it at this moment
                    found[boot_id] = max(found.get(boot_id, 0.0), entry.stat(follow_symlinks=False).st_mtime)
    return found
