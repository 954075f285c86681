"""Reads and delivers orphaned reports: those that an ended rank process has left on the disk.

    claim_orphan(folder, boot_id)   locks and reads its files; None while the process runs or another one holds them
    deliver(orphan, ...)            sends Hello and reports in its name, under its sequence numbers
    OrphanedReports.remove()        removes its files

The collector admits each report once, since its Welcome has the last admitted number (delivery.py). Reports that the
disk has lost divide the rest into parts. Each part begins with a Hello whose `first_sequence` makes the collector count
the missing ones as lost instead of waiting for them.
"""

import contextlib
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from rankscope.agent.reporting.sender import Sender
from rankscope.agent.reporting.spill_folder import SpillFile, acquire_lock, find_files, remove_spill
from rankscope.agent.reporting.spill_format import HELLO, RELEASED, REPORT, Record, decode_records
from rankscope.measure.clock import Clock
from rankscope.measure.codec import decode
from rankscope.measure.errors import DecodeError, RankscopeError
from rankscope.measure.key_files import ClientKeys
from rankscope.measure.messages import Hello
from rankscope.measure.units import NS_PER_MS
from rankscope.uplink.delivery import Delivery, DeliveryState
from rankscope.uplink.resend_buffer import HeldFrame, ResendBuffer

BYTES_READ_MAX: Final = 256 * 1024 * 1024
"""Largest amount read of one rank process, the newest files first, since it is delivered from memory."""
POLL_NS: Final = 200 * NS_PER_MS
"""Interval at which a delivery checks whether to stop."""
SEQUENCE_MAX: Final = 2**63 - 1


class OrphanRefusedError(RankscopeError):
    """Raised when the collector refuses orphaned reports for good."""


class ReportAddress(NamedTuple):
    """A collector's endpoint and the keys of the connection to it, None without encryption."""

    endpoint: str
    keys: ClientKeys | None = None


@dataclass
class OrphanedReports:
    """The reports of one ended rank process.

    `held` are those not known to be acknowledged, in order and never empty. Numbers are missing where the disk has lost
    reports.
    """

    folder: str
    hello: Hello
    held: list[HeldFrame]
    lock: int

    @property
    def parts(self) -> list[list[HeldFrame]]:
        """The reports in parts of consecutive sequence numbers."""
        parts: list[list[HeldFrame]] = []
        for held in self.held:
            if not parts or parts[-1][-1].sequence + 1 != held.sequence:
                parts.append([])
            parts[-1].append(held)
        return parts

    def remove(self) -> None:
        """Remove the files, after delivery."""
        remove_spill(self.folder, self.hello.identity.boot_id)
        self.close()

    def close(self) -> None:
        """Release the lock of the files."""
        lock, self.lock = self.lock, -1
        if lock >= 0:
            os.close(lock)


def claim_orphan(folder: str, boot_id: str) -> OrphanedReports | None:
    """Lock and read the reports of an ended rank process.

    Return None while it runs or another process holds its files, and if there is nothing to deliver; then the files are
    removed. Raise OSError.
    """
    if not find_files(folder, boot_id):
        return None
    lock = acquire_lock(folder, boot_id)
    if lock is None:
        return None
    try:
        found = _read_reports(folder, boot_id, lock)
        if found is None:
            remove_spill(folder, boot_id)
    except BaseException:
        os.close(lock)
        raise
    if found is None:
        os.close(lock)
    return found


def describe_damage(folder: str, boot_id: str) -> str:
    """Describe damage to the last file of a rank process, the one it was writing to when it ended; empty if none."""
    files = find_files(folder, boot_id)
    if not files:
        return ""
    try:
        records, length = _read_file(files[-1])
    except OSError as error:
        return f"its reports on the disk cannot be read: {error}"
    ends = [0, *(record.end for record in records)]
    lost_bytes = sum(record.offset - end for end, record in zip(ends, records, strict=False))
    problems = []
    if lost_bytes:
        problems.append(f"{lost_bytes} bytes between records on the disk are damaged; the reports in them are lost")
    if ends[-1] < length:
        problems.append("the last record on the disk is truncated")
    return "; ".join(problems)


def _read_file(file: SpillFile) -> tuple[list[Record], int]:
    """Return the intact records of a file, and its length."""
    with open(file.path, "rb") as opened:
        block = opened.read(BYTES_READ_MAX + 1)
    return list(decode_records(block)), len(block)


def _read_reports(folder: str, boot_id: str, lock: int) -> OrphanedReports | None:
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
    return OrphanedReports(folder, hello, held, lock) if hello is not None and held else None


def _decode_hello(record: Record, boot_id: str) -> Hello | None:
    with contextlib.suppress(DecodeError):
        message = decode(record.body)
        if isinstance(message, Hello) and message.identity.boot_id == boot_id:
            return message
    return None


def deliver(
    orphan: OrphanedReports, address: ReportAddress, clock: Clock, *, deadline_ns: int, is_stopping: Callable[[], bool]
) -> bool:
    """Deliver the reports to a collector; return whether all were acknowledged by the deadline.

    Raise SettingError for an unreadable endpoint, OrphanRefusedError if the collector refuses them for good.
    """
    return all(
        _deliver_part(part, orphan.hello, address, clock, deadline_ns=deadline_ns, is_stopping=is_stopping)
        for part in orphan.parts
    )


def _deliver_part(
    part: Sequence[HeldFrame],
    hello: Hello,
    address: ReportAddress,
    clock: Clock,
    *,
    deadline_ns: int,
    is_stopping: Callable[[], bool],
) -> bool:
    boot_id = hello.identity.boot_id
    buffer = ResendBuffer(len(part), BYTES_READ_MAX, after=part[0].sequence - 1)
    for held in part:
        buffer.push(held.sequence, held.frame, held.step_count)
    # The process may have sent any of them, and later ones that the disk has lost since.
    delivery = Delivery(buffer, random.Random(boot_id), sent_through=SEQUENCE_MAX)  # noqa: S311 - spreads connects, no secret

    def introduce(first_sequence: int) -> Hello:
        return msgspec.structs.replace(hello, first_sequence=first_sequence, left_behind=True)

    sender = Sender(delivery, clock, boot_id, introduce)
    try:
        sender.open(address.endpoint, address.keys)
        while not delivery.everything_acknowledged:
            now_ns = clock.monotonic_ns()
            if delivery.state is DeliveryState.REFUSED:
                raise OrphanRefusedError(
                    f"the collector at {address.endpoint} refuses the orphaned reports: {delivery.refusal}"
                )
            if now_ns >= deadline_ns or is_stopping():
                return False
            sender.exchange(min(deadline_ns, now_ns + POLL_NS))
        return True
    finally:
        sender.close()
