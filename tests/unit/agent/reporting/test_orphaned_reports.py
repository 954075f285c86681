"""Tests of reading the orphaned reports of an ended rank process."""

import os
from pathlib import Path

import pytest

from rankscope.agent.reporting.orphaned_reports import claim_orphan, describe_damage
from rankscope.agent.reporting.spill_folder import find_boot_ids, find_files, open_folder
from rankscope.agent.reporting.spill_format import HEAD_BYTES, HELLO, encode_record
from tests.unit.agent.reporting.spilled_reports import BOOT_ID, frame_of, hello_of, hold_lock, spill_in


def leave(tmp_path: Path, through: int, released: int = 0, bytes_max: int = 1 << 20, size: int = 10) -> str:
    """Write reports of a process that has ended; return the folder."""
    spill = spill_in(tmp_path, bytes_max=bytes_max)
    for sequence in range(1, through + 1):
        assert spill.append(frame_of(sequence, size))
    spill.release(released)
    spill.close()
    return open_folder(str(tmp_path))


def left_numbers(folder: str) -> list[int]:
    life = claim_orphan(folder, BOOT_ID)
    assert life is not None
    life.close()
    return [held.sequence for held in life.held]


def test_unacknowledged_reports_are_found_with_their_rank(tmp_path: Path) -> None:
    life = claim_orphan(leave(tmp_path, 5, released=3), BOOT_ID)
    assert life is not None
    assert life.held == [frame_of(4), frame_of(5)]
    assert life.hello == hello_of()
    life.close()


def test_reports_of_several_files_are_one_run(tmp_path: Path) -> None:
    folder = leave(tmp_path, 20, bytes_max=16_000, size=200)
    assert len(find_files(folder, BOOT_ID)) > 1
    assert left_numbers(folder) == list(range(1, 21))


def damage(path: str, at: int, block: bytes = b"\0" * 8) -> None:
    """Write over bytes in the middle of a file."""
    with Path(path).open("r+b") as file:
        file.seek(at)
        file.write(block)


def test_torn_last_record_is_described(tmp_path: Path) -> None:
    folder = leave(tmp_path, 3)
    assert describe_damage(folder, BOOT_ID) == ""
    (file,) = find_files(folder, BOOT_ID)
    os.truncate(file.path, Path(file.path).stat().st_size - 1)
    assert describe_damage(folder, BOOT_ID) == "the last record on the disk is truncated"
    assert left_numbers(folder) == [1, 2]


def test_damaged_record_is_described_and_skipped(tmp_path: Path) -> None:
    folder = leave(tmp_path, 100)
    (file,) = find_files(folder, BOOT_ID)
    record_bytes = HEAD_BYTES + 10  # of each report; they end the file
    damage(
        file.path, Path(file.path).stat().st_size - 98 * record_bytes - 5
    )  # in the body of report 2, and the head of 3
    assert left_numbers(folder) == [1, *range(4, 101)]
    assert describe_damage(folder, BOOT_ID) == (
        f"{2 * record_bytes} bytes between records on the disk are damaged; the reports in them are lost"
    )


def test_reports_around_lost_ones_are_delivered_in_parts(tmp_path: Path) -> None:
    """The first file lost its end; what it still has is delivered too."""
    folder = leave(tmp_path, 20, bytes_max=16_000, size=200)
    first, second, *_ = find_files(folder, BOOT_ID)
    os.truncate(first.path, Path(first.path).stat().st_size - 1)
    life = claim_orphan(folder, BOOT_ID)
    assert life is not None
    life.close()
    numbers = [[held.sequence for held in part] for part in life.parts]
    assert numbers == [list(range(1, second.first_sequence - 1)), list(range(second.first_sequence, 21))]


def test_process_is_known_without_the_first_block(tmp_path: Path) -> None:
    """Its Hello is at the head of the file, and again after the first report."""
    folder = leave(tmp_path, 5)
    (file,) = find_files(folder, BOOT_ID)
    damage(file.path, 0, bytes(30))
    assert left_numbers(folder) == [1, 2, 3, 4, 5]


def test_files_that_hold_nothing_to_deliver_are_removed(tmp_path: Path) -> None:
    folder = open_folder(str(tmp_path))
    Path(folder, f"{BOOT_ID}.{1:020}.spill").write_bytes(encode_record(HELLO, 0, b"no frame"))
    assert claim_orphan(folder, BOOT_ID) is None
    assert list(Path(folder).iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"garbage", encode_record(HELLO, 0, b"no frame") + b"x" * 50])
def test_file_without_a_hello_is_removed(tmp_path: Path, content: bytes) -> None:
    folder = open_folder(str(tmp_path))
    Path(folder, f"{BOOT_ID}.{1:020}.spill").write_bytes(content)
    assert claim_orphan(folder, BOOT_ID) is None
    assert find_boot_ids(folder) == []


def test_files_locked_by_another_process_are_not_claimed(tmp_path: Path) -> None:
    folder = leave(tmp_path, 3)
    holder = hold_lock(Path(folder, f"{BOOT_ID}.lock"))
    try:
        assert claim_orphan(folder, BOOT_ID) is None
    finally:
        holder.communicate()
    assert left_numbers(folder) == [1, 2, 3]


def test_process_without_files_has_no_orphan(tmp_path: Path) -> None:
    folder = open_folder(str(tmp_path))
    assert claim_orphan(folder, BOOT_ID) is None
    assert describe_damage(folder, BOOT_ID) == ""
    assert list(Path(folder).iterdir()) == []


def test_delivered_reports_leave_no_files(tmp_path: Path) -> None:
    folder = leave(tmp_path, 3)
    life = claim_orphan(folder, BOOT_ID)
    assert life is not None
    life.remove()
    assert list(Path(folder).iterdir()) == []
