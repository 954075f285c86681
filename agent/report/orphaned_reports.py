"""What lives that have ended have left on the disk.

claim_orphan(folder, boot_id) -> OrphanedReports      its reports, its files locked; None while it lives or another has
them deliver (orphaned_reports.py)                  Hello, reports, acknowledgements, as from the life
OrphanedReports.remove()                           then the files go
"""

import contextlib
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from rankscope.agent.report.sender import Sender
from rankscope.agent.report.spill_folder import SpillFile, find_files, remove_spill, take_lock
from rankscope.agent.report.spill_format import HELLO, RELEASED, REPORT, Record, decode_records
from rankscope.measure.clock import Clock
from rankscope.measure.codec import decode
from rankscope.measure.errors import DecodeError, RankscopeError
from rankscope.measure.key_files import ClientKeys
from rankscope.measure.messages import Hello
from rankscope.measure.units import NS_PER_MS
from rankscope.uplink.delivery import Delivery, DeliveryState
from rankscope.uplink.resend_buffer import HeldFrame, ResendBuffer

BYTES_READ_MAX: Final = 256 * 1024 * 1024
"""Of one life at most so much is read, the newest files first: it is delivered from memory."""


class OrphanRefusedError(RankscopeError):
    """The collector does not take what a life has left, for good: to ask it again would change nothing."""


class Address(NamedTuple):
    """Where a collector is, and the keys that the agent speaks with to it; None: none."""

    endpoint: str
    keys: ClientKeys | None = None


@dataclass
class OrphanedReports:
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
        remove_spill(self.folder, self.hello.identity.boot_id)
        self.close()

    def close(self) -> None:
        """Let go of its files, for somebody else or a later time."""
        lock, self.lock = self.lock, -1
        if lock >= 0:
            os.close(lock)


def claim_orphan(folder: str, boot_id: str) -> OrphanedReports | None:
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
            remove_spill(folder, boot_id)
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


def _read_life(folder: str, boot_id: str, lock: int) -> OrphanedReports | None:
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


# The way of a life's left reports to the collector: in its name, under its numbers, by the rules of a life.
#
# The collector takes each report once, whatever it had before: its Welcome says where it stands (delivery.py). Reports
# that the disk has lost divide the others into parts. Each part begins with a Hello of its own, whose `first_sequence`
# tells the collector not to wait for what lies before it, and so to count that as lost.

TURN_NS: Final = 200 * NS_PER_MS
"""How often a delivery looks whether it is to stop."""

SEQUENCE_MAX: Final = 2**63 - 1


def deliver(
    life: OrphanedReports, address: Address, clock: Clock, *, deadline_ns: int, is_stopping: Callable[[], bool]
) -> bool:
    """Deliver the reports of a life to a collector; whether all were acknowledged by the deadline.

    Raises SettingError for an endpoint that cannot be read, OrphanRefusedError when the collector will never take them.
    """
    return all(
        _deliver_run(run, life.hello, address, clock, deadline_ns=deadline_ns, is_stopping=is_stopping)
        for run in life.runs
    )


def _deliver_run(
    run: Sequence[HeldFrame],
    hello: Hello,
    address: Address,
    clock: Clock,
    *,
    deadline_ns: int,
    is_stopping: Callable[[], bool],
) -> bool:
    boot_id = hello.identity.boot_id
    buffer = ResendBuffer(len(run), BYTES_READ_MAX, after=run[0].sequence - 1)
    for held in run:
        buffer.push(held.sequence, held.frame, held.step_count)
    # The life may have sent any of them before it ended, and later ones that the disk has lost since.
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
                    f"the collector at {address.endpoint} refuses the reports left on the disk: {delivery.refusal}"
                )
            if now_ns >= deadline_ns or is_stopping():
                return False
            sender.exchange(min(deadline_ns, now_ns + TURN_NS))
        return True
    finally:
        sender.close()
