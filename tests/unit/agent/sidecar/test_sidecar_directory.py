"""Tests of the private directory of a run, and of its lock."""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from rankscope.agent.sidecar.beacon import Heartbeat
from rankscope.agent.sidecar.directory import (
    LOCK,
    acquire_lock,
    folder_name,
    holds_lock,
    open_folder,
    remove_folder,
    sweep,
)
from rankscope.measure.errors import UnavailableError
from tests.unit.agent.sidecar.ranks_of_a_node import Process, identity_of, light_beacon


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "rankscope")


@pytest.fixture
def folder(root: str) -> str:
    return open_folder(root, "run-0")


@pytest.fixture
def process() -> Iterator[Process]:
    started = Process("pass")
    yield started
    started.kill()


def test_the_directory_is_private_and_made_once(root: str, folder: str) -> None:
    assert open_folder(root, "run-0") == folder
    assert [os.stat(path).st_mode & 0o777 for path in (root, folder)] == [0o700, 0o700]  # noqa: PTH116


def test_a_directory_that_others_may_enter_is_not_used(root: str, folder: str) -> None:
    Path(folder).chmod(0o755)
    with pytest.raises(UnavailableError, match=r"is not a private directory of this user \(drwxr-xr-x, owner"):
        open_folder(root, "run-0")


def test_a_link_in_its_place_is_not_followed(root: str, folder: str, tmp_path: Path) -> None:
    Path(folder).rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    Path(folder).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnavailableError):
        open_folder(root, "run-0")


def test_file_in_place_of_the_directory_is_an_error(root: str, folder: str) -> None:
    Path(folder).rmdir()
    Path(folder).write_text("")
    with pytest.raises(UnavailableError):
        open_folder(root, "run-0")


def test_the_lock_is_had_by_one_and_goes_with_the_open_file(folder: str) -> None:
    first = acquire_lock(folder)
    assert first is not None
    assert acquire_lock(folder) is None
    os.close(first)
    second = acquire_lock(folder)
    assert second is not None
    os.close(second)


def test_lock_of_a_removed_directory_is_not_used(root: str, folder: str) -> None:
    old = acquire_lock(folder)
    assert old is not None
    assert remove_folder(folder)
    new = acquire_lock(open_folder(root, "run-0"))
    assert new is not None
    os.close(old)
    os.close(new)


def test_directory_with_a_new_beacon_stays(folder: str, process: Process) -> None:
    light_beacon(Path(folder), 0, process, Heartbeat(1)).close()
    assert not remove_folder(folder)
    assert len(list(Path(folder).iterdir())) == 2


def test_the_last_one_out_removes_the_root_too(root: str, folder: str) -> None:
    other = open_folder(root, "run-1")
    assert remove_folder(folder)
    assert Path(root).exists()
    assert remove_folder(other)
    assert not Path(root).exists()


def test_directories_of_killed_sidecars_are_swept(root: str, process: Process) -> None:
    dead, living, held = (open_folder(root, name) for name in ("dead", "living", "held"))
    gone = Process("pass")
    light_beacon(Path(dead), 0, gone, Heartbeat(1)).close()
    gone.kill()
    light_beacon(Path(living), 0, process, Heartbeat(1)).close()
    young, foreign = open_folder(root, "young"), open_folder(root, "foreign")
    unseen = msgspec.structs.replace(identity_of(1, gone.pid), machine_id="another machine")
    light_beacon(Path(foreign), 1, gone, Heartbeat(1), identity=unseen).close()
    lock = acquire_lock(held)
    assert lock is not None
    for folder in (dead, living, held, foreign):
        os.utime(folder, (0, 0))
    assert Path(young).exists()
    sweep(root, keep="mine")
    os.close(lock)
    assert sorted(path.name for path in Path(root).iterdir()) == ["foreign", "held", "living", "young"]
    assert sorted(path.name for path in Path(living).iterdir()) == ["boot-of-0.beat", "boot-of-0.json", LOCK]


def test_old_files_without_descriptor_are_removed(folder: str) -> None:
    stray = Path(folder) / "boot-of-7.sock"
    stray.write_text("")
    assert not remove_folder(folder)
    os.utime(stray, (0, 0))
    assert remove_folder(folder)


def test_lock_of_a_removed_directory_is_not_held(root: str, folder: str) -> None:
    lock = acquire_lock(folder)
    assert lock is not None
    assert holds_lock(lock, folder)
    remove_folder(folder)
    assert not holds_lock(lock, open_folder(root, "run-0"))
    os.close(lock)


def test_folder_name_is_short_and_shared_by_an_attempt() -> None:
    name = folder_name(identity_of(0, 1))
    assert name == folder_name(identity_of(1, 2))
    assert len(name) == 16 + len("-0")


def test_containers_with_shared_memory_are_separate() -> None:
    here, there = (msgspec.structs.replace(identity_of(0, 1), machine_id=name) for name in ("a/pid:[1]", "a/pid:[2]"))
    assert folder_name(here) != folder_name(there)
