"""Laws of incidents, in whatever order a run's findings open, change, merge and end."""

import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.collector.detect.finding import Finding
from rankscope.collector.incidents.incident import Incident, Rules
from rankscope.collector.incidents.ledger import ComparedRun, Ledger
from tests.unit.collector.detect.findings import RUN, slow

RULES = Rules(incidents_max=1_000, reopen_s=20.0, escalate_s=30.0, escalate_rank_s=50.0, restart_grace_s=15.0)
BEGINS = frozenset({"opened", "reopened"})


class Said(NamedTuple):
    """Event: what happens, to the finding of which number, on which ranks, merged into which other one."""

    what: str
    number: int
    ranks: frozenset[int]
    into: int
    seconds: float


anything = st.lists(
    st.builds(
        Said,
        st.sampled_from(["open", "update", "close", "merge", "look", "look", "over", "restart"]),
        st.integers(1, 5),
        st.frozensets(st.integers(0, 3), min_size=1, max_size=2),
        st.integers(1, 5),
        st.sampled_from([0.0, 1.0, 16.0, 25.0]),
    ),
    max_size=40,
)


class Told:
    """Ledger after some events, with the expected state."""

    def __init__(self) -> None:
        self.ledger = Ledger(RULES, 0.0)
        self.now_s = 0.0
        self.numbers: dict[int, int] = {}
        self.given = 0
        self.open: dict[int, Finding] = {}
        self.notable: dict[int, list[str]] = defaultdict(list)

    def tell(self, said: Said) -> None:
        """Apply any event, valid or not."""
        self.now_s += said.seconds
        finding = slow(number=self.number(said.number), ranks=tuple(sorted(said.ranks)))
        match said.what:
            case "open" | "update":
                self.open[finding.number] = finding
                (self.ledger.open if said.what == "open" else self.ledger.update)(RUN, finding, self.now_s)
            case "close" | "merge":
                self.close(said, finding)
            case "look" | "over":
                self.look(over=said.what == "over")
            case _:
                self.ledger = Ledger(RULES, self.now_s, known=self.ledger.incidents)
                self.open.clear()
                self.numbers.clear()
        for incident in self.ledger.drain_changes().notable:
            self.notable[incident.id].append(incident.changes[-1].what)

    def number(self, place: int) -> int:
        """Return the finding at this place; after its end another one with a number of its own, as in a run."""
        if place not in self.numbers:
            self.given += 1
            self.numbers[place] = self.given
        return self.numbers[place]

    def close(self, said: Said, finding: Finding) -> None:
        """The end of a finding."""
        into = self.number(said.into) if said.what == "merge" else None
        self.open.pop(finding.number, None)
        self.numbers.pop(said.number, None)
        self.ledger.close(RUN, finding, "passed", self.now_s, merged_into=into)

    def look(self, *, over: bool = False) -> None:
        """A tick."""
        self.ledger.reconcile([ComparedRun(RUN, tuple(self.open.values()), is_over=over, is_judged=True)], self.now_s)

    def owners(self, number: int) -> Sequence[Incident]:
        """Return the open incidents that have had this finding."""
        return [incident for incident in self.ledger.incidents if incident.is_open and number in incident.findings]


@given(anything)
def test_every_incident_ends_at_most_once_for_each_begin(events: list[Said]) -> None:
    told = Told()
    for said in events:
        told.tell(said)
    for incident in told.ledger.incidents:
        turns = [what for what in told.notable[incident.id] if what in BEGINS or what == "resolved"]
        assert turns[0] == "opened"
        assert turns.count("opened") == 1
        assert all((one in BEGINS) != (next_one in BEGINS) for one, next_one in itertools.pairwise(turns))
        assert incident.is_open == (turns[-1] in BEGINS)
        assert incident.is_open == (incident.resolved_wall_s is None)


@given(anything)
def test_no_incident_and_no_open_finding_is_lost(events: list[Said]) -> None:
    told = Told()
    seen: set[int] = set()
    for said in events:
        told.tell(said)
        ids = {incident.id for incident in told.ledger.incidents}
        assert seen <= ids
        seen = ids
        if said.what != "over":
            told.look()
            assert [number for number in told.open if not told.owners(number)] == []


@given(anything)
def test_severity_never_falls_and_time_in_it_never_runs_back(events: list[Said]) -> None:
    told = Told()
    before: dict[int, Incident] = {}
    for said in events:
        told.tell(said)
        for incident in told.ledger.incidents:
            was = before.get(incident.id, incident)
            assert (was.severity, incident.severity) != ("critical", "warning")
            assert was.opened_wall_s == incident.opened_wall_s <= was.updated_wall_s <= incident.updated_wall_s
        before = {incident.id: incident for incident in told.ledger.incidents}


@given(anything)
def test_when_everything_has_ended_nothing_is_open(events: list[Said]) -> None:
    told = Told()
    for said in events:
        told.tell(said)
    told.look(over=True)
    assert [incident for incident in told.ledger.incidents if incident.is_open] == []


@given(anything)
def test_every_incident_survives_being_written_down(events: list[Said]) -> None:
    told = Told()
    for said in events:
        told.tell(said)
    written = msgspec.json.encode(told.ledger.incidents)
    assert msgspec.json.decode(written, type=tuple[Incident, ...]) == told.ledger.incidents


# -- cost: told as a run tells it, each number once -------------------------------------------------------------------

spendings = st.sampled_from(["open", "spend", "close", "merge"])
costs = st.lists(st.tuples(spendings, st.integers(0, 7), st.integers(0, 7), st.integers(0, 4)), max_size=40)


@given(costs)
def test_what_findings_have_cost_is_what_incidents_have_cost(events: list[tuple[str, int, int, int]]) -> None:
    ledger, held, spent, opened = Ledger(RULES, 0.0), dict[int, Finding](), 0.0, 0
    for second, (what, chosen, other, ranks) in enumerate(events):
        numbers = sorted(held)
        finding = held[numbers[chosen % len(numbers)]] if numbers else None
        if what == "open" or finding is None:
            opened += 1
            held[opened] = slow(ranks, number=opened)
            ledger.open(RUN, held[opened], second)
        elif what == "spend":
            spent += other
            lost_s = (finding.lost_rank_seconds or 0.0) + other
            held[finding.number] = msgspec.structs.replace(finding, lost_rank_seconds=lost_s)
        elif what == "close":
            ledger.close(RUN, held.pop(finding.number), "passed", second)
        elif (into := numbers[other % len(numbers)]) != finding.number:
            ledger.close(RUN, held.pop(finding.number), "part of it", second, merged_into=into)
            lost_s = (held[into].lost_rank_seconds or 0.0) + (finding.lost_rank_seconds or 0.0)
            held[into] = msgspec.structs.replace(held[into], lost_rank_seconds=lost_s)
        for _ in range(2):  # a second finding of an incident counts in its cost one pass later
            ledger.reconcile([ComparedRun(RUN, tuple(held.values()), is_over=False, is_judged=True)], second)
    assert sum(incident.lost_rank_seconds or 0.0 for incident in ledger.incidents) == pytest.approx(spent)
