"""Keep the incidents of a collector: the ledger in memory and the store on disk, whose failures are harmless.

Incidents that cannot be written stay queued: the write is tried again every RETRY_S, and the collector continues in
memory.
"""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from rankscope.collector.config import CollectorConfig
from rankscope.collector.detect.finding import Finding
from rankscope.collector.incidents.incident import ESCALATED, REOPENED, Incident, read_rules
from rankscope.collector.incidents.ledger import Ledger, RunFindings
from rankscope.collector.incidents.store import IncidentStore, Stored
from rankscope.collector.storage.database import Database
from rankscope.collector.storage.file_watch import StoreLoss
from rankscope.measure.errors import UnavailableError

LOG = logging.getLogger("rankscope.collector")

RETRY_S: Final = 60.0
"""Time between two tries while the store cannot be used."""
STORE: Final = "incident_store"
"""Label of failures of the store, and of unreadable rows, in the counts of errors."""
REFUSED: Final = "incident_refused"
"""Label of findings without room for an incident, in the counts of errors."""
LOGGED_AS_WARNINGS: Final = frozenset({ESCALATED, REOPENED})
"""Changes that no other line of the log reports, and that an operator should notice."""


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
        self._path = Path(config.store) if config.store else None
        stored = (self._path and self._open_store(self._path, now_wall_s)) or Stored((), 0, 0)
        self._written = {incident.id for incident in stored.incidents}
        self._ledger = Ledger(read_rules(config), now_wall_s, known=stored.incidents, last_id=stored.last_id)
        self._incidents = self._ledger.incidents

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """All incidents as of the last tick, oldest first. Any thread."""
        return self._incidents

    @property
    def database(self) -> Database | None:
        """The open file, for the other tables in it; None when there is none, or it cannot be used."""
        return None if self._store is None else self._store.database

    @property
    def problem(self) -> str | None:
        """Why the last write of incidents failed; None when it succeeded, or there is no store."""
        return self._problem

    def open(self, run: str, finding: Finding, now_wall_s: float) -> None:
        """Open an incident for a new finding, or add the finding to an existing one."""
        self._ledger.open(run, finding, now_wall_s)

    def update(self, run: str, finding: Finding, now_wall_s: float) -> None:
        """Update the incident of a finding that has changed."""
        self._ledger.update(run, finding, now_wall_s)

    def close(self, run: str, finding: Finding, reason: str, now_wall_s: float, merged_into: int | None = None) -> None:
        """Note that a finding no longer holds."""
        self._ledger.close(run, finding, reason, now_wall_s, merged_into=merged_into)

    def tick(self, runs: Sequence[RunFindings], now_wall_s: float) -> None:
        """Update all incidents, log notable changes, and write everything that changed in one transaction."""
        if self._store is None and self._path is not None and self._may_retry(now_wall_s):
            self._reopen_store(self._path, now_wall_s)
        self._ledger.reconcile(runs, now_wall_s)
        self._log_and_write(now_wall_s)

    def replace_store(self, lost: StoreLoss, now_wall_s: float) -> None:
        """Close a store that was lost, and write all incidents to the file that is opened at its path, now or later."""
        if self._store is None or self._path is None:
            return
        self.stores_lost[lost.reason] = self.stores_lost.get(lost.reason, 0) + 1
        self._store.close()
        self._store, self._lost, self._failed_wall_s = None, lost, None
        self._reopen_store(self._path, now_wall_s)

    def shut_down(self, now_wall_s: float) -> None:
        """Write the remaining changes, and close the file. Open incidents stay open for the next collector."""
        self._log_and_write(now_wall_s, is_last=True)
        if self._store is not None:
            self._store.close()

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
            if (self._to_write or self._to_forget) and (is_last or self._may_retry(now_wall_s)):
                self._write(self._store, now_wall_s)

    def _may_retry(self, now_wall_s: float) -> bool:
        # A wall clock that was set back must not delay the next try.
        return self._failed_wall_s is None or not 0.0 <= now_wall_s - self._failed_wall_s < RETRY_S

    def _write(self, store: IncidentStore, now_wall_s: float) -> None:
        try:
            store.write(tuple(self._to_write.values()), tuple(self._to_forget))
        except UnavailableError as error:
            self._count(STORE)
            if self._failed_wall_s is None:
                LOG.error("%s Until the store is writable again, incidents are kept in memory.", error)  # noqa: TRY400 - expected
            self._failed_wall_s, self._problem = now_wall_s, str(error)
            return
        if self._failed_wall_s is not None:
            LOG.warning("the store is writable again; incidents are written to it")
        self._failed_wall_s = self._problem = None
        self._written = (self._written | self._to_write.keys()) - self._to_forget
        self._to_write, self._to_forget = {}, set()

    def _reopen_store(self, path: Path, now_wall_s: float) -> None:
        """Try to open a file again that could not be used before."""
        stored = self._open_store(path, now_wall_s)
        if stored is not None and self._lost is not None:
            self._rewrite(stored, self._lost, now_wall_s)
        elif stored is not None:
            LOG.warning("the store %s is usable now; incidents are written to it", path)
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
            what = "a new file was created"
        at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now_wall_s))
        self.store_note = f"{lost.text} At {at} {what}; all incidents and runs in memory are written to {self._path}."
        LOG.warning("%s", self.store_note)
        self._lost = self._failed_wall_s = self._problem = None
        self._written = {incident.id for incident in stored.incidents}
        self._to_write = {incident.id: incident for incident in self._ledger.incidents}
        self._to_forget = self._written - self._to_write.keys()

    def _open_store(self, path: Path, now_wall_s: float) -> Stored | None:
        """Open the file and return its incidents; None, counted and logged once, when it cannot be used."""
        try:
            self._store = IncidentStore(path, lost=self._lost, now_wall_s=now_wall_s)
            stored = self._store.load()
        except UnavailableError as error:
            self._count(STORE)
            if self._problem != str(error):
                LOG.error("%s Until then incidents are kept in memory.", error)  # noqa: TRY400 - expected
            self._failed_wall_s, self._problem = now_wall_s, str(error)
            if self._store is not None:
                self._store.close()
                self._store = None
            return None
        if stored.rows_unreadable:
            for _ in range(stored.rows_unreadable):
                self._count(STORE)
            LOG.error("skipped %d unreadable incidents in %s", stored.rows_unreadable, path)
        return stored


def _log_change(incident: Incident) -> None:
    change = incident.changes[-1]
    level = logging.WARNING if change.what in LOGGED_AS_WARNINGS else logging.INFO
    LOG.log(level, "run %r: incident %d, %s, is %s: %s", incident.run, incident.id, incident.subject, change.what,
            change.text)  # fmt: skip
