"""Laws of notifications, however incidents flap, receivers fail and collectors are started again."""

import itertools
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from rankscope.collector.incidents.incident import Incident, reopen, resolve
from rankscope.collector.notifications.channel import DELIVERED, FAILED, RETRIED, TryResult
from tests.driven_clock import WALL_S
from tests.unit.collector.detect.findings import slow
from tests.unit.collector.notifications.worlds import INTERVAL_S, World, opened

RUNS = ("bert", "gpt", "t5")
CAUSES = ("gpu_slow", "data_loading")


class Said(NamedTuple):
    """What happens to the incident of a number, how the next tries end, and how long it takes until the next event."""

    what: str
    number: int
    cause: str
    outcomes: list[str]
    seconds: float


anything = st.lists(
    st.builds(
        Said,
        st.sampled_from(["open", "change", "resolve", "reopen", "restart", "nothing"]),
        st.integers(1, 3),
        st.sampled_from(CAUSES),
        st.lists(st.sampled_from([DELIVERED, RETRIED, FAILED]), max_size=3),
        st.sampled_from([0.0, 1.0, 10.0, 70.0]),
    ),
    max_size=40,
)


class Story:
    """A channel over any events, and the deliveries that succeeded, with their times by the wall clock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.world = World(path)
        self.incidents: dict[int, Incident] = {}
        self.delivered: list[tuple[float, str, Incident]] = []
        self.given_up: set[int] = set()

    def tell(self, said: Said) -> None:
        """Apply an event, valid or not, and let the channel work."""
        self._apply(said)
        self.world.receiver.answers = [TryResult(outcome, outcome) for outcome in said.outcomes]
        self.show()
        self.world.clock.now_s += said.seconds
        self.show()

    def end(self) -> None:
        """Let the receiver be there again for two hours."""
        self.world.receiver.answers = []
        for _ in range(120):
            self.world.clock.now_s += 60.0
            self.show()

    def show(self) -> None:
        """Have one event after the other delivered, and note which were."""
        world = self.world
        world.incidents = tuple(self.incidents.values())
        while True:
            before = dict(world.channel.counts.outcomes)
            if not world.channel.run_pass():
                return
            event, after = world.receiver.events[-1], world.channel.counts.outcomes
            if after[DELIVERED] > before[DELIVERED]:
                self.delivered.append((world.clock.now_s, event.id, event.incident))
            elif after[FAILED] > before[FAILED]:
                self.given_up.add(event.incident.id)

    def _apply(self, said: Said) -> None:
        now_wall_s = WALL_S + self.world.clock.now_s
        incident = self.incidents.get(said.number)
        if said.what == "restart":
            self.world = World(self.path, now_s=self.world.clock.now_s)
        elif incident is None:
            if said.what == "open":
                self.incidents[said.number] = opened(said.number, run=RUNS[said.number - 1], at_s=now_wall_s)
        elif said.what == "change" and incident.is_open:
            self.incidents[said.number] = msgspec.structs.replace(incident, cause=said.cause)
        elif said.what == "resolve" and incident.is_open:
            self.incidents[said.number] = resolve(incident, "passed", now_wall_s, lost_rank_seconds=1.0)
        elif said.what == "reopen" and not incident.is_open:
            self.incidents[said.number] = reopen(incident, slow(), now_wall_s)


def play(events: list[Said]) -> Story:
    """A story to its end."""
    with tempfile.TemporaryDirectory() as folder:
        story = Story(Path(folder) / "notified.json")
        for said in events:
            story.tell(said)
        story.end()
        assert story.world.faults.counts == {}
        assert story.world.channel.counts.waiting == 0
        return story


def by_incident(story: Story) -> dict[int, list[tuple[float, Incident]]]:
    """When which state of each incident was delivered."""
    found: dict[int, list[tuple[float, Incident]]] = defaultdict(list)
    for at_s, _, incident in story.delivered:
        found[incident.id].append((at_s, incident))
    return found


@given(anything)
def test_no_event_is_delivered_twice(events: list[Said]) -> None:
    ids = [identity for _, identity, _ in play(events).delivered]
    assert len(set(ids)) == len(ids)


@given(anything)
def test_last_state_of_each_incident_is_delivered_or_given_up(events: list[Said]) -> None:
    story = play(events)
    found = by_incident(story)
    for number, incident in story.incidents.items():
        if number not in story.given_up:
            _, last = found[number][-1]
            assert (last.state, last.severity) == (incident.state, incident.severity)
            assert last.cause == incident.cause or not incident.is_open


@given(anything)
def test_events_of_an_incident_keep_their_distance(events: list[Said]) -> None:
    for deliveries in by_incident(play(events)).values():
        for (before_s, _), (after_s, _) in itertools.pairwise(deliveries):
            assert after_s - before_s >= INTERVAL_S - 1e-6


@given(anything)
def test_each_event_of_an_incident_is_a_difference(events: list[Said]) -> None:
    story = play(events)
    for number, deliveries in by_incident(story).items():
        for (_, before), (_, after) in itertools.pairwise(deliveries):
            # One that was given up may lie between two that are the same.
            assert (before.state, before.cause) != (after.state, after.cause) or number in story.given_up
