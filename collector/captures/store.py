"""Keep captures in a folder beside the store: `ID/capture.json` and the files. Used by the captures thread only.

A file of a rank is written to `.ID.part` at its offsets, and gets its name once it is whole and its checksum is right.
"""

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from rankscope.collector.captures.capture import ENDED, Capture, CaptureFile, find_captures_folder
from rankscope.collector.captures.orders import Progress
from rankscope.collector.config import CollectorConfig
from rankscope.collector.private_files import make_private_folder, narrow, write_private

DESCRIPTION: Final = "capture.json"
CHUNK_BYTES: Final = 1 << 20
FULL_CURE: Final = "free some space there, or lower capture_store_bytes_max: the oldest captures are then deleted"


class KeptCapture(msgspec.Struct, frozen=True):
    """`capture.json`: the capture, and what a restarted collector needs to go on; None once all files are there."""

    capture: Capture
    progress: Progress | None = None


class CaptureStore:
    """The folder. Methods raise OSError where the disk fails, unless they say otherwise."""

    def __init__(self, folder: Path, *, kept_s: float, bytes_max: int) -> None:
        self._folder = folder
        self._kept_s = kept_s
        self._bytes_max = bytes_max

    def folder_of(self, capture_id: str) -> Path:
        """Return the folder of one capture."""
        return self._folder / capture_id

    def load(self, on_unreadable: Callable[[Path], object]) -> list[KeptCapture]:
        """Return all captures; see `read_kept`. Only the owner may read them from now on."""
        narrow(self._folder)
        return read_kept(self._folder, on_unreadable)

    def write(self, kept: KeptCapture) -> None:
        """Write the description of a capture, which replaces the one before at once."""
        folder = self.folder_of(kept.capture.id)
        make_private_folder(folder)
        partial = folder / f".{DESCRIPTION}.part"
        try:
            write_private(partial, msgspec.json.format(msgspec.json.encode(kept), indent=1) + b"\n")
            partial.replace(folder / DESCRIPTION)
        except OSError:
            _unlink(partial)
            raise

    # -- files of ranks -----------------------------------------------------------------------------------------------

    def write_part(self, capture_id: str, rank: int, offset: int, data: bytes) -> None:
        """Write bytes of a rank's file."""
        fd = os.open(self._partial(capture_id, rank), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.seek(offset)
            file.write(data)

    def finish(self, capture_id: str, rank: int, size_bytes: int, sha256: str) -> str:
        """Give a whole file its name; return why it is lost, empty if it is not."""
        partial = self._partial(capture_id, rank)
        digest = hashlib.sha256()
        with partial.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
        if partial.stat().st_size != size_bytes or digest.hexdigest() != sha256:
            self.discard(capture_id, rank)
            return "its checksum is wrong: it was changed on the way"
        partial.replace(self.folder_of(capture_id) / name_of(rank))
        return ""

    def discard(self, capture_id: str, rank: int) -> None:
        """Delete what has arrived of a rank's file. Never raises OSError."""
        for path in (self._partial(capture_id, rank), self.folder_of(capture_id) / name_of(rank)):
            _unlink(path)

    def remove_files(self, capture_id: str) -> None:
        """Delete what a capture has on the disk, but its description. Never raises OSError."""
        with contextlib.suppress(OSError), os.scandir(self.folder_of(capture_id)) as entries:
            for entry in entries:
                if entry.name != DESCRIPTION:
                    _unlink(Path(entry.path))

    def list_files(self, capture_id: str) -> tuple[CaptureFile, ...]:
        """Return the files of a capture, without those that are not whole, and without its description."""
        with os.scandir(self.folder_of(capture_id)) as entries:
            found = [
                CaptureFile(entry.name, entry.stat().st_size)
                for entry in entries
                if entry.is_file(follow_symlinks=False) and not entry.name.startswith(".") and entry.name != DESCRIPTION
            ]
        return tuple(sorted(found, key=lambda one: one.name))

    # -- retention ----------------------------------------------------------------------------------------------------

    def find_expired(self, captures: list[Capture], now_wall_s: float, count_max: int) -> list[Capture]:
        """Return which captures are to be deleted: those that are too old, then the oldest while all together have too
        many bytes, or are more than `count_max`. One that is on is never among them.
        """
        ended = sorted((one for one in captures if one.state in ENDED), key=lambda one: one.changed_wall_s)
        total = sum(file.size_bytes for one in captures for file in one.files)
        expired: list[Capture] = []
        for one in ended:
            is_old = now_wall_s - one.changed_wall_s > self._kept_s
            if not is_old and total <= self._bytes_max and len(captures) - len(expired) <= count_max:
                break
            expired.append(one)
            total -= sum(file.size_bytes for file in one.files)
        return expired

    def remove(self, capture_id: str) -> None:
        """Delete a capture. Never raises OSError: what is left is deleted by a later collector."""
        shutil.rmtree(self.folder_of(capture_id), ignore_errors=True)

    def _partial(self, capture_id: str, rank: int) -> Path:
        return self.folder_of(capture_id) / f".rank-{rank}.part"


def read_kept(folder: Path, on_unreadable: Callable[[Path], object]) -> list[KeptCapture]:
    """Return the captures in a folder of captures, oldest first, whether or not a collector writes to it. Those that
    cannot be read are left out: `on_unreadable` gets their folder. Never raises OSError.
    """
    found: list[KeptCapture] = []
    try:
        folders = sorted(folder.iterdir())
    except OSError:  # there is none yet, or the first capture says why it cannot be used
        return []
    for own in folders:
        try:
            kept = msgspec.json.decode((own / DESCRIPTION).read_bytes(), type=KeptCapture)
        except (OSError, msgspec.MsgspecError):
            on_unreadable(own)
            continue
        if kept.capture.id == own.name:
            found.append(kept)
    return sorted(found, key=lambda one: one.capture.asked_wall_s)


def describe_disk_error(error: OSError, folder: Path) -> str:
    """Return why a folder of captures cannot be written, with the cure.

    >>> describe_disk_error(OSError(errno.EROFS, "Read-only file system"), Path("/data"))
    'Read-only file system (/data); make it writable for the collector'
    """
    is_full = error.errno in {errno.ENOSPC, errno.EDQUOT}
    return f"{error.strerror or error} ({folder}); {FULL_CURE if is_full else 'make it writable for the collector'}"


def _unlink(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def make_store(config: CollectorConfig, beside: Path) -> CaptureStore:
    """Return the store in a folder beside this path. Nothing is on the disk before the first capture."""
    return CaptureStore(
        find_captures_folder(beside),
        kept_s=config.capture_kept_s,
        bytes_max=config.capture_store_bytes_max,
    )


def name_of(rank: int) -> str:
    """Return the name of a rank's trace.

    >>> name_of(3)
    'rank-3.pt.trace.json.gz'
    """
    return f"rank-{rank}.pt.trace.json.gz"
