"""Define the events that change a run and the effects that follow, and keep a log of the last events. Times are the
collector's clock, `_collector_ns`.

Structs, since there is one for each report: they are made in a third of the time of named tuples.
"""

from collections import Counter, deque
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from rankscope.collector.detect.finding import Finding
from rankscope.collector.invariants import require
from rankscope.collector.runs.report_fields import ReportFields
from rankscope.collector.steps.run_start import EarlierRun
from rankscope.measure.messages import Goodbye, Hello, SampleOrder, SamplesTaken, SettingsOrder, SettingsTaken
from rankscope.measure.node_messages import InspectorRead, RankEnded, RankUnresponsive, RasAnswered


class RankJoined(msgspec.Struct, frozen=True, gc=False):
    """The Hello of a rank process was admitted."""

    hello: Hello
    now_collector_ns: int


class ReportAdmitted(msgspec.Struct, frozen=True, gc=False):
    """The next report of a rank process, once and in order. Sequence numbers skipped before it are lost for good."""

    boot_id: str
    report: ReportFields
    now_collector_ns: int
    now_wall_s: float


class DuplicateSeen(msgspec.Struct, frozen=True, gc=False):
    """A numbered message came again and was ignored."""

    boot_id: str


class GoodbyeAdmitted(msgspec.Struct, frozen=True, gc=False):
    """The goodbye of a rank process, with how it ends."""

    boot_id: str
    goodbye: Goodbye
    now_collector_ns: int


class ClockSampled(msgspec.Struct, frozen=True, gc=False):
    """The answer to a clock ping."""

    boot_id: str
    sent_collector_ns: int
    host_ns: int
    received_collector_ns: int


class ProcessGone(msgspec.Struct, frozen=True, gc=False):
    """A process does not exist any more on the collector's machine."""

    boot_id: str
    now_collector_ns: int


class EndSeen(msgspec.Struct, frozen=True, gc=False):
    """The sidecar saw a rank process end. It may be reported more than once."""

    boot_id: str
    seen: RankEnded
    now_collector_ns: int


class UnresponsiveSeen(msgspec.Struct, frozen=True, gc=False):
    """The sidecar saw that a rank process does not answer. Repeated while that lasts."""

    boot_id: str
    seen: RankUnresponsive
    now_collector_ns: int


class RasSeen(msgspec.Struct, frozen=True, gc=False):
    """The sidecar that watches rank 0 has asked NCCL's RAS service in a stall. Repeated while that lasts."""

    boot_id: str
    answered: RasAnswered
    now_collector_ns: int


class InspectorSeen(msgspec.Struct, frozen=True, gc=False):
    """The sidecar has read what the rank's NCCL has dumped. Repeated while the rank communicates or is stalled."""

    boot_id: str
    read: InspectorRead
    now_collector_ns: int


class AnswerSeen(msgspec.Struct, frozen=True, gc=False):
    """A rank process has answered an order (`AskSamples`, `AskSettings`)."""

    boot_id: str
    taken: SamplesTaken | SettingsTaken
    now_collector_ns: int


class CollectorAway(msgspec.Struct, frozen=True, gc=False):
    """The collector itself did not run for `away_ns`: stopped, suspended, or its clock has jumped."""

    away_ns: int
    now_collector_ns: int


class EarlierRunsRead(msgspec.Struct, frozen=True, gc=False):
    """The store was read: the runs of the same work that began before this one, the latest first. `begun_wall_s` is
    that of the RunStart that they were read for; the answer to another attempt's is ignored.
    """

    begun_wall_s: float
    runs: tuple[EarlierRun, ...]


RankProcessEvent = (
    ReportAdmitted
    | DuplicateSeen
    | GoodbyeAdmitted
    | ClockSampled
    | ProcessGone
    | EndSeen
    | UnresponsiveSeen
    | RasSeen
    | InspectorSeen
    | AnswerSeen
)
"""An event of a known rank process, named by its `boot_id`."""

PeerEvent = RankJoined | RankProcessEvent
"""An event that comes from a rank or a sidecar."""

RunEvent = PeerEvent | CollectorAway | EarlierRunsRead


def find_boot_id(event: PeerEvent) -> str:
    """Return the boot id of the rank process that an event is about."""
    return event.hello.identity.boot_id if isinstance(event, RankJoined) else event.boot_id


def find_event_time(event: RankProcessEvent) -> int | None:
    """Return the collector time of an event; None for a duplicate, which has none."""
    if isinstance(event, DuplicateSeen):
        return None
    return event.received_collector_ns if isinstance(event, ClockSampled) else event.now_collector_ns


class AskClock(NamedTuple):
    """Ping this rank process for its clock."""

    boot_id: str


class RefuseProcess(NamedTuple):
    """Tell this rank process, and the log, that its run ignores it: `detail` is why, and the cure."""

    boot_id: str
    detail: str


class AskSamples(NamedTuple):
    """Order samples of the training thread of this rank process."""

    boot_id: str
    order: SampleOrder


class AskSettings(NamedTuple):
    """Order the settings that are changed now of this rank process."""

    boot_id: str
    order: SettingsOrder


class SettingChanged(NamedTuple):
    """A setting of the run has changed, or changed back; `text` says all of it."""

    run: str
    text: str


class FindingOpened(NamedTuple):
    """A finding is new, and is to be announced."""

    run: str
    finding: Finding


class UpdateFinding(NamedTuple):
    """An open finding has changed in its ranks, cause, severity or pattern."""

    run: str
    finding: Finding


class CloseFinding(NamedTuple):
    """A finding no longer holds: it has passed, was merged into finding `merged_into`, or its attempt is over."""

    run: str
    finding: Finding
    reason: str
    merged_into: int | None = None


RunEffect = (
    AskClock | AskSamples | AskSettings | SettingChanged | RefuseProcess | FindingOpened | UpdateFinding | CloseFinding
)

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
    """The last events of one run, in two rings: reports, duplicates and clock answers come from each rank all the time,
    and must not displace what is rare. A ring of 256 events takes 50 KB at most, since a boot id has at most 64
    characters. Written by RunState only; another thread may read it.
    """

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
        routine, others = self._routine, self._others
        return max(routine[-1][0] if routine else 0, others[-1][0] if others else 0)

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
