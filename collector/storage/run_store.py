"""Runs and their history in the collector's store: written by one thread of the collector, read by anybody.

Bodies are JSON (`state/saved.py`), or packed columns (`rank_intervals.py`): a field more needs no migration. The
history is bounded by age and by the size of the file; what falls out goes oldest first, over all runs.
"""

import itertools
import math
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from rankscope.collector.pacing import GilYielder
from rankscope.collector.runs.checkpoint import LazySavedRank, SavedRank, SavedRun, SavedStory
from rankscope.collector.steps.collective_totals import SavedCounts, unpack_counts
from rankscope.collector.storage.database import Database, explaining, transaction
from rankscope.collector.storage.rank_intervals import RankInterval, pack
from rankscope.collector.storage.write_batch import Batch

T = TypeVar("T")

_Life = tuple[tuple[str, int], tuple[int, SavedRank | LazySavedRank]]
"""A life as a batch has it: run and rank, attempt and life."""

PRUNE_ROWS_MAX: Final = 5_000
"""Rows deleted in one transaction: the incidents, which are written from another thread, wait no longer than 0.1 s."""
STEP_BYTES: Final = 150
"""What a step takes in the file, with its place in the index: so many go at once as make up for what is too much."""

MOMENT_S: Final = 1e-6
"""Less than between any two ticks, and more than a float of seconds since 1970 is off by."""

_WRITE_RUN: Final = """INSERT INTO runs (run, is_known, changed_wall_s, body) VALUES (?, 1, ?, ?)
    ON CONFLICT (run) DO UPDATE SET is_known = 1, changed_wall_s = excluded.changed_wall_s, body = excluded.body"""
_WRITE_LIVES: Final = """INSERT INTO lives (run_id, rank, attempt, body) VALUES {}
    ON CONFLICT (run_id, rank) DO UPDATE SET attempt = excluded.attempt, body = excluded.body"""
_PLACES: Final = "(?, ?, ?, ?)"
LIVES_AT_ONCE: Final = 240
"""Rows in one statement, which has four parameters for each: every SQLite takes 999. Of a statement for each row the
interpreter's lock is let go of and wanted again each time: beside 16,384 lives nobody was heard for up to 2 s."""
_WRITE_STEP: Final = "INSERT OR REPLACE INTO steps VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_WRITE_INTERVAL: Final = "INSERT OR REPLACE INTO rank_intervals VALUES (?, ?, ?, ?, ?, ?)"


class KeptRun(NamedTuple):
    """A run as the store has it."""

    run: SavedRun
    story: SavedStory
    ranks: tuple[SavedRank, ...]
    collectives: SavedCounts | None = None
    """Only of a run that is loaded to go on with."""


class _LifeRow(NamedTuple):
    """A life as the file has it, but for the number of its run."""

    run: str
    rank: int
    attempt: int
    body: str


class Loaded(NamedTuple):
    """What a collector goes on with, and how many rows could not be read."""

    runs: tuple[KeptRun, ...]
    rows_unreadable: int


