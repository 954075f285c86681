"""Keeps unacknowledged reports on the disk, in a bounded log that outlives the process.

Every report is appended when it is made, so it survives a SIGKILL of the rank (but not a power failure, since nothing
is synced). The log consists of a few files. A file whose reports are all acknowledged is removed, and the oldest one if
all together would exceed the bound. A full ResendBuffer drops reports from memory and reads them back from here.

If the disk is full, gone or read-only, only the spill is affected: the failed append is counted, and retried after a
few reports.
"""

import contextlib
import os
from array import array
from collections import deque
from collections.abc import Callable
from typing import Final

from rankscope.agent.private_folder import PRIVATE_FILE
from rankscope.agent.reporting.spill_folder import (
    acquire_lock,
    file_path,
    open_folder,
    remove_old,
    remove_spill,
)
from rankscope.agent.reporting.spill_format import (
    HELLO,
    RELEASED,
    REPORT,
    decode_record,
    encode_record,
)
from rankscope.measure.errors import UnavailableError
from rankscope.uplink.resend_buffer import HeldFrame

FILES: Final = 8
"""Number of files of a full spill: an eighth of it is dropped at once to make room."""

PAUSE_MAX: Final = 64
"""Largest number of reports between retries of a failed disk, about a minute; the pause starts at one and doubles."""


class _File:
    """One file of the log, with the offset of each report. `end` is its length without failed writes."""

    def __init__(self, path: str, first_sequence: int, header: bytes) -> None:
        self.path = path
        self.first_sequence = first_sequence
        self.offsets: array[int] = array("Q")
        self.end = len(header)
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
        try:
            _write_whole(self.fd, header, 0)
        except OSError:
            self.remove()
            raise

    @property
    def last_sequence(self) -> int:
        return self.first_sequence + len(self.offsets) - 1

    def append(self, record: bytes) -> None:
        """Append a record. Raise OSError, and leave the file as it was."""
        try:
            _write_whole(self.fd, record, self.end)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self.fd, self.end)
            raise
        self.end += len(record)

    def read(self, sequence: int) -> HeldFrame | None:
        """Return a report of this file; None if it is unreadable or damaged."""
        index = sequence - self.first_sequence
        at = self.offsets[index]
        until = self.offsets[index + 1] if index + 1 < len(self.offsets) else self.end
        try:
            record = decode_record(os.pread(self.fd, until - at, at), 0)
        except OSError:
            return None
        if record is None or record.kind != REPORT or record.sequence != sequence:
            return None
        return HeldFrame(sequence, record.body, record.step_count)

    def find_readable(self, sequence: int) -> int | None:
        """Return the number of the first readable report from that one on; None if there is none."""
        numbers = range(max(sequence, self.first_sequence), self.last_sequence + 1)
        return next((number for number in numbers if self.read(number) is not None), None)

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self.path)
        self.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.fd)


