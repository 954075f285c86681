"""Decide which incidents a channel has to be notified of, by the state that it was notified of last.

There is no queue of events: an event is the difference between an incident as it is and as it was last delivered. So
what waits is bounded by the number of incidents, and an incident that changes while a receiver is away, or more often
than `interval_s` allows, is delivered in its latest state.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from rankscope.collector.incidents.incident import Incident
from rankscope.collector.notifications.event import CHANGED, OPENED, RESOLVED, find_signature, is_severe
from rankscope.collector.private_files import write_private

SCHEMA: Final = 1


class NotifyRules(NamedTuple):
    """What a channel is notified of: incidents of at least `severity_min`, each at most once in `interval_s`."""

    severity_min: str
    interval_s: float


class Notified(msgspec.Struct, frozen=True, kw_only=True):
    """The last event about an incident that was delivered or given up: its number, when, and its signature
    (`find_signature`). `run_id` and `opened_wall_s` tell incidents apart that have one id, in two stores.
    """

    run_id: str
    opened_wall_s: float
    number: int
    wall_s: float
    signature: tuple[str, ...]

    def is_of(self, incident: Incident) -> bool:
        """Return whether it is about this incident."""
        return (self.run_id, self.opened_wall_s) == (incident.run_id, incident.opened_wall_s)


class _Content(msgspec.Struct):
    """Content of the file, as JSON. `since_wall_s` is when the channel was first used with this store."""

    schema: int
    since_wall_s: float
    notified: dict[int, Notified]


def find_kind(incident: Incident, last: Notified | None, since_wall_s: float, rules: NotifyRules) -> str | None:
    """Return the kind of the event that is due about an incident, None where none is. `last` is what the channel was
    notified of last. An incident that began before `since_wall_s` and is over is none of the channel's, and one that
    is over because it is part of another one, of which the channel is notified, is not worth an event of its own.
    """
    if not is_severe(incident, rules.severity_min):
        return None
    if last is None:
        if incident.is_open:
            return OPENED
        is_new = _find_opening(incident) >= since_wall_s and incident.merged_into is None
        return RESOLVED if is_new else None
    signature = find_signature(incident)
    if not incident.is_open:
        return RESOLVED if last.signature[:1] != signature[:1] else None
    if last.signature[:1] != signature[:1]:
        return OPENED
    return CHANGED if last.signature != signature else None


def find_pause_s(last: Notified | None, wall_s: float, rules: NotifyRules) -> float:
    """Return for how long no event about the incident may follow the last one, 0 where one may now."""
    if last is None or last.wall_s > wall_s:  # the clock was set back
        return 0.0
    return max(0.0, last.wall_s + rules.interval_s - wall_s)


class NotifiedIncidents:
    """What one channel was notified of, by the id of the incident. With a `path` it is read from that file, and written
    to it after each event, so that the next collector goes on. One thread.
    """

    def __init__(self, path: Path | None, now_wall_s: float) -> None:
        """Begin with nothing, `since_wall_s` now."""
        self._path = path
        self.since_wall_s = now_wall_s
        self._notified: dict[int, Notified] = {}

    def load(self) -> None:
        """Read the file, if there is one. Raises OSError, or msgspec.DecodeError for one that is damaged."""
        if self._path is not None and self._path.exists():
            content = msgspec.json.decode(self._path.read_bytes(), type=_Content)
            self.since_wall_s, self._notified = content.since_wall_s, content.notified

    def find(self, incident: Incident) -> Notified | None:
        """Return what the channel was notified of last about this incident."""
        last = self._notified.get(incident.id)
        return last if last is not None and last.is_of(incident) else None

    def keep_only(self, known: Iterable[int]) -> None:
        """Forget all incidents but these."""
        for number in self._notified.keys() - set(known):
            del self._notified[number]

    def note(self, incident: Incident, number: int, wall_s: float) -> None:
        """Note an event that was delivered or given up. Raises OSError where the file cannot be written; it is noted in
        memory all the same.
        """
        self._notified[incident.id] = Notified(
            run_id=incident.run_id,
            opened_wall_s=incident.opened_wall_s,
            number=number,
            wall_s=wall_s,
            signature=find_signature(incident),
        )
        if self._path is not None:
            self._write(self._path)

    def _write(self, path: Path) -> None:
        """Replace the file as a whole: a collector that is killed leaves the former or the new one."""
        new = path.with_name(f"{path.name}.new")
        write_private(new, msgspec.json.encode(_Content(SCHEMA, self.since_wall_s, self._notified)))
        new.replace(path)


def _find_opening(incident: Incident) -> float:
    return incident.opened_wall_s if incident.reopened_wall_s is None else incident.reopened_wall_s
