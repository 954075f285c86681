"""The assignment of findings to incidents, in seconds of a wall clock that the test drives."""

import pytest

from rankscope.collector.detect.finding import Finding
from rankscope.collector.incidents.incident import Incident, Rules
from rankscope.collector.incidents.ledger import (
    RUN_FAILURE,
    RUN_IS_GONE,
    RUN_IS_OVER,
    STARTED_AGAIN,
    ComparedRun,
    Ledger,
)
from rankscope.collector.runs.events import CloseFinding, FindingOpened, UpdateFinding
from tests.unit.collector.detect.findings import RUN, slow
from tests.unit.collector.runs.run_stories import Story

RULES = Rules(incidents_max=10, reopen_s=100.0, escalate_s=1e6, escalate_rank_s=1e6, restart_grace_s=50.0)


@pytest.fixture
def ledger() -> Ledger:
    """An empty one, at second 0."""
    return Ledger(RULES, 0.0)


def look(ledger: Ledger, now_s: float, *findings: Finding, over: bool = False, is_judged: bool = True) -> None:
    """A tick at which the one run holds these findings open."""
    ledger.reconcile([ComparedRun(RUN, findings, is_over=over, is_judged=is_judged)], now_s)


def whats(incident: Incident) -> list[str]:
    """Its changes in a word each."""
    return [change.what for change in incident.changes]


def restart(ledger: Ledger, now_s: float) -> Ledger:
    """What a new collector makes of what was kept."""
    return Ledger(RULES, now_s, known=ledger.incidents)


# -- life -------------------------------------------------------------------------------------------------------------


def test_a_finding_opens_an_incident_and_its_end_resolves_it(ledger: Ledger) -> None:
    ledger.open(RUN, slow(), 10.0)
    ledger.close(RUN, slow(lost_rank_seconds=4.0), "passed", 70.0)
    (incident,) = ledger.incidents
    assert (incident.id, incident.opened_wall_s, incident.resolved_wall_s) == (1, 10.0, 70.0)
    assert (incident.resolved_reason, incident.lost_rank_seconds) == ("passed", 4.0)


def test_different_ranks_runs_and_kinds_are_separate_incidents(ledger: Ledger) -> None:
    for finding, run in (
        (slow(2), RUN),
        (slow(3, number=2), RUN),
        (slow(2), "gpt"),
        (slow(2, number=3, kind="hang"), RUN),
    ):
        ledger.open(run, finding, 0.0)
    assert [(one.id, one.run, one.kind, one.ranks) for one in ledger.incidents] == [
        (1, RUN, "straggler", (2,)), (2, RUN, "straggler", (3,)), (3, "gpt", "straggler", (2,)), (4, RUN, "hang", (2,)),
    ]  # fmt: skip


def test_next_run_does_not_reopen_incidents_of_a_former_run(ledger: Ledger) -> None:
    """The same rank is slow in both runs of the name, with seconds between them: two incidents, one for each run."""
    former, latest = "bert@20261125T103005Z", "bert@20261125T103105Z"
    ledger.open(former, slow(), 0.0)
    ledger.reconcile([ComparedRun(former, [slow()], is_over=True, is_judged=True)], 10.0)
    ledger.open(latest, slow(), 20.0)
    told = [(one.run, one.run_id, one.state, one.resolved_reason) for one in ledger.incidents]
    assert told == [("bert", former, "resolved", "the run is over"), ("bert", latest, "open", "")]


def test_an_incident_follows_its_finding(ledger: Ledger) -> None:
    ledger.open(RUN, slow(), 0.0)
    ledger.update(RUN, slow(ranks=(2, 3), cause="data_loading"), 5.0)
    (incident,) = ledger.incidents
    assert (incident.subject, incident.cause, whats(incident)) == ("ranks 2-3", "data_loading", ["opened", "updated"])


def test_every_tick_updates_the_cost(ledger: Ledger) -> None:
    ledger.open(RUN, slow(), 0.0)
    look(ledger, 1.0, slow(lost_rank_seconds=7.0))
    assert ledger.incidents[0].lost_rank_seconds == 7.0


def test_tick_raises_the_severity_of_a_costly_incident() -> None:
    ledger = Ledger(Rules(escalate_rank_s=100.0), 0.0)
    ledger.open(RUN, slow(), 0.0)
    look(ledger, 1.0, slow(lost_rank_seconds=99.0))
    assert ledger.incidents[0].severity == "warning"
    look(ledger, 2.0, slow(lost_rank_seconds=100.0))
    assert ledger.incidents[0].severity == "critical"


