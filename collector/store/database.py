"""The SQLite file of a collector: how it is opened, locked, checked, brought to the latest version, written and read.

One collector writes it, which holds a lock beside the file for as long as it lives; any number of readers. In WAL mode
with `synchronous = NORMAL` a commit waits for no disk: what has been committed survives the death of the process at any
moment, a power failure may cost the last commits and never the file. A file that is damaged, another program's or of a
later release is refused and left as it is.
"""

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

from rankscope.collector.store.migrations import MIGRATIONS, Migration
from rankscope.measure.errors import UnavailableError

APPLICATION_ID: Final = 0x5253494E
"""RSIN: how a file of ours is told from a database of another program."""
BUSY_S: Final = 0.2
"""How long a write waits for a lock: the collector's other thread holds it for less, and ranks wait."""

WAL_BYTES_KEPT: Final = 64 * 1024 * 1024
"""The log of writes may grow beyond this while somebody reads a long history, and then shrinks to it again."""
CHECKED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Up to this size a file is checked as a whole when it is opened: some 0.2 s. Of a larger one, grown by the history of
steps, only SMALL_TABLES are.
"""
SMALL_TABLES: Final = ("incidents", "runs", "lives", "collectives")
"""Those without which a collector could not go on where it stood."""


class Database:
    """The file, for the one collector that writes it. Raises UnavailableError, with the cure, when it is not usable."""

    def __init__(self, path: Path, migrations: Sequence[Migration] = MIGRATIONS) -> None:
        """Open the file, make it if it is not there, and bring it to the latest version."""
        self.path = path
        with contextlib.ExitStack() as undo, explaining(path):
            self._lock = undo.enter_context(contextlib.closing(_Lock(path)))
            self.connection = undo.enter_context(contextlib.closing(_connect(path, "rwc")))
            _check(self.connection, path, len(migrations))
            self.connection.execute("PRAGMA journal_mode = WAL")
            self.connection.execute("PRAGMA synchronous = NORMAL")
            self.connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}")
            _migrate(self.connection, migrations)
            undo.pop_all()

    def connect_again(self) -> sqlite3.Connection:
        """One more connection to write with, for another thread. Whoever asks for it closes it before the database."""
        with explaining(self.path):
            connection = _connect(self.path, "rw")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}")
            return connection

    def close(self) -> None:
        """Let the file go. Twice does no harm."""
        with contextlib.suppress(sqlite3.Error):
            self.connection.close()
        self._lock.close()


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All that is written inside, or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):  # a full disk may have ended it already
            connection.execute("ROLLBACK")
        raise


@contextlib.contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """The file to be read, whether a collector writes to it or not; nothing is changed. Raises UnavailableError."""
    if not path.is_file():
        raise UnavailableError(f"there is no store at {path}; `store` of the collector's settings says where.")
    with explaining(path), contextlib.closing(_connect_to_read(path)) as connection:
        _check(connection, path, len(MIGRATIONS))
        yield connection


def has_table(connection: sqlite3.Connection, name: str) -> bool:
    """Whether the file has this table: one that was never written to has none, and an older one not all."""
    found = connection.execute("SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?", (name,))
    return bool(found.fetchone()[0])


@contextlib.contextmanager
def explaining(path: Path) -> Iterator[None]:
    """What SQLite or the system says, as our error with what to do."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise UnavailableError(
            f"the store {path} cannot be used: {error}. It wants a local disk with free space, and a folder that is "
            "there and may be written to."
        ) from error
    except sqlite3.DatabaseError as error:
        raise UnavailableError(
            f"the store {path} is damaged or no database: {error}. Move it away, or name another file as `store`."
        ) from error
    except OSError as error:
        raise UnavailableError(
            f"the store {path} cannot be used: {error.strerror}. Its folder must be there and may be written to."
        ) from error


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
                    f"another collector writes to {path}; give each a `store` of its own."
                ) from error
            undo.pop_all()

    def close(self) -> None:
        """Let it go. Twice does no harm."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


def _connect(path: Path, mode: str, also: str = "") -> sqlite3.Connection:
    # The collector makes it in one thread and may use it in another one, never in two at a time.
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
    except BaseException:  # it is no database
        connection.close()
        raise
    return connection


def _check(connection: sqlite3.Connection, path: Path, version_max: int) -> None:
    """Raise UnavailableError unless the file is sound, ours, and no newer than this program."""
    for scope in ("1",) if path.stat().st_size <= CHECKED_BYTES_MAX else _find_small_tables(connection):
        (state,) = connection.execute(f"PRAGMA quick_check({scope})").fetchone()
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


def _find_small_tables(connection: sqlite3.Connection) -> list[str]:
    return [name for name in SMALL_TABLES if has_table(connection, name)]


def _migrate(connection: sqlite3.Connection, migrations: Sequence[Migration]) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    for number, statements in enumerate(migrations[version:], start=version + 1):
        with transaction(connection):
            for statement in statements:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {number}")
