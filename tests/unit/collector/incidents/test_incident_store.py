"""The store of incidents: what it keeps and refuses, and its errors when it cannot be used."""

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rankscope.collector.incidents.incident import Incident, begin, resolve
from rankscope.collector.incidents.store import IncidentStore, Stored, read_store
from rankscope.collector.storage import database
from rankscope.collector.storage.database import APPLICATION_ID
from rankscope.collector.storage.migrations import MIGRATIONS
from rankscope.measure.errors import UnavailableError
from tests.unit.collector.detect.findings import RUN, slow

ONE = begin(1, RUN, slow(details={"stack": "ü"}, lost_rank_seconds=2.5), 10.0)
TWO = resolve(begin(2, "gpt", slow(3), 11.0), "passed", 12.0, lost_rank_seconds=None)
NOBODY = 65534
"""The user without any rights, on Linux."""

VERSION_1 = (
    """CREATE TABLE incidents (id INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL, state TEXT NOT NULL,
        severity TEXT NOT NULL, opened_wall_s REAL NOT NULL, resolved_wall_s REAL, body TEXT NOT NULL)""",
    f"PRAGMA application_id = {APPLICATION_ID}",
    "PRAGMA user_version = 1",
    """INSERT INTO incidents VALUES (5, 'old', 'open', 'warning', 1.0, NULL, '{"id":5,"run":"old","severity":"warning",
        "severity_found":"warning","kind":"straggler","subject":"rank 4","ranks":[4],"cause":"host_cpu",
        "sentence":"Rank 4 is slow.","opened_wall_s":1.0,"updated_wall_s":1.0,"of_a_later_release":true}')""",
)
"""A file as version 1 of it was first released. Never to be changed: every later release reads it."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where there is no file yet."""
    return tmp_path / "incidents.db"


@pytest.fixture
def store(path: Path) -> Iterator[IncidentStore]:
    """A new store."""
    with closing(IncidentStore(path)) as store:
        yield store


def write_with_sql(path: Path, *statements: str) -> None:
    """A file as somebody else made it."""
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


@contextmanager
def may_only_read(folder: Path) -> Iterator[None]:
    """This process has no right to write in the folder; as root it is somebody else for so long, whose files are in
    it.
    """
    folder.chmod(0o555)
    was_root = os.geteuid() == 0
    if was_root:
        for path in folder.iterdir():
            os.chown(path, NOBODY, -1)
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if was_root:
            os.seteuid(0)
        folder.chmod(0o755)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody may look into, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


# -- what it keeps ----------------------------------------------------------------------------------------------------


def test_a_new_store_is_empty(store: IncidentStore) -> None:
    assert store.load() == Stored((), 0, 0)


def test_written_incidents_are_there_after_reopening(store: IncidentStore, path: Path) -> None:
    store.write([TWO, ONE], ())
    store.close()
    with closing(IncidentStore(path)) as again:
        assert again.load() == Stored((ONE, TWO), 2, 0)


def test_changed_incident_replaces_its_former_row(store: IncidentStore) -> None:
    store.write([ONE], ())
    resolved = resolve(ONE, "passed", 20.0, lost_rank_seconds=3.0)
    store.write([resolved], ())
    assert store.load().incidents == (resolved,)


def test_forgotten_incident_is_deleted_and_its_id_not_reused(store: IncidentStore) -> None:
    store.write([ONE, TWO], ())
    store.write([], [2, 99])
    assert store.load() == Stored((ONE,), 2, 0)


def test_reader_sees_the_writes_of_a_running_collector(store: IncidentStore, path: Path) -> None:
    store.write([ONE], ())
    assert read_store(path).incidents == (ONE,)


def test_columns_equal_the_fields_of_the_body(store: IncidentStore, path: Path) -> None:
    store.write([ONE, TWO], ())
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT run, state, severity, resolved_wall_s FROM incidents ORDER BY id").fetchall()
    assert rows == [(RUN, "open", "warning", None), ("gpt", "resolved", "warning", 12.0)]


def test_failed_write_is_rolled_back(store: IncidentStore) -> None:
    store.write([ONE], ())
    store._connection.execute("CREATE TRIGGER no_gpt BEFORE INSERT ON incidents WHEN NEW.run = 'gpt' "
                              "BEGIN SELECT RAISE(ABORT, 'no place'); END")  # fmt: skip
    with pytest.raises(UnavailableError):
        store.write([begin(3, RUN, slow(4), 0.0), TWO], [1])
    assert store.load().incidents == (ONE,)


def test_unreadable_row_is_skipped_and_counted(store: IncidentStore, path: Path) -> None:
    store.write([ONE, TWO], ())
    store.close()
    write_with_sql(path, "UPDATE incidents SET body = substr(body, 1, 40) WHERE id = 1")
    with closing(IncidentStore(path)) as again:
        assert again.load() == Stored((TWO,), 2, 1)


# -- versions ---------------------------------------------------------------------------------------------------------


def test_the_first_released_version_is_read(path: Path) -> None:
    write_with_sql(path, *VERSION_1)
    with closing(IncidentStore(path)) as store:
        (incident,), last_id, rows_unreadable = store.load()
    assert (incident.id, incident.run, incident.ranks, incident.sentence) == (5, "old", (4,), "Rank 4 is slow.")
    assert (last_id, rows_unreadable) == (5, 0)


def test_older_file_is_migrated_with_its_rows(path: Path) -> None:
    write_with_sql(path, *VERSION_1)
    later = (*MIGRATIONS, ("ALTER TABLE incidents ADD COLUMN seen_by TEXT",), ("UPDATE incidents SET seen_by = run",))
    with closing(IncidentStore(path, later)) as store:
        assert [incident.id for incident in store.load().incidents] == [5]
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT seen_by FROM incidents").fetchall() == [("old",)]
        assert connection.execute("PRAGMA user_version").fetchone() == (len(later),)


