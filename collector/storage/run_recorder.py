"""Write runs and their history to the store from a thread of its own, with the changes of each tick.

The collector's loop never waits for the disk: it queues its changes, which accumulate while a write is in progress.
While nothing can be written the collector continues in memory, reports it, tries again every RETRY_S, and then writes
everything that was not dropped meanwhile (`write_batch.py`).

/metrics shows the latest snapshot whose counters are in the store, usually that of the last tick. So no counter of a
live run is ever seen to decrease, also when the collector is killed between two ticks and restarted. A snapshot that
is EXPORT_LAG_S_MAX old is replaced by the present one: frozen numbers would be worse.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from rankscope.collector.config import CollectorConfig
from rankscope.collector.fault_log import FaultLog
from rankscope.collector.process_tuning import name_this_thread
from rankscope.collector.runs.clock_alignment import Clocks
from rankscope.collector.runs.run import RunState
from rankscope.collector.runs.snapshot import Snapshot
from rankscope.collector.storage.database import StoreDatabase
from rankscope.collector.storage.file_watch import StoreLoss
from rankscope.collector.storage.rank_intervals import RankIntervals
from rankscope.collector.storage.run_changes import Changes, RunChanges
from rankscope.collector.storage.run_store import HistoryStore, KeptRun
from rankscope.collector.storage.store_calls import RETRY_S, STUCK_S
from rankscope.collector.storage.store_errors import DamagedStoreError, RefusedRowError
from rankscope.collector.storage.write_batch import WriteBatch
from rankscope.measure.clock import SystemClock
from rankscope.measure.errors import UnavailableError

LOG = logging.getLogger("rankscope.collector")

PRUNE_S: Final = 30.0
"""Time between two deletions of rows that are too old or too many."""
EXPORT_LAG_S_MAX: Final = 10.0
"""Shorter than the usual scrape interval of 15 s, and longer than a write of many ranks."""
CHECK_S: Final = 60.0
"""Time between two checks of the file's content, each 0.2 s at most (storage/database.py)."""
END_S_MAX: Final = 10.0
"""Longest wait for the last write when the collector ends."""
STORE: Final = "history_store"
"""Label of failures of the store, and of unreadable rows, in the counts of errors."""
RUN: Final = "history_run"
"""Label of runs that could not be handed to the store, in the counts of errors."""


class StoreCounts(NamedTuple):
    """Used bytes of the store, and rows of the history that were dropped while it could not be written."""

    bytes_used: int
    rows_dropped: int


class UnwrittenState(NamedTuple):
    """State of a recorder whose store was lost: pending changes, open intervals, and the last exported snapshot."""

    batch: WriteBatch
    intervals: RankIntervals
    shown: Snapshot | None

    def choose_exported(self, present: Snapshot) -> Snapshot:
        """Return the snapshot for /metrics until there is another recorder: the last exported one, or the present."""
        return present if self.shown is None or is_too_old(self.shown, present) else self.shown


def is_too_old(snapshot: Snapshot, present: Snapshot) -> bool:
    """Return whether /metrics replaces a snapshot by the present one, also because the wall clock was set back."""
    return not 0.0 <= present.wall_s - snapshot.wall_s < EXPORT_LAG_S_MAX


