"""Define the events that change a run, and the effects that follow. Times are the collector's clock, `_collector_ns`.

Structs, since there is one for each report: they are made in a third of the time of named tuples.
"""

from typing import NamedTuple

import msgspec

from rankscope.collector.detect.finding import Finding
from rankscope.collector.runs.report_fields import ReportFields
from rankscope.measure.messages import Goodbye, Hello, RankEnded, RankUnresponsive


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


class CollectorAway(msgspec.Struct, frozen=True, gc=False):
    """The collector itself did not run for `away_ns`: stopped, suspended, or its clock has jumped."""

    away_ns: int
    now_collector_ns: int


RankProcessEvent = (
    ReportAdmitted | DuplicateSeen | GoodbyeAdmitted | ClockSampled | ProcessGone | EndSeen | UnresponsiveSeen
)
"""An event of a known rank process, named by its `boot_id`."""

PeerEvent = RankJoined | RankProcessEvent
"""An event that comes from a rank or a sidecar."""

RunEvent = PeerEvent | CollectorAway


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


class OpenFinding(NamedTuple):
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


RunEffect = AskClock | OpenFinding | UpdateFinding | CloseFinding
