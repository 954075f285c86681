"""The place where the ranks of one run on one node and their sidecar meet: a private directory and a lock in it.

    /dev/shm/rankscope-UID/RUN-RESTART/   lock   BOOT.json   BOOT.beat   BOOT.sock

It is in TMPDIR where /dev/shm is not there or full. Nobody has to be told where it is, and it does not matter which
rank comes first: whoever gets the lock starts the sidecar and hands it the lock, which it holds as long as it lives. A
lock (flock) belongs to the open file, goes along into the new process, and is let go by the kernel however that ends.
"""

import contextlib
import fcntl
import hashlib
import os
import time
from typing import Final

from rankscope.agent.private_folder import PRIVATE_FILE, choose_private, make_private
from rankscope.agent.sidecar.beacon import find_names, read_descriptor, remove_files
from rankscope.agent.sidecar.exit_status import has_ended
from rankscope.agent.sidecar.faults import FAULTS
from rankscope.measure.errors import UnavailableError
from rankscope.measure.identity import RankIdentity
from rankscope.measure.machine import read_machine_id

LOCK: Final = "lock"
MEMORY: Final = "/dev/shm"  # noqa: S108 - what is made in it is checked to be ours, and private
SWEPT_MAX: Final = 64
STRAY_S_MIN: Final = 60.0
"""A younger file without an owner may be one of a rank that is about to write its descriptor."""
ATTEMPTS: Final = 8
"""A directory may be removed by a sidecar that ends at this very moment; then it is made again."""


def find_places(environment_folder: str = "") -> list[str]:
    """Return where directories may be made, the best first: in memory, then in TMPDIR.

    The second serves where the first is full. Ranks that came while there was room have a sidecar of their own then.
    """
    places = [MEMORY] if os.access(MEMORY, os.W_OK | os.X_OK) else []
    return [*places, environment_folder or "/tmp"]  # noqa: S108


def find_root(environment_folder: str = "") -> str:
    """Return where the directories of this user's runs are, unless that is full. Raise OSError."""
    return choose_private(find_places(environment_folder)[0])


def folder_name(identity: RankIdentity) -> str:
    """The directory of a run, short enough for a socket's path: a user may name the run at any length.

    Containers may share /dev/shm and not see each other's processes: each has a directory of its own.
    """
    digest = hashlib.sha256(f"{identity.run}\n{identity.machine_id}".encode()).hexdigest()[:16]
    return f"{digest}-{identity.restart_count}"


def open_folder(root: str, name: str) -> str:
    """Make the directory, where it is not there yet. Raises UnavailableError when it would not be private."""
    folder = os.path.join(root, name)
    problem: OSError | None = None
    for _ in range(ATTEMPTS):
        try:
            for path in (root, folder):
                make_private(path, cure="switch the sidecar off (sidecar = false)")
        except FileNotFoundError as error:
            problem = error  # the last sidecar of another run has just removed the root
        except OSError as error:
            raise UnavailableError(f"the sidecar's directory {folder} cannot be made: {error}") from error
        else:
            return folder
    raise UnavailableError(f"the sidecar's directory {folder} cannot be made: {problem}") from problem


def take_lock(folder: str) -> int | None:
    """An open file that holds the directory's lock; None when a sidecar holds it. Raises OSError."""
    path = os.path.join(folder, LOCK)
    for _ in range(ATTEMPTS):
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return None
        if _is_still(file, path):
            return file
        os.close(file)  # the lock of a directory that has just been removed
    raise OSError(f"{path} was removed each time it was made")


def holds_lock(file: int, folder: str) -> bool:
    """Whether this open file is the directory's lock, and not that of one that was removed and made again."""
    return _is_still(file, os.path.join(folder, LOCK))


def remove_folder(folder: str) -> bool:
    """Remove the directory when nobody has left anything in it but the lock. Whether it is gone."""
    with contextlib.suppress(OSError):
        _remove_strays(folder)
        left = os.listdir(folder)
        if LOCK in left and not {*left} - {LOCK, FAULTS}:
            for name in left:
                os.unlink(os.path.join(folder, name))
        os.rmdir(folder)
    with contextlib.suppress(OSError):  # not empty: other runs
        os.rmdir(os.path.dirname(folder))
    return not os.path.exists(folder)


def sweep(root: str, keep: str) -> None:
    """Remove what was left by runs whose sidecar was killed: directories that nobody holds and whose ranks are gone.

    Not young ones, in which a rank may be about to leave its beacon, and not those of ranks that cannot be seen here.
    """
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = [name for name in os.listdir(root) if name != keep]
    for name in names[:SWEPT_MAX]:
        with contextlib.suppress(OSError):
            _sweep_one(os.path.join(root, name))


def _sweep_one(folder: str) -> None:
    if time.time() - os.stat(folder).st_mtime < STRAY_S_MIN:
        return
    lock = take_lock(folder)
    if lock is None:
        return
    try:
        for boot_id in find_names(folder):
            descriptor = read_descriptor(folder, boot_id)
            is_ours = descriptor is not None and descriptor.identity.machine_id == read_machine_id()
            if descriptor is not None and is_ours and has_ended(descriptor.identity.pid, descriptor.start_ticks):
                remove_files(folder, boot_id)
        remove_folder(folder)
    finally:
        os.close(lock)


def _remove_strays(folder: str) -> None:
    """What a rank has left that was killed before its descriptor was written."""
    owners = find_names(folder)
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        is_old = time.time() - os.stat(path).st_mtime > STRAY_S_MIN
        if name != LOCK and name.partition(".")[0] not in owners and is_old:
            os.unlink(path)


def _is_still(file: int, path: str) -> bool:
    with contextlib.suppress(OSError):
        return os.fstat(file).st_ino == os.stat(path).st_ino
    return False
