"""Tests of the spill: bounds, release, damage and failing disks."""

import itertools
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankscope.agent.private_folder import NAMES_MAX
from rankscope.agent.reporting.spill import FILES, PAUSE_MAX, Spill
from rankscope.agent.reporting.spill_folder import KEPT_S, find_boot_ids, find_files, open_folder
from rankscope.agent.reporting.spill_format import REPORT, decode_records
from rankscope.uplink.resend_buffer import ResendBuffer
from tests.unit.agent.reporting.spilled_reports import BOOT_ID, frame_of, hold_lock, spill_in


@pytest.fixture
def spill(tmp_path: Path) -> Iterator[Spill]:
    spill = spill_in(tmp_path / "spill")
    yield spill
    spill.close()


def fill(spill: Spill, sequences: range, size: int = 10) -> None:
    for sequence in sequences:
        assert spill.append(frame_of(sequence, size))


def numbers(spill: Spill, sequence: int, count_max: int = 100) -> list[int]:
    return [held.sequence for held in spill.read(sequence, count_max)]


def files_of(spill: Spill) -> list[Path]:
    return [Path(file.path) for file in find_files(spill.folder, BOOT_ID)]


def test_an_empty_spill_holds_nothing_and_has_touched_nothing(spill: Spill, tmp_path: Path) -> None:
    assert (spill.first_sequence, spill.last_sequence, spill.folder) == (1, 0, "")
    assert list(tmp_path.iterdir()) == []


def test_reports_are_read_back_as_they_were_written(spill: Spill) -> None:
    fill(spill, range(1, 6))
    assert spill.read(2, 3) == (frame_of(2), frame_of(3), frame_of(4))
    assert (spill.first_sequence, spill.last_sequence) == (1, 5)


def test_a_log_may_begin_at_any_number_but_must_resumeout_a_gap(spill: Spill) -> None:
    fill(spill, range(41, 43))
    with pytest.raises(ValueError, match="report 44 was spilled after 42; numbers must follow"):
        spill.append(frame_of(44))
    assert (spill.first_sequence, spill.last_sequence) == (41, 42)


def test_files_are_private(spill: Spill) -> None:
    fill(spill, range(1, 2))
    folder = Path(spill.folder)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())]
    assert modes == [0o700, 0o600, 0o600]  # the folder; the lock and the one file


def test_file_is_removed_with_its_last_released_report(tmp_path: Path) -> None:
    spill = spill_in(tmp_path, bytes_max=8_000)  # files of 1,000 bytes: a Hello of about 100, and 3 reports of 221
    fill(spill, range(1, 11), size=200)
    before = len(files_of(spill))
    spill.release(7)
    assert (spill.first_sequence, numbers(spill, 8)) == (8, [8, 9, 10])
    assert len(files_of(spill)) < before
    spill.close()


