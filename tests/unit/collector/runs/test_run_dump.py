"""The inside of a run as its dump describes it."""

from rankscope.collector.runs.run_dump import dump_run
from tests.unit.collector.runs.run_stories import Story, boot_of


def test_dump_has_the_state_and_the_last_events() -> None:
    story = Story(4).join().train(1).say_goodbye(1).tick()
    found = dump_run(story.run, story.now_ns)
    assert (found.run_id, found.attempt, found.world_size, found.ranks) == ("story", 0, 4, {"up": 3, "finished": 1})
    assert found.event_counts == {"RankJoined": 4, "AttemptBegun": 1, "ReportAdmitted": 4, "GoodbyeAdmitted": 1}
    assert [(one.number, one.kind, one.rank, one.boot_id) for one in found.events][-1] == (
        10, "GoodbyeAdmitted", 1, boot_of(1),
    )  # fmt: skip
    assert (found.reports_pending, found.end) == (0, None)


def test_dump_of_a_run_without_ranks_is_empty() -> None:
    found = dump_run(Story(4).run, 7)
    assert (found.ranks, found.events, found.latest_step, found.now_collector_ns) == ({}, (), -1, 7)