def test_missed_opening_is_made_up_at_the_next_tick(ledger: Ledger) -> None:
    look(ledger, 1.0, slow())
    assert [incident.findings for incident in ledger.incidents] == [(1,)]


def test_missed_end_is_resolved_at_the_next_tick(ledger: Ledger) -> None:
    ledger.open(RUN, slow(), 0.0)
    look(ledger, 1.0)
    assert ledger.incidents[0].resolved_reason == "no longer found"


def test_end_of_an_unknown_finding_changes_nothing(ledger: Ledger) -> None:
    ledger.close(RUN, slow(), "passed", 1.0)
    assert ledger.incidents == ()


def test_incidents_of_an_ended_run_are_resolved_once(ledger: Ledger) -> None:
    ledger.open(RUN, slow(), 0.0)
    for second in (1.0, 2.0):
        look(ledger, second, slow(lost_rank_seconds=3.0), over=True)
    ledger.close(RUN, slow(), "restarted", 3.0)
    (incident,) = ledger.incidents
    assert (incident.resolved_reason, incident.resolved_wall_s) == ("the run is over", 1.0)


def test_incidents_of_a_forgotten_run_are_resolved(ledger: Ledger) -> None:
    ledger.open(RUN, slow(), 0.0)
    ledger.reconcile([], 9.0)
    assert ledger.incidents[0].resolved_reason == "the run is no longer known"


# -- again ------------------------------------------------------------------------------------------------------------


def test_finding_that_recurs_soon_reopens_its_incident(ledger: Ledger) -> None:
    ledger.open(RUN, slow(number=1), 0.0)
    ledger.close(RUN, slow(number=1, lost_rank_seconds=5.0), "passed", 10.0)
    ledger.open(RUN, slow(number=2), 110.0)
    look(ledger, 111.0, slow(number=2, lost_rank_seconds=2.0))
    (incident,) = ledger.incidents
    assert (incident.is_open, incident.findings, incident.lost_rank_seconds) == (True, (1, 2), 7.0)
    assert whats(incident) == ["opened", "resolved", "reopened"]


def test_finding_that_recurs_late_is_another_incident(ledger: Ledger) -> None:
    ledger.open(RUN, slow(number=1), 0.0)
    ledger.close(RUN, slow(number=1), "passed", 10.0)
    ledger.open(RUN, slow(number=2), 110.1)
    assert [incident.is_open for incident in ledger.incidents] == [False, True]


def test_finding_on_other_ranks_reopens_nothing(ledger: Ledger) -> None:
    ledger.open(RUN, slow(2, number=1), 0.0)
    ledger.close(RUN, slow(2, number=1), "passed", 10.0)
    ledger.open(RUN, slow(3, number=2), 11.0)
    assert [incident.is_open for incident in ledger.incidents] == [False, True]


def test_incident_resolved_last_is_reopened(ledger: Ledger) -> None:
    for rank, number, end_s in ((2, 1, 20.0), (3, 2, 30.0)):
        ledger.open(RUN, slow(rank, number=number), 0.0)
        ledger.close(RUN, slow(rank, number=number), "passed", end_s)
    ledger.open(RUN, slow(ranks=(2, 3), number=3), 40.0)
    assert [incident.is_open for incident in ledger.incidents] == [False, True]


# -- merged -----------------------------------------------------------------------------------------------------------


def merged(ledger: Ledger) -> tuple[Incident, ...]:
    """Two findings, the second of which turns out to be part of the first; each has cost something."""
    ledger.open(RUN, slow(2, number=1), 0.0)
    ledger.open(RUN, slow(3, number=2), 1.0)
    look(ledger, 2.0, slow(2, number=1, lost_rank_seconds=5.0), slow(3, number=2, lost_rank_seconds=3.0))
    ledger.close(RUN, slow(3, number=2, lost_rank_seconds=3.0), "part of finding 1", 3.0, merged_into=1)
    look(ledger, 4.0, slow(ranks=(2, 3), number=1, lost_rank_seconds=8.0))
    return ledger.incidents


def test_incident_of_a_merged_finding_is_part_of_the_other_one(ledger: Ledger) -> None:
    origin, victim = merged(ledger)
    assert (victim.resolved_reason, victim.merged_into) == ("part of incident 1", 1)
    assert (origin.is_open, origin.ranks, origin.findings) == (True, (2, 3), (1, 2))
    assert [change.text for change in origin.changes if change.what == "merged"] == [
        "incident 2, rank 3, is part of it"
    ]


