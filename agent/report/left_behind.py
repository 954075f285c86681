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
from rankscope.measure.errors import DecodeError, RankscopeError
from rankscope.measure.key_files import ClientKeys
from rankscope.measure.messages import Hello
from rankscope.uplink.resend_buffer import HeldFrame

BYTES_READ_MAX: Final = 256 * 1024 * 1024
"""Of one life at most so much is read, the newest files first: it is delivered from memory."""


class LeftRefusedError(RankscopeError):
    """The collector does not take what a life has left, for good: to ask it again would change nothing."""


class Address(NamedTuple):
    """Where a collector is, and the keys that the agent speaks with to it; None: none."""

    endpoint: str
    keys: ClientKeys | None = None


@dataclass
class LeftLife:
    """One life that has ended. `held` are its reports that nobody is known to have, in order; never empty. Numbers are
    missing among them where the disk has lost some.
    """

    folder: str
    hello: Hello
    held: list[HeldFrame]
    lock: int

    @property
    def runs(self) -> list[list[HeldFrame]]:
        """The reports, in parts without a missing number."""
        runs: list[list[HeldFrame]] = []
        for held in self.held:
            if not runs or runs[-1][-1].sequence + 1 != held.sequence:
                runs.append([])
            runs[-1].append(held)
        return runs

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


def describe_damage(folder: str, boot_id: str) -> str:
    """Return what is wrong with the last file of a life, which is the one it wrote to when it ended; empty: nothing."""
    files = find_files(folder, boot_id)
    if not files:
        return ""
    try:
        records, length = _read_file(files[-1])
    except OSError as error:
        return f"what it left on the disk cannot be read: {error}"
    ends = [0, *(record.end for record in records)]
    lost_bytes = sum(record.offset - end for end, record in zip(ends, records, strict=False))
    problems = []
    if lost_bytes:
        problems.append(f"{lost_bytes} bytes between records on the disk are damaged; the reports in them are lost")
    if ends[-1] < length:
        problems.append("the last record on the disk is not whole: it is cut")
    return "; ".join(problems)


def _read_file(file: SpillFile) -> tuple[list[Record], int]:
    """The whole records of a file, and its length."""
    with open(file.path, "rb") as opened:
        block = opened.read(BYTES_READ_MAX + 1)
    return list(decode_records(block)), len(block)


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
    held = [reports[sequence] for sequence in sorted(reports) if sequence > released_through]
    return LeftLife(folder, hello, held, lock) if hello is not None and held else None


def _decode_hello(record: Record, boot_id: str) -> Hello | None:
    with contextlib.suppress(DecodeError):
        message = decode(record.body)
        if isinstance(message, Hello) and message.identity.boot_id == boot_id:
            return message
    return None
