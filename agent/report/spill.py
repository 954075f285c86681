"""Reports on the disk: a bounded log of what the collector has not acknowledged, which outlives the process.

Every report is appended to it when it is made, so it survives the SIGKILL of the rank (not the loss of the machine's
power: nothing waits for the disk). The log is a few files. A full one is closed and the next one begun; one whose
reports are all acknowledged is removed, and the oldest one when all together would exceed the bound. What a report took
place in memory, a full ResendBuffer may let go of: it is read back from here.

A disk that is full, gone or read-only costs the spill only: the append says no, which is counted, and after a pause of
a few reports it is tried again.
"""

import contextlib
import os
from array import array
from collections import deque
from collections.abc import Callable
from typing import Final

from rankscope.agent.private_folder import PRIVATE_FILE
from rankscope.agent.report.spill_folder import (
    file_path,
    open_folder,
    remove_old,
    remove_spill,
    take_lock,
)
from rankscope.agent.report.spill_format import (
    HELLO,
    RELEASED,
    REPORT,
    decode_record,
    encode_record,
)
from rankscope.measure.errors import UnavailableError
from rankscope.uplink.resend_buffer import HeldFrame

FILES: Final = 8
"""Files that a full spill consists of: so much of it, an eighth, goes at once when the oldest reports must."""

PAUSE_MAX: Final = 64
"""Reports after which a disk that failed is tried again, at the latest; first after one, then twice as many each
time. At a report a second that is a minute: soon enough to be back, seldom enough to cost nothing."""


class _File:
    """One file of the log and where each report in it begins. `end` is its length without what failed to be written."""

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
        """Write a record behind the others. Raises OSError, and leaves the file as it was."""
        try:
            _write_whole(self.fd, record, self.end)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self.fd, self.end)
            raise
        self.end += len(record)

    def read(self, sequence: int) -> HeldFrame | None:
        """A report of this file; None when it cannot be read, or is not what was written."""
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
        """Number of the first report from that one on that can be read; None when none can."""
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
    """The log of one life. `make_hello_frame` gives the frame of its Hello; `spill_dir` is made when it is missing.

    Nothing touches the disk before the first append. Nothing here raises OSError.
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
        """How often the disk did not take something."""
        self.problem = ""
        """What it said the last time."""

    @property
    def folder(self) -> str:
        """Where the files are; empty before the first append has succeeded."""
        return self._folder

    @property
    def first_sequence(self) -> int:
        """Number of the oldest report on the disk that is not released and can be read; one above the last when there
        is none.
        """
        oldest = self._files[0].first_sequence if self._files else self._last_sequence + 1
        return min(max(oldest, self._released_through + 1, self._unreadable_through + 1), self._last_sequence + 1)

    @property
    def last_sequence(self) -> int:
        """Number of the newest report on the disk."""
        return self._last_sequence

    def append(self, held: HeldFrame) -> bool:
        """Write a report; the oldest file makes room. Whether the disk took it.

        Raises ValueError unless the number follows the last one, or nothing unreleased is on the disk.
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
        """At most `count_max` reports in order from that number on; fewer where one cannot be read."""
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
        """Reports up to that number are acknowledged: remove the files that hold no other."""
        if through <= self._released_through:
            return
        self._released_through = through
        while len(self._files) > 1 and self._files[0].last_sequence <= through:
            self._remove_files(1)
        if self._files and self._files[-1].end < self._bytes_max // FILES:
            # A life that is delivered after its end begins behind this. Not to know costs duplicates, nothing else.
            with contextlib.suppress(OSError):
                self._files[-1].append(encode_record(RELEASED, through))

    def drop_oldest(self) -> None:
        """Remove the oldest file with all its reports. That makes room: the next append is tried at once."""
        self._remove_files(min(1, len(self._files)))
        self._pause = 0

    def drop_unreadable(self, sequence: int) -> None:
        """Let go of that report, which cannot be read, of all before it, and of what follows in its file and cannot be
        read either; of the whole file where nothing can.
        """
        while self._files and self._files[0].last_sequence < sequence:
            self._remove_files(1)
        readable = self._files[0].find_readable(sequence + 1) if self._files else None
        if readable is None:
            self.drop_oldest()
        else:
            self._unreadable_through = readable - 1

    def close(self) -> None:
        """Let go of the files: removed when every report was released, else left for who delivers them."""
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
            # Nobody can speak for a life whose Hello is lost: the one at the head of the file is not the only one.
            with contextlib.suppress(OSError):
                file.append(encode_record(HELLO, 0, self._make_hello_frame()))

    def _open_folder(self) -> None:
        if self._lock is not None:
            return
        folder = open_folder(self._spill_dir)
        self._lock = take_lock(folder, self._boot_id)
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
    """Write all of it. A disk that fills up takes a part, and says why with the next call."""
    written = 0
    while written < len(block):
        written += os.pwrite(fd, block[written:], at + written)
