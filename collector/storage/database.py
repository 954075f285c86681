"""Open, lock, check, migrate, write and read the store of a collector: an SQLite file, or a database of a server.

What the two have in common begins here: `open_database`, `reading`, `transaction`, and a connection that takes the same
statements and has the same further methods (`FileConnection`, and `ServerConnection` in `server.py`).

One collector writes it, holding a lock beside the file for its lifetime; any number of readers. In WAL mode with
`synchronous = NORMAL` a commit does not wait for the disk: committed data survives a crash of the process at any time;
a power failure may lose the last commits and never the file. A file that is damaged, from another program or of a later
release is refused and left unchanged.

Only the owner may read the file, its log and its lock, also where they had a wider mode before.
"""

import contextlib
import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final, TypeAlias, Union
from urllib.parse import quote

from rankscope.collector.private_files import FILE, narrow, open_private
from rankscope.collector.storage.file_watch import FileWatch, StoreLoss, find_inode
from rankscope.collector.storage.migrations import MIGRATIONS, Migration
from rankscope.collector.storage.store_errors import DamagedStoreError, RefusedRowError
from rankscope.collector.store_address import ServerAddress, StoreAddress
from rankscope.measure.errors import UnavailableError

if TYPE_CHECKING:
    from rankscope.collector.storage.server import ServerConnection, ServerDatabase

APPLICATION_ID: Final = 0x5253494E
"""RSIN: distinguishes the store from a database of another program."""
BESIDE: Final = ("-wal", "-shm", "-lock")
"""Endings of the files beside it: its log, the index of that, and the lock of the collector."""
BUSY_S: Final = 0.2
"""Longest wait of a write for the lock: the collector's other thread holds it for less, and ranks wait."""

WAL_BYTES_KEPT: Final = 64 * 1024 * 1024
"""The write-ahead log may grow beyond this while a reader holds a long history, and then shrinks to it again."""
CHECKED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Up to this size a file is checked as a whole when it is opened, in about 0.2 s; of a larger one only SMALL_TABLES."""
SMALL_TABLES: Final = ("incidents", "runs", "lives", "collectives")
"""Tables that a collector needs to restore its state."""


class FileConnection(sqlite3.Connection):
    """A connection to the file, with what differs from a server's."""

    def begin(self) -> None:
        """Begin a transaction."""
        self.execute("BEGIN IMMEDIATE")

    def roll_back(self) -> None:
        """Undo the transaction."""
        with contextlib.suppress(sqlite3.Error):  # a full disk may have rolled it back already
            self.execute("ROLLBACK")

    def has_table(self, name: str) -> bool:
        """Return whether the file has this table: a new one has none, and an older one not all."""
        found = self.execute("SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?", (name,))
        return bool(found.fetchone()[0])

    def measure_bytes(self) -> int:
        """Return the bytes of the used pages. The file itself does not shrink: free pages are used again."""
        pages, free, size = (
            int(self.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("page_count", "freelist_count", "page_size")
        )
        return (pages - free) * size

    def read_last_id(self) -> int:
        """Return the last id that an incident was given; 0 where there was none."""
        row = self.execute("SELECT seq FROM sqlite_sequence WHERE name = 'incidents'").fetchone()
        return 0 if row is None else int(row[0])

    def keep_last_id(self, number: int) -> None:
        """Do nothing: AUTOINCREMENT remembers the id of an incident when its row is deleted."""

    def find_collector(self, table: str) -> str:  # noqa: ARG002 - a server's tables are of several
        """Return the SQL of the name of the collector that wrote a row of this table."""
        return "''"


Connection: TypeAlias = Union[FileConnection, "ServerConnection"]
StoreDatabase: TypeAlias = Union["Database", "ServerDatabase"]


class Database:
    """The file, for the one collector that writes it. Raises UnavailableError, with the cure, when it is not usable."""

    def __init__(
        self,
        path: Path,
        migrations: Sequence[Migration] = MIGRATIONS,
        *,
        lost: StoreLoss | None = None,
        now_wall_s: float = 0.0,
    ) -> None:
        """Open the file, create it if missing, and migrate it to the latest version.

        `lost` is why this collector, which had the file open, opens it again: the file is used only if it is the same
        one and sound. Otherwise it is renamed, and a new one created.
        """
        self.path = path
        self.was_reopened = False
        """Whether the lost file itself was opened again."""
        self.set_aside: Path | None = None
        """The new path of a file that was found at this path and renamed."""
        with contextlib.ExitStack() as undo, explaining(path):
            self._lock = undo.enter_context(contextlib.closing(_Lock(path)))
            self.was_reopened = lost is not None and _is_sound(path, lost)
            if lost is not None and not self.was_reopened:
                self.set_aside = _set_aside(path, lost.reason, now_wall_s)
            _make_private(path)
            self.connection = undo.enter_context(contextlib.closing(_connect(path, "rwc")))
            _check(self.connection, path, len(migrations))
            self.connection.execute("PRAGMA journal_mode = WAL")
            self.connection.execute("PRAGMA synchronous = NORMAL")
            self.connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}")
            _migrate(self.connection, migrations)
            self._watch = undo.enter_context(contextlib.closing(FileWatch(path)))
            undo.pop_all()

    def find_loss(self) -> StoreLoss | None:
        """Return why further writes would be lost; None when the files are those that were opened."""
        with explaining(self.path):
            return self._watch.find_loss()

    def check_content(self) -> StoreLoss | None:
        """Read the file again and return what SQLite finds damaged; None when it is sound."""
        try:
            with explaining(self.path), contextlib.closing(_connect(self.path, "ro")) as connection:
                _check(connection, self.path, len(MIGRATIONS))
        except DamagedStoreError as error:
            return self._watch.lose_content(str(error.__cause__))
        return None

    def explain_damage(self, error: DamagedStoreError) -> StoreLoss:
        """Return the loss behind a write that failed with this error."""
        return self._watch.lose_content(str(error.__cause__))

    def open_connection(self, busy_s: float = BUSY_S) -> FileConnection:
        """Return another connection for writing, for another thread. The caller closes it before the database."""
        with explaining(self.path):
            connection = _connect(self.path, "rw", busy_s=busy_s)
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}")
            return connection

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        with contextlib.suppress(sqlite3.Error):
            self.connection.close()
        self._watch.close()
        self._lock.close()