class Spill:
    """The log of one rank process. `make_hello_frame` makes the frame of its Hello; `spill_dir` is created if missing.

    The disk is not used before the first append. No method raises OSError.
    """

    def __init__(self, spill_dir: str, boot_id: str, make_hello_frame: Callable[[], bytes], bytes_max: int) -> None:
        self._spill_dir = spill_dir
        self._boot_id = boot_id
        self._make_hello_frame = make_hello_frame
        self._bytes_max = bytes_max
        self._folder = ""
        self._lock: int | None = None
        self._files: deque[_File] = deque()
        self._last_sequence = 0
        self._released_through = 0
        self._unreadable_through = 0
        self._pause = 0
        self._appends_skipped = 0
        self.failures = 0
        """Number of failed writes."""
        self.problem = ""
        """The last error."""

    @property
    def folder(self) -> str:
        """Folder of the files; empty before the first append has succeeded."""
        return self._folder

    @property
    def first_sequence(self) -> int:
        """Number of the oldest readable, unreleased report on the disk; one above the last if there is none."""
        oldest = self._files[0].first_sequence if self._files else self._last_sequence + 1
        return min(max(oldest, self._released_through + 1, self._unreadable_through + 1), self._last_sequence + 1)

    @property
    def last_sequence(self) -> int:
        """Number of the newest report on the disk."""
        return self._last_sequence

    def append(self, held: HeldFrame) -> bool:
        """Write a report, removing the oldest file if room is needed; return whether it was written.

        Raise ValueError unless the number follows the last one, or nothing unreleased is on the disk.
        """
        is_empty = self.first_sequence > self._last_sequence
        if not is_empty and held.sequence != self._last_sequence + 1:
            raise ValueError(f"report {held.sequence} was spilled after {self._last_sequence}; numbers must follow")
        if self._appends_skipped < self._pause:
            self._appends_skipped += 1
            return False
        try:
            if is_empty and held.sequence != self._last_sequence + 1:
                self._remove_files(len(self._files))
            self._write(held)
        except (OSError, UnavailableError) as error:
            self.failures += 1
            self.problem = str(error)
            self._pause = min(2 * self._pause or 1, PAUSE_MAX)
            self._appends_skipped = 0
            return False
        self._pause = 0
        self._last_sequence = held.sequence
        return True

    def read(self, sequence: int, count_max: int) -> tuple[HeldFrame, ...]:
        """Return at most `count_max` reports in order from that number on; stop at an unreadable one."""
        found: list[HeldFrame] = []
        for file in self._files:
            while len(found) < count_max and file.first_sequence <= sequence <= file.last_sequence:
                held = file.read(sequence)
                if held is None:
                    return tuple(found)
                found.append(held)
                sequence += 1
        return tuple(found)

    def release(self, through: int) -> None:
        """Remove the files, except the newest, whose reports are all acknowledged, that is, up to number `through`."""
        if through <= self._released_through:
            return
        self._released_through = through
        while len(self._files) > 1 and self._files[0].last_sequence <= through:
            self._remove_files(1)
        if self._files and self._files[-1].end < self._bytes_max // FILES:
            # A later delivery of orphaned reports starts after this number. Without the record it sends duplicates.
            with contextlib.suppress(OSError):
                self._files[-1].append(encode_record(RELEASED, through))

    def drop_oldest(self) -> None:
        """Remove the oldest file with all its reports, and try the next append at once."""
        self._remove_files(min(1, len(self._files)))
        self._pause = 0

    def drop_unreadable(self, sequence: int) -> None:
        """Drop that unreadable report, all before it, and unreadable ones after it in its file."""
        while self._files and self._files[0].last_sequence < sequence:
            self._remove_files(1)
        readable = self._files[0].find_readable(sequence + 1) if self._files else None
        if readable is None:
            self.drop_oldest()
        else:
            self._unreadable_through = readable - 1

    def close(self) -> None:
        """Close the files. Remove them if every report was released, else keep them for a later delivery."""
        is_empty = self.first_sequence > self._last_sequence
        for file in self._files:
            file.close()
        self._files.clear()
        if self._lock is not None:
            if is_empty:
                remove_spill(self._folder, self._boot_id)
            os.close(self._lock)
            self._lock = None

    def _write(self, held: HeldFrame) -> None:
        record = encode_record(REPORT, held.sequence, held.frame, held.step_count)
        self._open_folder()
        file = self._files[-1] if self._files else None
        if file is None or file.end + len(record) > self._bytes_max // FILES:
            while self._files and self._count_bytes() + len(record) > self._bytes_max - self._bytes_max // FILES:
                self._remove_files(1)
            file = self._begin_file(held.sequence)
        at = file.end
        file.append(record)
        file.offsets.append(at)
        if len(file.offsets) == 1:
            # A second copy of the Hello, without which the reports cannot be delivered.
            with contextlib.suppress(OSError):
                file.append(encode_record(HELLO, 0, self._make_hello_frame()))

    def _open_folder(self) -> None:
        if self._lock is not None:
            return
        folder = open_folder(self._spill_dir)
        self._lock = acquire_lock(folder, self._boot_id)
        if self._lock is None:
            raise UnavailableError(f"another process holds the files of {self._boot_id} in {folder}")
        self._folder = folder
        remove_old(folder, keep=self._boot_id)

    def _begin_file(self, sequence: int) -> _File:
        header = encode_record(HELLO, 0, self._make_hello_frame())
        file = _File(file_path(self._folder, self._boot_id, sequence), sequence, header)
        self._files.append(file)
        return file

    def _count_bytes(self) -> int:
        return sum(file.end for file in self._files)

    def _remove_files(self, count: int) -> None:
        for _ in range(count):
            self._files.popleft().remove()


def _write_whole(fd: int, block: bytes, at: int) -> None:
    """Write the whole block. A full disk writes a part, then fails the next call."""
    written = 0
    while written < len(block):
        written += os.pwrite(fd, block[written:], at + written)
