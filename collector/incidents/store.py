"""Store incidents in the collector's file, where they can be read whether or not the collector runs.

The body of an incident is JSON, as in the API: an additional field needs no migration. The other columns are for
queries in SQL.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from rankscope.collector.detect.finding_memory import drop_former
from rankscope.collector.incidents.incident import Incident
from rankscope.collector.storage.database import Connection, explaining, open_database, reading, transaction
from rankscope.collector.storage.file_watch import StoreLoss
from rankscope.collector.storage.migrations import MIGRATIONS, Migration
from rankscope.collector.store_address import StoreAddress

_WRITE: Final = """INSERT INTO incidents (id, run, state, severity, opened_wall_s, resolved_wall_s, body)
    VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET state = excluded.state, severity = excluded.severity,
        resolved_wall_s = excluded.resolved_wall_s, body = excluded.body"""


class Stored(NamedTuple):
    """Incidents of a store, oldest first; the last id ever given (0: none); how many rows could not be read."""

    incidents: tuple[Incident, ...]
    last_id: int
    rows_unreadable: int


class IncidentStore:
    """The incidents of the file, for the one collector that writes it. Every method raises UnavailableError, with the
    cure, when the file is not usable; committed data stays.
    """

    def __init__(
        self,
        address: StoreAddress,
        migrations: Sequence[Migration] = MIGRATIONS,
        *,
        lost: StoreLoss | None = None,
        now_wall_s: float = 0.0,
    ) -> None:
        """Open the file, create it if missing, and migrate it to the latest version. `lost`: see Database."""
        self.database = open_database(address, migrations, lost=lost, now_wall_s=now_wall_s)
        self._path = address
        self._connection = self.database.connection

    def load(self) -> Stored:
        """Return all incidents of the file."""
        with explaining(self._path):
            found = _load(self._connection)
            return found._replace(last_id=self._connection.read_last_id())

    def write(self, changed: Sequence[Incident], forgotten: Sequence[int]) -> None:
        """Write these incidents and delete those ids, in one transaction."""
        with explaining(self._path), transaction(self._connection):
            self._connection.executemany(_WRITE, [_to_row(incident) for incident in changed])
            self._connection.executemany("DELETE FROM incidents WHERE id = ?", [(number,) for number in forgotten])
            if changed:
                self._connection.keep_last_id(max(incident.id for incident in changed))

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        self.database.close()


def read_store(address: StoreAddress) -> Stored:
    """Return the incidents of a store, without the last id, whether or not a collector writes to it. Raises
    UnavailableError.
    """
    with reading(address) as connection:
        return _load(connection)


def _load(connection: Connection) -> Stored:
    incidents, rows_unreadable = [], 0
    if not connection.has_table("incidents"):
        return Stored((), 0, 0)
    for (body,) in connection.execute("SELECT body FROM incidents ORDER BY id"):
        try:
            incident = msgspec.json.decode(body, type=Incident)
            incidents.append(msgspec.structs.replace(incident, evidence=drop_former(incident.evidence)))
        except (msgspec.DecodeError, TypeError):
            rows_unreadable += 1
    return Stored(tuple(incidents), 0, rows_unreadable)


def _to_row(incident: Incident) -> tuple[object, ...]:
    return (
        incident.id,
        incident.run,
        incident.state,
        incident.severity,
        incident.opened_wall_s,
        incident.resolved_wall_s,
        msgspec.json.encode(incident).decode(),
    )
