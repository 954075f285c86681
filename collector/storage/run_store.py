"""Store runs and their history in the collector's file: written by one thread of the collector.

Bodies are JSON (`runs/saved_runs.py`), or packed columns (`rank_intervals.py`): an additional field needs no migration.
The history is bounded by age and by the size of the file; the oldest rows of all runs are deleted first.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from rankscope.collector.runs.rank import SavedRank
from rankscope.collector.runs.saved_runs import SavedRun, SavedStory
from rankscope.collector.steps.collective_totals import SavedCounts, unpack_counts
from rankscope.collector.storage.database import Connection, StoreDatabase, explaining, transaction
from rankscope.collector.storage.rank_intervals import RankInterval, pack
from rankscope.collector.storage.write_batch import RankToWrite, WriteBatch

T = TypeVar("T")

_RankEntry = tuple[tuple[str, int], tuple[int, RankToWrite]]
"""An entry of `WriteBatch.ranks`: run and rank, attempt and saved rank."""

PRUNE_ROWS_MAX: Final = 5_000
"""Rows deleted in one transaction: incidents, which are written from another thread, wait for 0.1 s at most."""
STEP_BYTES: Final = 150
"""Size of a step in the file, with its index entry, to estimate how many to delete from a file that is too large."""

WALL_EPSILON_S: Final = 1e-6
"""Less than the time between two ticks, and more than the rounding of seconds since 1970 in a float."""

_WRITE_RUN: Final = """INSERT INTO runs (run, is_known, changed_wall_s, body) VALUES (?, 1, ?, ?)
    ON CONFLICT (run) DO UPDATE SET is_known = 1, changed_wall_s = excluded.changed_wall_s, body = excluded.body"""
_WRITE_RANKS: Final = """INSERT INTO lives (run_id, rank, attempt, body) VALUES {}
    ON CONFLICT (run_id, rank) DO UPDATE SET attempt = excluded.attempt, body = excluded.body"""
_PLACEHOLDERS: Final = "(?, ?, ?, ?)"
RANKS_PER_STATEMENT: Final = 240
"""Rows in one statement, with four parameters each: every SQLite accepts 999. A statement for each row would release
the interpreter's lock and wait for it each time, which delays other threads by seconds at 16,384 ranks."""
_WRITE_STEP: Final = """INSERT INTO steps VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (run_id, attempt, step) DO UPDATE SET wall_s = excluded.wall_s, ranks = excluded.ranks,
        median_ns = excluded.median_ns, longest_ns = excluded.longest_ns, slowest_rank = excluded.slowest_rank,
        phases_ns = excluded.phases_ns"""
_WRITE_INTERVAL: Final = """INSERT INTO rank_intervals VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (run_id, attempt, begin_wall_s) DO UPDATE SET end_wall_s = excluded.end_wall_s,
        ranks = excluded.ranks, body = excluded.body"""
_WRITE_COLLECTIVES: Final = """INSERT INTO collectives VALUES (?, ?)
    ON CONFLICT (run_id) DO UPDATE SET body = excluded.body"""


class KeptRun(NamedTuple):
    """A run in the store, with the ranks of its last attempt."""

    run: SavedRun
    story: SavedStory
    ranks: tuple[SavedRank, ...]
    collectives: SavedCounts | None = None
    """Set only for a run that is loaded to be restored."""


class _RankRow(NamedTuple):
    """A rank as a row of the file, with the id of its run instead of the number."""

    run: str
    rank: int
    attempt: int
    body: str


class Loaded(NamedTuple):
    """The runs that a collector restores, and how many rows could not be read."""

    runs: tuple[KeptRun, ...]
    rows_unreadable: int


