"""The file of the incidents: what it keeps, what it refuses, and what it says when it cannot be used."""

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
    """This process has no right to write in the folder; as root it is somebody else for so long."""
    folder.chmod(0o555)
    was_root = os.geteuid() == 0
    if was_root:
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


def test_what_was_written_is_there_when_it_is_opened_again(store: IncidentStore, path: Path) -> None:
    store.write([TWO, ONE], ())
    store.close()
    with closing(IncidentStore(path)) as again:
        assert again.load() == Stored((ONE, TWO), 2, 0)


def test_an_incident_that_has_changed_takes_the_place_of_what_it_was(store: IncidentStore) -> None:
    store.write([ONE], ())
    resolved = resolve(ONE, "passed", 20.0, lost_rank_seconds=3.0)
    store.write([resolved], ())
    assert store.load().incidents == (resolved,)


def test_what_is_forgotten_is_gone_and_its_id_is_not_given_again(store: IncidentStore) -> None:
    store.write([ONE, TWO], ())
    store.write([], [2, 99])
    assert store.load() == Stored((ONE,), 2, 0)


def test_a_reader_sees_what_a_collector_at_work_has_written(store: IncidentStore, path: Path) -> None:
    store.write([ONE], ())
    assert read_store(path).incidents == (ONE,)


def test_columns_beside_the_body_say_the_same_for_those_who_ask_with_sql(store: IncidentStore, path: Path) -> None:
    store.write([ONE, TWO], ())
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT run, state, severity, resolved_wall_s FROM incidents ORDER BY id").fetchall()
    assert rows == [(RUN, "open", "warning", None), ("gpt", "resolved", "warning", 12.0)]


def test_a_write_that_fails_half_way_keeps_nothing_of_it(store: IncidentStore) -> None:
    store.write([ONE], ())
    store._connection.execute("CREATE TRIGGER no_gpt BEFORE INSERT ON incidents WHEN NEW.run = 'gpt' "
                              "BEGIN SELECT RAISE(ABORT, 'no place'); END")  # fmt: skip
    with pytest.raises(UnavailableError):
        store.write([begin(3, RUN, slow(4), 0.0), TWO], [1])
    assert store.load().incidents == (ONE,)


def test_a_row_that_is_no_incident_is_left_out_and_counted(store: IncidentStore, path: Path) -> None:
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


def test_an_older_file_is_brought_to_the_latest_version_with_what_it_holds(path: Path) -> None:
    write_with_sql(path, *VERSION_1)
    later = (*MIGRATIONS, ("ALTER TABLE incidents ADD COLUMN seen_by TEXT",), ("UPDATE incidents SET seen_by = run",))
    with closing(IncidentStore(path, later)) as store:
        assert [incident.id for incident in store.load().incidents] == [5]
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT seen_by FROM incidents").fetchall() == [("old",)]
        assert connection.execute("PRAGMA user_version").fetchone() == (len(later),)


def test_a_migration_that_fails_leaves_the_version_before(path: Path) -> None:
    write_with_sql(path, *VERSION_1)
    broken = (*MIGRATIONS, ("ALTER TABLE incidents ADD COLUMN seen_by TEXT", "UPDATE elsewhere SET seen_by = run"))
    with pytest.raises(UnavailableError, match="no such table: elsewhere"):
        IncidentStore(path, broken)
    with closing(IncidentStore(path)) as store:
        assert [incident.id for incident in store.load().incidents] == [5]


def test_a_newer_file_is_refused_with_both_versions_and_left_as_it_is(path: Path) -> None:
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
def test_a_file_that_is_no_database_is_refused_left_as_it_is_and_let_go_of(
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


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="cannot be used: No such file or directory"):
        IncidentStore(tmp_path / "nowhere" / "incidents.db")


def test_a_folder_that_is_none_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UnavailableError, match="cannot be used: Not a directory"):
        IncidentStore(tmp_path / "file" / "incidents.db")


def test_a_folder_that_must_not_be_written_to_is_said(open_folder: Path) -> None:
    with may_only_read(open_folder), pytest.raises(UnavailableError, match="cannot be used: Permission denied"):
        IncidentStore(open_folder / "incidents.db")


def test_a_store_can_be_read_where_nothing_may_be_written(open_folder: Path) -> None:
    with closing(IncidentStore(open_folder / "incidents.db")) as store:
        store.write([ONE], ())
    with may_only_read(open_folder):
        assert read_store(open_folder / "incidents.db").incidents == (ONE,)


def test_what_a_killed_collector_left_where_nothing_may_be_written_is_said_to_be_out_of_reach(
    store: IncidentStore, path: Path, open_folder: Path
) -> None:
    """Rows that were committed last are in the file beside: to read without it would show what is no longer so."""
    store.write([ONE], ())
    for suffix in ("", "-wal"):
        (open_folder / f"incidents.db{suffix}").write_bytes(Path(f"{path}{suffix}").read_bytes())
    with may_only_read(open_folder), pytest.raises(UnavailableError, match="unable to open database file"):
        read_store(open_folder / "incidents.db")
    assert read_store(open_folder / "incidents.db").incidents == (ONE,)


def test_an_empty_file_holds_no_incident_yet(path: Path) -> None:
    path.touch()
    assert read_store(path) == Stored((), 0, 0)


def test_a_full_disk_is_said_and_costs_nothing_that_was_written_before(store: IncidentStore, path: Path) -> None:
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


def test_a_second_collector_is_kept_out_until_the_first_has_closed(store: IncidentStore, path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"another collector writes to .*; set a different `store`"):
        IncidentStore(path)
    store.close()
    IncidentStore(path).close()


def test_to_close_twice_does_no_harm(store: IncidentStore) -> None:
    store.close()
    store.close()


def test_a_store_that_is_not_there_cannot_be_read_and_is_not_made(path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"there is no store at .*; `store` of the collector's settings"):
        read_store(path)
    assert not path.exists()


def test_reading_leaves_nothing_behind(store: IncidentStore, path: Path) -> None:
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
