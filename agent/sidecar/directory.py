"""Manages the private directory, with a lock, that the ranks of one run on a node share with their sidecar.

    /dev/shm/rankscope-UID/RUN-RESTART/   lock   BOOT.json   BOOT.beat   BOOT.sock

It is in TMPDIR if /dev/shm is missing or full. The rank that gets the lock starts the sidecar and passes it the lock,
which the sidecar holds until it ends. The lock (flock) belongs to the open file, so the new process inherits it, and
the kernel releases it however that process ends.
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
MEMORY: Final = "/dev/shm"  # noqa: S108 - folders in it are checked to be private to this user
SWEPT_MAX: Final = 64
STRAY_S_MIN: Final = 60.0
"""Age from which a file without a descriptor counts as orphaned: a rank may be about to write its descriptor."""
ATTEMPTS: Final = 8
"""Attempts to make a directory that a sidecar removes at the same time."""


def find_places(environment_folder: str = "") -> list[str]:
    """Return the parent folders for directories in order of preference: in memory, then in TMPDIR.

    The second is used if the first is full; ranks that got a place in the first then have a separate sidecar.
    """
    places = [MEMORY] if os.access(MEMORY, os.W_OK | os.X_OK) else []
    return [*places, environment_folder or "/tmp"]  # noqa: S108


def find_root(environment_folder: str = "") -> str:
    """Return the preferred folder for the directories of this user's runs. Raise OSError."""
    return choose_private(find_places(environment_folder)[0])


def folder_name(identity: RankIdentity) -> str:
    """Return the name of a run's directory, a digest short enough for the path of a socket.

    It includes the machine id: containers may share /dev/shm without seeing each other's processes.
    """
    digest = hashlib.sha256(f"{identity.run}\n{identity.machine_id}".encode()).hexdigest()[:16]
    return f"{digest}-{identity.restart_count}"


def open_folder(root: str, name: str) -> str:
    """Make the directory if it is missing. Raise UnavailableError if it would not be private."""
    folder = os.path.join(root, name)
    problem: OSError | None = None
    for _ in range(ATTEMPTS):
        try:
            for path in (root, folder):
                make_private(path, cure="switch the sidecar off (sidecar = false)")
        except FileNotFoundError as error:
            problem = error  # the sidecar of another run has just removed the root
        except OSError as error:
            raise UnavailableError(f"the sidecar's directory {folder} cannot be made: {error}") from error
        else:
            return folder
    raise UnavailableError(f"the sidecar's directory {folder} cannot be made: {problem}") from problem


def acquire_lock(folder: str) -> int | None:
    """Return an open file that holds the directory's lock; None when a sidecar holds it. Raise OSError."""
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
    """Return whether this open file is the lock of the directory as it exists now, which may have been made again."""
    return _is_still(file, os.path.join(folder, LOCK))


def remove_folder(folder: str) -> bool:
    """Remove the directory if it contains only the lock and the file of faults; return whether it is gone."""
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
    """Remove directories of runs whose sidecar was killed: those not locked, whose ranks have ended.

    Young directories stay, since a rank may be about to write its beacon, and so do those of ranks in other containers.
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
    lock = acquire_lock(folder)
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
    """Remove files of ranks that were killed before they wrote their descriptor."""
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
