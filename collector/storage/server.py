"""Speak PostgreSQL: one database for the stores of several collectors, by the statements of the file.

Each collector has a schema of its own, `rankscope_NAME`, with the tables that the file has, and writes to no other.
They inherit from those in the schema `rankscope`, which hold no rows: a reader asks these, and is given the rows of all
collectors by the same statements. Ids are therefore given once for all: rows get theirs from one sequence, and each
collector counts its incidents from a million of its own.

A session holds the lock of its collector's name. A transaction begins with a look at who owns the tables: a collector
that was cut off, and whose name another one has taken meanwhile, writes nothing any more.

Imported on first use: psycopg is an optional extra.
"""

import contextlib
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, cast

import psycopg
from psycopg import sql

from rankscope.collector.storage.file_watch import REMOVED, StoreLoss
from rankscope.collector.storage.migrations import MIGRATIONS, Migration
from rankscope.collector.storage.store_errors import DamagedStoreError, RefusedRowError
from rankscope.collector.store_address import ServerAddress
from rankscope.measure.errors import UnavailableError

ALL: Final = "rankscope"
"""The schema of the tables over all collectors."""
CONNECT_S_MAX: Final = 5
"""Longest wait for a connection. Readers of the HTTP API wait as long."""
STATEMENT_S_MAX: Final = 60
"""A statement that takes longer is ended by the server. The longest, of 100,000 waiting steps, takes 6 s."""
INCIDENTS_OF_COLLECTOR: Final = 1_000_000
"""Ids of incidents that each collector has: more than one opens in years."""
_TYPES: Final = (
    # Longest first. Text is compared by its bytes, as SQLite does, whatever the locale of the server is.
    ("INTEGER PRIMARY KEY AUTOINCREMENT", "BIGINT PRIMARY KEY DEFAULT nextval('rankscope.ids')"),
    ("INTEGER PRIMARY KEY", "BIGINT PRIMARY KEY DEFAULT nextval('rankscope.ids')"),
    (" WITHOUT ROWID", ""),
    ("INTEGER", "BIGINT"),
    ("REAL", "DOUBLE PRECISION"),
    ("BLOB", "BYTEA"),
    ("TEXT", 'TEXT COLLATE "C"'),
)
_SESSION: Final = f"""SET search_path = {{schema}}; SET lock_timeout = '10s'; SET client_min_messages = warning;
    SET statement_timeout = '{STATEMENT_S_MAX}s'; SET idle_in_transaction_session_timeout = '{STATEMENT_S_MAX}s';
    SET tcp_keepalives_idle = 20; SET tcp_keepalives_interval = 10; SET tcp_keepalives_count = 3"""
"""The server notices within 50 s that the machine of a collector is gone, and frees the lock of its name."""
_SET_UP: Final = """CREATE SCHEMA IF NOT EXISTS rankscope;
    CREATE TABLE rankscope.collectors
        (name TEXT PRIMARY KEY, number SERIAL, version BIGINT NOT NULL, owner TEXT NOT NULL);
    INSERT INTO rankscope.collectors VALUES ('', 0, 0, '');
    CREATE SEQUENCE rankscope.ids"""
"""`collectors` has a row for each collector, and one without a name for the tables over all."""
_MEASURE: Final = """SELECT (SELECT count(*) FROM steps) * 150
    + (SELECT coalesce(sum(octet_length(body)), 0) FROM rank_intervals)
    + (SELECT coalesce(sum(octet_length(body)), 0) FROM lives)
    + (SELECT coalesce(sum(octet_length(body)), 0) FROM collectives)
    + (SELECT coalesce(sum(octet_length(body)), 0) FROM incidents)
    + (SELECT coalesce(sum(octet_length(body)), 0) FROM preflights)
    + (SELECT coalesce(sum(octet_length(body) + octet_length(story)), 0) FROM runs)"""
"""A step takes so many bytes as in the file (`run_store.py`)."""

_VERSION: Final = "SELECT version, number FROM rankscope.collectors WHERE name = %s"
_ADD_COLLECTOR: Final = (
    "INSERT INTO rankscope.collectors (name, version, owner) VALUES (%s, 0, '') RETURNING version, number"
)

Session = psycopg.Connection[Any]


