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
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

from rankscope.collector.storage.file_watch import FileWatch, StoreLoss, find_inode
from rankscope.collector.storage.migrations import MIGRATIONS, Migration
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


class DamagedStoreError(UnavailableError):
    """SQLite finds the file damaged, or no database."""


class RefusedRowError(UnavailableError):
    """SQLite refuses what is to be written, which is no sign that anything is wrong with the file."""


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
        """Open the file, make it if it is not there, and bring it to the latest version.

        `lost` is why this collector, which had the file open, opens it again: what is there now is used only if it is
        the same file and sound. Else it is renamed, and a new one begun.
        """
        self.path = path
        self.went_on = False
        """Whether the file that was lost was opened again."""
        self.set_aside: Path | None = None
        """Where the file is now that was at this path instead."""
        with contextlib.ExitStack() as undo, explaining(path):
            self._lock = undo.enter_context(contextlib.closing(_Lock(path)))
            self.went_on = lost is not None and _is_sound(path, lost)
            if lost is not None and not self.went_on:
                self.set_aside = _set_aside(path, lost.reason, now_wall_s)
            self.connection = undo.enter_context(contextlib.closing(_connect(path, "rwc")))
            _check(self.connection, path, len(migrations))
            self.connection.execute("PRAGMA journal_mode = WAL")
            self.connection.execute("PRAGMA synchronous = NORMAL")
            self.connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}")
            _migrate(self.connection, migrations)
            self._watch = undo.enter_context(contextlib.closing(FileWatch(path)))
            undo.pop_all()

    def find_loss(self) -> StoreLoss | None:
        """Return why what is written now would be lost; None when the files are those that were opened."""
        with explaining(self.path):
            return self._watch.find_loss()

    def check_content(self) -> StoreLoss | None:
        """Return what SQLite finds damaged, reading the file anew; None when it is sound."""
        try:
            with explaining(self.path), contextlib.closing(_connect(self.path, "ro")) as connection:
                _check(connection, self.path, len(MIGRATIONS))
        except DamagedStoreError as error:
            return self._watch.lose_content(str(error.__cause__))
        return None

    def explain_damage(self, error: DamagedStoreError) -> StoreLoss:
        """Return what a write that failed like this means."""
        return self._watch.lose_content(str(error.__cause__))

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
        self._watch.close()
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
        if type(error) is not sqlite3.DatabaseError:  # a constraint, a value too large: damage has no class of its own
            raise RefusedRowError(
                f"the store {path} refuses what is to be written: {error}. That is a fault of the collector's own and "
                "none of the file. Please report it."
            ) from error
        raise DamagedStoreError(
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


def _is_sound(path: Path, lost: StoreLoss) -> bool:
    """Return whether the file that was lost is there and can be gone on with: only its log or its lock was removed."""
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

    The log goes with it in any case: SQLite would play it into the new file.
    """
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_wall_s))
    names = (f"{path}.{reason}-{moment}{ending}" for ending in ("", *(f"-{number}" for number in range(1, 100))))
    target = next(name for name in names if not any(os.path.lexists(f"{name}{end}") for end in ("", "-wal", "-shm")))
    found = [ending for ending in ("", "-wal", "-shm") if os.path.lexists(f"{path}{ending}")]
    for ending in found:
        os.rename(f"{path}{ending}", f"{target}{ending}")  # noqa: PTH104 - a name with an ending is no Path
    return Path(target) if "" in found else None


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
