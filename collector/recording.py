"""Record the runs in the store and survive its failures: open a recorder as soon as that is possible, replace one whose
file was lost, and choose the snapshot that is published.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from rankscope.collector.config import CollectorConfig, find_store
from rankscope.collector.fault_log import FaultLog
from rankscope.collector.incidents.journal import Journal
from rankscope.collector.run_ids import read_run_name
from rankscope.collector.runs.clock_alignment import Clocks
from rankscope.collector.runs.run import RunState
from rankscope.collector.runs.runs import Runs
from rankscope.collector.runs.snapshot import Snapshot
from rankscope.collector.storage.database import StoreDatabase
from rankscope.collector.storage.earlier_runs import EarlierRunReader, Found
from rankscope.collector.storage.run_recorder import Recorder, StoreCounts, UnwrittenState
from rankscope.collector.storage.run_store import KeptRun
from rankscope.collector.storage.store_calls import FIRST_S_MAX, StoreCalls
from rankscope.measure.errors import UnavailableError

LOG = logging.getLogger("rankscope.collector")

STORE: Final = "history_store"
"""Label of a store that cannot be opened, in the counts of errors."""


class _Opened(NamedTuple):
    """A recorder, the store that it writes to, and the runs in that."""

    database: StoreDatabase
    recorder: Recorder
    kept: tuple[KeptRun, ...]


class Recording:
    """The recorder of the configured store, while there is one. `on_written` is called after each write, by the
    recorder's thread.
    """

    def __init__(
        self,
        config: CollectorConfig,
        journal: Journal,
        faults: FaultLog,
        *,
        on_written: Callable[[], object],
    ) -> None:
        self._config = config
        self._journal = journal
        self._faults = faults
        self._on_written = on_written
        self._logged_error = ""
        self._unwritten: UnwrittenState | None = None
        self._recorder: Recorder | None = None
        self._earlier_runs = EarlierRunReader(faults)
        self._calls: StoreCalls[_Opened | UnavailableError] = StoreCalls(find_store(config))
        self._wait_s = FIRST_S_MAX

    def open(self, runs: Runs) -> tuple[KeptRun, ...]:
        """Open a recorder where there is none and the store can be used. With the first one return the runs of the
        previous collector, except those of which a new run of the same name has begun meanwhile.
        """
        if self._recorder is not None:
            return ()
        database = self._journal.database
        if database is not None and not self._calls.is_busy:
            self._calls.begin(lambda: self._make_recorder(database))
        opened = self._calls.take(self._wait_s)
        self._wait_s = 0.0
        if isinstance(opened, UnavailableError):
            self._faults.count(STORE)
            if str(opened) != self._logged_error:
                self._logged_error = str(opened)
                LOG.error("%s Until then runs and their history are kept in memory.", opened)
        elif opened is not None and self._journal.database is not opened.database:  # it was lost meanwhile
            opened.recorder.shut_down()
        elif opened is not None:
            return self._begin(opened, runs)
        return ()

    def _begin(self, opened: "_Opened", runs: Runs) -> tuple[KeptRun, ...]:
        recorder, kept = opened.recorder, opened.kept
        if self._unwritten is not None:  # the runs in memory are the present ones
            recorder.resume(self._unwritten)
            kept = ()
        recorder.start()
        self._recorder = recorder
        self._unwritten = None
        known = runs.names
        return tuple(one for one in kept if read_run_name(one.run.run) not in known)

    def _make_recorder(self, database: StoreDatabase) -> "_Opened | UnavailableError":
        """Return a recorder, with the runs that it has read where these are to be restored."""
        try:
            recorder = Recorder(database, self._config, self._faults.count, self._on_written)
        except UnavailableError as error:
            return error
        return _Opened(database, recorder, () if self._unwritten is not None else recorder.load())

    def replace_lost(self, wall_s: float) -> None:
        """Replace a store whose file is gone or damaged; the next recorder writes everything in memory."""
        lost = None if self._recorder is None else self._recorder.lost
        if self._recorder is None or lost is None:
            return
        self._unwritten, self._recorder = self._recorder.abandon(), None
        self._journal.replace_store(lost, wall_s)

    def record(self, runs: Iterable[RunState], snapshot: Snapshot, clocks: Clocks, *, is_last: bool = False) -> None:
        """Hand the changes of all runs to the recorder; `snapshot` has the same state."""
        if self._recorder is None:
            return
        try:
            self._recorder.tick(runs, snapshot, clocks, is_last=is_last)
            if (database := self._journal.database) is not None:
                self._earlier_runs.request(database.path, runs)
        except Exception:  # noqa: BLE001 - the fault log has it
            self._faults.note("history", "runs could not be handed to the store; continuing")

    def pop_earlier_runs(self) -> list[Found]:
        """Return the runs whose earlier runs were found in the store since the last call, with these."""
        return self._earlier_runs.pop_found()

    def forget(self, run_id: str) -> None:
        """Forget a run; its history stays."""
        self._earlier_runs.forget(run_id)
        if self._recorder is not None:
            self._recorder.forget(run_id)
        elif self._unwritten is not None:
            self._unwritten.batch.forget(run_id)

    def shut_down(self, runs: Runs, make_snapshot: Callable[[], Snapshot], clocks: Clocks) -> None:
        """Write everything once more, and end."""
        self.replace_lost(clocks.wall_s)
        if self._unwritten is not None:
            self.open(runs)
        if self._recorder is not None:
            self.record(runs, make_snapshot(), clocks, is_last=True)
            self._recorder.shut_down()

    # -- any thread ---------------------------------------------------------------------------------------------------

    @property
    def counts(self) -> StoreCounts | None:
        """Size of the store and dropped rows; None while there is no recorder."""
        recorder = self._recorder
        return None if recorder is None else recorder.counts

    def choose_exported(self, present: Snapshot) -> Snapshot:
        """Return the snapshot to publish: one whose counters are in the store, where there is one."""
        exporter = self._recorder or self._unwritten or self._recorder  # `open` may set one after the first was read
        return present if exporter is None else exporter.choose_exported(present)

    def find_problem(self) -> str | None:
        """Return why nothing is written; None when it is, or no store is set."""
        recorder = self._recorder  # the loop may replace it meanwhile
        problem = self._journal.problem or (None if recorder is None else recorder.problem)
        return None if problem is None else f"nothing is written to the store, and all is kept in memory: {problem}"

    def find_degradation(self) -> str | None:
        """Return what is wrong with the store while reports are still received, or what it has lost."""
        return self.find_problem() or self._journal.store_note