def test_merged_cost_is_counted_once(ledger: Ledger) -> None:
    assert [incident.lost_rank_seconds for incident in merged(ledger)] == [8.0, None]


def test_cost_before_a_flap_is_merged_too(ledger: Ledger) -> None:
    ledger.open(RUN, slow(3, number=1), 0.0)
    ledger.close(RUN, slow(3, number=1, lost_rank_seconds=100.0), "passed", 1.0)
    ledger.open(RUN, slow(3, number=2), 2.0)
    ledger.open(RUN, slow(2, number=3), 2.0)
    ledger.close(RUN, slow(3, number=2, lost_rank_seconds=3.0), "part of finding 3", 3.0, merged_into=3)
    look(ledger, 4.0, slow(ranks=(2, 3), number=3, lost_rank_seconds=8.0))
    assert [incident.lost_rank_seconds for incident in ledger.incidents] == [None, 108.0]


def test_merged_incident_that_recurs_reopens_its_origin(ledger: Ledger) -> None:
    merged(ledger)
    look(ledger, 5.0, slow(2, number=1))
    ledger.open(RUN, slow(3, number=3), 6.0)
    origin, victim = ledger.incidents
    assert (origin.findings, victim.is_open) == ((1, 2, 3), False)
    ledger.close(RUN, slow(2, number=1), "passed", 7.0)
    assert ledger.incidents[0].is_open
    ledger.close(RUN, slow(3, number=3), "passed", 8.0)
    assert ledger.incidents[0].resolved_reason == "passed"


def test_two_findings_of_one_incident_merge_without_its_end(ledger: Ledger) -> None:
    merged(ledger)
    look(ledger, 5.0, slow(2, number=1, lost_rank_seconds=8.0))
    ledger.open(RUN, slow(3, number=3, lost_rank_seconds=1.0), 6.0)
    ledger.close(RUN, slow(2, number=1, lost_rank_seconds=8.0), "part of finding 3", 7.0, merged_into=3)
    look(ledger, 8.0, slow(ranks=(2, 3), number=3, lost_rank_seconds=9.0))
    origin = ledger.incidents[0]
    assert (origin.is_open, origin.ranks, origin.lost_rank_seconds) == (True, (2, 3), 9.0)


def test_finding_merged_into_an_unknown_one_is_resolved(ledger: Ledger) -> None:
    ledger.open(RUN, slow(), 0.0)
    ledger.close(RUN, slow(), "part of finding 9", 1.0, merged_into=9)
    assert (ledger.incidents[0].resolved_reason, ledger.incidents[0].merged_into) == ("part of finding 9", None)


def test_origin_resolved_too_long_ago_is_not_reopened(ledger: Ledger) -> None:
    merged(ledger)
    ledger.close(RUN, slow(2, number=1), "passed", 5.0)
    ledger.open(RUN, slow(3, number=3), 106.0)
    assert [incident.is_open for incident in ledger.incidents] == [False, False, True]


def test_origin_counts_by_its_own_end_with_a_clock_set_back(ledger: Ledger) -> None:
    merged(ledger)
    ledger.close(RUN, slow(2, number=1), "passed", -200.0)
    ledger.open(RUN, slow(3, number=3), -50.0)
    assert [incident.is_open for incident in ledger.incidents] == [False, False, True]


def test_straggler_of_a_real_run_is_one_incident(ledger: Ledger) -> None:
    story = Story(4).join()
    story.train(40)
    story.train(60, forward={2: 30.0})
    story.train(80)
    tell(ledger, story)
    (incident,) = ledger.incidents
    assert (incident.run, incident.ranks, incident.resolved_reason) == ("story", (2,), "passed")


def tell(ledger: Ledger, story: Story) -> None:
    """Tell it everything that a run's state has said, in order."""
    for effect in story.effects:
        match effect:
            case FindingOpened(run, finding):
                ledger.open(run, finding, 1.0)
            case UpdateFinding(run, finding):
                ledger.update(run, finding, 1.0)
            case CloseFinding(run, finding, reason, into):
                ledger.close(run, finding, reason, 1.0, merged_into=into)


# -- a restart of the collector ---------------------------------------------------------------------------------------