class Recorder:
    """Writes the runs of the collector's loop, which calls `tick`. `count` is called with the label of each error,
    `on_written` by its thread after each write.
    """

    def __init__(
        self,
        database: StoreDatabase,
        config: CollectorConfig,
        count: Callable[[str], object],
        on_written: Callable[[], object] = lambda: None,
    ) -> None:
        """Open another connection, for the thread. Raises UnavailableError when that fails."""
        self._database = database
        self._store = HistoryStore(database)
        self._config = config
        self._count = count
        self._on_written = on_written
        self._intervals = RankIntervals(config.history_interval_s)
        self._changes = RunChanges()
        self._changed = threading.Condition()
        self._pending = WriteBatch()
        self._has_pending = self._is_ending = False
        self._problem: str | None = None
        self._begun_s: float | None = None
        """When the write began that is in progress."""
        self._lost: StoreLoss | None = None
        self._checked_s = time.monotonic()
        self._bytes_used = 0
        self._pruned_wall_s: float | None = None
        self._written: Snapshot | None = None
        self._exported: Snapshot | None = None
        self._failures_counted = self._failures = 0
        self._faults = FaultLog(SystemClock())
        """Logs the errors that `count` counts, one of a kind a minute."""
        self._thread = threading.Thread(target=self._work, name="rankscope-store", daemon=True)

    # -- the collector's loop -----------------------------------------------------------------------------------------

    def load(self) -> tuple[KeptRun, ...]:
        """Return the runs that the last collector still knew. Call it before `start`."""
        try:
            loaded = self._store.load()
        except UnavailableError as error:
            self._count(STORE)
            LOG.error("%s No run was restored.", error)  # noqa: TRY400 - expected
            return ()
        if loaded.rows_unreadable:
            self._count(STORE)
            LOG.error("skipped %d unreadable rows of the store", loaded.rows_unreadable)
        return loaded.runs

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def resume(self, unwritten: UnwrittenState) -> None:
        """Take over the unwritten state of the recorder of a lost store. Call it before `start`."""
        self._pending.merge_earlier(unwritten.batch)
        self._pending.dropped = unwritten.batch.dropped
        self._intervals, self._exported = unwritten.intervals, unwritten.shown

    def abandon(self) -> UnwrittenState:
        """End after the store was lost, and return the state for the next recorder."""
        self._thread.join()
        self._store.close()
        return UnwrittenState(self._pending, self._intervals, self._exported)

    def tick(self, runs: Iterable[RunState], snapshot: Snapshot, clocks: Clocks, *, is_last: bool = False) -> None:
        """Queue the changes of all runs. `snapshot` has the same state as `runs`."""
        found: list[Changes] = []
        for run in runs:
            with self._containing(run.run):
                changes = self._changes.find(run, clocks, is_last=is_last)
                if changes is not None:
                    found.append(changes)
        with self._changed:
            for changes in found:
                self._changes.put(changes, self._pending)
            self._pending.snapshot = snapshot
            self._has_pending = True
            self._changed.notify()
            failures = self._failures
        # Intervals of all ranks take long, and /metrics waits for the write: they are queued for the next one.
        for changes in found:
            with self._containing(changes.saved.run):
                self._queue_interval(changes, snapshot, clocks, is_last=is_last or changes.saved.is_over)
        for _ in range(failures - self._failures_counted):
            self._count(STORE)
        self._failures_counted = failures

    @contextlib.contextmanager
    def _containing(self, run: str) -> Iterator[None]:
        """Contain a fault in the state of one run, so that the others are written."""
        try:
            yield
        except Exception:  # noqa: BLE001 - it is noted
            self._count(RUN)
            self._faults.note(RUN, "could not be handed to the store; continuing with the other runs", run=run)

    def _queue_interval(self, changes: Changes, snapshot: Snapshot, clocks: Clocks, *, is_last: bool) -> None:
        run, attempt = changes.saved.run, changes.saved.attempt
        # Checked first, since a summary of all ranks is expensive.
        if not self._intervals.is_due(run, attempt, clocks.wall_s, is_last=is_last):
            return
        interval = self._intervals.update(snapshot.summarize_run(run), attempt, clocks.wall_s, is_last=is_last)
        if interval is not None:
            with self._changed:
                self._pending.add_interval(run, interval)

    def forget(self, run: str) -> None:
        """Forget a run that the collector has forgotten; its history stays."""
        with self._changed:
            self._pending.forget(run)
        self._intervals.forget(run)
        self._changes.forget(run)

    def shut_down(self) -> None:
        """Write the pending changes once, and end. Runs stay known, and the next collector restores them."""
        with self._changed:
            self._is_ending = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(END_S_MAX)
        if not self._thread.is_alive():
            self._store.close()

    # -- any thread ---------------------------------------------------------------------------------------------------

    @property
    def problem(self) -> str | None:
        """Why the last write failed, or that one takes too long; None when it succeeded."""
        begun_s = self._begun_s
        if begun_s is not None and time.monotonic() - begun_s >= STUCK_S:
            return f"the store has not answered for {STUCK_S:g} s"
        return self._problem

    @property
    def lost(self) -> StoreLoss | None:
        """Why this recorder has stopped and must be replaced by one for another file; None while it works."""
        return self._lost

    @property
    def counts(self) -> StoreCounts:
        """Size of the store, and dropped rows."""
        return StoreCounts(self._bytes_used, self._pending.dropped)

    def choose_exported(self, present: Snapshot) -> Snapshot:
        """Return the snapshot for /metrics: the last written one, or the present one while writes fail or where that is
        too old; never an older one than was exported before.

        When the store was lost, the last exported one stays until another is in the new file, for EXPORT_LAG_S_MAX at
        most.
        """
        with self._changed:
            latest = self._written or self._exported
            is_failing = self._problem is not None and self._lost is None
            chosen = present if latest is None or is_failing or is_too_old(latest, present) else latest
            if self._exported is not None and chosen.wall_s < self._exported.wall_s <= present.wall_s:
                chosen = self._exported
            self._exported = chosen
            return chosen

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        name_this_thread("store")
        while True:
            with self._changed:
                pause_s = RETRY_S if self._problem is not None else None
                if pause_s is not None:
                    self._changed.wait_for(lambda: self._is_ending, pause_s)
                self._changed.wait_for(lambda: self._is_ending or self._has_pending)
                batch, is_ending = self._pending, self._is_ending
                self._pending, self._has_pending = WriteBatch(), False
                self._pending.dropped = batch.dropped
            self._begun_s = time.monotonic()
            self._write(batch)
            self._begun_s = None
            if is_ending or self._lost is not None:
                return
            if self._problem is None and batch.snapshot is not None:
                self._prune(batch.snapshot.wall_s)

    def _write(self, batch: WriteBatch) -> None:
        try:
            lost = self._find_loss()
            if lost is None:
                self._store.write(batch)
        except DamagedStoreError as error:
            lost = self._database.explain_damage(error)
        except Exception as error:  # noqa: BLE001 - no error may end the thread
            is_own_fault = isinstance(error, RefusedRowError) or not isinstance(error, UnavailableError)
            if is_own_fault:
                self._faults.note(STORE, "the history could not be written, because of a bug of the collector")
            self._fail(str(error))
            self._requeue(batch, keep_rows=not is_own_fault)
            return
        if lost is not None:
            self._lost = lost  # before the problem, so that the exported snapshot stays
            self._fail(lost.text)
            self._requeue(batch)
            return
        if self._problem is not None:
            LOG.warning("the store is writable again; runs and their history are written to it")
        with self._changed:
            self._problem, self._written = None, batch.snapshot or self._written
        self._on_written()

    def _find_loss(self) -> StoreLoss | None:
        lost = self._database.find_loss()
        if lost is None and time.monotonic() - self._checked_s >= CHECK_S:
            lost = self._database.check_content()
            self._checked_s = time.monotonic()
        return lost

    def _requeue(self, batch: WriteBatch, *, keep_rows: bool = True) -> None:
        """Queue a batch again; without its rows of history where one of them may be the cause of the failure."""
        with self._changed:
            if not keep_rows:
                self._pending.dropped += batch.drop_rows()
            self._pending.merge_earlier(batch)
            self._has_pending = True

    def _fail(self, problem: str) -> None:
        if self._problem is None:
            LOG.error("%s Until the store is writable again, runs and their history are kept in memory.", problem)
        self._problem = problem
        self._failures += 1

    def _prune(self, now_wall_s: float) -> None:
        # A wall clock that was set back must not delay it.
        if self._pruned_wall_s is not None and 0.0 <= now_wall_s - self._pruned_wall_s < PRUNE_S:
            return
        self._pruned_wall_s = now_wall_s
        oldest_wall_s = now_wall_s - self._config.history_kept_s
        try:
            # In short transactions, between which pending changes are written.
            while self._store.prune(oldest_wall_s, self._config.history_bytes_max):
                if self._has_pending:
                    break
            self._bytes_used = self._store.bytes_used
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(str(error))