class HistoryStore:
    """The runs and the history of the file, for the collector that writes it. Methods raise UnavailableError, with the
    cure, when the file cannot be used; committed data stays.
    """

    def __init__(self, database: StoreDatabase) -> None:
        self._path = database.path
        self._connection = database.open_connection()
        self._run_ids: dict[str, int] = {}

    def load(self) -> Loaded:
        """Return the runs that the last collector still knew."""
        with explaining(self._path):
            rows = self._connection.execute(
                "SELECT id, runs.body, story, collectives.body FROM runs LEFT JOIN collectives ON run_id = id "
                "WHERE is_known = 1 ORDER BY id"
            ).fetchall()
            unreadable: list[str] = []
            runs = []
            for *row, counts in rows:
                kept = load_run(self._connection, row, unreadable)
                if kept is not None:
                    runs.append(kept._replace(collectives=_try_unpack(counts, unreadable)))
            return Loaded(tuple(runs), len(unreadable))

    def write(self, batch: WriteBatch) -> None:
        """Write the batch, or raise; it may be written again then. Everything with the first RANKS_PER_STATEMENT ranks
        is one transaction; further ranks follow in others.
        """
        try:
            self._write(batch)
        except BaseException:
            self._run_ids.clear()  # it may hold ids of runs that were rolled back
            raise

    def _write(self, batch: WriteBatch) -> None:
        # In parts: the rows of 16,384 ranks together are 100 MB, and no other thread could write meanwhile.
        ranks = iter(batch.ranks.items())
        rows = _make_rows(ranks)
        counts = [(run, sums.pack()) for run, sums in batch.collectives.items()]
        intervals = [(run, one, pack(one)) for run, one in batch.intervals]
        with explaining(self._path):
            with transaction(self._connection):
                self._write_runs(batch, rows, counts, intervals)
            while rows := _make_rows(ranks):
                with transaction(self._connection):
                    self._write_ranks(rows)

    def _write_runs(
        self,
        batch: WriteBatch,
        ranks: Sequence[_RankRow],
        counts: Sequence[tuple[str, bytes]],
        intervals: Sequence[tuple[str, RankInterval, bytes]],
    ) -> None:
        """Write a batch with only these of its ranks, and with its collectives and intervals in packed form."""
        encode = msgspec.json.encode
        self._connection.executemany(
            _WRITE_RUN, [(run.run, run.changed_wall_s, encode(run).decode()) for run in batch.runs.values()]
        )
        self._connection.executemany(
            "UPDATE runs SET story = ? WHERE run = ?",
            [(encode(story).decode(), run) for run, story in batch.stories.items()],
        )
        self._read_ids(batch)
        self._write_ranks(ranks)
        ids = self._run_ids
        self._connection.executemany(_WRITE_COLLECTIVES, [(ids[run], body) for run, body in counts if run in ids])
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

    def _write_ranks(self, rows: Sequence[_RankRow]) -> None:
        ids = self._run_ids
        found = [(ids[row.run], *row[1:]) for row in rows if row.run in ids]
        if found:
            statement = _WRITE_RANKS.format(", ".join([_PLACEHOLDERS] * len(found)))
            self._connection.execute(statement, list(itertools.chain.from_iterable(found)))

    def _read_ids(self, batch: WriteBatch) -> None:
        named = {run for run, _ in (*batch.steps, *batch.intervals, *batch.ranks)}
        named |= batch.runs.keys() | batch.collectives.keys()
        for run in named - self._run_ids.keys():
            row = self._connection.execute("SELECT id FROM runs WHERE run = ?", (run,)).fetchone()
            if row is not None:
                self._run_ids[run] = int(row[0])

    def prune(self, oldest_wall_s: float, bytes_max: int) -> bool:
        """Delete some rows older than `oldest_wall_s` or, when the file is too large, runs without history and the
        oldest history; return whether there may be more to delete.
        """
        with explaining(self._path), transaction(self._connection):
            deleted = self._delete_until(oldest_wall_s)
            deleted += self._delete_runs(oldest_wall_s)
            if not deleted and self.bytes_used > bytes_max:
                # Ranks take more space than steps where a run is started every few seconds.
                deleted = self._delete_runs(math.inf) or self._delete_oldest(self.bytes_used - bytes_max)
        return deleted > 0

    @property
    def bytes_used(self) -> int:
        """Bytes of everything in it, as the database counts them."""
        return self._connection.measure_bytes()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _delete_until(self, wall_s: float, rows_max: int = PRUNE_ROWS_MAX) -> int:
        steps = self._connection.execute(
            "DELETE FROM steps WHERE (run_id, attempt, step) IN "
            "(SELECT run_id, attempt, step FROM steps WHERE wall_s < ? ORDER BY wall_s LIMIT ?)",
            (wall_s, rows_max),
        ).rowcount
        intervals = self._connection.execute(
            "DELETE FROM rank_intervals WHERE (run_id, attempt, begin_wall_s) IN "
            "(SELECT run_id, attempt, begin_wall_s FROM rank_intervals WHERE end_wall_s < ? "
            "ORDER BY end_wall_s LIMIT ?)",
            (wall_s, rows_max),
        ).rowcount
        return steps + intervals

    def _delete_runs(self, wall_s: float) -> int:
        """Delete one run that is no longer known and has no history; return how many were deleted."""
        row = self._connection.execute(
            "SELECT id, run FROM runs WHERE is_known = 0 AND changed_wall_s < ? "
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
        """Delete the older of: steps of `bytes_over`, or everything as old as the oldest interval."""
        steps = min(PRUNE_ROWS_MAX, 1 + bytes_over // STEP_BYTES)
        found = self._connection.execute(
            "SELECT max(wall_s) FROM (SELECT wall_s FROM steps ORDER BY wall_s LIMIT ?) AS oldest "
            "UNION ALL SELECT min(end_wall_s) FROM rank_intervals",
            (steps,),
        )
        times_s = [wall_s for (wall_s,) in found if wall_s is not None]
        # Includes rows of exactly that time, so that at least one is deleted.
        return self._delete_until(min(times_s) + WALL_EPSILON_S) if times_s else 0


def load_run(connection: Connection, row: Sequence[Any], unreadable: list[str]) -> KeptRun | None:
    """Return a run from its row (id, body and story), with the ranks of its present attempt; None when the row cannot
    be read. Errors of unreadable rows are added to `unreadable`.
    """
    run_id, body, story = row
    runs = list(_decode_rows([(body,)], SavedRun, unreadable))
    if not runs:
        return None
    stories = list(_decode_rows([(story,)], SavedStory, unreadable)) or [SavedStory()]
    ranks = connection.execute(
        "SELECT body FROM lives WHERE run_id = ? AND attempt = ? ORDER BY rank", (run_id, runs[0].attempt)
    )
    return KeptRun(runs[0], stories[0], tuple(_decode_rows(ranks, SavedRank, unreadable)))


def _make_rows(ranks: Iterator[_RankEntry]) -> list[_RankRow]:
    """Return the rows of the next ranks, at most RANKS_PER_STATEMENT; none when there are no more."""
    rows = []
    for (run, rank), (attempt, entry) in itertools.islice(ranks, RANKS_PER_STATEMENT):
        saved = entry if isinstance(entry, SavedRank) else entry()
        rows.append(_RankRow(run, rank, attempt, msgspec.json.encode(saved).decode()))
    return rows


def _try_unpack(body: bytes | None, unreadable: list[str]) -> SavedCounts | None:
    """Return the collectives of a run; None where there are none or they cannot be read."""
    try:
        return None if body is None else unpack_counts(body)
    except (ValueError, TypeError) as error:
        unreadable.append(str(error))
        return None


def _decode_rows(rows: Iterable[tuple[str]], kind: type[T], unreadable: list[str]) -> Iterator[T]:
    """Iterate over the readable rows; errors of the others are added to `unreadable`."""
    decoder = msgspec.json.Decoder(kind)
    for (body,) in rows:
        try:
            yield decoder.decode(body)
        except (msgspec.DecodeError, TypeError) as error:
            unreadable.append(str(error))