def test_open_incident_continues_after_a_restart(ledger: Ledger) -> None:
    ledger.open(RUN, slow(lost_rank_seconds=5.0), 0.0)
    again = restart(ledger, 20.0)
    look(again, 21.0, is_judged=False)
    look(again, 22.0, slow(since_step=4_000, lost_rank_seconds=2.0))
    (incident,) = again.incidents
    assert (incident.is_open, incident.opened_wall_s, incident.since_step) == (True, 0.0, 60)
    assert (incident.lost_rank_seconds, whats(incident)) == (7.0, ["opened", "continued"])


def test_incident_of_a_missing_run_is_resolved_after_the_grace(ledger: Ledger) -> None:
    ledger.open(RUN, slow(lost_rank_seconds=5.0), 0.0)
    again = restart(ledger, 20.0)
    again.reconcile([], 69.9)
    assert again.incidents[0].is_open
    again.reconcile([], 70.0)
    (incident,) = again.incidents
    assert (incident.resolved_reason, incident.lost_rank_seconds) == ("collector restarted", 5.0)


def test_incident_of_a_run_ended_meanwhile_is_resolved(ledger: Ledger) -> None:
    ledger.open(RUN, slow(), 0.0)
    again = restart(ledger, 20.0)
    look(again, 21.0, over=True)
    assert again.incidents[0].resolved_reason == "collector restarted"


def test_grace_of_a_returned_run_begins_with_its_first_verdict(ledger: Ledger) -> None:
    ledger.open(RUN, slow(), 0.0)
    again = restart(ledger, 20.0)
    look(again, 500.0, is_judged=False)
    look(again, 510.0)
    look(again, 559.9)
    assert again.incidents[0].is_open
    look(again, 560.0)
    assert again.incidents[0].resolved_reason == "collector restarted, and it was not found again"


def test_incident_resolved_before_a_restart_can_be_reopened(ledger: Ledger) -> None:
    ledger.open(RUN, slow(), 0.0)
    ledger.close(RUN, slow(), "passed", 10.0)
    again = restart(ledger, 20.0)
    again.open(RUN, slow(), 30.0)
    assert [whats(incident) for incident in again.incidents] == [["opened", "resolved", "reopened"]]


def test_no_id_is_given_twice_after_a_restart() -> None:
    ledger = Ledger(RULES, 0.0, known=(), last_id=41)
    ledger.open(RUN, slow(), 0.0)
    assert ledger.incidents[0].id == 42


# -- bounds and changes -----------------------------------------------------------------------------------------------


def test_incident_resolved_first_is_forgotten_first() -> None:
    ledger = Ledger(Rules(incidents_max=2), 0.0)
    for rank, end_s in ((1, 30.0), (2, 20.0)):
        ledger.open(RUN, slow(rank, number=rank), 0.0)
        ledger.close(RUN, slow(rank, number=rank), "passed", end_s)
    ledger.open(RUN, slow(3, number=3), 40.0)
    assert [incident.ranks for incident in ledger.incidents] == [(1,), (3,)]
    assert ledger.drain_changes().forgotten == (2,)


def test_open_incidents_are_kept_and_refusals_counted_once() -> None:
    ledger = Ledger(Rules(incidents_max=1), 0.0)
    ledger.open(RUN, slow(2, number=1), 0.0)
    for second in (1.0, 2.0):
        look(ledger, second, slow(2, number=1), slow(3, number=2))
    assert ([incident.ranks for incident in ledger.incidents], ledger.incidents_refused) == ([(2,)], 1)


def test_refused_finding_gets_an_incident_when_there_is_room() -> None:
    ledger = Ledger(Rules(incidents_max=1), 0.0)
    ledger.open(RUN, slow(2, number=1), 0.0)
    ledger.open(RUN, slow(3, number=2), 0.0)
    ledger.close(RUN, slow(2, number=1), "passed", 1.0)
    look(ledger, 2.0, slow(3, number=2))
    assert [incident.ranks for incident in ledger.incidents] == [(3,)]


def test_smaller_limit_applies_to_stored_incidents(ledger: Ledger) -> None:
    for number in range(1, 4):
        ledger.open(RUN, slow(number, number=number), 0.0)
        ledger.close(RUN, slow(number, number=number), "passed", float(number))
    fewer = Ledger(Rules(incidents_max=1), 9.0, known=ledger.incidents)
    assert ([incident.id for incident in fewer.incidents], fewer.drain_changes().forgotten) == ([3], (1, 2))


def test_changes_are_returned_once(ledger: Ledger) -> None:
    ledger.open(RUN, slow(), 0.0)
    changes = ledger.drain_changes()
    assert (changes.changed, [whats(one) for one in changes.notable]) == (ledger.incidents, [["opened"]])
    assert ledger.drain_changes() == ((), (), ())


