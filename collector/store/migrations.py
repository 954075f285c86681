"""How the file of the store came to be: one chain of versions for the tables of everything that keeps something in it.

Version n of the file is what the first n entries of MIGRATIONS make of an empty one; it stands in
`PRAGMA user_version`.
"""

from typing import Final

Migration = tuple[str, ...]
"""Statements that lead from one version to the next, carried out in one transaction."""

INCIDENTS: Final[Migration] = (
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
)

MIGRATIONS: Final[tuple[Migration, ...]] = (INCIDENTS,)
"""All of them. Never changed, only added to. Incidents have a `body` in every version: reading them needs no more."""
