"""Incidents in an SQLite file: they outlive the collector, and can be read while it runs and when it does not.

One writer, which holds a lock beside the file for as long as it lives; any number of readers. In WAL mode with
`synchronous = NORMAL` a commit waits for no disk: what has been committed survives the death of the process at any
moment, a power failure may cost the last commits and never the file. The body of an incident is JSON, as the API gives
it: a field more needs no migration. The columns beside it are for whoever asks with SQL.
"""

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

import msgspec

from rankscope.collector.incidents.incident import Incident
from rankscope.measure.errors import UnavailableError

APPLICATION_ID: Final = 0x5253494E
"""RSIN: how a file of ours is told from a database of another program."""
BUSY_S: Final = 0.2
"""How long a write waits for a lock: only somebody else's tool writing to the file can hold one, and ranks wait."""
MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (
    (
        # AUTOINCREMENT keeps the last id also when its row has been forgotten: no id is given twice.
        """CREATE TABLE incidents (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            run TEXT NOT NULL,
            state TEXT NOT NULL,
            severity TEXT NOT NULL,
            opened_wall_s REAL NOT NULL,
            resolved_wall_s REAL,
            body TEXT NOT NULL
        )""",
    ),
)
"""The statements that lead from version n of the file to n + 1, from an empty one (0) on. Never changed, only added
to. The version stands in `PRAGMA user_version`. Every version has a `body`: `read_store` needs no more.
"""

_WRITE: Final = """INSERT INTO incidents (id, run, state, severity, opened_wall_s, resolved_wall_s, body)
    VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET state = excluded.state, severity = excluded.severity,
        resolved_wall_s = excluded.resolved_wall_s, body = excluded.body"""


class Stored(NamedTuple):
    """What a file holds: incidents, oldest first; the last id ever given (0: none); how many rows are no incident."""

    incidents: tuple[Incident, ...]
    last_id: int
    rows_unreadable: int


class IncidentStore:
    """The file, for the one collector that writes it. Every method raises UnavailableError, with the cure, when the
    file is not usable; what was committed before stays.
    """

    def __init__(self, path: Path, migrations: Sequence[Sequence[str]] = MIGRATIONS) -> None:
        """Open the file, make it if it is not there, and bring it to the latest version."""
        self._path = path
        with contextlib.ExitStack() as undo, _explaining(path):
            self._lock = undo.enter_context(contextlib.closing(_Lock(path)))
            # The collector makes it in one thread and may run in another one, never in two at a time.
            self._connection = undo.enter_context(contextlib.closing(_connect(path, "rwc")))
            _check(self._connection, path, len(migrations))
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = NORMAL")
            self._migrate(migrations)
            undo.pop_all()

    def load(self) -> Stored:
        """Everything it holds."""
        with _explaining(self._path):
            return _load(self._connection)

    def write(self, changed: Sequence[Incident], forgotten: Sequence[int]) -> None:
        """Keep incidents as they are now, and let go of those ids, all or nothing."""
        with _explaining(self._path), self._transaction():
            self._connection.executemany(_WRITE, [_to_row(incident) for incident in changed])
            self._connection.executemany("DELETE FROM incidents WHERE id = ?", [(number,) for number in forgotten])

    def close(self) -> None:
        """Let the file go. Twice does no harm."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()
        self._lock.close()

    def _migrate(self, migrations: Sequence[Sequence[str]]) -> None:
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        for number, statements in enumerate(migrations[version:], start=version + 1):
            with self._transaction():
                for statement in statements:
                    self._connection.execute(statement)
                self._connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                self._connection.execute(f"PRAGMA user_version = {number}")

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):  # a full disk may have ended it already
                self._connection.execute("ROLLBACK")
            raise


def read_store(path: Path) -> Stored:
    """What a file holds, whether a collector writes to it or not; nothing is changed. Raises UnavailableError."""
    if not path.is_file():
        raise UnavailableError(f"there is no incident store at {path}; `store` of the collector's settings says where.")
    with _explaining(path), contextlib.closing(_connect_to_read(path)) as connection:
        _check(connection, path, len(MIGRATIONS))
        return _load(connection)


class _Lock:
    """Held by the collector that writes the store: two would give the same ids to different incidents."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(f"{path}-lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UnavailableError(
                    f"another collector keeps its incidents in {path}; give each a `store` of its own."
                ) from error
            undo.pop_all()

    def close(self) -> None:
        """Let it go. Twice does no harm."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


def _connect(path: Path, mode: str, also: str = "") -> sqlite3.Connection:
    return sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?mode={mode}{also}",
        uri=True,
        timeout=BUSY_S,
        isolation_level=None,
        check_same_thread=False,
    )


def _connect_to_read(path: Path) -> sqlite3.Connection:
    """A file in WAL mode needs its index even to be read. Where none is there and none can be made, for want of a
    right to write in the folder, nobody writes: it may be read as if it never changed.
    """
    connection = _connect(path, "ro")
    try:
        connection.execute("PRAGMA user_version").fetchone()
    except sqlite3.OperationalError:
        connection.close()
        if Path(f"{path}-wal").exists():
            raise
        return _connect(path, "ro", "&immutable=1")
    return connection


def _check(connection: sqlite3.Connection, path: Path, version_max: int) -> None:
    """Raise UnavailableError unless the file is sound, ours, and no newer than this program."""
    (state,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if state != "ok":
        raise sqlite3.DatabaseError(state)
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application != APPLICATION_ID and (application or tables):
        raise UnavailableError(f"{path} is a database of another program; name another file as `store`.")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > version_max:
        raise UnavailableError(
            f"{path} has version {version} and this rankscope knows versions up to {version_max}; upgrade rankscope, "
            "or name another file as `store`."
        )


def _load(connection: sqlite3.Connection) -> Stored:
    incidents, rows_unreadable = [], 0
    if not connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'incidents'").fetchone()[0]:
        return Stored((), 0, 0)
    for (body,) in connection.execute("SELECT body FROM incidents ORDER BY id"):
        try:
            incidents.append(msgspec.json.decode(body, type=Incident))
        except (msgspec.DecodeError, TypeError):
            rows_unreadable += 1
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'incidents'").fetchone()
    return Stored(tuple(incidents), 0 if row is None else int(row[0]), rows_unreadable)


def _to_row(incident: Incident) -> tuple[object, ...]:
    return (
        incident.id,
        incident.run,
        incident.state,
        incident.severity,
        incident.opened_wall_s,
        incident.resolved_wall_s,
        msgspec.json.encode(incident).decode(),
    )


@contextlib.contextmanager
def _explaining(path: Path) -> Iterator[None]:
    """What SQLite or the system says, as our error with what to do."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise UnavailableError(
            f"the incident store {path} cannot be used: {error}. It wants a local disk with free space, and a folder "
            "that is there and may be written to."
        ) from error
    except sqlite3.DatabaseError as error:
        raise UnavailableError(
            f"the incident store {path} is damaged or no database: {error}. Move it away, or name another file as "
            "`store`."
        ) from error
    except OSError as error:
        raise UnavailableError(
            f"the incident store {path} cannot be used: {error.strerror}. Its folder must be there and may be written "
            "to."
        ) from error