class ServerConnection:
    """A connection that takes the statements of the file, and connects again where the last connection was lost outside
    of a transaction. For one thread at a time. Raises errors of psycopg and UnavailableError.
    """

    def __init__(
        self,
        address: ServerAddress,
        *,
        prepare: Callable[[Session], None] = lambda _session: None,
        check: Callable[[Session], None] = lambda _session: None,
        schema: str = ALL,
    ) -> None:
        """Connect. `prepare` is called with each new session, `check` at the beginning of each transaction."""
        self._address = address
        self._prepare = prepare
        self._check = check
        self._schema = schema
        self._session: Session | None = None
        self._is_in_transaction = False
        self._connect()

    def execute(self, statement: str, parameters: Sequence[object] = ()) -> Any:
        """Execute one statement of the file, `?` for each parameter, and return its cursor."""
        return self._connect().execute(_translate(statement), tuple(parameters))

    def executemany(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        """Execute one statement for each of the rows."""
        with self._connect().cursor() as cursor:
            cursor.executemany(_translate(statement), list(rows))

    def begin(self) -> None:
        """Begin a transaction. Raises UnavailableError where the tables are another collector's by now."""
        try:
            session = self._connect()
            session.execute("BEGIN")
        except psycopg.OperationalError:  # a connection that was lost while nothing was written
            session = self._connect()
            session.execute("BEGIN")
        self._is_in_transaction = True
        try:
            self._check(session)
        except BaseException:
            self.roll_back()
            raise

    def commit(self) -> None:
        """Commit the transaction."""
        self._connect().execute("COMMIT")
        self._is_in_transaction = False

    def roll_back(self) -> None:
        """Undo the transaction; of a connection that was lost the server does."""
        self._is_in_transaction = False
        if self._session is not None:
            try:
                self._session.execute("ROLLBACK")
            except psycopg.Error:
                self.close()

    def close(self) -> None:
        """Close the connection. A second call does nothing."""
        if self._session is not None:
            self._session.close()

    def has_table(self, name: str) -> bool:
        """Return whether there is this table."""
        return bool(self.execute("SELECT to_regclass(?) IS NOT NULL", (name,)).fetchone()[0])

    def measure_bytes(self) -> int:
        """Return the bytes of the rows of this collector, about: the server compresses them, and frees space later."""
        return int(self.execute(_MEASURE).fetchone()[0])

    def read_last_id(self) -> int:
        """Return the last id that an incident was given; the number before its first where there was none."""
        return int(self.execute("SELECT last_value FROM incident_ids").fetchone()[0])

    def keep_last_id(self, number: int) -> None:
        """Remember that an incident has this id, also when its row is deleted."""
        self.execute("SELECT setval('incident_ids', ?) FROM incident_ids WHERE last_value < ?", (number, number))

    def find_collector(self, table: str) -> str:
        """Return the SQL of the name of the collector that wrote a row of this table."""
        return (
            f"(SELECT substr(n.nspname, {len(ALL) + 2}) FROM pg_class c "  # noqa: S608 - a constant of the callers
            f"JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = {table}.tableoid)"
        )

    def _connect(self) -> Session:
        """Return the open session, or a new one."""
        session = self._session
        if session is not None and (self._is_in_transaction or not session.closed):
            return session
        with contextlib.ExitStack() as undo:
            session = _open_session(self._address)
            undo.callback(session.close)
            session.execute(sql.SQL(_SESSION).format(schema=sql.Identifier(self._schema)))
            self._prepare(session)
            undo.pop_all()
        self._session = session
        return session


class ServerDatabase:
    """The tables of one collector, for that collector: as `Database` is for a file. Raises UnavailableError, with the
    cure, when the server cannot be used or another collector of this name writes.
    """

    was_reopened = False
    set_aside = None

    def __init__(self, address: ServerAddress, migrations: Sequence[Migration] = MIGRATIONS) -> None:
        """Connect, make the tables that are missing, and take the lock of the collector's name."""
        self.path = address
        self._schema = f"{ALL}_{address.collector}"
        self._owner = secrets.token_hex(8)
        self._migrations = migrations
        with explaining(address):
            self.connection = ServerConnection(
                address, prepare=self._take_over, check=self._check_owner, schema=self._schema
            )

    def find_loss(self) -> StoreLoss | None:
        """Return None: that tables are gone is seen when they are written to."""
        return None

    def check_content(self) -> StoreLoss | None:
        """Return None: a server checks its pages itself."""
        return None

    def explain_damage(self, error: DamagedStoreError) -> StoreLoss:
        """Return the loss behind a write that failed with this error."""
        what = f"tables of {self.path} were removed while the collector used them as its store ({error.__cause__})"
        return StoreLoss(REMOVED, " ".join(what.split()), (0, 0))

    def open_connection(self, busy_s: float = 0.0) -> ServerConnection:  # noqa: ARG002 - the file's; a server has lock_timeout
        """Return another connection for writing, for another thread. The caller closes it before the database."""
        with explaining(self.path):
            return ServerConnection(self.path, check=self._check_owner, schema=self._schema)

    def close(self) -> None:
        """Close the connection, which frees the lock. A second call does nothing."""
        self.connection.close()

    def _take_over(self, session: Session) -> None:
        """Make what is missing, take the lock of the name, and become the owner of the tables."""
        with session.transaction():
            session.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (ALL,))
            _set_up(session, self.path)
            _migrate(session, self.path, "", ALL, self._migrations)
            _migrate(session, self.path, self.path.collector, self._schema, self._migrations)
        if not _ask(session, "SELECT pg_try_advisory_lock(hashtextextended(%s, 0))", self._schema)[0]:
            raise UnavailableError(self._name_other())
        session.execute(
            "UPDATE rankscope.collectors SET owner = %s WHERE name = %s AND owner <> %s",
            (self._owner, self.path.collector, self._owner),
        )

    def _check_owner(self, session: Session) -> None:
        """Raise UnavailableError unless this collector owns the tables; it then does until the transaction ends."""
        (owner,) = _ask(
            session, "SELECT owner FROM rankscope.collectors WHERE name = %s FOR SHARE", self.path.collector
        )
        if owner != self._owner:
            raise UnavailableError(self._name_other())

    def _name_other(self) -> str:
        return (
            f"another collector writes to {self.path} as {self.path.collector!r}; set a different `store_name` for "
            "each. (The name of a collector whose machine is gone is free after a minute.)"
        )