def open_database(
    address: StoreAddress,
    migrations: Sequence[Migration] = MIGRATIONS,
    *,
    lost: StoreLoss | None = None,
    now_wall_s: float = 0.0,
) -> StoreDatabase:
    """Return the open store for the collector that writes it. `lost`: see Database. Raises UnavailableError."""
    if isinstance(address, Path):
        return Database(address, migrations, lost=lost, now_wall_s=now_wall_s)
    database: ServerDatabase = _import_server(address).ServerDatabase(address, migrations)
    return database


@contextlib.contextmanager
def transaction(connection: Connection) -> Iterator[None]:
    """Commit everything written in this context, or nothing."""
    connection.begin()
    try:
        yield
        connection.commit()
    except BaseException:
        connection.roll_back()
        raise


def reading(address: StoreAddress) -> contextlib.AbstractContextManager[Connection]:
    """Open a store for reading, whether or not a collector writes to it; a server's has the rows of all collectors.
    Raises UnavailableError.
    """
    return _reading_file(address) if isinstance(address, Path) else _import_server(address).reading(address)


def explaining(address: StoreAddress) -> contextlib.AbstractContextManager[None]:
    """Turn errors of the database and the system in this context into UnavailableError with the cure."""
    return _explaining_file(address) if isinstance(address, Path) else _import_server(address).explaining(address)


def _import_server(address: ServerAddress) -> ModuleType:
    try:
        from rankscope.collector.storage import server  # noqa: PLC0415 - psycopg is an optional extra
    except ImportError as error:
        raise UnavailableError(
            f"the store {address} cannot be used: psycopg is missing, or libpq ({error}). "
            "Install it: pip install 'rankscope[postgres]'."
        ) from error
    return server


@contextlib.contextmanager
def _reading_file(path: Path) -> Iterator[FileConnection]:
    if not path.is_file():
        raise UnavailableError(f"there is no store at {path}; `store` of the collector's settings says where.")
    with explaining(path), contextlib.closing(_connect_to_read(path)) as connection:
        _check(connection, path, len(MIGRATIONS))
        yield connection


