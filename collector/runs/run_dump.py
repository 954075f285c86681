"""Keep the last events of a run, and describe the inside of a run for debugging. Pure.

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


class RunDump(msgspec.Struct, frozen=True, kw_only=True):
    """The inside of a run. `ranks` counts its rank processes by `up` or how they ended. `reports_pending` are not in
    the step table yet, `steps_unmatched` have the collectives of all ranks and are not matched yet. `latest_step` and
    `recorded_step` (the last one in the history) are -1 before any. `abstained` says why a detector gives no verdict,
    by its kind. `event_counts` are by kind since this collector knows the run; `events` are the last ones, oldest
    first. Times are of the collector's monotonic clock, which reads `now_collector_ns`.
    """

    run_id: str
    now_collector_ns: int
    is_superseded: bool
    is_over: bool
    attempt: int
    world_size: int
    restart_count: int
    ranks: Mapping[str, int]
    ranks_stalled: int
    ranks_awaited: int
    nodes: int
    groups: int
    groups_dropped: int
    reports_pending: int
    steps_unmatched: int
    latest_step: int
    recorded_step: int
    step_ns: int
    findings_opened: int
    findings_open: tuple[int, ...]
    abstained: Mapping[str, str]
    end: str | None
    is_concluded: bool
    last_message_collector_ns: int
    last_change_collector_ns: int
    event_counts: Mapping[str, int]
    events: tuple[LoggedEvent, ...]


class EventLog:
    """The last events of one run. Written by RunState only; another thread may read it."""

    def __init__(self) -> None:
        #: Events by kind since the run is known here.
        self._counts: Counter[str] = Counter()
        #: Number of the last event; equals the sum of `_counts`.
        self._number = 0
        #: (number, kind, rank, boot id, collector_ns), at most EVENTS_KEPT, numbers ascend; only kinds in ROUTINE.
        self._routine: deque[tuple[int, str, int | None, str, int | None]] = deque(maxlen=EVENTS_KEPT)
        #: The same for all other kinds.
        self._others: deque[tuple[int, str, int | None, str, int | None]] = deque(maxlen=EVENTS_KEPT)

    def record(self, kind: str, rank: int | None, boot_id: str, collector_ns: int | None) -> None:
        """Add an event; beyond EVENTS_KEPT the oldest of its ring is dropped."""
        self._number += 1
        self._counts[kind] += 1
        ring = self._routine if kind in ROUTINE else self._others
        ring.append((self._number, kind, rank, boot_id, collector_ns))

    @property
    def counts(self) -> Mapping[str, int]:
        """Events by kind."""
        return dict(self._counts)

    def read(self) -> tuple[LoggedEvent, ...]:
        """Return the events that are kept, oldest first."""
        return tuple(LoggedEvent(*entry) for entry in sorted([*self._routine, *self._others]))

    def validate(self) -> None:
        """Raise InvariantError where an invariant does not hold."""
        require(self._number == sum(self._counts.values()), "the number of events is not the sum of their counts")
        for ring in (self._routine, self._others):
            numbers = [entry[0] for entry in ring]
            require(len(numbers) <= EVENTS_KEPT, "a ring of events is too long")
            require(numbers == sorted(set(numbers)), "a ring of events is out of order")
        require(all(entry[1] in ROUTINE for entry in self._routine), "a rare event is among the routine ones")
