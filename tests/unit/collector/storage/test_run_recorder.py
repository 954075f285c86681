"""The thread that writes runs to the store, and the loop that never waits for it."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
import pytest

from rankscope.collector.config import CollectorConfig
from rankscope.collector.runs.clock_alignment import Clocks
from rankscope.collector.runs.rank import RankState, SavedRank
from rankscope.collector.runs.run import RunState
from rankscope.collector.runs.saved_runs import restore_run
from rankscope.collector.runs.snapshot import Snapshot
from rankscope.collector.storage import run_changes, run_recorder
from rankscope.collector.storage.database import Database
from rankscope.collector.storage.run_reader import opening_run
from rankscope.collector.storage.run_recorder import EXPORT_LAG_S_MAX, Recorder
from rankscope.collector.storage.run_store import HistoryStore
from rankscope.collector.storage.write_batch import WriteBatch
from tests.unit.collector.runs.kept_runs import run_of, step_of
from tests.unit.collector.runs.run_stories import S, Story

DEADLINE_S = 300.0
WALL_S = 1_800_000_000.0
TICKS_TO_FILL = 12
"""Of 50 steps each: several times the pages that a store without room has left."""


class Loop:
    """What the collector's loop does with a recorder."""

    def __init__(self, path: Path, **settings: float) -> None:
        self.database = Database(path)
        self.counted: list[str] = []
        config = CollectorConfig(**settings)  # type: ignore[arg-type]
        self.recorder = Recorder(self.database, config, self.counted.append)

    def tick(self, story: Story, *, is_last: bool = False) -> Snapshot:
        """Hand the story over as it is now."""
        clocks = Clocks(story.now_ns, WALL_S + story.now_ns / S)
        snapshot = Snapshot(wall_s=clocks.wall_s, version="0", runs=(story.snapshot(),))
        self.recorder.tick([story.run], snapshot, clocks, is_last=is_last)
        return snapshot

    def tick_until(self, story: Story, is_so: Callable[[], bool]) -> Snapshot:
        """Tick until something is so; fails after a deadline."""
        pause, left = threading.Event(), round(DEADLINE_S / 0.02)
        snapshot = self.tick(story)
        while not is_so():
            left -= 1
            assert left, "not within the deadline"
            pause.wait(0.02)
            snapshot = self.tick(story.tick(0.1))
        return snapshot

    def wait_until_kept(self, snapshot: Snapshot) -> None:
        """Until that picture is in the store."""
        pause = threading.Event()
        for _ in range(round(DEADLINE_S / 0.02)):
            if self.recorder.choose_exported(snapshot) is snapshot and self.recorder._written is snapshot:
                return
            pause.wait(0.02)
        pytest.fail("not written within the deadline")


