"""A channel with a clock, incidents and a receiver that a test writes by hand."""

import threading
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from rankscope.collector.fault_log import FaultLog
from rankscope.collector.incidents.incident import Incident, begin, resolve
from rankscope.collector.notifications.channel import DELIVERED, Channel, Surroundings, TryResult
from rankscope.collector.notifications.event import IncidentEvent, IncidentNodes, build_event
from rankscope.collector.notifications.notified import NotifyRules
from tests.driven_clock import WALL_S, DrivenClock
from tests.unit.collector.detect.findings import slow

INTERVAL_S = 60.0
NEVER_CANCELLED = threading.Event()


def opened(number: int = 1, *, at_s: float = WALL_S + 2_000.0, run: str = "bert", **known: object) -> Incident:
    """An incident about rank 2, opened at a time of the wall clock, with `known` changed in its finding."""
    return begin(number, run, msgspec.structs.replace(slow(2), **known), at_s)


def resolved(incident: Incident, at_s: float = WALL_S + 3_000.0) -> Incident:
    """The same, resolved."""
    return resolve(incident, "passed", at_s, lost_rank_seconds=12.0)


def an_event(kind: str = "opened", number: int = 1) -> IncidentEvent:
    """An event about an incident without nodes."""
    return build_event(opened(), kind, number, 1_000.0, IncidentNodes(()))


@dataclass
class Receiver:
    """Keeps the events that it gets, and answers as it is told, in the end with DELIVERED."""

    answers: list[TryResult] = field(default_factory=list)
    events: list[IncidentEvent] = field(default_factory=list)

    def prepare(self) -> None:
        """Nothing has to be prepared."""

    def __call__(self, event: IncidentEvent, cancelled: threading.Event) -> TryResult:
        assert not cancelled.is_set()
        self.events.append(event)
        return self.answers.pop(0) if self.answers else TryResult(DELIVERED)

    @property
    def kinds(self) -> list[str]:
        """The kinds of the events."""
        return [event.kind for event in self.events]


class World:
    """One channel; `path` is where it keeps what it has delivered."""

    def __init__(self, path: Path | None = None, *, now_s: float = 2_000.0, severity_min: str = "warning") -> None:
        self.clock = DrivenClock()
        self.clock.now_s = now_s
        self.incidents: tuple[Incident, ...] = ()
        self.receiver = Receiver()
        self.severities: dict[str, str] = {}
        """The least severity of runs for which it was changed."""
        self.faults = FaultLog(self.clock)
        around = Surroundings(
            lambda: self.incidents,
            lambda _: IncidentNodes(()),
            self.clock,
            self.faults,
            NotifyRules(severity_min, INTERVAL_S),
            lambda: self.severities,
        )
        self.channel = Channel("webhook", self.receiver, around, path)

    def show(self, *incidents: Incident) -> "World":
        """These are the incidents now; deliver what is due."""
        self.incidents = incidents
        return self.deliver()

    def deliver(self) -> "World":
        """Deliver what is due now."""
        while self.channel.run_pass():
            pass
        return self

    def wait(self, seconds: float) -> "World":
        """Let time pass, and deliver what is due then."""
        self.clock.now_s += seconds
        return self.deliver()