def test_new_numbers_are_a_change_but_not_notable(ledger: Ledger) -> None:
    ledger.open(RUN, slow(), 0.0)
    ledger.drain_changes()
    look(ledger, 1.0, slow(lost_rank_seconds=7.0))
    changes = ledger.drain_changes()
    assert ([one.id for one in changes.changed], changes.notable) == ([1], ())
    look(ledger, 2.0, slow(lost_rank_seconds=7.0))
    assert ledger.drain_changes().changed == ()


# -- how a run ended --------------------------------------------------------------------------------------------------


def failure(rank: int = 1, cause: str = "crashed") -> Finding:
    return Finding(kind=RUN_FAILURE, ranks=(rank,), cause=cause, sentence=f"The run {cause}.")


def look_at_end(ledger: Ledger, now_s: float, ended_as: Finding | None) -> None:
    """A tick at which the run is over in this way, or, with None, goes on."""
    ledger.reconcile([ComparedRun(RUN, (), is_over=ended_as is not None, is_judged=True, failure=ended_as)], now_s)


def test_failed_run_has_an_incident_while_it_is_known(ledger: Ledger) -> None:
    look_at_end(ledger, 10.0, failure())
    look_at_end(ledger, 20.0, failure())
    (incident,) = ledger.incidents
    assert (incident.kind, incident.ranks, incident.cause, incident.is_open) == (RUN_FAILURE, (1,), "crashed", True)
    ledger.reconcile([], 30.0)
    assert ledger.incidents[0].resolved_reason == RUN_IS_GONE


def test_restarted_run_resolves_its_failure(ledger: Ledger) -> None:
    look_at_end(ledger, 10.0, failure())
    look_at_end(ledger, 20.0, None)
    (incident,) = ledger.incidents
    assert (incident.resolved_wall_s, incident.resolved_reason) == (20.0, STARTED_AGAIN)


def test_repeated_failure_of_a_rank_reopens_the_incident(ledger: Ledger) -> None:
    for now_s, ended_as in ((10.0, failure()), (20.0, None), (30.0, failure())):
        look_at_end(ledger, now_s, ended_as)
    assert [whats(incident) for incident in ledger.incidents] == [["opened", "resolved", "reopened"]]


def test_later_details_of_an_end_update_its_incident(ledger: Ledger) -> None:
    look_at_end(ledger, 10.0, failure(cause="lost"))
    look_at_end(ledger, 20.0, failure(cause="killed"))
    (incident,) = ledger.incidents
    assert (incident.cause, whats(incident)) == ("killed", ["opened", "updated"])


def test_severity_of_a_failure_does_not_rise_with_time() -> None:
    ledger = Ledger(Rules(escalate_s=5.0), 0.0)
    look_at_end(ledger, 10.0, failure())
    look_at_end(ledger, 100.0, failure())
    assert ledger.incidents[0].severity == "warning"


def test_failure_is_found_again_after_a_restart_of_the_collector(ledger: Ledger) -> None:
    look_at_end(ledger, 10.0, failure())
    after = restart(ledger, 20.0)
    look_at_end(after, 21.0, failure())
    assert [whats(incident) for incident in after.incidents] == [["opened", "continued"]]


def test_incident_keeps_the_last_sentence_of_its_finding(ledger: Ledger) -> None:
    ledger.open(RUN, slow(), 10.0)
    ledger.close(RUN, slow(sentence="Rank 2 was slow."), RUN_IS_OVER, 70.0)
    assert ledger.incidents[0].sentence == "Rank 2 was slow."


def test_new_run_resolves_the_failure_of_the_previous_run(ledger: Ledger) -> None:
    """The former run is still shown as failed, and its incident stays resolved."""
    failure = slow(2, kind=RUN_FAILURE)
    ledger.reconcile([ComparedRun("bert@20261125T103005Z", (), is_over=True, is_judged=True, failure=failure)], 10.0)
    former = ComparedRun("bert@20261125T103005Z", (), is_over=True, is_judged=True, failure=failure, is_superseded=True)
    for now_s in (20.0, 30.0):
        ledger.reconcile([former, ComparedRun("bert@20261125T113005Z", (), is_over=False, is_judged=True)], now_s)
    (incident,) = ledger.incidents
    assert (incident.state, incident.resolved_reason) == ("resolved", "a new run of this name has begun")
    assert incident.resolved_wall_s == 20.0
