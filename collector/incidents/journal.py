"""The incidents of a collector, kept: the ledger in memory and the store on disk, which may fail without harm.

What cannot be written now stays to be written: it is tried again every RETRY_S, and the collector goes on in memory.
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
"""A disk that was full may be so no longer; until then a try every minute costs nothing."""
STORE: Final = "incident_store"
"""What a failure of the store is counted as; so are rows that cannot be read."""
REFUSED: Final = "incident_refused"
"""What a finding is counted as for which there was no place."""
LOUD: Final = frozenset({ESCALATED, REOPENED})
"""Changes that nothing else in the log tells, and that somebody should hear of."""


class Journal:
    """Told of findings and, once a tick, of all runs. `count` is called with what has gone wrong, each time."""

    def __init__(self, config: CollectorConfig, now_wall_s: float, count: Callable[[str], object]) -> None:
        """Open the store of the configuration. Without one, or while it cannot be used, incidents are in memory."""
        self._count = count
        self._store: IncidentStore | None = None
        self._to_write: dict[int, Incident] = {}
        self._to_forget: set[int] = set()
        self._failed_wall_s: float | None = None
        self._problem: str | None = None
        self._refused_counted = 0
        self._lost: StoreLoss | None = None
        self.store_note: str | None = None
        """What became of the store since this collector was started, for whoever asks how it is."""
        self.stores_lost: dict[str, int] = {}
        """How often the store was lost while it was open, by reason."""
        self._path = Path(config.store) if config.store else None
        stored = (self._path and self._open_store(self._path, now_wall_s)) or Stored((), 0, 0)
        self._written = {incident.id for incident in stored.incidents}
        self._ledger = Ledger(read_rules(config), now_wall_s, known=stored.incidents, last_id=stored.last_id)
        self._incidents = self._ledger.incidents

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """All of them as of the last tick, oldest first. Any thread."""
        return self._incidents

    @property
    def database(self) -> Database | None:
        """The open file, for whatever else is kept in it; None when there is none, or it cannot be used."""
        return None if self._store is None else self._store.database

    @property
    def problem(self) -> str | None:
        """Why incidents cannot be written at the moment; None when all is well, or nothing is to be written."""
        return self._problem

    def open(self, run: str, finding: Finding, now_wall_s: float) -> None:
        """A finding is new."""
        self._ledger.open(run, finding, now_wall_s)

    def update(self, run: str, finding: Finding, now_wall_s: float) -> None:
        """A finding has changed."""
        self._ledger.update(run, finding, now_wall_s)

    def close(self, run: str, finding: Finding, reason: str, now_wall_s: float, merged_into: int | None = None) -> None:
        """A finding no longer holds."""
        self._ledger.close(run, finding, reason, now_wall_s, merged_into=merged_into)

    def tick(self, runs: Sequence[RunFindings], now_wall_s: float) -> None:
        """Bring everything up to date, say what is news, and write what has changed in one transaction."""
        if self._store is None and self._path is not None and self._may_try(now_wall_s):
            self._open_again(self._path, now_wall_s)
        self._ledger.reconcile(runs, now_wall_s)
        self._keep(now_wall_s)

    def replace_store(self, lost: StoreLoss, now_wall_s: float) -> None:
        """Close a store that was lost, and write all incidents to what is opened at its path, now or later."""
        if self._store is None or self._path is None:
            return
        self.stores_lost[lost.reason] = self.stores_lost.get(lost.reason, 0) + 1
        self._store.close()
        self._store, self._lost, self._failed_wall_s = None, lost, None
        self._open_again(self._path, now_wall_s)

    def shut_down(self, now_wall_s: float) -> None:
        """Write what is left, and let the file go. Open incidents stay open: the next collector goes on with them."""
        self._keep(now_wall_s, is_last=True)
        if self._store is not None:
            self._store.close()

    def _keep(self, now_wall_s: float, *, is_last: bool = False) -> None:
        changes = self._ledger.drain_changes()
        for incident in changes.news:
            _say(incident)
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
            if (self._to_write or self._to_forget) and (is_last or self._may_try(now_wall_s)):
                self._write(self._store, now_wall_s)

    def _may_try(self, now_wall_s: float) -> bool:
        # A wall clock that has jumped back must not put the next try off.
        return self._failed_wall_s is None or not 0.0 <= now_wall_s - self._failed_wall_s < RETRY_S

    def _write(self, store: IncidentStore, now_wall_s: float) -> None:
        try:
            store.write(tuple(self._to_write.values()), tuple(self._to_forget))
        except UnavailableError as error:
            self._count(STORE)
            if self._failed_wall_s is None:
                LOG.error("%s Until it can be written to, incidents are kept in memory.", error)  # noqa: TRY400 - said
            self._failed_wall_s, self._problem = now_wall_s, str(error)
            return
        if self._failed_wall_s is not None:
            LOG.warning("incidents are written to the store again")
        self._failed_wall_s = self._problem = None
        self._written = (self._written | self._to_write.keys()) - self._to_forget
        self._to_write, self._to_forget = {}, set()

    def _open_again(self, path: Path, now_wall_s: float) -> None:
        """The file could not be used when the collector started: perhaps it can now."""
        stored = self._open_store(path, now_wall_s)
        if stored is not None and self._lost is not None:
            self._rewrite(stored, self._lost, now_wall_s)
        elif stored is not None:
            LOG.warning("the store %s can be used now; incidents are written to it", path)
            self._failed_wall_s = self._problem = None
            self._written = {incident.id for incident in stored.incidents}
            self._ledger.adopt(stored.incidents, stored.last_id)

    def _rewrite(self, stored: Stored, lost: StoreLoss, now_wall_s: float) -> None:
        """Have everything written that is in memory, which is the present; the file may have less, or what was."""
        database = None if self._store is None else self._store.database
        if database is not None and database.went_on:
            what = "the file was opened again"
        elif database is not None and database.set_aside is not None:
            what = f"that file was renamed to {database.set_aside}, and a new one was begun"
        else:
            what = "a new file was begun"
        at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now_wall_s))
        self.store_note = f"{lost.text} At {at} {what}; all incidents and runs in memory are written to {self._path}."
        LOG.warning("%s", self.store_note)
        self._lost = self._failed_wall_s = self._problem = None
        self._written = {incident.id for incident in stored.incidents}
        self._to_write = {incident.id: incident for incident in self._ledger.incidents}
        self._to_forget = self._written - self._to_write.keys()

    def _open_store(self, path: Path, now_wall_s: float) -> Stored | None:
        """What the file holds, once it is open; None, counted and said once, when it cannot be used."""
        try:
            self._store = IncidentStore(path, lost=self._lost, now_wall_s=now_wall_s)
            stored = self._store.load()
        except UnavailableError as error:
            self._count(STORE)
            if self._problem != str(error):
                LOG.error("%s Until then incidents are kept in memory.", error)  # noqa: TRY400 - said
            self._failed_wall_s, self._problem = now_wall_s, str(error)
            if self._store is not None:
                self._store.close()
                self._store = None
            return None
        if stored.rows_unreadable:
            for _ in range(stored.rows_unreadable):
                self._count(STORE)
            LOG.error("rows of %s that are no incident and are left out: %d", path, stored.rows_unreadable)
        return stored


def _say(incident: Incident) -> None:
    change = incident.changes[-1]
    level = logging.WARNING if change.what in LOUD else logging.INFO
    LOG.log(level, "run %r: incident %d, %s, is %s: %s", incident.run, incident.id, incident.subject, change.what,
            change.text)  # fmt: skip