class HistoryStore:
    """The runs and the history of the file, for the collector that writes it. Raises UnavailableError, with the cure,
    when the file cannot be used; what was committed before stays.
    """

    def __init__(self, database: Database) -> None:
        self._path = database.path
        self._connection = database.connect_again()
        self._run_ids: dict[str, int] = {}

    def load(self) -> Loaded:
        """The runs that the last collector still knew."""
        with explaining(self._path):
            rows = self._connection.execute(
                "SELECT id, runs.body, story, collectives.body FROM runs LEFT JOIN collectives ON run_id = id "
                "WHERE is_known ORDER BY id"
            ).fetchall()
            unreadable: list[str] = []
            runs = []
            for *row, counts in rows:
                kept = load_run(self._connection, row, unreadable)
                if kept is not None:
                    runs.append(kept._replace(collectives=_unpack_or_nothing(counts, unreadable)))
            return Loaded(tuple(runs), len(unreadable))

    def write(self, batch: Batch, turns: GilYielder | None = None) -> None:
        """Keep all of it, or raise; it may be written again then. LIVES_AT_ONCE lives and everything else are kept
        together or not at all, further lives after that. Rows of lives are made in these `turns`.
        """
        try:
            self._write(batch, turns or GilYielder())
        except BaseException:
            self._run_ids.clear()  # ids of runs that are not there after all
            raise

    def _write(self, batch: Batch, turns: GilYielder) -> None:
        # Some after the others: the rows of 16,384 lives together are 100 MB. And nobody else could write meanwhile.
        lives = iter(batch.ranks.items())
        rows = _make_rows(lives, turns)
        counts = [(run, draft.pack()) for run, draft in batch.collectives.items()]
        intervals = [(run, one, pack(one)) for run, one in batch.intervals]
        with explaining(self._path):
            with transaction(self._connection):
                self._write_runs(batch, rows, counts, intervals)
            while rows := _make_rows(lives, turns):
                with transaction(self._connection):
                    self._write_lives(rows)

    def _write_runs(
        self,
        batch: Batch,
        lives: Sequence[_LifeRow],
        counts: Sequence[tuple[str, bytes]],
        intervals: Sequence[tuple[str, RankInterval, bytes]],
    ) -> None:
        """All of a batch, but of its lives these, and its collectives and intervals as they were packed."""
        encode = msgspec.json.encode
        self._connection.executemany(
            _WRITE_RUN, [(run.run, run.changed_wall_s, encode(run).decode()) for run in batch.runs.values()]
        )
        self._connection.executemany(
            "UPDATE runs SET story = ? WHERE run = ?",
            [(encode(story).decode(), run) for run, story in batch.stories.items()],
        )
        self._learn_ids(batch)
        self._write_lives(lives)
        ids = self._run_ids
        self._connection.executemany(
            "INSERT OR REPLACE INTO collectives VALUES (?, ?)", [(ids[run], body) for run, body in counts if run in ids]
        )
        self._connection.executemany(
            _WRITE_STEP,
            [
                (ids[run], one.attempt, one.step, one.wall_s, one.ranks, one.median_ns, one.longest_ns,
                 one.slowest_rank, encode(one.phases_ns).decode())
                for run, one in batch.steps if run in ids
            ],
        )  # fmt: skip
        self._connection.executemany(
            _WRITE_INTERVAL,
            [
                (ids[run], one.attempt, one.begin_wall_s, one.end_wall_s, len(one.columns["rank"]), body)
                for run, one, body in intervals
                if run in ids
            ],
        )
        self._connection.executemany("UPDATE runs SET is_known = 0 WHERE run = ?", [(run,) for run in batch.forgotten])

    def _write_lives(self, rows: Sequence[_LifeRow]) -> None:
        ids = self._run_ids
        found = [(ids[row.run], *row[1:]) for row in rows if row.run in ids]
        if found:
            statement = _WRITE_LIVES.format(", ".join([_PLACES] * len(found)))
            self._connection.execute(statement, list(itertools.chain.from_iterable(found)))

    def _learn_ids(self, batch: Batch) -> None:
        named = {run for run, _ in (*batch.steps, *batch.intervals, *batch.ranks)}
        named |= batch.runs.keys() | batch.collectives.keys()
        for run in named - self._run_ids.keys():
            row = self._connection.execute("SELECT id FROM runs WHERE run = ?", (run,)).fetchone()
            if row is not None:
                self._run_ids[run] = int(row[0])

    def prune(self, oldest_wall_s: float, bytes_max: int) -> bool:
        """Let go of some of what is older than that, or, when the file is too large, of runs without history and of the
        oldest history; whether there may be more to let go of.
        """
        with explaining(self._path), transaction(self._connection):
            gone = self._delete_until(oldest_wall_s)
            gone += self._delete_runs(oldest_wall_s)
            if not gone and self.bytes_used > bytes_max:
                # Lives take more than steps where a name comes again every few seconds.
                gone = self._delete_runs(math.inf) or self._delete_oldest(self.bytes_used - bytes_max)
        return gone > 0

    @property
    def bytes_used(self) -> int:
        """The pages of the file that hold something. The file itself does not shrink: free pages are used again."""
        pages, free, size = (
            int(self._connection.execute(f"PRAGMA {name}").fetchone()[0])
            for name in ("page_count", "freelist_count", "page_size")
        )
        return (pages - free) * size

    def close(self) -> None:
        """Let the file go."""
        self._connection.close()

    def _delete_until(self, wall_s: float, rows_max: int = PRUNE_ROWS_MAX) -> int:
        steps = self._connection.execute(
            "DELETE FROM steps WHERE (run_id, attempt, step) IN "
            "(SELECT run_id, attempt, step FROM steps WHERE wall_s < ? ORDER BY wall_s LIMIT ?)",
            (wall_s, rows_max),
        ).rowcount
        intervals = self._connection.execute(
            "DELETE FROM rank_intervals WHERE rowid IN "
            "(SELECT rowid FROM rank_intervals WHERE end_wall_s < ? ORDER BY end_wall_s LIMIT ?)",
            (wall_s, rows_max),
        ).rowcount
        return steps + intervals

    def _delete_runs(self, wall_s: float) -> int:
        """One run that is no longer known, and that has no history any more."""
        row = self._connection.execute(
            "SELECT id, run FROM runs WHERE NOT is_known AND changed_wall_s < ? "
            "AND NOT EXISTS (SELECT 1 FROM steps WHERE run_id = runs.id) "
            "AND NOT EXISTS (SELECT 1 FROM rank_intervals WHERE run_id = runs.id) ORDER BY changed_wall_s LIMIT 1",
            (wall_s,),
        ).fetchone()
        if row is None:
            return 0
        self._connection.execute("DELETE FROM lives WHERE run_id = ?", row[:1])
        self._connection.execute("DELETE FROM collectives WHERE run_id = ?", row[:1])
        self._connection.execute("DELETE FROM runs WHERE id = ?", row[:1])
        self._run_ids.pop(row[1], None)
        return 1

    def _delete_oldest(self, bytes_over: int) -> int:
        """Steps that make up for so much, or all that is as old as the oldest interval: whichever is older."""
        steps = min(PRUNE_ROWS_MAX, 1 + bytes_over // STEP_BYTES)
        found = self._connection.execute(
            "SELECT max(wall_s) FROM (SELECT wall_s FROM steps ORDER BY wall_s LIMIT ?) "
            "UNION ALL SELECT min(end_wall_s) FROM rank_intervals",
            (steps,),
        )
        moments = [moment for (moment,) in found if moment is not None]
        # A row at the very moment goes too, so that something always does.
        return self._delete_until(min(moments) + MOMENT_S) if moments else 0


def load_run(connection: sqlite3.Connection, row: Sequence[Any], unreadable: list[str]) -> KeptRun | None:
    """One run, whose id, body and story these are, with the lives of its present attempt; None when its row cannot be
    read. What is wrong with a row is added to `unreadable`.
    """
    run_id, body, story = row
    runs = list(_decode_rows([(body,)], SavedRun, unreadable))
    if not runs:
        return None
    stories = list(_decode_rows([(story,)], SavedStory, unreadable)) or [SavedStory()]
    lives = connection.execute(
        "SELECT body FROM lives WHERE run_id = ? AND attempt = ? ORDER BY rank", (run_id, runs[0].attempt)
    )
    return KeptRun(runs[0], stories[0], tuple(_decode_rows(lives, SavedRank, unreadable)))


def _make_rows(lives: Iterator[_Life], turns: GilYielder) -> list[_LifeRow]:
    """The next ones, up to LIVES_AT_ONCE; none when there are no more."""
    some = list(itertools.islice(lives, LIVES_AT_ONCE))
    if not some:
        return []
    rows = []
    with turns:
        for (run, rank), (attempt, life) in some:
            saved = life if isinstance(life, SavedRank) else life.build()
            rows.append(_LifeRow(run, rank, attempt, msgspec.json.encode(saved).decode()))
            turns.maybe_yield()
    return rows


def _unpack_or_nothing(body: bytes | None, unreadable: list[str]) -> SavedCounts | None:
    """The collectives of a run, as far as they were kept and can be read."""
    try:
        return None if body is None else unpack_counts(body)
    except (ValueError, TypeError) as error:
        unreadable.append(str(error))
        return None


def _decode_rows(rows: Iterable[tuple[str]], kind: type[T], unreadable: list[str]) -> Iterator[T]:
    """Those rows that can be read; what is wrong with the others is added to `unreadable`."""
    decoder = msgspec.json.Decoder(kind)
    for (body,) in rows:
        try:
            yield decoder.decode(body)
        except (msgspec.DecodeError, TypeError) as error:
            unreadable.append(str(error))
