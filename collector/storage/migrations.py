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

RUNS_AND_HISTORY: Final[Migration] = (
    # is_known: the collector that wrote it last still had it in memory, and the next one goes on with it.
    """CREATE TABLE runs (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        run TEXT NOT NULL UNIQUE,
        is_known INTEGER NOT NULL,
        changed_wall_s REAL NOT NULL,
        body TEXT NOT NULL,
        story TEXT NOT NULL DEFAULT '{}'
    )""",
    """CREATE TABLE lives (
        run_id INTEGER NOT NULL,
        rank INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        body TEXT NOT NULL,
        PRIMARY KEY (run_id, rank)
    )""",
    """CREATE TABLE steps (
        run_id INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        step INTEGER NOT NULL,
        wall_s REAL NOT NULL,
        ranks INTEGER NOT NULL,
        median_ns INTEGER NOT NULL,
        longest_ns INTEGER NOT NULL,
        slowest_rank INTEGER NOT NULL,
        phases_ns TEXT NOT NULL,
        PRIMARY KEY (run_id, attempt, step)
    ) WITHOUT ROWID""",
    "CREATE INDEX steps_by_time ON steps (wall_s)",
    # body: the columns of all ranks, packed (history/rank_intervals.py). A row for each rank would be ten times more.
    """CREATE TABLE rank_intervals (
        run_id INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        begin_wall_s REAL NOT NULL,
        end_wall_s REAL NOT NULL,
        ranks INTEGER NOT NULL,
        body BLOB NOT NULL,
        PRIMARY KEY (run_id, attempt, begin_wall_s)
    )""",
    "CREATE INDEX rank_intervals_by_time ON rank_intervals (end_wall_s)",
)

COLLECTIVES: Final[Migration] = (
    # The counts of all ranks of a run's present attempt, in columns (state/collective_counts.py). Not in its own row,
    # which is written each second.
    """CREATE TABLE collectives (
        run_id INTEGER PRIMARY KEY,
        body BLOB NOT NULL
    )""",
)

MIGRATIONS: Final[tuple[Migration, ...]] = (INCIDENTS, RUNS_AND_HISTORY, COLLECTIVES)
"""All of them. Never changed, only added to. Incidents have a `body` in every version: reading them needs no more."""
