"""Keep the incidents of a collector: the ledger in memory and the store on disk, whose failures are harmless.

Incidents that cannot be written stay queued: the write is tried again every RETRY_S, and the collector continues in
memory.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from rankscope.collector.config import CollectorConfig, find_store
from rankscope.collector.detect.finding import Finding
from rankscope.collector.incidents.incident import ESCALATED, REOPENED, Incident, read_rules
from rankscope.collector.incidents.ledger import ComparedRun, Ledger
from rankscope.collector.incidents.store import IncidentStore, Stored
from rankscope.collector.storage.database import StoreDatabase
from rankscope.collector.storage.file_watch import StoreLoss
from rankscope.collector.storage.store_calls import FIRST_S_MAX, LAST_S_MAX, RETRY_S, StoreCalls
from rankscope.collector.store_address import StoreAddress
from rankscope.measure.errors import UnavailableError

LOG = logging.getLogger("rankscope.collector")

STORE: Final = "incident_store"
"""Label of failures of the store, and of unreadable rows, in the counts of errors."""
REFUSED: Final = "incident_refused"
"""Label of findings without room for an incident, in the counts of errors."""
LOGGED_AS_WARNINGS: Final = frozenset({ESCALATED, REOPENED})
"""Changes that no other line of the log reports, and that an operator should notice."""


class _Opened(NamedTuple):
    """A store that was opened, with what is in it."""

    store: IncidentStore
    stored: Stored


class _Written(NamedTuple):
    """What was written: incidents, and the ids of those that were deleted. `problem`: why it was not."""

    changed: dict[int, Incident]
    forgotten: set[int]
    problem: UnavailableError | None


class Journal:
    """The incidents of a collector. Receives findings, and all runs once a tick. `count` is called with the label of
    each error.
    """

    def __init__(self, config: CollectorConfig, now_wall_s: float, count: Callable[[str], object]) -> None:
        """Open the configured store. Without one, or while it cannot be used, incidents are kept in memory."""
        self._count = count
        self._store: IncidentStore | None = None
        self._to_write: dict[int, Incident] = {}
        self._to_forget: set[int] = set()
        self._failed_wall_s: float | None = None
        self._problem: str | None = None
        self._refused_counted = 0
        self._lost: StoreLoss | None = None
        self.store_note: str | None = None
        """A sentence about a loss of the store since this collector was started, for /readyz."""
        self.stores_lost: dict[str, int] = {}
        """How often the store was lost while it was open, by reason."""
        self._path = find_store(config)
        self._calls: StoreCalls[_Opened | _Written | UnavailableError] = StoreCalls(self._path)
        stored = Stored((), 0, 0)
        if self._path is not None:
            address = self._path
            self._calls.begin(lambda: _try_open(address, None, now_wall_s))
            match self._calls.take(FIRST_S_MAX):
                case UnavailableError() as error:
                    self._note_closed(error, now_wall_s)
                case _Opened(store, stored):
                    self._note_opened(store, stored)
        self._written = {incident.id for incident in stored.incidents}
        self._ledger = Ledger(read_rules(config), now_wall_s, known=stored.incidents, last_id=stored.last_id)
        self._incidents = self._ledger.incidents

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """All incidents as of the last tick, oldest first. Any thread."""
        return self._incidents

    @property
    def database(self) -> StoreDatabase | None:
        """The open store, for the other tables in it; None when there is none, or it cannot be used."""
        return None if self._store is None else self._store.database

    @property
    def problem(self) -> str | None:
        """Why the last write of incidents failed; None when it succeeded, or there is no store."""
        return self._problem or self._calls.find_problem()

    def open(self, run: str, finding: Finding, now_wall_s: float) -> None:
        """Open an incident for a new finding, or add the finding to an existing one."""
        self._ledger.open(run, finding, now_wall_s)

    def update(self, run: str, finding: Finding, now_wall_s: float) -> None:
        """Update the incident of a finding that has changed."""
        self._ledger.update(run, finding, now_wall_s)

    def close(self, run: str, finding: Finding, reason: str, now_wall_s: float, merged_into: int | None = None) -> None:
        """Note that a finding no longer holds."""
        self._ledger.close(run, finding, reason, now_wall_s, merged_into=merged_into)

    def tick(self, runs: Sequence[ComparedRun], now_wall_s: float) -> None:
        """Update all incidents, log notable changes, and write everything that changed in one transaction."""
        self._take_result(now_wall_s)
        if self._store is None and not self._calls.is_busy and self._may_retry(now_wall_s):
            self._reopen_store(now_wall_s)
        self._ledger.reconcile(runs, now_wall_s)
        self._log_and_write(now_wall_s)

    def replace_store(self, lost: StoreLoss, now_wall_s: float) -> None:
        """Close a store that was lost, and write all incidents to the file that is opened at its path, now or later."""
        if self._store is None or self._path is None:
            return
        self.stores_lost[lost.reason] = self.stores_lost.get(lost.reason, 0) + 1
        self._store.close()
        self._store, self._lost, self._failed_wall_s = None, lost, None
        self._calls.drop()  # what it writes is lost with the store
        self._reopen_store(now_wall_s)

    def shut_down(self, now_wall_s: float) -> None:
        """Write the remaining changes, and close the store. Open incidents stay open for the next collector."""
        self._take_result(now_wall_s, LAST_S_MAX)
        self._log_and_write(now_wall_s, is_last=True)
        self._take_result(now_wall_s, LAST_S_MAX)
        if self._store is not None and not self._calls.is_busy:
            self._store.close()

    def _take_result(self, now_wall_s: float, wait_s: float = 0.0) -> None:
        """Note what the last call to the store has returned, if it has."""
        match self._calls.take(wait_s):
            case UnavailableError() as error:
                self._note_closed(error, now_wall_s)
            case _Opened(store, stored):
                self._note_reopened(store, stored, now_wall_s)
            case _Written(changed, forgotten, problem):
                self._note_written(changed, forgotten, problem, now_wall_s)

    def _log_and_write(self, now_wall_s: float, *, is_last: bool = False) -> None:
        changes = self._ledger.drain_changes()
        for incident in changes.notable:
            _log_change(incident)
        for _ in range(self._ledger.incidents_refused - self._refused_counted):
            self._count(REFUSED)
        self._refused_counted = self._ledger.incidents_refused
        if changes.changed or changes.forgotten:
            self._incidents = self._ledger.incidents
        if self._store is not None:
            self._to_write.update({incident.id: incident for incident in changes.changed})
            for number in changes.forgotten:
                self._to_write.pop(number, None)
            self._to_forget |= self._written.intersection(changes.forgotten)
            may_write = not self._calls.is_busy and (is_last or self._may_retry(now_wall_s))
            if (self._to_write or self._to_forget) and may_write:
                store, changed, to_forget = self._store, dict(self._to_write), set(self._to_forget)
                self._calls.begin(lambda: _try_write(store, changed, to_forget))
                self._take_result(now_wall_s)

    def _may_retry(self, now_wall_s: float) -> bool:
        # A wall clock that was set back must not delay the next try.
        return self._failed_wall_s is None or not 0.0 <= now_wall_s - self._failed_wall_s < RETRY_S

    def _note_written(
        self, changed: dict[int, Incident], forgotten: set[int], problem: UnavailableError | None, now_wall_s: float
    ) -> None:
        if problem is not None:
            self._count(STORE)
            if self._failed_wall_s is None:
                LOG.error("%s Until the store is writable again, incidents are kept in memory.", problem)
            self._failed_wall_s, self._problem = now_wall_s, str(problem)
            return
        if self._failed_wall_s is not None:
            LOG.warning("the store is writable again; incidents are written to it")
        self._failed_wall_s = self._problem = None
        self._written = (self._written | changed.keys()) - forgotten
        # Incidents may have changed, or been forgotten, while these were written.
        self._to_write = {number: one for number, one in self._to_write.items() if changed.get(number) is not one}
        self._to_forget = (self._to_forget - forgotten) | (
            changed.keys() - {incident.id for incident in self._ledger.incidents}
        )

    def _reopen_store(self, now_wall_s: float) -> None:
        """Try to open a store again that could not be used before."""
        address, lost = self._path, self._lost
        if address is not None:
            self._calls.begin(lambda: _try_open(address, lost, now_wall_s))
            self._take_result(now_wall_s)

    def _note_reopened(self, store: IncidentStore, stored: Stored, now_wall_s: float) -> None:
        self._note_opened(store, stored)
        if self._lost is not None:
            self._rewrite(stored, self._lost, now_wall_s)
        else:
            LOG.warning("the store %s is usable now; incidents are written to it", self._path)
            self._failed_wall_s = self._problem = None
            self._written = {incident.id for incident in stored.incidents}
            self._ledger.adopt(stored.incidents, stored.last_id)

    def _rewrite(self, stored: Stored, lost: StoreLoss, now_wall_s: float) -> None:
        """Queue all incidents in memory for writing: the file may have fewer or older ones."""
        database = None if self._store is None else self._store.database
        if database is not None and database.was_reopened:
            what = "the file was opened again"
        elif database is not None and database.set_aside is not None:
            what = f"that file was renamed to {database.set_aside}, and a new one was created"
        else:
            what = "a new file was created" if isinstance(self._path, Path) else "new tables were created"
        at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now_wall_s))
        self.store_note = f"{lost.text} At {at} {what}; all incidents and runs in memory are written to {self._path}."
        LOG.warning("%s", self.store_note)
        self._lost = self._failed_wall_s = self._problem = None
        self._written = {incident.id for incident in stored.incidents}
        self._to_write = {incident.id: incident for incident in self._ledger.incidents}
        self._to_forget = self._written - self._to_write.keys()

    def _note_closed(self, error: UnavailableError, now_wall_s: float) -> None:
        """Count that the store cannot be used, and log it once."""
        self._count(STORE)
        if self._problem != str(error):
            LOG.error("%s Until then incidents are kept in memory.", error)
        self._failed_wall_s, self._problem = now_wall_s, str(error)

    def _note_opened(self, store: IncidentStore, stored: Stored) -> None:
        self._store = store
        if stored.rows_unreadable:
            for _ in range(stored.rows_unreadable):
                self._count(STORE)
            LOG.error("skipped %d unreadable incidents in %s", stored.rows_unreadable, self._path)


def _try_open(address: StoreAddress, lost: StoreLoss | None, now_wall_s: float) -> _Opened | UnavailableError:
    """Open the store, and return it with its incidents, or why it cannot be used."""
    with contextlib.ExitStack() as undo:
        try:
            store = undo.enter_context(contextlib.closing(IncidentStore(address, lost=lost, now_wall_s=now_wall_s)))
            opened = _Opened(store, store.load())
        except UnavailableError as error:
            return error
        undo.pop_all()
        return opened


def _try_write(store: IncidentStore, changed: dict[int, Incident], forgotten: set[int]) -> _Written:
    try:
        store.write(tuple(changed.values()), tuple(forgotten))
    except UnavailableError as error:
        return _Written(changed, forgotten, error)
    return _Written(changed, forgotten, None)


def _log_change(incident: Incident) -> None:
    change = incident.changes[-1]
    level = logging.WARNING if change.what in LOGGED_AS_WARNINGS else logging.INFO
    LOG.log(level, "run %r: incident %d, %s, is %s: %s", incident.run, incident.id, incident.subject, change.what,
            change.text)  # fmt: skip
