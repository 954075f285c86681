"""Files that only their owner may read, whatever the umask is: they have names of users, and lines of stacks."""

import contextlib
import os
import stat
from pathlib import Path
from typing import IO, Final

FILE: Final = 0o600
FOLDER: Final = 0o700
OTHERS: Final = 0o077
"""The rights of the group and of all others."""


def open_private(path: Path, *, is_new: bool = False) -> IO[bytes]:
    """Open a file for writing from its begin. `is_new`: there must be none. Raises OSError."""
    how = os.O_EXCL if is_new else os.O_TRUNC
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | how, FILE)
    try:
        if stat.S_IMODE(os.fstat(fd).st_mode) != FILE:
            os.fchmod(fd, FILE)
    except OSError:
        os.close(fd)
        raise
    return os.fdopen(fd, "wb")


def write_private(path: Path, content: bytes) -> None:
    """Write a file, in the place of what it held. Raises OSError."""
    with open_private(path) as file:
        file.write(content)


def make_private_folder(path: Path) -> None:
    """Make a folder, and its missing parents, for the owner alone. Raises OSError."""
    if not path.is_dir():
        if path.parent != path:
            make_private_folder(path.parent)
        path.mkdir(FOLDER, exist_ok=True)


def narrow(path: Path) -> None:
    """Take the rights of others away from a file or folder that had them before. Nothing where there is none, or where
    it belongs to another user, who decides.
    """
    with contextlib.suppress(OSError):
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & OTHERS:
            path.chmod(mode & ~OTHERS)
