"""Detect that the files of an open store were removed, replaced, truncated or damaged: SQLite itself does not.

A process keeps writing to an open file after it was removed or replaced, and that data is lost when the process ends.
SQLite notices overwritten pages only when it reads them again.
"""

import os
from pathlib import Path
from typing import Final, NamedTuple

REMOVED: Final = "removed"
REPLACED: Final = "replaced"
TRUNCATED: Final = "truncated"
DAMAGED: Final = "damaged"
REASONS: Final = (REMOVED, REPLACED, TRUNCATED, DAMAGED)

MAGIC: Final = b"SQLite format 3\0"
"""The first bytes of every SQLite database."""
COMPANIONS: Final = ("-wal", "-shm", "-lock")
"""Files beside an open store: SQLite's log and its index, and the collector's lock."""

Inode = tuple[int, int]
"""Device and inode number, which identify a file whatever its name."""


class StoreLoss(NamedTuple):
    """Why an open store cannot be written to any more. `inode` is the file that was opened."""

    reason: str
    text: str
    inode: Inode


class FileWatch:
    """The files of one open store as they were last seen. For one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # Kept open: closing any descriptor of the file would drop the POSIX locks that SQLite holds in this process.
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        opened = os.fstat(self._file)
        self.inode, self._size_bytes = _to_inode(opened), opened.st_size
        self._companions: dict[str, Inode] = {}
        self.find_loss()

    def close(self) -> None:
        """Close the file, after SQLite has. A second call does nothing."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def find_loss(self) -> StoreLoss | None:
        """Compare the files with their former state, by four stats and a read of 16 bytes.

        Raises OSError where that fails.
        """
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return self._lose(REMOVED, f"{self._path} was removed")
        if _to_inode(found) != self.inode:
            return self._lose(REPLACED, f"{self._path} was replaced by another file")
        if found.st_size < self._size_bytes:
            was = f"from {self._size_bytes} to {found.st_size} bytes"
            return self._lose(TRUNCATED, f"{self._path} was truncated, {was}")
        if os.pread(self._file, len(MAGIC), 0) != MAGIC:
            return self.lose_content("its first bytes are not those of an SQLite database")
        self._size_bytes = found.st_size
        return self._compare_companions()

    def lose_content(self, problem: str) -> StoreLoss:
        """Return the loss of a file whose content is damaged."""
        return self._lose(DAMAGED, f"{self._path} was overwritten or is damaged ({problem})")

    def _compare_companions(self) -> StoreLoss | None:
        for ending in COMPANIONS:
            path = Path(f"{self._path}{ending}")
            known, inode = self._companions.get(ending), find_inode(path)
            if known is not None and known != inode:
                reason, what = (REMOVED, "removed") if inode is None else (REPLACED, "replaced by another file")
                return self._lose(reason, f"{path} was {what}")
            if inode is not None:
                self._companions[ending] = inode
        return None

    def _lose(self, reason: str, what: str) -> StoreLoss:
        return StoreLoss(reason, f"{what} while the collector had it open as its store.", self.inode)


def find_inode(path: Path) -> Inode | None:
    """Return device and inode of the file at this path; None where there is none."""
    try:
        return _to_inode(path.stat())
    except FileNotFoundError:
        return None


def _to_inode(found: os.stat_result) -> Inode:
    return found.st_dev, found.st_ino
