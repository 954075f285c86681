"""Folders private to this user in places shared by all users of a machine: /dev/shm, /tmp, a spill_dir.

If another user occupies the name of this user's folder, the next name of a fixed sequence is used, so that all
processes of this user on the machine find the same folder. Modes are given explicitly: the umask can only reduce them.
"""

import contextlib
import os
import stat
from typing import Final

from rankscope.measure.errors import UnavailableError

PRIVATE_FOLDER: Final = 0o700
PRIVATE_FILE: Final = 0o600

NAMES_MAX: Final = 16
"""Names tried in one place."""


def choose_private(place: str) -> str:
    """Return the path of this user's folder in `place`, which may not exist yet. Raise OSError.

    It is the first name that is free or already a private folder of this user; the very first name if there is none,
    so that `make_private` reports what is wrong with it.
    """
    first = os.path.join(place, f"rankscope-{os.getuid()}")
    names = [first, *(f"{first}.{number}" for number in range(2, NAMES_MAX + 1))]
    return next((path for path in names if _find_stranger(path) is None), first)


def make_private(path: str, cure: str) -> None:
    """Make the folder if it is missing. Raise OSError, and UnavailableError when it is not private to this user.

    `cure` completes the advice in the error: "Remove it, or ...".
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, PRIVATE_FOLDER)
    os.lstat(path)  # raises FileNotFoundError when another process has just removed it
    stranger = _find_stranger(path)
    if stranger is not None:
        raise UnavailableError(
            f"{path} is not a private directory of this user ({stat.filemode(stranger.st_mode)}, owner "
            f"{stranger.st_uid}). Remove it, or {cure}."
        )


def make_parents(path: str) -> None:
    """Make the folder and its missing parents, each private to this user. Raise OSError."""
    if not os.path.isdir(path):
        parent = os.path.dirname(os.path.abspath(path))
        if parent != path:
            make_parents(parent)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, PRIVATE_FOLDER)


def _find_stranger(path: str) -> os.stat_result | None:
    """Return the status of what occupies the path, links not followed; None for nothing or a private folder."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not stat.S_IMODE(found.st_mode) & 0o077
    return None if is_ours else found
