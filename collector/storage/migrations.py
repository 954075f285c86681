"""Define the versions of the store's file, one chain for all of its tables.

Version n is the result of the first n entries of MIGRATIONS on an empty file; `PRAGMA user_version` holds it.
"""

from typing import Final

Migration = tuple[str, ...]
"""Statements that migrate one version to the next, in one transaction."""

INCIDENTS: Final[Migration] = (
    # AUTOINCREMENT keeps the last id also when its row was deleted: no id is given twice.
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
    # is_known: the collector that wrote it last still had it in memory, and the next one restores it.
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
    # body: the columns of all ranks, packed (storage/rank_intervals.py). A row for each rank would take ten times the
    # space.
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
    # Counts of all ranks of a run's present attempt, in columns (steps/collective_totals.py). Not in the row of the
    # run, which is written each second.
    """CREATE TABLE collectives (
        run_id INTEGER PRIMARY KEY,
        body BLOB NOT NULL
    )""",
)

PREFLIGHTS: Final[Migration] = (
    # id: in the order of arrival, also where a wall clock was set back. preflight: random, so that one that is sent
    # again is kept once.
    """CREATE TABLE preflights (
        id INTEGER PRIMARY KEY,
        node TEXT NOT NULL,
        preflight TEXT NOT NULL,
        wall_s REAL NOT NULL,
        device TEXT NOT NULL,
        status TEXT NOT NULL,
        body TEXT NOT NULL,
        UNIQUE (node, preflight)
    )""",
    "CREATE INDEX preflights_by_node ON preflights (node, id)",
)

MIGRATIONS: Final[tuple[Migration, ...]] = (INCIDENTS, RUNS_AND_HISTORY, COLLECTIVES, PREFLIGHTS)
"""All migrations; never change one, only append. Incidents have a `body` in every version, and readers need no more."""
