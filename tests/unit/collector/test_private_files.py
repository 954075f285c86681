"""What a collector keeps on the disk is its owner's alone, whatever the umask is and was."""

import os
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from rankscope.collector.captures.store import CaptureStore
from rankscope.collector.private_files import make_private_folder, narrow, open_private, write_private
from rankscope.collector.storage.database import Database

STORE = ("runs.db", "runs.db-wal", "runs.db-shm", "runs.db-lock")


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    """Let everybody read and write what is made without a mode."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_store_and_what_is_beside_it_is_private(tmp_path: Path) -> None:
    with closing(Database(tmp_path / "runs.db")):
        assert [mode_of(tmp_path / name) for name in STORE] == [0o600] * 4


def test_store_that_was_readable_is_narrowed(tmp_path: Path) -> None:
    with closing(Database(tmp_path / "runs.db")) as database:
        for name in STORE:
            (tmp_path / name).chmod(0o644)
        with closing(database.open_connection()):
            pass
    (tmp_path / "runs.db").chmod(0o664)
    with closing(Database(tmp_path / "runs.db")):
        assert [mode_of(tmp_path / name) for name in STORE] == [0o600] * 4


def test_narrower_mode_is_kept(tmp_path: Path) -> None:
    (tmp_path / "a").touch(0o440)
    narrow(tmp_path / "a")
    assert mode_of(tmp_path / "a") == 0o400


def test_folder_of_captures_that_was_readable_is_narrowed(tmp_path: Path) -> None:
    folder = tmp_path / "runs.db-captures"
    folder.mkdir(0o755)
    CaptureStore(folder, kept_s=1.0, bytes_max=1).load(lambda _folder: None)
    assert mode_of(folder) == 0o700


def test_part_of_a_capture_is_private(tmp_path: Path) -> None:
    store = CaptureStore(tmp_path / "new" / "captures", kept_s=1.0, bytes_max=1)
    make_private_folder(store.folder_of("one"))
    store.write_part("one", 3, 0, b"{}")
    made = [tmp_path / "new", tmp_path / "new/captures", store.folder_of("one")]
    assert [mode_of(path) for path in made] == [0o700] * 3
    assert [mode_of(path) for path in store.folder_of("one").iterdir()] == [0o600]


def test_file_is_private_also_where_it_was_not(tmp_path: Path) -> None:
    (tmp_path / "a").touch(0o666)
    for name in ("a", "b"):
        write_private(tmp_path / name, b"new")
    assert [(path.read_bytes(), mode_of(path)) for path in sorted(tmp_path.iterdir())] == [(b"new", 0o600)] * 2
    with pytest.raises(FileExistsError):
        open_private(tmp_path / "a", is_new=True)
