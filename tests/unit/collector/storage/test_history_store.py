"""Runs and their history in the file: what is written, deleted and migrated from older versions."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from rankscope.collector.incidents.store import IncidentStore
from rankscope.collector.runs.saved_runs import SavedStory
from rankscope.collector.steps.collective_totals import CollectiveCounts, CollectiveSums, SavedCounts, unpack_counts
from rankscope.collector.storage import run_store
from rankscope.collector.storage.database import APPLICATION_ID, Database
from rankscope.collector.storage.migrations import MIGRATIONS
from rankscope.collector.storage.run_reader import CurvePoint, opening_run
from rankscope.collector.storage.run_store import RANKS_PER_STATEMENT, HistoryStore, KeptRun, Loaded
from rankscope.collector.storage.write_batch import WriteBatch
from rankscope.measure.errors import UnavailableError
from tests.unit.collector.detect.findings import slow
from tests.unit.collector.runs.kept_runs import WALL_S, S, interval_of, life_of, run_of, step_of
from tests.unit.collector.steps.collective_steps import KindWaits, columns_of

VERSION_2 = (
    """CREATE TABLE incidents (id INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL, state TEXT NOT NULL,
        severity TEXT NOT NULL, opened_wall_s REAL NOT NULL, resolved_wall_s REAL, body TEXT NOT NULL)""",
    """CREATE TABLE runs (id INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL UNIQUE, is_known INTEGER NOT NULL,
        changed_wall_s REAL NOT NULL, body TEXT NOT NULL, story TEXT NOT NULL DEFAULT '{}')""",
    """CREATE TABLE lives (run_id INTEGER NOT NULL, rank INTEGER NOT NULL, attempt INTEGER NOT NULL, body TEXT NOT NULL,
        PRIMARY KEY (run_id, rank))""",
    """CREATE TABLE steps (run_id INTEGER NOT NULL, attempt INTEGER NOT NULL, step INTEGER NOT NULL,
        wall_s REAL NOT NULL, ranks INTEGER NOT NULL, median_ns INTEGER NOT NULL, longest_ns INTEGER NOT NULL,
        slowest_rank INTEGER NOT NULL, phases_ns TEXT NOT NULL,
        PRIMARY KEY (run_id, attempt, step)) WITHOUT ROWID""",
    "CREATE INDEX steps_by_time ON steps (wall_s)",
    """CREATE TABLE rank_intervals (run_id INTEGER NOT NULL, attempt INTEGER NOT NULL, begin_wall_s REAL NOT NULL,
        end_wall_s REAL NOT NULL, ranks INTEGER NOT NULL, body BLOB NOT NULL,
        PRIMARY KEY (run_id, attempt, begin_wall_s))""",
    "CREATE INDEX rank_intervals_by_time ON rank_intervals (end_wall_s)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    "PRAGMA user_version = 2",
    """INSERT INTO runs VALUES (3, 'old', 1, 100.0, '{"run":"old","world_size":1,"restart_count":0,"attempt":0,
        "begun_wall_s":1.0,"changed_wall_s":100.0,"settled_wall_s":100.0,"is_over":false,"step_ns":5,"recorded_step":0,
        "goodput":{"wall_ns":9,"productive_ns":9},"of_a_later_release":1}', '{"former_boots":["boot-old"]}')""",
    """INSERT INTO lives VALUES (3, 0, 0, '{"hello":[["old",0,0,1,"node-a",0,"boot-0-0000",7],1,0,0,1000000000],
        "first_sequence":1,"last_sequence":4,"admitted":4,"duplicates":0,"records_late":0}')""",
    """INSERT INTO steps VALUES (3, 0, 0, 50.0, 1, 5, 5, 0, '{"data":2}')""",
)
"""A file as version 2 of it was first released. Never to be changed: every later release reads it."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where there is no file yet."""
    return tmp_path / "store.db"


@pytest.fixture
def store(path: Path) -> Iterator[HistoryStore]:
    """A new store."""
    with closing(Database(path)) as database, closing(HistoryStore(database)) as store:
        yield store