def test_failed_migration_keeps_the_former_version(path: Path) -> None:
    write_with_sql(path, *VERSION_1)
    broken = (*MIGRATIONS, ("ALTER TABLE incidents ADD COLUMN seen_by TEXT", "UPDATE elsewhere SET seen_by = run"))
    with pytest.raises(UnavailableError, match="no such table: elsewhere"):
        IncidentStore(path, broken)
    with closing(IncidentStore(path)) as store:
        assert [incident.id for incident in store.load().incidents] == [5]


def test_newer_file_is_refused_with_both_versions(path: Path) -> None:
    write_with_sql(path, *VERSION_1, "PRAGMA user_version = 9")
    before = path.read_bytes()
    for use in (IncidentStore, read_store):
        with pytest.raises(
            UnavailableError, match=rf"has version 9 and this rankscope knows versions up to {len(MIGRATIONS)}; upgrade"
        ):
            use(path)
    assert path.read_bytes() == before


# -- what cannot be used ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("use", [IncidentStore, read_store])
def test_file_that_is_no_database_is_refused_unchanged(
    path: Path, use: type[IncidentStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[sqlite3.Connection] = []
    connect = database._connect

    def watch(*arguments: Any) -> sqlite3.Connection:
        opened.append(connect(*arguments))
        return opened[-1]

    monkeypatch.setattr(database, "_connect", watch)
    path.write_bytes(b"not a database " * 1_000)
    with pytest.raises(UnavailableError, match=r"is damaged or not a database: .* Move it away"):
        use(path)
    assert path.read_bytes() == b"not a database " * 1_000
    for connection in opened:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")
    assert len(opened) == 1


def test_a_damaged_database_is_refused(store: IncidentStore, path: Path) -> None:
    store.write([begin(number, RUN, slow(number), 0.0) for number in range(1, 60)], ())
    store.close()
    sound = path.read_bytes()
    path.write_bytes(sound[:8_192] + b"\xa5" * (len(sound) - 8_192))
    with pytest.raises(UnavailableError, match="is damaged or not a database"):
        IncidentStore(path)


@pytest.mark.parametrize("use", [IncidentStore, read_store])
def test_a_database_of_another_program_is_not_touched(path: Path, use: type[IncidentStore]) -> None:
    write_with_sql(path, "CREATE TABLE theirs (body TEXT)")
    with pytest.raises(UnavailableError, match="is a database of another program; set `store` to another file"):
        use(path)


def test_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="cannot be used: No such file or directory"):
        IncidentStore(tmp_path / "nowhere" / "incidents.db")


def test_folder_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UnavailableError, match="cannot be used: Not a directory"):
        IncidentStore(tmp_path / "file" / "incidents.db")


def test_read_only_folder_is_an_error(open_folder: Path) -> None:
    with may_only_read(open_folder), pytest.raises(UnavailableError, match="cannot be used: Permission denied"):
        IncidentStore(open_folder / "incidents.db")


def test_store_can_be_read_in_a_read_only_folder(open_folder: Path) -> None:
    with closing(IncidentStore(open_folder / "incidents.db")) as store:
        store.write([ONE], ())
    with may_only_read(open_folder):
        assert read_store(open_folder / "incidents.db").incidents == (ONE,)


def test_log_of_a_killed_collector_needs_a_writable_folder(store: IncidentStore, path: Path, open_folder: Path) -> None:
    """Rows that were committed last are in the file beside: to read without it would show what is no longer so."""
    store.write([ONE], ())
    for suffix in ("", "-wal"):
        (open_folder / f"incidents.db{suffix}").write_bytes(Path(f"{path}{suffix}").read_bytes())
    with may_only_read(open_folder), pytest.raises(UnavailableError, match="unable to open database file"):
        read_store(open_folder / "incidents.db")
    assert read_store(open_folder / "incidents.db").incidents == (ONE,)


def test_empty_file_has_no_incidents(path: Path) -> None:
    path.touch()
    assert read_store(path) == Stored((), 0, 0)


def test_full_disk_is_an_error_and_keeps_committed_rows(store: IncidentStore, path: Path) -> None:
    store.write([ONE], ())
    (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
    store._connection.execute(f"PRAGMA max_page_count = {pages}")
    dear = msgspec.structs.replace(TWO, sentence="x" * 100_000)
    with pytest.raises(UnavailableError, match="database or disk is full"):
        store.write([dear], ())
    assert store.load().incidents == (ONE,)
    store._connection.execute("PRAGMA max_page_count = 1000")
    store.write([dear], ())
    assert read_store(path).incidents == (ONE, dear)


def test_second_collector_waits_until_the_first_has_closed(store: IncidentStore, path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"another collector writes to .*; set a different `store`"):
        IncidentStore(path)
    store.close()
    IncidentStore(path).close()


def test_second_close_does_nothing(store: IncidentStore) -> None:
    store.close()
    store.close()


def test_missing_store_cannot_be_read_and_is_not_created(path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"there is no store at .*; `store` of the collector's settings"):
        read_store(path)
    assert not path.exists()


def test_reading_creates_no_files(store: IncidentStore, path: Path) -> None:
    store.write([ONE], ())
    store.close()
    before = path.read_bytes()
    assert read_store(path).incidents == (ONE,)
    assert path.read_bytes() == before


def test_every_field_survives_the_file(store: IncidentStore) -> None:
    store.write([ONE], ())
    (loaded,) = store.load().incidents
    assert {name: getattr(loaded, name) for name in Incident.__struct_fields__} == {
        name: getattr(ONE, name) for name in Incident.__struct_fields__
    }
