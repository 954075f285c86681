"""What lives that have ended have left on the disk.

take_life(folder, boot_id) -> LeftLife      its reports, its files locked; None while it lives or another has them
deliver (left_delivery.py)                  Hello, reports, acknowledgements, as from the life
LeftLife.remove()                           then the files go
"""

import contextlib
import os
from dataclasses import dataclass
from typing import Final, NamedTuple

from rankscope.agent.report.spill_folder import SpillFile, find_files, remove_life, take_lock
from rankscope.agent.report.spill_format import HELLO, RELEASED, REPORT, Record, decode_records
from rankscope.measure.codec import decode
from rankscope.measure.errors import DecodeError
from rankscope.measure.key_files import ClientKeys
from rankscope.measure.messages import Hello
from rankscope.uplink.resend_buffer import HeldFrame

BYTES_READ_MAX: Final = 256 * 1024 * 1024
"""Of one life at most so much is read, the newest files first: it is delivered from memory."""


class Address(NamedTuple):
    """Where a collector is, and the keys that the agent speaks with to it; None: none."""

    endpoint: str
    keys: ClientKeys | None = None


@dataclass
class LeftLife:
    """One life that has ended. `held` are consecutive reports, the last it made; never empty."""

    folder: str
    hello: Hello
    held: list[HeldFrame]
    lock: int

    def remove(self) -> None:
        """Remove its files: they were delivered."""
        remove_life(self.folder, self.hello.identity.boot_id)
        self.close()

    def close(self) -> None:
        """Let go of its files, for somebody else or a later time."""
        lock, self.lock = self.lock, -1
        if lock >= 0:
            os.close(lock)


def take_life(folder: str, boot_id: str) -> LeftLife | None:
    """Lock and read what a life has left; None when it lives, another process has it or nothing is left to deliver.

    Files that hold nothing to deliver are removed. Raises OSError.
    """
    if not find_files(folder, boot_id):
        return None
    lock = take_lock(folder, boot_id)
    if lock is None:
        return None
    try:
        found = _read_life(folder, boot_id, lock)
        if found is None:
            remove_life(folder, boot_id)
    except BaseException:
        os.close(lock)
        raise
    if found is None:
        os.close(lock)
    return found


def is_torn(folder: str, boot_id: str) -> bool:
    """Whether the last file of a life ends in something that is no whole record: it was killed while it wrote, or the
    disk has lost the end. The rest of the file is good.
    """
    files = find_files(folder, boot_id)
    with contextlib.suppress(OSError):
        return bool(files) and _is_torn(*_read_file(files[-1]))
    return False


def _read_file(file: SpillFile) -> tuple[list[Record], int]:
    """The whole records of a file, and its length."""
    with open(file.path, "rb") as opened:
        block = opened.read(BYTES_READ_MAX + 1)
    return list(decode_records(block)), len(block)


def _is_torn(records: list[Record], length: int) -> bool:
    return (records[-1].end if records else 0) < length


def _read_life(folder: str, boot_id: str, lock: int) -> LeftLife | None:
    hello: Hello | None = None
    reports: dict[int, HeldFrame] = {}
    released_through = bytes_read = 0
    for file in reversed(find_files(folder, boot_id)):
        records, length = _read_file(file)
        bytes_read += length
        if bytes_read > BYTES_READ_MAX:
            break
        for record in records:
            if record.kind == HELLO:
                hello = hello or _decode_hello(record, boot_id)
            elif record.kind == REPORT:
                reports[record.sequence] = HeldFrame(record.sequence, record.body, record.step_count)
            elif record.kind == RELEASED:
                released_through = max(released_through, record.sequence)
    held = _find_last_run(reports, released_through)
    return LeftLife(folder, hello, held, lock) if hello is not None and held else None


def _decode_hello(record: Record, boot_id: str) -> Hello | None:
    with contextlib.suppress(DecodeError):
        message = decode(record.body)
        if isinstance(message, Hello) and message.identity.boot_id == boot_id:
            return message
    return None


def _find_last_run(reports: dict[int, HeldFrame], released_through: int) -> list[HeldFrame]:
    """The last reports whose numbers follow each other: with what lies before a gap they could not be delivered in
    order, and the collector counts what it lacks.
    """
    run: list[HeldFrame] = []
    sequence = max(reports, default=0)
    while sequence > released_through and sequence in reports:
        run.append(reports[sequence])
        sequence -= 1
    return run[::-1]
