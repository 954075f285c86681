"""Detection of removed, replaced and damaged files of an open store, and what is opened after it."""

import contextlib
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankscope.collector.storage.database import Database
from rankscope.collector.storage.file_watch import StoreLoss
from rankscope.collector.storage.store_errors import DamagedStoreError
from rankscope.measure.errors import UnavailableError

WALL_S = 1_800_000_000.0
"""2027-01-15 08:00:00 UTC."""


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with contextlib.closing(Database(tmp_path / "store.db")) as database:
        yield database


def lose(database: Database, harm: Callable[[Path], object]) -> StoreLoss:
    """What is found after that was done to the file."""
    assert database.find_loss() is None
    harm(database.path)
    lost = database.find_loss()
    assert lost is not None
    return lost


def truncate(path: Path) -> None:
    path.write_bytes(b"")


def copy_over(path: Path) -> None:
    shutil.copy(path, f"{path}.copy")
    Path(f"{path}.copy").rename(path)


def test_file_that_only_grows_is_not_lost(database: Database) -> None:
    database.connection.execute("CREATE TABLE more AS SELECT randomblob(100000)")
    database.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert database.find_loss() is None
    assert database.check_content() is None


@pytest.mark.parametrize(
    ("harm", "reason", "text"),
    [
        (Path.unlink, "removed", "{path} was removed"),
        (copy_over, "replaced", "{path} was replaced by another file"),
        (truncate, "truncated", "{path} was truncated, from 4096 to 0 bytes"),
    ],
)
def test_loss_names_the_file_and_what_happened_to_it(
    database: Database, harm: Callable[[Path], object], reason: str, text: str
) -> None:
    lost = lose(database, harm)
    said = f"{text.format(path=database.path)} while the collector had it open as its store."
    assert (lost.reason, lost.text) == (reason, said)


def test_overwritten_content_is_found_by_the_check(database: Database) -> None:
    database.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with database.path.open("r+b") as file:
        file.seek(4096)
        file.write(b"no page " * 512)
    assert database.find_loss() is None
    lost = database.check_content()
    assert lost is not None
    assert (lost.reason, "was overwritten or is damaged" in lost.text) == ("damaged", True)


def test_removed_log_keeps_the_file(tmp_path: Path) -> None:
    database = Database(tmp_path / "store.db")
    database.connection.execute("CREATE TABLE mine (value)")
    lost = lose(database, lambda path: Path(f"{path}-wal").unlink())
    database.close()
    with contextlib.closing(Database(database.path, lost=lost, now_wall_s=WALL_S)) as again:
        assert (again.was_reopened, again.set_aside) == (True, None)
        assert again.connection.execute("SELECT count(*) FROM mine").fetchone() == (0,)


def test_other_file_is_renamed_with_its_log(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    database = Database(path)
    lost = lose(database, copy_over)
    database.close()
    content = path.read_bytes()
    Path(f"{path}-wal").write_bytes(b"log")
    taken = Path(f"{path}.replaced-20270115T080000Z")
    taken.write_bytes(b"of an earlier loss")
    with contextlib.closing(Database(path, lost=lost, now_wall_s=WALL_S)) as again:
        assert (again.was_reopened, again.set_aside) == (False, Path(f"{taken}-1"))
    assert taken.read_bytes() == b"of an earlier loss"
    assert (Path(f"{taken}-1").read_bytes(), Path(f"{taken}-1-wal").read_bytes()) == (content, b"log")


def test_file_that_stays_damaged_is_renamed(tmp_path: Path) -> None:
    database = Database(tmp_path / "store.db")
    database.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # else the log would mend it
    lost = lose(database, lambda path: path.write_bytes(b"no database " * 10_000))
    database.close()
    content = database.path.read_bytes()
    with contextlib.closing(Database(database.path, lost=lost, now_wall_s=WALL_S)) as again:
        assert again.set_aside == Path(f"{database.path}.damaged-20270115T080000Z")
        assert again.set_aside.read_bytes() == content


def test_log_of_a_removed_file_is_not_replayed(tmp_path: Path) -> None:
    database = Database(tmp_path / "store.db")
    database.connection.execute("CREATE TABLE mine (value)")
    lost = lose(database, Path.unlink)
    database.close()
    with contextlib.closing(Database(database.path, lost=lost, now_wall_s=WALL_S)) as again:
        assert (again.was_reopened, again.set_aside) == (False, None)
        with pytest.raises(sqlite3.OperationalError, match="no such table: mine"):
            again.connection.execute("SELECT count(*) FROM mine")


def test_store_of_another_collector_is_left_unchanged(tmp_path: Path) -> None:
    database = Database(tmp_path / "store.db")
    lost = lose(database, lambda path: Path(f"{path}-lock").unlink())
    with contextlib.closing(Database(database.path)):
        database.close()
        with pytest.raises(UnavailableError, match="another collector writes to"):
            Database(database.path, lost=lost, now_wall_s=WALL_S)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store.db", "store.db-lock"]


def test_damaged_store_at_the_start_is_refused_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(b"no database " * 1000)
    with pytest.raises(DamagedStoreError, match="Move it away, or set `store` to another file"):
        Database(path)
    assert path.read_bytes() == b"no database " * 1000
