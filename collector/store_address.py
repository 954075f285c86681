"""Tell where a store is: a file, or a database of a PostgreSQL server that several collectors share.

The address of a server may hold a password. Nothing prints one: `str` of an address has the host and the database only,
and a text that is no such address is repeated nowhere.
"""

import argparse
import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

SCHEMES: Final = ("postgresql://", "postgres://")
FORM: Final = (
    "it must be postgresql://[USER[:PASSWORD]@]HOST[:PORT]/DATABASE[?sslmode=...], with what is special in a password "
    "percent-encoded"
)
_ADDRESS: Final = re.compile(r"postgres(?:ql)?://(?:[^/?#@\s]*@)?([\w.,:\[\]%-]*)/([\w.%-]+)(?:\?([^\s@#]*))?")
COLLECTOR: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")
"""Name of a collector: it is part of the name of its schema, of which PostgreSQL takes 63 bytes, and of run ids."""


@dataclass(frozen=True)
class ServerAddress:
    """A database of a server. `collector` is who writes, to its own tables only. A reader reads those of all, or only
    these where `is_own`.
    """

    url: str = field(repr=False)
    collector: str = ""
    is_own: bool = False

    def __str__(self) -> str:
        """Return the host and the database."""
        parsed = _ADDRESS.fullmatch(self.url)
        return f"postgresql://{parsed[1]}/{parsed[2]}" if parsed else "postgresql://..."

    def only_own(self) -> "ServerAddress":
        """Return the address for a reader of this collector's tables."""
        return replace(self, is_own=True)


StoreAddress = Path | ServerAddress


def find_store_problem(text: str) -> str | None:
    """Return what is wrong with the address of a store; None for a file.

    >>> find_store_problem("/var/lib/runs.db"), find_store_problem("postgresql://me:x%2Fy@db.example/rankscope")
    (None, None)
    >>> find_store_problem("postgresql://me:x/y@db.example/rankscope") == FORM
    True
    """
    return None if "://" not in text or _ADDRESS.fullmatch(text) else FORM


def find_collector_problem(name: str) -> str | None:
    """Return what is wrong with the name of a collector; None where it may have it, or has none."""
    if not name or COLLECTOR.fullmatch(name):
        return None
    return "it must be 1 to 40 letters, digits, `-` and `_`"


def parse_store(text: str, collector: str = "") -> StoreAddress:
    """Return the address that a text without a problem names. `collector`: the name of who writes; "": of this host.

    >>> str(parse_store("postgresql://me:secret@db.example:5432/rankscope?sslmode=verify-full"))
    'postgresql://db.example:5432/rankscope'
    >>> parse_store("runs.db")
    PosixPath('runs.db')
    """
    return ServerAddress(text, collector or name_host()) if text.startswith(SCHEMES) else Path(text)


def read_store_option(text: str) -> StoreAddress:
    """Return the address in an option of a command. Raises ArgumentTypeError, without the text."""
    problem = find_store_problem(text)
    if problem is not None:
        raise argparse.ArgumentTypeError(f"the address of a server is no such: {problem}")
    return parse_store(text)


def name_host() -> str:
    """Return the name of this host as the name of a collector."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", os.uname().nodename)[:40] or "collector"
