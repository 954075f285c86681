"""Folders of this user alone, in places that all users of a machine share: /dev/shm, /tmp, a spill_dir.

Another user may have put something of their own where this user's folder should be. Then the next name of a fixed
sequence is used, so that all processes of this user on the machine still find the same folder. The modes are given
explicitly: the umask of the job can only take bits away from them.
"""

import contextlib
import os
import stat
from typing import Final

from rankscope.measure.errors import UnavailableError

PRIVATE_FOLDER: Final = 0o700
PRIVATE_FILE: Final = 0o600

NAMES_MAX: Final = 16
"""Names that are tried in one place. One is enough where nobody is in the way."""


def choose_private(place: str) -> str:
    """Return the path of this user's folder in `place`, which may not be there yet. Raise OSError.

    It is the first of the names that nobody else has taken; the first of all when all are taken, so that
    `make_private` says what is wrong with it.
    """
    first = os.path.join(place, f"rankscope-{os.getuid()}")
    names = [first, *(f"{first}.{number}" for number in range(2, NAMES_MAX + 1))]
    return next((path for path in names if _find_stranger(path) is None), first)


def make_private(path: str, cure: str) -> None:
    """Make the folder where it is missing. Raise OSError, and UnavailableError when it is not this user's alone.

    `cure` ends the sentence that says what to do: "Remove it, or ...".
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, PRIVATE_FOLDER)
    os.lstat(path)  # raises FileNotFoundError when somebody has removed it at this very moment
    stranger = _find_stranger(path)
    if stranger is not None:
        raise UnavailableError(
            f"{path} is not a directory of this user alone ({stat.filemode(stranger.st_mode)}, owner "
            f"{stranger.st_uid}). Remove it, or {cure}."
        )


def make_parents(path: str) -> None:
    """Make the folder and those above it that are missing, each for this user alone. Raise OSError."""
    if not os.path.isdir(path):
        parent = os.path.dirname(os.path.abspath(path))
        if parent != path:
            make_parents(parent)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, PRIVATE_FOLDER)


def _find_stranger(path: str) -> os.stat_result | None:
    """Return what is there unless it is a folder of this user alone; None when nothing is there. Follow no link."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not stat.S_IMODE(found.st_mode) & 0o077
    return None if is_ours else found
