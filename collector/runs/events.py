"""Everything that may change a job. Times are the collector's clock, `_collector_ns`.

There is one for each report: these are made in a third of the time that named tuples take.
"""

from typing import NamedTuple

import msgspec

from rankscope.collector.detect.finding import Finding
from rankscope.collector.runs.last_report import ReportFields
from rankscope.measure.messages import Goodbye, Hello, RankEnded, RankUnresponsive


class RankJoined(msgspec.Struct, frozen=True, gc=False):
    """A life of a rank was taken in."""

    hello: Hello
    now_collector_ns: int


class ReportAdmitted(msgspec.Struct, frozen=True, gc=False):
    """The next report of a life, once and in order. Numbers left out before it are lost for good."""

    boot_id: str
    report: ReportFields
    now_collector_ns: int
    now_wall_s: float


class DuplicateSeen(msgspec.Struct, frozen=True, gc=False):
    """A numbered message came again and was ignored."""

    boot_id: str


class GoodbyeAdmitted(msgspec.Struct, frozen=True, gc=False):
    """A life said how it ends."""

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
    """The process of a life is not there any more, seen on the machine it ran on."""

    boot_id: str
    now_collector_ns: int


class EndSeen(msgspec.Struct, frozen=True, gc=False):
    """The sidecar saw the process of a life end. It may say so more than once."""

    boot_id: str
    seen: RankEnded
    now_collector_ns: int


class UnresponsiveSeen(msgspec.Struct, frozen=True, gc=False):
    """The sidecar sees that the process of a life does not answer. It says so again while that lasts."""

    boot_id: str
    seen: RankUnresponsive
    now_collector_ns: int


class CollectorAway(msgspec.Struct, frozen=True, gc=False):
    """The collector itself has not looked for so long: stopped, suspended, or its clock has jumped."""

    away_ns: int
    now_collector_ns: int


class Tick(msgspec.Struct, frozen=True, gc=False):
    """Time has passed. `looks`: detection is to look, which in a large run costs more than all else of a tick."""

    now_collector_ns: int
    now_wall_s: float
    looks: bool = True


RankProcessEvent = (
    ReportAdmitted | DuplicateSeen | GoodbyeAdmitted | ClockSampled | ProcessGone | EndSeen | UnresponsiveSeen
)
"""What happens to a life that is known, named by its `boot_id`."""

PeerEvent = RankJoined | RankProcessEvent
"""What comes from the ranks and their sidecars."""

RunEvent = PeerEvent | CollectorAway | Tick


def find_boot_id(event: PeerEvent) -> str:
    """Return the life that an event is about."""
    return event.hello.identity.boot_id if isinstance(event, RankJoined) else event.boot_id


class AskClock(NamedTuple):
    """Ping this life for its clock."""

    boot_id: str


class OpenFinding(NamedTuple):
    """A verdict is new: tell people."""

    run: str
    finding: Finding


class UpdateFinding(NamedTuple):
    """A verdict that holds has changed in its ranks, cause, severity or pattern."""

    run: str
    finding: Finding


class CloseFinding(NamedTuple):
    """A verdict no longer holds: it has passed, is part of another finding now, whose number is `merged_into`, or its
    attempt is over.
    """

    run: str
    finding: Finding
    reason: str
    merged_into: int | None = None


RunEffect = AskClock | OpenFinding | UpdateFinding | CloseFinding