def batch_of(run: str, *steps: int, wall_s: float | None = None) -> WriteBatch:
    """A run, its two ranks and some steps."""
    batch = WriteBatch()
    batch.put_run(run_of(run))
    for rank in range(2):
        batch.ranks[run, rank] = 0, life_of(run, rank)
    for step in steps:
        batch.add_step(run, step_of(step, wall_s=wall_s))
    return batch


def steps_in(path: Path, run: str) -> list[int]:
    with opening_run(path, run) as history:
        return [step.step for step in history.read_steps()]


# -- what it keeps ----------------------------------------------------------------------------------------------------


def test_written_runs_are_loaded_by_the_next_collector(store: HistoryStore) -> None:
    batch = batch_of("a")
    batch.stories["a"] = SavedStory(findings=(slow(),), former_boots=("boot-old",))
    store.write(batch)
    assert store.load() == Loaded(
        (KeptRun(run_of("a"), batch.stories["a"], (life_of("a", 0), life_of("a", 1))),), rows_unreadable=0
    )


def counted() -> CollectiveSums:
    """The collectives of one rank."""
    counts = CollectiveCounts()
    counts.add(columns_of([KindWaits(1, "dp", "all_reduce", 2, 60, 2_000, 2, 20, 40, 2_000, 40)]))
    return counts.read()


def test_collectives_are_loaded_by_the_next_collector(store: HistoryStore) -> None:
    batch = batch_of("a")
    batch.collectives["a"] = counted()
    store.write(batch)
    store.write(batch_of("a"))
    (kept,) = store.load().runs
    assert kept.collectives == unpack_counts(counted().pack())
    batch.collectives["a"] = CollectiveCounts().read()
    store.write(batch)
    (kept,) = store.load().runs
    assert kept.collectives == SavedCounts((), b"", b"")


def test_unreadable_collectives_cost_the_run_nothing_else(store: HistoryStore) -> None:
    batch = batch_of("a")
    batch.collectives["a"] = counted()
    store.write(batch)
    store._connection.execute("UPDATE collectives SET body = x'00'")
    (kept,), rows_unreadable = store.load()
    assert (len(kept.ranks), kept.collectives, rows_unreadable) == (2, None, 1)


def lives_of(run: str, count: int, admitted: int) -> WriteBatch:
    """A run and so many lives of it, of which so many reports were admitted."""
    batch = WriteBatch()
    batch.put_run(run_of(run))
    for rank in range(count):
        batch.ranks[run, rank] = 0, msgspec.structs.replace(life_of(run, rank), admitted=admitted)
    return batch


@pytest.mark.parametrize("count", [RANKS_PER_STATEMENT - 1, RANKS_PER_STATEMENT, 2 * RANKS_PER_STATEMENT + 1])
def test_every_rank_is_written_and_replaced(store: HistoryStore, count: int) -> None:
    for admitted in (3, 4):
        store.write(lives_of("a", count, admitted))
        (kept,) = store.load().runs
        assert [(life.hello.identity.rank, life.admitted) for life in kept.ranks] == [
            (rank, admitted) for rank in range(count)
        ]


def test_write_that_fails_amid_many_ranks_can_be_repeated(store: HistoryStore) -> None:
    count = 2 * RANKS_PER_STATEMENT
    store._connection.execute(
        f"CREATE TRIGGER full BEFORE INSERT ON lives WHEN NEW.rank = {count - 1} "
        "BEGIN SELECT RAISE(ABORT, 'no place'); END"
    )
    batch = lives_of("a", count, 3)
    with pytest.raises(UnavailableError):
        store.write(batch)
    store._connection.execute("DROP TRIGGER full")
    store.write(batch)
    (kept,) = store.load().runs
    assert [life.hello.identity.rank for life in kept.ranks] == list(range(count))


