"""The thread that writes runs and their history to the store, and what the collector's loop tells it once a tick.

The loop never waits for the disk: it hands over what has changed, and while a write goes on, that adds up to the next
one. When nothing can be written the collector goes on in memory, says so, tries again every RETRY_S, and then has
everything but what had to give way (`write_batch.py`).

What /metrics shows is the last picture whose counters are in the store, mostly that of the last tick. So no counter of
a live run is ever seen to go backwards, also when the collector is killed between two ticks and started again. A
picture that is EXPORT_LAG_S_MAX old is given up for the present one: numbers that stand still would be worse.
"""

import contextlib
import heapq
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from rankscope.collector.config import CollectorConfig
from rankscope.collector.fault_log import FaultLog
from rankscope.collector.pacing import ComputeSlot, GilYielder, chunked
from rankscope.collector.process_tuning import name_this_thread
from rankscope.collector.runs.checkpoint import Clocks, LazySavedRank, SavedRun, SavedStory
from rankscope.collector.runs.run import RunState
from rankscope.collector.runs.snapshot import Snapshot
from rankscope.collector.steps.collective_totals import CollectiveSums
from rankscope.collector.steps.step_aggregates import StepAggregate
from rankscope.collector.storage.database import DamagedStoreError, Database, RefusedRowError
from rankscope.collector.storage.file_watch import StoreLoss
from rankscope.collector.storage.rank_intervals import RankIntervals
from rankscope.collector.storage.run_store import HistoryStore, KeptRun
from rankscope.collector.storage.write_batch import Batch
from rankscope.measure.clock import SystemClock
from rankscope.measure.errors import UnavailableError

LOG = logging.getLogger("rankscope.collector")

RETRY_S: Final = 5.0
"""Between two tries to write while that fails: what waits is bounded, and a try costs some milliseconds."""
PRUNE_S: Final = 30.0
"""Between two looks for what is too old, or too much."""
EXPORT_LAG_S_MAX: Final = 10.0
"""Shorter than the usual scrape interval of 15 s; 8,192 lives took 0.4 to 0.7 s to write beside their reports."""
REFRESH_S: Final = 30.0
"""How old the saved totals of a life become before they are saved again, where neither its counters have changed nor
collectives of its run were counted.
"""
REFRESHED_MAX: Final = 512
"""So many of a run at a time, the oldest first: /metrics waits for what is written."""
CHECK_S: Final = 60.0
"""Between two checks of the file's content, which is read anew: 0.2 s at most (store/database.py)."""
END_S_MAX: Final = 10.0
"""How long the last write may take when the collector ends."""
STORE: Final = "history_store"
"""What a failure of the store is counted as; so are rows that cannot be read."""
RUN: Final = "history_run"
"""What a run is counted as that could not be handed over."""


class StoreCounts(NamedTuple):
    """The store about itself: the size of what it holds, and the lines of history that gave way in memory."""

    bytes_used: int
    lines_dropped: int


class _Saved(NamedTuple):
    """What a life was when it was saved, and how many steps of its run had had their collectives counted."""

    counters: tuple[object, ...]
    at_wall_s: float
    steps: int


class _Changes(NamedTuple):
    """One run, its story, and what is new of its lives and of its history. `known` is what is then in the store."""

    saved: SavedRun
    story: SavedStory
    ranks: Mapping[tuple[str, int], tuple[int, LazySavedRank]]
    collectives: CollectiveSums
    known: Mapping[tuple[str, int], _Saved]
    steps: Sequence[StepAggregate]


class UnwrittenState(NamedTuple):
    """What a recorder leaves whose store was lost: what waited, intervals begun, and the last picture shown."""

    batch: Batch
    intervals: RankIntervals
    shown: Snapshot | None

    def choose_exported(self, present: Snapshot) -> Snapshot:
        """Return the snapshot for /metrics until there is another recorder: the last one shown, or a later one."""
        return present if self.shown is None or is_too_old(self.shown, present) else self.shown


def is_too_old(snapshot: Snapshot, present: Snapshot) -> bool:
    """Return whether /metrics gives a snapshot up for the present one, also because the wall clock was set back."""
    return not 0.0 <= present.wall_s - snapshot.wall_s < EXPORT_LAG_S_MAX


