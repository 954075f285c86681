"""Which captures are about an incident, and about a finding."""

import random

import pytest
from msgspec.structs import asdict, replace

from rankscope.collector.captures.capture import Capture, RankCapture
from rankscope.collector.captures.incident_views import (
    NO_LINKS,
    CaptureLinks,
    IncidentView,
    is_about,
    link_incidents,
)
from rankscope.collector.incidents.incident import Incident, begin, reopen, resolve
from rankscope.collector.runs.snapshot import RunSnapshot
from tests.unit.collector.detect.findings import slow

RUN = "bert@20261125T103005Z"
BERT = RunSnapshot(run="bert", run_id=RUN, world_size=4, restart_count=0, ranks=())
OPENED_S, RESOLVED_S = 100.0, 200.0
OPEN = begin(7, RUN, slow(2, number=4), OPENED_S)
RESOLVED = resolve(OPEN, "passed", RESOLVED_S, lost_rank_seconds=None)


def capture(name: str = "c1", *ranks: int, asked_wall_s: float = 150.0, **other: object) -> Capture:
    plain = Capture(
        id=name, run="bert", run_id=RUN, state="complete", asked_wall_s=asked_wall_s, changed_wall_s=asked_wall_s,
        ranks=tuple(RankCapture(rank=rank) for rank in ranks),
    )  # fmt: skip
    return replace(plain, **other)


def test_capture_that_an_incident_has_ordered_is_about_it() -> None:
    assert is_about(capture("c1", 5, incident="7"), OPEN)


def test_incident_of_another_run_with_that_id_has_not_ordered_it() -> None:
    assert not is_about(capture("c1", 2, incident="7", run_id="bert@20261126T103005Z"), OPEN)


@pytest.mark.parametrize(("asked_wall_s", "expected"), [(99.0, False), (100.0, True), (200.0, True), (201.0, False)])
def test_capture_ordered_while_it_was_open_is_about_it(asked_wall_s: float, expected: bool) -> None:
    assert is_about(capture("c1", 1, 2, asked_wall_s=asked_wall_s), RESOLVED) is expected


def test_later_capture_is_about_an_incident_that_is_open() -> None:
    assert is_about(capture("c1", 2, asked_wall_s=1e6), OPEN)
    assert is_about(capture("c1", 2, asked_wall_s=1e6), reopen(RESOLVED, slow(2, number=5), 300.0))


def test_capture_without_its_rank_is_about_something_else() -> None:
    assert not is_about(capture("c1", 1, 3), OPEN)


def test_incidents_have_captures_in_the_order_given() -> None:
    other = begin(8, "gpt@1", slow(2), OPENED_S)
    found = link_incidents([OPEN, other], [capture("c2", 2), capture("c3", 9), capture("c1", 2)])
    assert [one.captures for one in found] == [("c2", "c1"), ()]
    assert {name: getattr(found[0], name) for name in Incident.__struct_fields__} == asdict(OPEN)


def test_captures_are_those_that_comparing_each_with_each_finds() -> None:
    choices = random.Random(5)  # the ranks of 40 incidents and of 60 captures, at any times, in two runs
    runs = (RUN, "bert@20261126T103005Z")
    incidents = [
        resolve(
            begin(number, choices.choice(runs), slow(choices.randrange(4)), begun),
            "passed",
            begun + 50.0,
            lost_rank_seconds=None,
        )
        for number, begun in enumerate(choices.uniform(0, 100) for _ in range(40))
    ]
    captures = [
        capture(
            f"c{number}",
            *choices.sample(range(4), 2),
            asked_wall_s=choices.uniform(0, 150),
            run_id=choices.choice(runs),
            incident=choices.choice(["", str(number % 40)]),
        )
        for number in range(60)
    ]
    found = {one.id: one.captures for one in link_incidents(incidents, captures)}
    assert found == {one.id: tuple(two.id for two in captures if is_about(two, one)) for one in incidents}
    assert any(len(ids) > 1 for ids in found.values())


def test_view_of_a_view_is_up_to_date() -> None:
    (old,) = link_incidents([OPEN], [capture("c1", 2)])
    assert isinstance(old, IncidentView)
    assert [one.captures for one in link_incidents([old], [])] == [()]


def test_incident_has_the_history_of_the_nodes_it_blames() -> None:
    links = CaptureLinks(lambda: [OPEN], tuple, lambda: {7: ("n1 has held up 9 of its last 12 runs",)})
    told, untold = links.of_incidents([OPEN, begin(8, RUN, slow(2), OPENED_S)])
    assert (told.node_history, untold.node_history) == (("n1 has held up 9 of its last 12 runs",), ())


def test_finding_has_the_captures_of_its_incident() -> None:
    links = CaptureLinks(lambda: [OPEN], lambda: [capture("c1", 2)])
    named, unnamed = links.of_findings(BERT, [slow(2, number=4), slow(2, number=5)])
    assert (named.captures, unnamed.captures) == (("c1",), ())
    assert (named.number, named.sentence) == (4, "Rank 2 is slow.")


def test_finding_names_its_incident_also_without_captures() -> None:
    links = CaptureLinks(lambda: [OPEN], tuple)
    assert [one.incident for one in links.of_findings(BERT, [slow(2, number=4), slow(2, number=5)])] == [7, None]
    assert links.of_findings(replace(BERT, run_id="bert@20261126T103005Z"), [slow(2, number=4)])[0].incident is None


def test_findings_about_node_and_rank_have_runbooks_of_their_own() -> None:
    named = NO_LINKS.of_findings(BERT, [slow(2), replace(slow(2), nodes=("n1",))])
    assert [one.runbook for one in named] == ["RankscopeStragglerRank", "RankscopeStragglerNode"]


def test_number_of_two_incidents_is_that_of_the_later_one() -> None:
    # A restarted collector that could not restore the run counts its findings from 1 again.
    later = begin(9, RUN, slow(3, number=4), 300.0)
    links = CaptureLinks(lambda: [RESOLVED, later], lambda: [capture("c1", 2)])
    assert links.of_findings(BERT, [slow(3, number=4)])[0].captures == ()