@contextlib.contextmanager
def reading(address: ServerAddress) -> Iterator[ServerConnection]:
    """Open the tables of all collectors for reading, or of one. Raises UnavailableError."""
    schema = f"{ALL}_{address.collector}" if address.is_own else ALL
    with explaining(address), contextlib.closing(ServerConnection(address, schema=schema)) as connection:
        if not connection.has_table(f"{ALL}.collectors"):
            raise UnavailableError(f"no collector has written to {address} yet; `store` of its settings names it.")
        (version,) = connection.execute("SELECT version FROM rankscope.collectors WHERE name = ''").fetchone()
        _check_version(address, version, len(MIGRATIONS))
        yield connection


@contextlib.contextmanager
def explaining(address: ServerAddress) -> Iterator[None]:
    """Turn errors of the server and the driver in this context into UnavailableError with the cure."""
    try:
        yield
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as error:
        raise DamagedStoreError(
            f"the store {address} lacks tables: {_describe(error)}. A collector makes them again when it writes."
        ) from error
    except (psycopg.DataError, psycopg.IntegrityError) as error:
        raise RefusedRowError(
            f"the store {address} refuses a row: {_describe(error)}. This is a bug of the collector, and the database "
            "is intact. Please report it."
        ) from error
    except psycopg.Error as error:
        raise UnavailableError(
            f"the store {address} cannot be used: {_describe(error)}. It needs a PostgreSQL server that can be reached "
            "and a role that may create schemas in this database."
        ) from None  # what the driver was given has a password


def _open_session(address: ServerAddress) -> Session:
    try:
        return psycopg.connect(
            address.url,
            autocommit=True,
            connect_timeout=CONNECT_S_MAX,
            application_name="rankscope",
            keepalives_idle=20,
            keepalives_interval=10,
            keepalives_count=3,
            tcp_user_timeout=20_000,
            # Parameters are put in here: the server would ask for the type of each.
            cursor_factory=psycopg.ClientCursor,
        )
    except psycopg.ProgrammingError:  # its text repeats what it cannot read
        raise UnavailableError(f"the store {address} cannot be used: the driver cannot read its address.") from None