class Recorder:
    """Told of everything once a tick by the collector's loop. `count` is called with what has gone wrong, each time.
    `compute_slot`: with whom its thread takes turns.
    """

    def __init__(
        self,
        database: Database,
        config: CollectorConfig,
        count: Callable[[str], object],
        *,
        compute_slot: ComputeSlot = contextlib.nullcontext,
    ) -> None:
        """Open the file once more, for the thread. Raises UnavailableError when that cannot be done."""
        self._database = database
        self._store = HistoryStore(database)
        self._config = config
        self._count = count
        self._turns = GilYielder(compute_slot)
        self._intervals = RankIntervals(config.history_interval_s)
        self._lives: dict[tuple[str, int], _Saved] = {}
        self._stories: dict[str, SavedStory] = {}
        self._collectives: dict[str, tuple[int, int]] = {}
        """Of each run the attempt whose collectives were handed over last, and how many steps were counted then."""
        self._changed = threading.Condition()
        self._waiting = Batch()
        self._has_waiting = self._is_ending = False
        self._problem: str | None = None
        self._lost: StoreLoss | None = None
        self._checked_s = time.monotonic()
        self._bytes_used = 0
        self._pruned_wall_s: float | None = None
        self._kept: Snapshot | None = None
        self._shown: Snapshot | None = None
        self._failures_counted = self._failures = 0
        self._faults = FaultLog(SystemClock())
        """Logs what `count` counts, one of a kind a minute."""
        self._thread = threading.Thread(target=self._work, name="rankscope-store", daemon=True)

    # -- the collector's loop -----------------------------------------------------------------------------------------

    def load(self) -> tuple[KeptRun, ...]:
        """The runs that the last collector still knew. Before `start`."""
        try:
            loaded = self._store.load()
        except UnavailableError as error:
            self._count(STORE)
            LOG.error("%s No run is gone on with.", error)  # noqa: TRY400 - said
            return ()
        if loaded.rows_unreadable:
            self._count(STORE)
            LOG.error("rows of the store that cannot be read and are left out: %d", loaded.rows_unreadable)
        return loaded.runs

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def resume(self, unwritten: UnwrittenState) -> None:
        """Write also what the recorder of a lost store could not. Before `start`."""
        self._waiting.take_back(unwritten.batch)
        self._waiting.dropped = unwritten.batch.dropped
        self._intervals, self._shown = unwritten.intervals, unwritten.shown

    def abandon(self) -> UnwrittenState:
        """End, when the store is lost, and return what another recorder is to go on with."""
        self._thread.join()
        self._store.close()
        return UnwrittenState(self._waiting, self._intervals, self._shown)

    def tick(self, jobs: Iterable[RunState], snapshot: Snapshot, clocks: Clocks, *, is_last: bool = False) -> None:
        """Hand over what has changed. `snapshot` is of the same moment as the jobs."""
        found: list[_Changes] = []
        for job in jobs:
            with self._containing(job.run):
                changes = self._find_changes(job, clocks, is_last=is_last)
                if changes is not None:
                    found.append(changes)
        with self._changed:
            for changes in found:
                self._put(changes)
            self._waiting.snapshot = snapshot
            self._has_waiting = True
            self._changed.notify()
            failures = self._failures
        # Of all ranks this takes long, and /metrics waits for what was handed over: it is written with what comes next.
        for changes in found:
            with self._containing(changes.saved.run):
                self._hand_interval_over(changes.saved, snapshot, clocks, is_last=is_last or changes.saved.is_over)
        for _ in range(failures - self._failures_counted):
            self._count(STORE)
        self._failures_counted = failures

    @contextlib.contextmanager
    def _containing(self, run: str) -> Iterator[None]:
        """A mistake of ours about one run is that run's alone."""
        try:
            yield
        except Exception:  # noqa: BLE001 - it is noted
            self._count(RUN)
            self._faults.note(RUN, "could not be handed to the store; the others are", run=run)

    def _hand_interval_over(self, saved: SavedRun, snapshot: Snapshot, clocks: Clocks, *, is_last: bool) -> None:
        run, attempt = saved.run, saved.attempt
        # Asked first, so that nobody has to summarize all ranks for nothing.
        if not self._intervals.is_due(run, attempt, clocks.wall_s, is_last=is_last):
            return
        interval = self._intervals.look(snapshot.summarize_run(run), attempt, clocks.wall_s, is_last=is_last)
        if interval is not None:
            with self._changed:
                self._waiting.add_interval(run, interval)

    def _find_changes(self, job: RunState, clocks: Clocks, *, is_last: bool) -> _Changes | None:
        run, steps = job.run, job.collect_finished_steps(clocks.wall_s)
        saved = job.save(clocks)
        if saved is None:
            return None
        story = job.save_story()
        lives, known, old = {}, {}, []
        ranks, collectives = job.lives, job.save_collectives()
        changed = []
        for number, rank in chunked(ranks.items(), job.rest):
            before = self._lives.get((run, number))
            if is_last or before is None or before.counters != rank.counters:
                changed.append(number)
            elif before.steps != collectives.steps or self._is_old(before, clocks.wall_s):
                old.append((before.at_wall_s, number))
        changed += [number for _, number in heapq.nsmallest(REFRESHED_MAX, old)]
        for number in chunked(changed, job.rest):
            lives[run, number] = saved.attempt, job.save_rank(ranks[number], clocks)
            known[run, number] = _Saved(ranks[number].counters, clocks.wall_s, collectives.steps)
        return _Changes(saved, story, lives, collectives, known, steps)

    def _put(self, changes: _Changes) -> None:
        """Into what waits, whose lock is held."""
        waiting, run = self._waiting, changes.saved.run
        waiting.put_run(changes.saved)
        if self._stories.get(run) != changes.story:
            waiting.stories[run] = self._stories[run] = changes.story
        counted = changes.saved.attempt, changes.collectives.steps
        if self._collectives.get(run) != counted:
            waiting.collectives[run], self._collectives[run] = changes.collectives, counted
        waiting.ranks.update(changes.ranks)
        self._lives.update(changes.known)
        for step in changes.steps:
            waiting.add_step(run, step)

    def _is_old(self, saved: _Saved, wall_s: float) -> bool:
        # A wall clock that has jumped back must not put it off.
        return not 0.0 <= wall_s - saved.at_wall_s < REFRESH_S

    def forget(self, run: str) -> None:
        """The collector no longer knows the run; its history stays."""
        with self._changed:
            self._waiting.forget(run)
        self._intervals.forget(run)
        self._stories.pop(run, None)
        self._collectives.pop(run, None)
        self._lives = {key: saved for key, saved in self._lives.items() if key[0] != run}

    def shut_down(self) -> None:
        """Write what waits, once, and end. Runs stay known: the next collector goes on with them."""
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
        """Why nothing can be written at the moment; None when all is well."""
        return self._problem

    @property
    def lost(self) -> StoreLoss | None:
        """Why this recorder will write nothing more and is to be replaced by one for another file; None otherwise."""
        return self._lost

    @property
    def counts(self) -> StoreCounts:
        """The store about itself."""
        return StoreCounts(self._bytes_used, self._waiting.dropped)

    def choose_exported(self, present: Snapshot) -> Snapshot:
        """The picture for /metrics: the last one that is kept, and never one older than was shown before.

        When the store was lost, the last one shown stays until one is in the new file, EXPORT_LAG_S_MAX at most.
        """
        with self._changed:
            held = self._kept or self._shown
            is_failing = self._problem is not None and self._lost is None
            chosen = present if held is None or is_failing or is_too_old(held, present) else held
            if self._shown is not None and chosen.wall_s < self._shown.wall_s <= present.wall_s:
                chosen = self._shown
            self._shown = chosen
            return chosen

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        name_this_thread("store")
        while True:
            with self._changed:
                pause_s = RETRY_S if self._problem is not None else None
                if pause_s is not None:
                    self._changed.wait_for(lambda: self._is_ending, pause_s)
                self._changed.wait_for(lambda: self._is_ending or self._has_waiting)
                batch, is_ending = self._waiting, self._is_ending
                self._waiting, self._has_waiting = Batch(), False
                self._waiting.dropped = batch.dropped
            self._write(batch)
            if is_ending or self._lost is not None:
                return
            if self._problem is None and batch.snapshot is not None:
                self._prune(batch.snapshot.wall_s)

    def _write(self, batch: Batch) -> None:
        try:
            lost = self._find_loss()
            if lost is None:
                self._store.write(batch, self._turns)
                self._bytes_used = self._store.bytes_used
        except DamagedStoreError as error:
            lost = self._database.explain_damage(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, it may not end the thread
            is_own_fault = isinstance(error, RefusedRowError) or not isinstance(error, UnavailableError)
            if is_own_fault:
                self._faults.note(STORE, "history could not be written: a fault of the collector's own")
            self._fail(str(error))
            self._take_back(batch, keep_lines=not is_own_fault)
            return
        if lost is not None:
            self._lost = lost  # before the problem: what is shown stays
            self._fail(lost.text)
            self._take_back(batch)
            return
        if self._problem is not None:
            LOG.warning("runs and their history are written to the store again")
        with self._changed:
            self._problem, self._kept = None, batch.snapshot or self._kept

    def _find_loss(self) -> StoreLoss | None:
        lost = self._database.find_loss()
        if lost is None and time.monotonic() - self._checked_s >= CHECK_S:
            lost = self._database.check_content()
            self._checked_s = time.monotonic()
        return lost

    def _take_back(self, batch: Batch, *, keep_lines: bool = True) -> None:
        """Have a batch written again; without its lines where one of them may be why no batch could ever be."""
        with self._changed:
            if not keep_lines:
                self._waiting.dropped += batch.drop_lines()
            self._waiting.take_back(batch)
            self._has_waiting = True

    def _fail(self, problem: str) -> None:
        if self._problem is None:
            LOG.error("%s Until it can be written to, runs and their history are kept in memory.", problem)
        self._problem = problem
        self._failures += 1

    def _prune(self, now_wall_s: float) -> None:
        # A wall clock that has jumped back must not put it off.
        if self._pruned_wall_s is not None and 0.0 <= now_wall_s - self._pruned_wall_s < PRUNE_S:
            return
        self._pruned_wall_s = now_wall_s
        oldest_wall_s = now_wall_s - self._config.history_kept_s
        try:
            # Each turn is short, and the loop's own writes come in between.
            while self._store.prune(oldest_wall_s, self._config.history_bytes_max):
                if self._has_waiting:
                    break
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(str(error))
