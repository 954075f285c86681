"""Keep the last events of a run, for debugging. Pure.

Two rings: reports, duplicates and clock answers come from every rank all the time, and must not displace what is rare.
A ring of 256 events takes 50 KB at most, since a boot id has at most 64 characters.
"""

from collections import Counter, deque
from collections.abc import Mapping
from typing import Final

import msgspec

from rankscope.collector.invariants import require

EVENTS_KEPT: Final = 256
"""Events kept in each of the two rings."""
ROUTINE: Final = frozenset({"ReportAdmitted", "DuplicateSeen", "ClockSampled"})
"""Kinds of event that come from every rank all the time."""


class LoggedEvent(msgspec.Struct, frozen=True, gc=False):
    """One event of a run. `number` counts all its events from 1. `rank` is None for an event of no rank, or of a rank
    process that the run does not have; `collector_ns` is None for a duplicate, which has no time.
    """

    number: int
    kind: str
    rank: int | None
    boot_id: str
    collector_ns: int | None


class EventLog:
    """The last events of one run. Written by RunState only; another thread may read it."""

    def __init__(self) -> None:
        #: Events by kind since the run is known here.
        self._counts: Counter[str] = Counter()
        #: (number, kind, rank, boot id, collector_ns), at most EVENTS_KEPT, numbers ascend; only kinds in ROUTINE.
        self._routine: deque[tuple[int, str, int | None, str, int | None]] = deque(maxlen=EVENTS_KEPT)
        #: The same for all other kinds.
        self._others: deque[tuple[int, str, int | None, str, int | None]] = deque(maxlen=EVENTS_KEPT)

    def record(self, kind: str, rank: int | None, boot_id: str, collector_ns: int | None) -> None:
        """Add an event; beyond EVENTS_KEPT the oldest of its ring is dropped."""
        number = self._last_number + 1
        self._counts[kind] += 1
        ring = self._routine if kind in ROUTINE else self._others
        ring.append((number, kind, rank, boot_id, collector_ns))

    @property
    def _last_number(self) -> int:
        return max((ring[-1][0] for ring in (self._routine, self._others) if ring), default=0)

    @property
    def counts(self) -> Mapping[str, int]:
        """Events by kind."""
        return dict(self._counts)

    def read(self) -> tuple[LoggedEvent, ...]:
        """Return the events that are kept, oldest first."""
        return tuple(LoggedEvent(*entry) for entry in sorted([*self._routine, *self._others]))

    def validate(self) -> None:
        """Raise InvariantError where an invariant does not hold."""
        require(self._last_number == sum(self._counts.values()), "the number of events is not the sum of their counts")
        for ring in (self._routine, self._others):
            numbers = [entry[0] for entry in ring]
            require(len(numbers) <= EVENTS_KEPT, "a ring of events is too long")
            require(numbers == sorted(set(numbers)), "a ring of events is out of order")
        require(all(entry[1] in ROUTINE for entry in self._routine), "a rare event is among the routine ones")