@contextmanager
def looping(path: Path, *, start: bool = True, **settings: float) -> Iterator[Loop]:
    """A loop with its recorder, which writes unless told otherwise."""
    loop = Loop(path, **settings)
    if start:
        loop.recorder.start()
    try:
        yield loop
    finally:
        loop.recorder.shut_down()
        loop.database.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where there is no file yet."""
    return tmp_path / "store.db"


def load(path: Path) -> list[tuple[str, int, int]]:
    """The runs in the file that a next collector goes on with: their names, lives and steps in the history."""
    with closing(Database(path)) as database, closing(HistoryStore(database)) as store:
        names = [(kept.run.run, len(kept.ranks)) for kept in store.load().runs]
    found = []
    for name, lives in names:
        with opening_run(path, name) as history:
            found.append((name, lives, len(list(history.read_steps()))))
    return found


def fill_up(loop: Loop, pages_more: int = 0) -> None:
    """The file may grow by so many pages and no more, as on a full disk."""
    connection = loop.recorder._store._connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages + pages_more}")


def test_queued_changes_are_in_the_file_at_the_end(path: Path) -> None:
    story = Story(3).join().train(20)
    with looping(path) as loop:
        loop.tick(story)
        loop.tick(story.train(5))
    assert load(path) == [("story", 3, 25)]


def test_lock_is_free_while_changes_of_ranks_are_found(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story(2).join().train(1)
    clocks = Clocks(story.now_ns, WALL_S)
    snapshot = Snapshot(wall_s=WALL_S, version="0", runs=(story.snapshot(),))
    answers: list[Snapshot] = []
    save = RankState.save

    def save_after_asking(rank: RankState, clocks: Clocks) -> SavedRank:
        asking = threading.Thread(target=lambda: answers.append(loop.recorder.choose_exported(snapshot)), daemon=True)
        asking.start()
        asking.join(DEADLINE_S)
        return save(rank, clocks)

    with looping(path) as loop:
        monkeypatch.setattr(RankState, "save", save_after_asking)
        loop.recorder.tick([story.run], snapshot, clocks, is_last=True)
    assert answers == [snapshot] * 2
    assert load(path) == [("story", 2, 1)]


def test_the_last_tick_keeps_a_short_interval_too(path: Path) -> None:
    story = Story(2).join().train(20)
    with looping(path) as loop:
        loop.tick(story)
        loop.tick(story.train(5), is_last=True)
    with opening_run(path, "story") as history:
        (interval,) = history.read_intervals()
    assert interval.columns["steps"].tolist() == [5.0, 5.0]


def test_forgotten_run_is_not_restored(path: Path) -> None:
    story = Story(2).join().train(20)
    with looping(path) as loop:
        loop.tick(story)
        loop.recorder.forget("story")
    assert load(path) == []
    with opening_run(path, "story") as history:
        assert len(list(history.read_steps())) == 20


def test_rank_is_written_on_change_or_with_old_totals(path: Path) -> None:
    story = Story(2).join().train(20)
    with looping(path, start=False) as loop:
        loop.tick(story)
        assert len(loop.recorder._pending.ranks) == 2
        loop.recorder._pending.ranks.clear()
        loop.tick(story.tick(1.0))
        assert loop.recorder._pending.ranks == {}
        story.say_goodbye(1)
        loop.tick(story.tick(1.0))
        assert list(loop.recorder._pending.ranks) == [("story", 1)]
        loop.tick(story.tick(run_changes.REFRESH_S))
        assert len(loop.recorder._pending.ranks) == 2


def test_ranks_with_old_totals_are_written_in_parts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_changes, "REFRESH_S", 1.0)  # before a rank counts as silent
    monkeypatch.setattr(run_changes, "REFRESHED_MAX", 8)
    ranks = run_changes.REFRESHED_MAX + 3
    story = Story(ranks).join().train(1)
    with looping(path, start=False) as loop:
        loop.tick(story)
        waiting = loop.recorder._pending.ranks
        assert len(waiting) == ranks, "what is new waits for nothing"
        written = []
        for pause_s in (1.0, 0.0, 0.0):
            waiting.clear()
            loop.tick(story.tick(pause_s))
            written.append(sorted(rank for _, rank in waiting))
    first = list(range(run_changes.REFRESHED_MAX))
    assert written == [first, list(range(len(first), ranks)), []]


def test_oldest_totals_are_written_with_new_collectives(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_changes, "REFRESHED_MAX", 2)
    story = Story(3).join().train(20)
    with looping(path, start=False) as loop:
        loop.tick(story)
        waiting = loop.recorder._pending.ranks
        written = []
        for _ in range(3):
            waiting.clear()
            loop.tick(story.train(20))
            written.append(sorted(rank for _, rank in waiting))
    assert written == [[0, 1], [0, 2], [0, 1]]


def test_collectives_are_written_when_there_are_more(path: Path) -> None:
    story = Story(2).join().train(20)
    with looping(path, start=False) as loop:
        loop.tick(story)
        waiting = loop.recorder._pending.collectives
        assert list(waiting) == ["story"]
        waiting.clear()
        loop.tick(story.tick(1.0))
        assert waiting == {}
        loop.tick(story.train(20))
        assert list(waiting) == ["story"]


def test_next_collector_restores_the_collectives(path: Path) -> None:
    story = Story(2).join().train(20)
    with looping(path) as loop:
        loop.tick(story)
        loop.tick(story.train(20))
    counted = story.snapshot().ranks[1].collectives
    with looping(path, start=False) as loop:
        (kept,) = loop.recorder.load()
    clocks = Clocks(story.now_ns, WALL_S + story.now_ns / S)
    job = restore_run(CollectorConfig(), kept.run, kept.story, kept.ranks, clocks, collectives=kept.collectives)
    restored = job.snapshot(story.now_ns).ranks[1].collectives
    assert [(one.op, one.count, one.wait_ns) for one in restored] == [
        (one.op, one.count, one.wait_ns) for one in counted
    ]
    assert restored[0].count == 40


class Broken(RunState):
    """A run with a mistake of ours in it."""

    def flush_reports(self, *, steps_max: int | None = None) -> None:  # noqa: ARG002 - the signature of the method
        raise ZeroDivisionError


def test_run_that_cannot_be_saved_costs_the_others_nothing(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    story, broken = Story(2).join().train(20), Broken("broken", CollectorConfig())
    clocks = Clocks(story.now_ns, WALL_S)
    pictures = (RunState("broken", CollectorConfig()).snapshot(story.now_ns), story.snapshot())
    with looping(path) as loop:
        for _ in range(2):
            loop.recorder.tick([broken, story.run], Snapshot(wall_s=WALL_S, version="0", runs=pictures), clocks)
        assert loop.counted == ["history_run"] * 2
    assert load(path) == [("story", 2, 20)]
    assert (
        len([message for message in caplog.messages if "run 'broken': could not be handed to the store" in message])
        == 1
    )


# -- what /metrics shows ----------------------------------------------------------------------------------------------


def test_metrics_show_only_written_snapshots(path: Path) -> None:
    story = Story(2).join().train(20)
    with looping(path) as loop:
        kept = loop.tick(story)
        loop.wait_until_kept(kept)
        present = Snapshot(wall_s=kept.wall_s + 1.0, version="0")
        assert loop.recorder.choose_exported(present) is kept


def test_too_old_snapshot_is_replaced_by_the_present_one(path: Path) -> None:
    story = Story(2).join().train(20)
    with looping(path) as loop:
        kept = loop.tick(story)
        loop.wait_until_kept(kept)
        late = Snapshot(wall_s=kept.wall_s + EXPORT_LAG_S_MAX, version="0")
        assert loop.recorder.choose_exported(late) is late
        later = Snapshot(wall_s=late.wall_s + 1.0, version="0")
        between = Snapshot(wall_s=late.wall_s - 1.0, version="0")
        loop.recorder._written = between
        assert loop.recorder.choose_exported(later) is late


def test_metrics_show_the_present_before_the_first_write(path: Path) -> None:
    with looping(path, start=False) as loop:
        present = loop.tick(Story(2).join().train(20))
        assert loop.recorder.choose_exported(present) is present


def test_metrics_keep_their_snapshot_after_loss_of_the_store(path: Path) -> None:
    story = Story(2).join().train(20)
    with looping(path) as loop:
        kept = loop.tick(story)
        loop.wait_until_kept(kept)
        path.unlink()
        present = loop.tick_until(story, lambda: loop.recorder.lost is not None)
        assert loop.recorder.choose_exported(present) is kept
        unwritten = loop.recorder.abandon()
        assert unwritten.choose_exported(present) is kept
        late = Snapshot(wall_s=kept.wall_s + EXPORT_LAG_S_MAX, version="0")
        assert unwritten.choose_exported(late) is late
    with looping(path.with_name("new.db"), start=False) as loop:
        loop.recorder.resume(unwritten)
        assert loop.recorder.choose_exported(present) is kept
        loop.recorder.start()
        later = loop.tick(story.tick(1.0))
        loop.wait_until_kept(later)
        assert loop.recorder.choose_exported(later) is later


def test_a_wall_clock_that_was_set_back_does_not_hold_metrics(path: Path) -> None:
    with looping(path) as loop:
        kept = loop.tick(Story(2).join().train(20))
        loop.wait_until_kept(kept)
        present = Snapshot(wall_s=kept.wall_s - 3_600.0, version="0")
        assert loop.recorder.choose_exported(present) is present


# -- when nothing can be written --------------------------------------------------------------------------------------


def test_full_disk_is_logged_once_and_then_all_is_written(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_recorder, "RETRY_S", 0.05)
    story = Story(2).join().train(20)
    with looping(path) as loop:
        loop.wait_until_kept(loop.tick(story))
        fill_up(loop)
        for _ in range(TICKS_TO_FILL):
            loop.tick(story.train(50))
        full = loop.tick_until(story, lambda: len(loop.counted) >= 2)
        assert loop.recorder.problem is not None
        assert "database or disk is full" in loop.recorder.problem
        assert loop.recorder.choose_exported(full) is full
        fill_up(loop, pages_more=10_000)
        loop.tick_until(story, lambda: loop.recorder.problem is None)
    said = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert len(said) == 1
    assert said[0].endswith("Until the store is writable again, runs and their history are kept in memory.")
    assert set(loop.counted) == {"history_store"}
    assert "the store is writable again; runs and their history are written to it" in caplog.messages
    assert load(path) == [("story", 2, 20 + TICKS_TO_FILL * 50)]


@pytest.mark.parametrize("value", [2**63, None])
def test_refused_row_costs_its_batch_and_nothing_later(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, value: int
) -> None:
    """One is larger than an integer of SQLite, the other breaks a constraint; neither is damage of the file."""
    monkeypatch.setattr(run_recorder, "RETRY_S", 0.05)
    story = Story(2).join().train(20)
    with looping(path) as loop:
        loop.wait_until_kept(loop.tick(story))
        with loop.recorder._changed:
            loop.recorder._pending.add_step("story", msgspec.structs.replace(step_of(20), longest_ns=value))
        loop.tick_until(story, lambda: loop.counted == [run_recorder.STORE])
        loop.wait_until_kept(loop.tick_until(story, lambda: loop.recorder.problem is None))
        loop.wait_until_kept(loop.tick(story.train(5)))
        assert (loop.recorder.counts.rows_dropped, loop.recorder.lost) == (1, None)
    assert "the history could not be written, because of a bug of the collector" in caplog.text
    assert load(path) == [("story", 2, 25)]


def test_end_does_not_wait_for_a_full_disk(path: Path) -> None:
    story = Story(2).join().train(20)
    with looping(path) as loop:
        loop.wait_until_kept(loop.tick(story))
        fill_up(loop)
        for _ in range(TICKS_TO_FILL):
            loop.tick(story.train(50))
        loop.tick_until(story, lambda: loop.recorder.problem is not None)
    assert not loop.recorder._thread.is_alive()
    assert load(path)[0][:2] == ("story", 2)


def test_unreadable_rows_at_the_start_are_counted_and_logged(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with looping(path) as loop:
        loop.tick(Story(2).join().train(20))
    with looping(path, start=False) as loop:
        loop.recorder._store._connection.execute("UPDATE lives SET body = '' WHERE rank = 1")
        (kept,) = loop.recorder.load()
        assert (len(kept.ranks), loop.counted) == (1, ["history_store"])
    assert "skipped 1 unreadable rows of the store" in caplog.messages


def test_unreadable_table_restores_no_run(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with looping(path, start=False) as loop:
        loop.recorder._store._connection.execute("ALTER TABLE runs RENAME COLUMN body TO theirs")
        assert (loop.recorder.load(), loop.counted) == ((), ["history_store"])
    assert "No run was restored." in caplog.text


def test_old_history_is_deleted(path: Path) -> None:
    story = Story(2).join().train(20)
    with looping(path, start=False, history_kept_s=3_600.0) as loop:
        loop.recorder._store.write(_batch_of_1970())
        loop.recorder.start()
        loop.tick_until(story, lambda: _count_steps(loop, "long ago") == 0)
    assert load(path)[-1][2] == 20


def _batch_of_1970() -> WriteBatch:
    batch = WriteBatch()
    batch.put_run(run_of("long ago", changed_wall_s=0.0))
    for number in range(5):
        batch.add_step("long ago", step_of(number, wall_s=0.0))
    return batch


def _count_steps(loop: Loop, run: str) -> int:
    query = "SELECT count(*) FROM steps JOIN runs ON runs.id = run_id WHERE run = ?"
    (count,) = loop.database.connection.execute(query, (run,)).fetchone()
    return int(count)