def test_oldest_file_is_removed_above_the_bound(tmp_path: Path) -> None:
    spill = spill_in(tmp_path, bytes_max=8_000)
    for sequence in range(1, 200):
        assert spill.append(frame_of(sequence, 200))
        assert sum(path.stat().st_size for path in files_of(spill)) <= 8_000
        spill.release(sequence // 2)
    assert len(files_of(spill)) >= FILES - 1
    assert numbers(spill, spill.first_sequence) == list(range(spill.first_sequence, 200))
    spill.close()


def test_dropping_the_oldest_frees_a_whole_file(tmp_path: Path) -> None:
    spill = spill_in(tmp_path, bytes_max=8_000)
    fill(spill, range(1, 11), size=200)
    second = find_files(spill.folder, BOOT_ID)[1].first_sequence
    spill.drop_oldest()
    assert spill.first_sequence == second
    spill.close()


def test_dropping_from_an_empty_log_does_nothing(spill: Spill) -> None:
    spill.drop_oldest()
    assert (spill.first_sequence, spill.last_sequence) == (1, 0)


def test_fully_released_log_leaves_no_files(spill: Spill) -> None:
    fill(spill, range(1, 4))
    spill.release(3)
    spill.close()
    assert list(Path(spill.folder).iterdir()) == []


def test_log_with_a_report_stays_after_the_process(spill: Spill) -> None:
    fill(spill, range(1, 4))
    spill.release(2)
    spill.close()
    assert find_boot_ids(spill.folder) == [BOOT_ID]


# -- what the disk has damaged ----------------------------------------------------------------------------------------


def damage(spill: Spill, sequence: int) -> None:
    """Change the last byte of a report."""
    for path in files_of(spill):
        for record in decode_records(path.read_bytes()):
            if (record.kind, record.sequence) == (REPORT, sequence):
                with path.open("r+b") as file:
                    file.seek(record.end - 1)
                    file.write(b"?")


def test_only_damaged_reports_are_lost(tmp_path: Path) -> None:
    spill = spill_in(tmp_path)
    buffer = ResendBuffer(2, 1 << 20, spill)
    for sequence in range(1, 11):
        buffer.push(*frame_of(sequence))
    for sequence in (3, 4):
        damage(spill, sequence)
    assert [held.sequence for held in buffer.frames_from(1, 10)] == [1, 2]
    assert buffer.frames_from(3, 10) == ()
    # 1 and 2, which may have arrived, go with the two that are damaged: what is held has no gap.
    assert (buffer.first_sequence, buffer.reports_dropped) == (5, 4)
    assert [held.sequence for held in buffer.frames_from(5, 10)] == [5, 6, 7, 8, 9, 10]
    spill.close()


def test_file_in_which_nothing_can_be_read_goes_at_once(tmp_path: Path) -> None:
    spill = spill_in(tmp_path, bytes_max=8_000)
    fill(spill, range(1, 11), size=200)
    second = find_files(spill.folder, BOOT_ID)[1].first_sequence
    for sequence in range(1, second):
        damage(spill, sequence)
    spill.drop_unreadable(1)
    assert (spill.first_sequence, numbers(spill, second)) == (second, list(range(second, 11)))
    assert spill.append(frame_of(11, 200))
    spill.close()


# -- a disk that fails ------------------------------------------------------------------------------------------------


def test_a_folder_that_cannot_be_made_costs_the_spill_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    spill = spill_in(tmp_path / "file")
    assert not spill.append(frame_of(1))
    assert (spill.failures, spill.first_sequence, spill.last_sequence) == (1, 1, 0)
    assert "Not a directory" in spill.problem or "File exists" in spill.problem
    spill.close()


def test_a_folder_that_others_may_read_is_not_used(tmp_path: Path) -> None:
    name = f"rankscope-{os.getuid()}"
    (tmp_path / name).mkdir(0o755)
    spill = spill_in(tmp_path)
    assert spill.append(frame_of(1))
    assert spill.folder == str(tmp_path / f"{name}.2")
    spill.close()


def test_missing_private_folder_is_reported(tmp_path: Path) -> None:
    name = f"rankscope-{os.getuid()}"
    for number in range(1, NAMES_MAX + 1):
        (tmp_path / (name if number == 1 else f"{name}.{number}")).write_text("")
    spill = spill_in(tmp_path)
    assert not spill.append(frame_of(1))
    assert spill.problem == (
        f"{tmp_path}/{name} is not a private directory of this user (-rw-r--r--, owner {os.getuid()}). "
        "Remove it, or set spill_dir to another place."
    )


def test_failed_disk_is_retried_with_growing_pauses(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    spill = spill_in(tmp_path / "file")
    tried = []
    for sequence in range(1, 400):
        before = spill.failures
        assert not spill.append(frame_of(sequence))
        tried += [sequence] * (spill.failures - before)
    pauses = [later - earlier - 1 for earlier, later in itertools.pairwise(tried)]
    assert pauses[:9] == [1, 2, 4, 8, 16, 32, PAUSE_MAX, PAUSE_MAX, PAUSE_MAX]


def test_recovered_disk_is_used_from_the_next_report(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    spill = spill_in(tmp_path / "file")
    assert not spill.append(frame_of(1))
    (tmp_path / "file").unlink()
    assert not spill.append(frame_of(2))  # the pause of one report
    assert spill.append(frame_of(3))
    assert (spill.first_sequence, spill.last_sequence) == (3, 3)
    spill.close()


def test_full_disk_keeps_its_reports(spill: Spill, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that takes a part and then fails leaves no half of a record: the next one follows the last whole one."""
    fill(spill, range(1, 3))
    write = os.pwrite

    def write_a_part(fd: int, block: bytes, at: int) -> int:
        if len(block) < 20:
            raise OSError(28, "No space left on device")
        return write(fd, block[:20], at)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", write_a_part)
        assert not spill.append(frame_of(3))
    assert not spill.append(frame_of(3))
    assert spill.append(frame_of(3))
    assert (spill.failures, spill.problem) == (1, "[Errno 28] No space left on device")
    assert spill.read(1, 9) == (frame_of(1), frame_of(2), frame_of(3))


def test_reading_stops_at_a_lost_report(spill: Spill) -> None:
    fill(spill, range(1, 4))
    (path,) = files_of(spill)
    os.truncate(path, path.stat().st_size - 5)
    assert numbers(spill, 1) == [1, 2]


def test_two_processes_never_use_the_same_files(tmp_path: Path) -> None:
    folder = Path(open_folder(str(tmp_path)))
    holder = hold_lock(folder / f"{BOOT_ID}.lock")
    try:
        spill = spill_in(tmp_path)
        assert not spill.append(frame_of(1))
        assert f"another process holds the files of {BOOT_ID}" in spill.problem
    finally:
        holder.communicate()


# -- what others have left --------------------------------------------------------------------------------------------


def test_files_older_than_a_day_are_removed(tmp_path: Path) -> None:
    for boot_id in ("forgotten", "young"):
        left = spill_in(tmp_path, boot_id)
        assert left.append(frame_of(1))
        left.close()
    folder = open_folder(str(tmp_path))
    for file in find_files(folder, "forgotten"):
        os.utime(file.path, (0, Path(file.path).stat().st_mtime - KEPT_S - 1))
    spill = spill_in(tmp_path)
    assert spill.append(frame_of(1))
    assert find_boot_ids(folder) == sorted([BOOT_ID, "young"])
    spill.close()


def test_old_files_of_a_process_that_holds_them_stay(tmp_path: Path) -> None:
    left = spill_in(tmp_path, "sleeping")
    assert left.append(frame_of(1))
    left.close()
    folder = Path(open_folder(str(tmp_path)))
    for file in find_files(str(folder), "sleeping"):
        os.utime(file.path, (0, 0))
    holder = hold_lock(folder / "sleeping.lock")
    try:
        spill = spill_in(tmp_path)
        assert spill.append(frame_of(1))
        assert find_boot_ids(str(folder)) == [BOOT_ID, "sleeping"]
        spill.close()
    finally:
        holder.communicate()