@contextlib.contextmanager
def _explaining_file(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        raise UnavailableError(
            f"the store {path} cannot be used: {error}. It needs a local disk with free space, and a folder that "
            "exists and is writable."
        ) from error
    except sqlite3.DatabaseError as error:
        if type(error) is not sqlite3.DatabaseError:  # a constraint, a value too large: damage has no class of its own
            raise RefusedRowError(
                f"the store {path} refuses a row: {error}. This is a bug of the collector, and the file is intact. "
                "Please report it."
            ) from error
        raise DamagedStoreError(
            f"the store {path} is damaged or not a database: {error}. Move it away, or set `store` to another file."
        ) from error
    except OSError as error:
        raise UnavailableError(
            f"the store {path} cannot be used: {error.strerror}. Its folder must exist and be writable."
        ) from error


class _Lock:
    """Lock of the collector that writes the store: two would give the same ids to different incidents."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(f"{path}-lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE)
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UnavailableError(
                    f"another collector writes to {path}; set a different `store` for each."
                ) from error
            undo.pop_all()

    def close(self) -> None:
        """Release the lock. A second call does nothing."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


def _make_private(path: Path) -> None:
    """Make the file unless it is there, since SQLite would make it for whoever the umask allows; its log and the index
    of that get the mode of the file.
    """
    with contextlib.suppress(OSError):  # it is there; or SQLite says what is wrong
        open_private(path, is_new=True).close()
    for ending in ("", *BESIDE):
        narrow(path.with_name(f"{path.name}{ending}"))


def _connect(path: Path, mode: str, also: str = "", busy_s: float = BUSY_S) -> FileConnection:
    # The collector opens it in one thread and may use it in another one, never in two at a time.
    return sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?mode={mode}{also}",
        uri=True,
        timeout=busy_s,
        isolation_level=None,
        check_same_thread=False,
        factory=FileConnection,
    )


def _connect_to_read(path: Path) -> FileConnection:
    """Connect for reading. A file in WAL mode needs its index even for that. Where there is none and none can be made,
    because the folder is read-only, no process writes either, and the file is read as immutable.
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


def _check(connection: FileConnection, path: Path, version_max: int) -> None:
    """Raise UnavailableError unless the file is sound, ours, and no newer than this program."""
    for scope in ("1",) if path.stat().st_size <= CHECKED_BYTES_MAX else _find_small_tables(connection):
        (state,) = connection.execute(f"PRAGMA quick_check({scope})").fetchone()
        if state != "ok":
            raise sqlite3.DatabaseError(state)
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application != APPLICATION_ID and (application or tables):
        raise UnavailableError(f"{path} is a database of another program; set `store` to another file.")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > version_max:
        raise UnavailableError(
            f"{path} has version {version} and this rankscope knows versions up to {version_max}; upgrade rankscope, "
            "or set `store` to another file."
        )


def _is_sound(path: Path, lost: StoreLoss) -> bool:
    """Return whether the lost file is still there and usable: only its log or its lock was removed."""
    if find_inode(path) != lost.inode:
        return False
    try:
        with contextlib.closing(_connect(path, "rw")) as connection:
            _check(connection, path, len(MIGRATIONS))
    except sqlite3.OperationalError:  # busy or no room: not known to be damaged
        raise
    except (sqlite3.DatabaseError, UnavailableError):
        return False
    return True


def _set_aside(path: Path, reason: str, now_wall_s: float) -> Path | None:
    """Rename the file and its log, and return its new path; None when it is gone.

    The log is renamed in any case: SQLite would replay it into the new file.
    """
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_wall_s))
    names = (f"{path}.{reason}-{stamp}{ending}" for ending in ("", *(f"-{number}" for number in range(1, 100))))
    target = next(name for name in names if not any(os.path.lexists(f"{name}{end}") for end in ("", "-wal", "-shm")))
    found = [ending for ending in ("", "-wal", "-shm") if os.path.lexists(f"{path}{ending}")]
    for ending in found:
        os.rename(f"{path}{ending}", f"{target}{ending}")  # noqa: PTH104 - a name with an ending is no Path
    return Path(target) if "" in found else None


def _find_small_tables(connection: FileConnection) -> list[str]:
    return [name for name in SMALL_TABLES if connection.has_table(name)]


def _migrate(connection: FileConnection, migrations: Sequence[Migration]) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    for number, statements in enumerate(migrations[version:], start=version + 1):
        with transaction(connection):
            for statement in statements:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {number}")