def _translate(statement: str) -> str:
    return statement.replace("%", "%%").replace("?", "%s")


def _ask(session: Session, statement: str, *parameters: object) -> tuple[Any, ...]:
    """Return the one row of a query."""
    found = session.execute(statement, parameters).fetchone()
    return cast("tuple[Any, ...]", found)


def _set_up(session: Session, address: ServerAddress) -> None:
    """Make the schema over all, unless it is there. Raises UnavailableError where it is another program's."""
    (is_there,) = _ask(session, "SELECT to_regclass(%s) IS NOT NULL", f"{ALL}.collectors")
    if is_there:
        return
    (others,) = _ask(session, "SELECT count(*) FROM pg_tables WHERE schemaname = %s", ALL)
    if others:
        raise UnavailableError(f"{address} has a schema {ALL!r} of another program; set `store` to another database.")
    session.execute(_SET_UP)


def _migrate(session: Session, address: ServerAddress, name: str, schema: str, migrations: Sequence[Migration]) -> None:
    """Bring the tables of one schema to the latest version."""
    identifier = sql.Identifier(schema)
    found = session.execute(_VERSION, (name,)).fetchone() or _ask(session, _ADD_COLLECTOR, name)
    (is_there,) = _ask(session, "SELECT to_regnamespace(quote_ident(%s)) IS NOT NULL", schema)
    version, number = found if is_there else (0, found[1])
    _check_version(address, version, len(migrations))
    if version == len(migrations):
        _check_tables(session, address, schema, migrations)
        return
    if not version and name:
        base = sql.Literal((number - 1) * INCIDENTS_OF_COLLECTOR)
        session.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(identifier))
        session.execute(
            sql.SQL("CREATE SEQUENCE IF NOT EXISTS {}.incident_ids MINVALUE 0 START {}").format(identifier, base)
        )
    session.execute(sql.SQL("SET LOCAL search_path = {}").format(identifier))
    for statement in (statement for migration in migrations[version:] for statement in migration):
        # A column that is added to a table over all is added to those that inherit from it.
        if not name or statement.startswith("CREATE"):
            session.execute(_to_dialect(statement, inherits=bool(name)))
    session.execute("UPDATE rankscope.collectors SET version = %s WHERE name = %s", (len(migrations), name))


def _check_tables(session: Session, address: ServerAddress, schema: str, migrations: Sequence[Migration]) -> None:
    """Raise UnavailableError where a table of a schema was removed, and the others were not."""
    words = [statement.split()[:3] for migration in migrations for statement in migration]
    wanted = {name for verb, kind, name in words if (verb, kind) == ("CREATE", "TABLE")}
    there = session.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (schema,)).fetchall()
    missing = sorted(wanted - {name for (name,) in there})
    if missing:
        raise UnavailableError(
            f"the schema {schema} in {address} lacks {', '.join(missing)}; restore it from a backup, or drop the "
            "schema with what is left in it, and it is made again."
        )


def _to_dialect(statement: str, *, inherits: bool) -> str:
    """Return a statement of a migration for PostgreSQL; a table that `inherits` does so from the one over all.

    >>> _to_dialect("CREATE TABLE a (id INTEGER PRIMARY KEY, b BLOB)", inherits=True)
    "CREATE TABLE a (id BIGINT PRIMARY KEY DEFAULT nextval('rankscope.ids'), b BYTEA) INHERITS (rankscope.a)"
    """
    for ours, theirs in _TYPES:
        statement = statement.replace(ours, theirs)
    words = statement.split()
    if inherits and words[:2] == ["CREATE", "TABLE"]:
        statement = f"{statement} INHERITS ({ALL}.{words[2]})"
    return statement


def _check_version(address: ServerAddress, version: int, version_max: int) -> None:
    if version > version_max:
        raise UnavailableError(
            f"{address} has version {version} and this rankscope knows versions up to {version_max}; upgrade "
            "rankscope, or set `store` to another database."
        )


def _describe(error: psycopg.Error) -> str:
    """Return the first line of an error, without what the driver adds to it."""
    return " ".join(str(error).partition("\n")[0].split()).rstrip(".")
