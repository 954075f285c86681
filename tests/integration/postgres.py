"""A PostgreSQL server of its own for tests, of the packages of Debian, as an operator would have one.

It listens on 127.0.0.1 and asks for a password. Texts are sorted by a language, as on most servers, and not by their
bytes, as in SQLite.
"""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psycopg

from rankscope.collector.store_address import ServerAddress
from tests.integration.serving import end_child, find_fixed_port, wait_for
from tests.programs import find_program

PASSWORD: Final = "s3cret%2Fword"  # noqa: S105 - of a server that a test starts
"""As in an address: `/` is percent-encoded in it."""
USER: Final = "rankscope"


class PostgresServer:
    """A server with a folder, which `stop` and `start` may be called for in turn."""

    def __init__(self, folder: Path) -> None:
        """Make a database cluster. Root is no user that the server runs as: it is Debian's user of it then."""
        find_program("pg_ctlcluster")  # the package is there; the programs are in a folder of their version
        self._programs = max(Path("/usr/lib/postgresql").glob("*/bin"))
        self._user = "postgres" if os.geteuid() == 0 else None
        self._data = folder / "data"
        self.log = folder / "log"
        self.port = find_fixed_port()
        self._child: subprocess.Popen[bytes] | None = None
        password = folder / "password"
        password.write_text(PASSWORD.replace("%2F", "/"))
        if self._user is not None:
            account = pwd.getpwnam(self._user)
            os.chown(folder, account.pw_uid, account.pw_gid)
            os.chown(password, account.pw_uid, account.pw_gid)
        subprocess.run(
            [
                self._programs / "initdb", "-D", self._data, "-U", USER, "--pwfile", password, "-A", "scram-sha-256",
                "-E", "UTF8", "--locale-provider=icu", "--icu-locale=en", "--no-sync",
            ],
            user=self._user, cwd=folder, check=True, capture_output=True,
        )  # fmt: skip

    def address(self, database: str, collector: str = "") -> ServerAddress:
        """Return the address of a database, with the password."""
        return ServerAddress(f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{self.port}/{database}", collector)

    def create_database(self, name: str) -> ServerAddress:
        """Make an empty database, and return its address."""
        with psycopg.connect(self.address("postgres").url, autocommit=True) as session:
            session.execute(f'CREATE DATABASE "{name}"')
        return self.address(name)

    def start(self) -> None:
        """Start the server, and wait until it takes connections."""
        with self.log.open("ab") as out:
            self._child = subprocess.Popen(
                [
                    self._programs / "postgres", "-D", self._data, "-p", str(self.port), "-k", "", "-c", "fsync=off",
                    "-c", "listen_addresses=127.0.0.1",
                ],
                user=self._user, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=self._data,
            )  # fmt: skip
        wait_for(self._try_connect, self.log.read_text)

    def stop(self, number: signal.Signals = signal.SIGQUIT) -> None:
        """End the server by a signal; SIGQUIT is as a crash, from which it recovers at its next start."""
        if self._child is not None:
            self._child.send_signal(number)
            end_child(self._child)
            self._child = None

    @property
    def is_stopped(self) -> bool:
        """Whether it was stopped, and not started again."""
        return self._child is None

    def pause(self) -> None:
        """Let all of the server stand still: connections stay, and nothing is answered."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: signal.Signals) -> None:
        assert self._child is not None
        parent = self._child.pid
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        for pid in (parent, *map(int, children)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _try_connect(self) -> bool | None:
        assert self._child is not None
        assert self._child.poll() is None, self.log.read_text()
        try:
            psycopg.connect(self.address("postgres").url, connect_timeout=5).close()
        except psycopg.OperationalError:
            return None
        return True


@contextlib.contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """A running server; it is gone afterwards, with all that it kept."""
    # Not in pytest's folder, which the user of the server may not enter.
    folder = Path(tempfile.mkdtemp(prefix="rankscope-postgres-"))
    try:
        server = PostgresServer(folder)
        server.start()
        try:
            yield server
        finally:
            server.stop(signal.SIGINT)
    finally:
        shutil.rmtree(folder)
