"""The inside of a run as its dump describes it."""

import pytest

from rankscope.collector.invariants import InvariantError, require
from rankscope.collector.runs.run_dump import EVENTS_KEPT, EventLog
from tests.unit.collector.runs.run_stories import Story, boot_of


def test_dump_has_the_state_and_the_last_events() -> None:
    story = Story(4).join().train(1).say_goodbye(1).tick()
    found = story.job.dump(story.now_ns)
    assert (found.run_id, found.attempt, found.world_size, found.ranks) == ("story", 0, 4, {"up": 3, "finished": 1})
    assert found.event_counts == {"RankJoined": 4, "AttemptBegun": 1, "ReportAdmitted": 4, "GoodbyeAdmitted": 1}
    assert [(one.number, one.kind, one.rank, one.boot_id) for one in found.events][-1] == (
        10, "GoodbyeAdmitted", 1, boot_of(1),
    )  # fmt: skip
    assert (found.reports_pending, found.end) == (0, None)


def test_dump_of_a_run_without_ranks_is_empty() -> None:
    found = Story(4).job.dump(7)
    assert (found.ranks, found.events, found.latest_step, found.now_collector_ns) == ({}, (), -1, 7)


def test_reports_do_not_displace_rare_events() -> None:
    log = EventLog()
    log.record("RankJoined", 0, "boot-zero", 1)
    for number in range(2 * EVENTS_KEPT):
        log.record("ReportAdmitted", 0, "boot-zero", number)
    log.validate()
    kept = log.read()
    assert len(kept) == EVENTS_KEPT + 1
    assert (kept[0].number, kept[0].kind, kept[1].number) == (1, "RankJoined", EVENTS_KEPT + 2)
    assert log.counts == {"RankJoined": 1, "ReportAdmitted": 2 * EVENTS_KEPT}


def test_broken_invariant_raises_with_its_text() -> None:
    with pytest.raises(InvariantError, match="ranks and boot ids differ"):
        require([], "ranks and boot ids differ")