def test_other_writers_need_not_wait_for_all_ranks(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(IncidentStore(path)) as incidents, closing(HistoryStore(incidents.database)) as store:
        writes = 0
        make_rows = run_store._make_rows

        def write_incidents_between(ranks: Iterator[run_store._RankEntry]) -> list[run_store._RankRow]:
            nonlocal writes
            writes += 1
            incidents.write([], [writes])  # raises where the file is locked
            return make_rows(ranks)

        monkeypatch.setattr(run_store, "_make_rows", write_incidents_between)
        store.write(lives_of("a", 2 * RANKS_PER_STATEMENT, 1))
    assert writes >= 2


def test_forgotten_run_is_not_loaded_but_can_be_read(store: HistoryStore, path: Path) -> None:
    store.write(batch_of("a", 1, 2))
    gone = WriteBatch()
    gone.forget("a")
    store.write(gone)
    assert store.load() == Loaded((), 0)
    assert steps_in(path, "a") == [1, 2]


def test_run_that_returns_is_known_again(store: HistoryStore) -> None:
    gone = batch_of("a")
    gone.forget("a")
    store.write(gone)
    store.write(batch_of("a"))
    assert [kept.run.run for kept in store.load().runs] == ["a"]


def test_ranks_of_a_former_attempt_are_not_loaded(store: HistoryStore) -> None:
    store.write(batch_of("a"))
    restarted = WriteBatch()
    restarted.put_run(run_of("a", attempt=1))
    restarted.ranks["a", 1] = 1, life_of("a", 1)
    store.write(restarted)
    (kept,) = store.load().runs
    assert [life.hello.identity.rank for life in kept.ranks] == [1]


def test_a_step_that_is_written_twice_is_there_once(store: HistoryStore, path: Path) -> None:
    for _ in range(2):
        store.write(batch_of("a", 1))
    assert steps_in(path, "a") == [1]


def test_unreadable_rows_are_skipped_and_counted(store: HistoryStore) -> None:
    for name in ("a", "b"):
        store.write(batch_of(name))
    store._connection.execute("UPDATE runs SET body = '{' WHERE run = 'a'")
    store._connection.execute("UPDATE runs SET story = '{' WHERE run = 'b'")
    store._connection.execute("UPDATE lives SET body = '[]' WHERE rank = 1")
    (kept,), rows_unreadable = store.load()
    assert (kept.run.run, kept.story, len(kept.ranks), rows_unreadable) == ("b", SavedStory(), 1, 3)


def test_failed_write_is_rolled_back_and_can_be_repeated(store: HistoryStore) -> None:
    store._connection.execute(
        "CREATE TRIGGER full BEFORE INSERT ON steps WHEN NEW.step = 9 BEGIN SELECT RAISE(ABORT, 'no place'); END"
    )
    batch = batch_of("a", 1, 9)
    with pytest.raises(UnavailableError):
        store.write(batch)
    assert store.load().runs == ()
    store._connection.execute("DROP TRIGGER full")
    store.write(batch_of("b"))
    store.write(batch)
    assert [kept.run.run for kept in store.load().runs] == ["b", "a"]
    ids = store._connection.execute("SELECT DISTINCT runs.run FROM steps JOIN runs ON runs.id = run_id").fetchall()
    assert ids == [("a",)]


def test_incidents_are_written_while_the_history_is_open(path: Path) -> None:
    with closing(IncidentStore(path)) as incidents, closing(HistoryStore(incidents.database)) as store:
        store.write(batch_of("a", 1))
        incidents.write([], [1])
        assert [kept.run.run for kept in store.load().runs] == ["a"]


# -- what it lets go of -----------------------------------------------------------------------------------------------


def prune(store: HistoryStore, oldest_wall_s: float, bytes_max: int = 1 << 40) -> int:
    """All that there is to let go of; how many turns that took."""
    turns = 0
    while store.prune(oldest_wall_s, bytes_max):
        turns += 1
        assert turns < 1_000
    return turns


def test_old_steps_and_intervals_are_deleted(store: HistoryStore, path: Path) -> None:
    batch = batch_of("a", 1, 2, 3)
    for begin in (WALL_S - 60.0, WALL_S):
        batch.add_interval("a", interval_of(begin))
    store.write(batch)
    prune(store, WALL_S + 2.5)
    assert steps_in(path, "a") == [3]
    with opening_run(path, "a") as history:
        assert [interval.begin_wall_s for interval in history.read_intervals()] == [WALL_S]


def test_run_is_deleted_with_the_last_of_its_history(store: HistoryStore, path: Path) -> None:
    for name in ("over", "known"):
        batch = batch_of(name, 1)
        batch.collectives[name] = counted()
        store.write(batch)
    gone = WriteBatch()
    gone.forget("over")
    store.write(gone)
    prune(store, WALL_S + 1_000.0)
    with pytest.raises(UnavailableError, match=r"no run 'over' is known to .*\. It has 'known'\."):
        steps_in(path, "over")
    assert steps_in(path, "known") == []
    assert store._connection.execute("SELECT count(*) FROM lives").fetchone() == (2,)
    assert store._connection.execute("SELECT count(*) FROM collectives").fetchone() == (1,)


def test_full_file_deletes_oldest_runs_without_history(store: HistoryStore, path: Path) -> None:
    """A name that comes again every few seconds: runs that end before their first step leave a row for each rank."""
    runs = [f"bert@20261125T1030{second:02}Z" for second in range(20)]
    for number, run in enumerate(runs):
        batch = batch_of(run)
        batch.put_run(run_of(run, changed_wall_s=WALL_S + number))
        store.write(batch)
    forgotten = WriteBatch()
    for run in runs[:-1]:
        forgotten.forget(run)
    store.write(forgotten)
    prune(store, 0.0, bytes_max=1)
    with opening_run(path, "bert") as history:
        assert history.kept.run.run == runs[-1]
    assert store._connection.execute("SELECT count(*) FROM runs").fetchone() == (1,)
    assert store._connection.execute("SELECT count(*) FROM lives").fetchone() == (2,)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("bert", "bert@20261125T113005Z"),
        ("bert@20261125T103005Z", "bert@20261125T103005Z"),
        ("bert@large", "bert@large@20261125T120000Z"),
        ("t5", "t5"),
    ],
)
def test_name_is_the_latest_run_of_that_name_and_an_id_that_run(
    store: HistoryStore, path: Path, asked: str, found: str
) -> None:
    """Of t5 there is one that an early collector saved under its name."""
    times = {"bert": ("103005", "113005"), "bert@large": ("120000",), "bertha": ("130000",)}
    ids = [f"{name}@20261125T{time}Z" for name, begun in times.items() for time in begun]
    for run in (*ids, "t5"):
        store.write(batch_of(run, 1))
    with opening_run(path, asked) as history:
        assert history.kept.run.run == found


