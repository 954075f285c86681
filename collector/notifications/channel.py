"""Deliver events about incidents to one receiver, in a thread of its own, with retries and counts.

Nothing waits for this thread but the end of the collector, and that for a limited time.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import msgspec

from rankscope.collector.fault_log import FaultLog
from rankscope.collector.incidents.incident import Incident
from rankscope.collector.notifications.event import IncidentEvent, IncidentNodes, build_event, find_signature
from rankscope.collector.notifications.notified import NotifiedIncidents, NotifyRules, find_kind, find_pause_s
from rankscope.collector.process_tuning import name_this_thread
from rankscope.collector.runs.snapshot import ChannelCounts
from rankscope.measure.clock import Clock
from rankscope.measure.units import ns_to_s

LOG = logging.getLogger("rankscope.collector")

FAULT: Final = "notifications"
"""Label of contained faults of notifications, in the counts of errors."""
DELIVERED: Final = "delivered"
RETRIED: Final = "retried"
FAILED: Final = "failed"
DROPPED: Final = "dropped"
OUTCOMES: Final = (DELIVERED, RETRIED, FAILED, DROPPED)
"""Delivered; a try that failed and is repeated; given up; forgotten by the collector (`incidents_max`) before it could
be delivered."""

TRIES_MAX: Final = 20
"""Tries to deliver an event. With the pauses below the last one comes after 59 minutes: the first nine pauses are 511 s
together, the other ten 300 s each."""
PAUSE_S_MAX: Final = 300.0
"""Longest pause between two tries: they are 1, 2, 4, ... s, and no receiver can ask for a longer one."""
POLL_S: Final = 0.5
"""Time between two passes where nothing is to be delivered."""
CANCEL_S: Final = 1.0
"""Time that a delivery has to end once it is cancelled."""


class TryResult(NamedTuple):
    """Result of one try: DELIVERED, RETRIED or FAILED, why not, and for how long the receiver wants no other try."""

    outcome: str
    problem: str = ""
    retry_after_s: float = 0.0


class Deliver(Protocol):
    """A way to deliver an event. May block; it should return soon once `cancelled` is set. What it raises counts as
    FAILED.
    """

    def prepare(self) -> None:
        """Get ready, before the first event and in the thread that delivers. May block."""
        ...

    def __call__(self, event: IncidentEvent, cancelled: threading.Event, /) -> TryResult:
        """Try once to deliver an event."""
        ...


NOTHING_CHANGED: Final[Mapping[str, str]] = {}


class Surroundings(NamedTuple):
    """What all channels share. `read_incidents` returns all incidents, the same object while nothing has changed;
    `find_nodes` the nodes of one. `read_severities` returns the least severity that is notified, by the id of runs for
    which it was changed; the same object while nothing has. All may be called by any thread.
    """

    read_incidents: Callable[[], tuple[Incident, ...]]
    find_nodes: Callable[[Incident], IncidentNodes]
    clock: Clock
    faults: FaultLog
    rules: NotifyRules
    read_severities: Callable[[], Mapping[str, str]] = lambda: NOTHING_CHANGED

    def find_rules(self, incident: Incident, severities: Mapping[str, str]) -> NotifyRules:
        """Return what is notified of the run of an incident."""
        severity_min = severities.get(incident.run_id)
        return self.rules if severity_min is None else self.rules._replace(severity_min=severity_min)


@dataclass(slots=True)
class _Waiting:
    """An event that is to be delivered: its incident as of now, how often that was tried, and when to try next, by the
    monotonic clock.
    """

    incident: Incident
    kind: str
    number: int
    next_s: float
    tries: int = 0


class Channel:
    """One receiver of events, from `start` to `stop`. `name` is its label in metrics and in the log. With a `path`
    what was delivered is kept in that file.
    """

    def __init__(self, name: str, deliver: Deliver, around: Surroundings, path: Path | None = None) -> None:
        self.name = name
        self._deliver = deliver
        self._around = around
        self._notified = self._read_notified(path)
        self._seen: tuple[Incident, ...] = ()
        self._severities = NOTHING_CHANGED
        self._waiting: dict[int, _Waiting] = {}
        self._held_until_s = 0.0
        self._counts = dict.fromkeys(OUTCOMES, 0)
        self._success_wall_s: float | None = None
        self._problem = ""
        self._stopping = threading.Event()
        self._cancelled = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"rankscope-{name}", daemon=True)

    @property
    def counts(self) -> ChannelCounts:
        """Events by outcome, how many are due, and when the last one was delivered. Any thread."""
        now_s = self._now_s()
        due = sum(one.tries > 0 or one.next_s <= now_s for one in list(self._waiting.values()))
        return ChannelCounts(dict(self._counts), due, self._success_wall_s)

    def start(self) -> None:
        """Begin to deliver."""
        self._thread.start()

    def begin_stop(self) -> None:
        """Have the thread deliver what was not tried yet, and end."""
        self._stopping.set()

    def finish_stop(self, seconds: float) -> int:
        """Wait for the end for so long, then cancel what is being delivered; return how many events are left."""
        if self._thread.is_alive():
            self._thread.join(seconds)
        self._cancelled.set()
        if self._thread.is_alive():
            self._thread.join(CANCEL_S)
        return len(self._waiting)

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        name_this_thread(self.name)
        with self._around.faults.contain(FAULT, f"{self.name}: it could not be prepared; continuing"):
            self._deliver.prepare()
        while not self._cancelled.is_set():
            is_last = self._stopping.is_set()
            has_tried = False
            with self._around.faults.contain(FAULT, f"{self.name}: a notification could not be made; continuing"):
                has_tried = self.run_pass()
            if not has_tried:
                if is_last:
                    return
                self._stopping.wait(POLL_S)

    def run_pass(self) -> bool:
        """Try to deliver the event that is due first; return whether there was one. For the thread."""
        now_s = self._now_s()
        incidents, severities = self._around.read_incidents(), self._around.read_severities()
        if incidents is not self._seen or severities is not self._severities:
            self._severities = severities
            self._update(incidents, now_s)
            self._seen = incidents
        if self._stopping.is_set():
            ready = [one for one in self._waiting.values() if not one.tries]
        else:
            ready = [one for one in self._waiting.values() if max(one.next_s, self._held_until_s) <= now_s]
        if not ready:
            return False
        self._try(min(ready, key=lambda one: (one.tries, one.incident.id)))
        return True

    def _update(self, incidents: tuple[Incident, ...], now_s: float) -> None:
        """Bring what waits up to date with the incidents."""
        wall_s = self._wall_s()
        known = {incident.id for incident in incidents}
        for number in self._waiting.keys() - known:
            del self._waiting[number]
            self._count(DROPPED)
        self._notified.keep_only(known)
        for incident in incidents:
            self._update_one(incident, now_s, wall_s)

    def _update_one(self, incident: Incident, now_s: float, wall_s: float) -> None:
        last, before = self._notified.find(incident), self._waiting.get(incident.id)
        kind = find_kind(
            incident, last, self._notified.since_wall_s, self._around.find_rules(incident, self._severities)
        )
        if kind is None:
            self._waiting.pop(incident.id, None)
        elif before is not None and find_signature(before.incident) == find_signature(incident):
            before.incident = incident
        else:
            pause_s = find_pause_s(last, wall_s, self._around.rules)
            number = 1 if last is None else last.number + 1
            self._waiting[incident.id] = _Waiting(incident, kind, number, now_s + pause_s)

    def _try(self, one: _Waiting) -> None:
        nodes = self._around.find_nodes(one.incident)
        event = build_event(one.incident, one.kind, one.number, self._wall_s(), nodes)
        delivery = self._call(event)
        if self._cancelled.is_set() and delivery.outcome != DELIVERED:
            return  # it is left, and no failure
        one.tries += 1
        if delivery.outcome == RETRIED and one.tries >= TRIES_MAX:
            delivery = TryResult(FAILED, f"{delivery.problem}; given up after {TRIES_MAX} tries")
        self._log(delivery, event)
        self._count(delivery.outcome)
        if delivery.outcome == RETRIED:
            self._hold(one, delivery.retry_after_s)
        else:
            self._finish(one)

    def _call(self, event: IncidentEvent) -> TryResult:
        try:
            return self._deliver(event, self._cancelled)
        except Exception as error:  # noqa: BLE001 - the fault log has it
            self._around.faults.note(FAULT, f"{self.name}: an event could not be delivered; continuing")
            return TryResult(FAILED, f"it raised {type(error).__name__}")

    def _hold(self, one: _Waiting, retry_after_s: float) -> None:
        now_s = self._now_s()
        one.next_s = now_s + min(PAUSE_S_MAX, 2.0 ** (one.tries - 1))
        if retry_after_s > 0:  # the receiver asks for it, whatever the event
            self._held_until_s = now_s + min(PAUSE_S_MAX, retry_after_s)

    def _finish(self, one: _Waiting) -> None:
        del self._waiting[one.incident.id]
        try:
            self._notified.note(one.incident, one.number, self._wall_s())
        except OSError:
            self._around.faults.note(
                FAULT, f"{self.name}: what was delivered cannot be kept on disk; a restart may deliver it once more"
            )

    def _log(self, delivery: TryResult, event: IncidentEvent) -> None:
        """Log a problem once while it lasts (each time on the debug level), and that deliveries succeed again."""
        level = logging.DEBUG if delivery.problem == self._problem else logging.WARNING
        if delivery.outcome == FAILED:
            LOG.log(level, "%s: event %r of incident %d is lost: %s", self.name, event.kind, event.incident.id,
                    delivery.problem)  # fmt: skip
        elif delivery.outcome == RETRIED:
            LOG.log(level, "%s: %s; trying again", self.name, delivery.problem)
        elif self._problem:
            LOG.info("%s: events are delivered again", self.name)
        self._problem = delivery.problem

    def _count(self, outcome: str) -> None:
        self._counts[outcome] += 1
        if outcome == DELIVERED:
            self._success_wall_s = self._wall_s()

    def _read_notified(self, path: Path | None) -> NotifiedIncidents:
        notified = NotifiedIncidents(path, self._wall_s())
        try:
            notified.load()
        except (OSError, msgspec.DecodeError) as error:
            self._around.faults.count(FAULT)
            text = "%s: %s cannot be read: %s. Incidents that are open are delivered once more."
            LOG.error(text, self.name, path, error)  # noqa: TRY400 - expected
        return notified

    def _now_s(self) -> float:
        return ns_to_s(self._around.clock.monotonic_ns())

    def _wall_s(self) -> float:
        return ns_to_s(self._around.clock.wall_ns())