def test_too_large_file_deletes_the_oldest_history_first(store: HistoryStore, path: Path) -> None:
    for name in ("a", "b"):
        store.write(batch_of(name, *range(2_000)))
    before = store.bytes_used
    prune(store, 0.0, bytes_max=before // 2)
    assert store.bytes_used <= before // 2
    for name in ("a", "b"):
        steps = steps_in(path, name)
        assert 100 < len(steps) < 1_100
        assert steps == list(range(2_000 - len(steps), 2_000))


def test_steps_of_one_time_do_not_keep_the_file_too_large(store: HistoryStore) -> None:
    store.write(batch_of("a", *range(500), wall_s=WALL_S))
    assert prune(store, 0.0, bytes_max=1) <= 2
    assert store._connection.execute("SELECT count(*) FROM steps").fetchone() == (0,)


# -- reading ----------------------------------------------------------------------------------------------------------


def test_curve_merges_steps_and_never_attempts(store: HistoryStore, path: Path) -> None:
    batch = WriteBatch()
    batch.put_run(run_of("a", attempt=1))
    for number in range(6):
        batch.add_step("a", step_of(number, attempt=0, longest_ns=(number + 1) * S))
    for number in range(2):
        batch.add_step("a", step_of(number, attempt=1))
    store.write(batch)
    with opening_run(path, "a") as history:
        points = history.read_curve(2)
        assert len(history.read_curve(100)) == 8
        assert [point.first_step for point in history.read_curve(100, WALL_S + 4)] == [4, 5]
    assert [(point.attempt, point.first_step, point.last_step, point.steps) for point in points] == [
        (0, 0, 3, 4), (0, 4, 5, 2), (1, 0, 1, 2),
    ]  # fmt: skip
    assert points[0] == CurvePoint(
        attempt=0, first_step=0, last_step=3, steps=4, wall_s=WALL_S + 3, median_ns=S, longest_ns=4 * S
    )


def test_steps_are_read_as_written(store: HistoryStore, path: Path) -> None:
    store.write(batch_of("a", 7))
    with opening_run(path, "a") as history:
        assert list(history.read_steps()) == [step_of(7)]
        assert history.kept.run == run_of("a")


def test_only_the_last_intervals_are_read_on_request(store: HistoryStore, path: Path) -> None:
    batch = batch_of("a")
    for minute in range(4):
        batch.add_interval("a", interval_of(WALL_S + 60.0 * minute))
    store.write(batch)
    store._connection.execute("UPDATE rank_intervals SET body = x'00' WHERE begin_wall_s = ?", (WALL_S + 180.0,))
    with opening_run(path, "a") as history:
        assert [one.begin_wall_s - WALL_S for one in history.read_intervals(3)] == [60.0, 120.0]


def test_unreadable_phases_are_empty(store: HistoryStore, path: Path) -> None:
    store.write(batch_of("a", 7))
    store._connection.execute("UPDATE steps SET phases_ns = ''")
    with opening_run(path, "a") as history:
        assert [step.phases_ns for step in history.read_steps()] == [{}]


def test_run_with_an_unreadable_row_is_an_error(store: HistoryStore, path: Path) -> None:
    store.write(batch_of("a"))
    store._connection.execute("UPDATE runs SET body = '{}'")
    with pytest.raises(UnavailableError, match=r"run 'a' in .* cannot be read: .* Use the release that wrote it"):
        steps_in(path, "a")


def test_store_without_runs_is_an_error(store: HistoryStore, path: Path) -> None:
    assert store.load().runs == ()
    with pytest.raises(UnavailableError, match=r"no run 'a' is known to .*\. It has none yet\."):
        steps_in(path, "a")


# -- versions ---------------------------------------------------------------------------------------------------------


def test_the_first_released_version_with_a_history_is_read(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        for statement in VERSION_2:
            connection.execute(statement)
        connection.commit()
    assert steps_in(path, "old") == [0]
    with closing(Database(path)) as database, closing(HistoryStore(database)) as store:
        (kept,), rows_unreadable = store.load()
    assert (kept.run.run, kept.story.former_boots, rows_unreadable) == ("old", ("boot-old",), 0)
    assert [(life.hello.identity.node, life.last_sequence) for life in kept.ranks] == [("node-a", 4)]


def test_older_file_is_migrated_and_keeps_its_incidents(path: Path) -> None:
    Database(path, MIGRATIONS[:1]).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("INSERT INTO incidents VALUES (5, 'old', 'open', 'warning', 1.0, NULL, '{}')")
        connection.commit()
    with pytest.raises(UnavailableError, match="holds no history yet"):
        steps_in(path, "old")
    with closing(Database(path)) as database, closing(HistoryStore(database)) as store:
        store.write(batch_of("a", 1))
        assert database.connection.execute("SELECT id FROM incidents").fetchall() == [(5,)]
    assert steps_in(path, "a") == [1]


def test_a_large_file_is_checked_by_table(store: HistoryStore, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write(batch_of("a", *range(200)))
    monkeypatch.setattr("rankscope.collector.storage.database.CHECKED_BYTES_MAX", 0)
    assert len(steps_in(path, "a")) == 200
