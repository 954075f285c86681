"""The state of one run, as stories."""

import pytest

from rankscope.collector.config import CollectorConfig
from rankscope.collector.runs.events import (
    AskClock,
    AskSamples,
    ClockSampled,
    CloseFinding,
    CollectorAway,
    DuplicateSeen,
    EndSeen,
    FindingOpened,
    ProcessGone,
    RankJoined,
    RefuseProcess,
    UnresponsiveSeen,
)
from rankscope.collector.runs.liveness import GONE_NS_MIN
from rankscope.collector.steps import step_table
from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import Hello
from rankscope.measure.node_messages import RankEnded, RankUnresponsive
from rankscope.measure.records import StepRecord
from tests.unit.collector.runs.run_stories import GROUP, MS, TRANSFER_NS, S, Story, boot_of


def slow_data_story() -> Story:
    return Story(4).join().train(40).train(40, data={2: 50.0})


def test_slow_data_loader_is_found_with_cause_and_cost() -> None:
    (finding,) = slow_data_story().snapshot().open_findings
    assert (finding.kind, finding.rank, finding.since_step, finding.cause) == ("straggler", 2, 40, "data_loading")
    # 10 + 10 + 10 ms of work and 5 ms of transfer, against 50 + 10 + 10 + 5.
    assert finding.slowdown_ratio == pytest.approx(75 / 35)
    assert finding.run_slowdown_ratio == pytest.approx(75 / 35)
    assert finding.lost_rank_seconds == pytest.approx(40 * 0.040 * 4)
    assert finding.evidence["data_excess_ns"] == 40 * MS


def test_verdict_is_one_sentence_an_engineer_can_act_on() -> None:
    (finding,) = slow_data_story().snapshot().open_findings
    assert finding.headline.startswith("Rank 2 (node-a): 2.1x slower than its 3 peers since step 40 (")
    assert finding.figures == "Own time 75.0 ms per step, peers 35.0 ms"
    assert finding.reason == "data_loading: 40.0 ms more per step waiting for its data loader"
    assert finding.cost == "run 2.1x slower, 2.1 of 4 ranks wasted"


def test_victims_of_the_straggler_are_not_named() -> None:
    snapshot = slow_data_story().snapshot()
    assert [finding.rank for finding in snapshot.findings] == [2]
    assert [rank.slowdown_ratio for rank in snapshot.ranks if rank.identity.rank != 2] == pytest.approx([1.0] * 3)
    assert snapshot.ranks[0].step_ns_median == 75 * MS
    assert snapshot.ranks[0].own_ns_median == 35 * MS


def test_healthy_job_has_no_finding_and_no_excuse() -> None:
    snapshot = Story(4).join().train(80).snapshot()
    assert (snapshot.findings, snapshot.abstained, snapshot.run_slowdown_ratio) == ((), None, 1.0)


def test_recovered_rank_closes_its_finding() -> None:
    story = slow_data_story().train(60)
    snapshot = story.snapshot()
    assert snapshot.open_findings == ()
    assert [finding.rank for finding in snapshot.findings] == [2]
    kinds = [type(effect) for effect in story.effects if not isinstance(effect, AskClock | AskSamples)]
    assert kinds == [FindingOpened, CloseFinding]


def test_cost_of_a_step_is_added_once() -> None:
    story = slow_data_story()
    before = story.snapshot().lost
    assert [lost.lost_rank_seconds for lost in story.tick().tick().snapshot().lost] == [before[0].lost_rank_seconds]


def test_detection_waits_until_every_rank_has_reported() -> None:
    story = Story(4).join(0, 1, 2)
    assert story.tick().snapshot().abstained == "no steps of 1 of 4 ranks are known"


def test_forward_that_sleeps_is_the_hosts() -> None:
    story = Story(4).join().train(40)
    story.train(40, forward={1: 60.0})
    (finding,) = story.snapshot().open_findings
    assert (finding.rank, finding.cause) == (1, "host_cpu")


def test_elastic_restart_begins_anew_with_step_zero() -> None:
    story = slow_data_story().restart().train(40)
    snapshot = story.snapshot()
    assert (snapshot.restart_count, snapshot.open_findings) == (1, ())
    assert [finding.rank for finding in snapshot.findings] == [2]
    assert [rank.last_step for rank in snapshot.ranks] == [39] * 4


def test_report_of_the_former_attempt_changes_nothing() -> None:
    story = Story(2).join().train(5).restart()
    story.life = 0
    story.report(0, [], [])
    assert story.snapshot().ranks[0].reports_admitted == 0


def find_refused(story: Story) -> list[RefuseProcess]:
    return [effect for effect in story.effects if isinstance(effect, RefuseProcess)]


def test_process_that_another_has_replaced_is_told_once() -> None:
    """Not in the first 10 s of the new attempt, in which the processes of the one before are being ended."""
    story = Story(2).join().train(5).restart()
    story.life = 0
    told = []
    for wait_s in (9, 2, 2):
        story.now_ns += wait_s * S
        story.report(0, [], [])
        told.append([effect.boot_id for effect in find_refused(story)])
    assert told == [[], [boot_of(0)], [boot_of(0)]]


def test_hello_of_a_replaced_process_is_answered_by_a_refusal() -> None:
    story = Story(2).join().train(5).restart()
    story.now_ns += 11 * S
    story.life = 0
    story.come_back(1)
    (refused,) = find_refused(story)
    assert refused.boot_id == boot_of(1)
    assert refused.detail.startswith("a later start of run 'story' has begun, with rank 0 as process 1000 on node 'n")


def test_uncounted_restart_begins_an_attempt() -> None:
    snapshot = slow_data_story().restart(counted=False).train(40).snapshot()
    assert (snapshot.restart_count, snapshot.open_findings, len(snapshot.ranks)) == (0, (), 4)
    assert [rank.last_step for rank in snapshot.ranks] == [39] * 4


def test_process_of_the_former_attempt_is_not_added_again() -> None:
    story = Story(2).join().train(5).restart(counted=False).train(3)
    story.life = 0
    story.join(1)
    assert [rank.identity.boot_id for rank in story.snapshot().ranks] == [boot_of(0, 1), boot_of(1, 1)]


def left_behind(rank: int, restart_count: int, life: int) -> RankJoined:
    """The Hello of a life that has ended, from who delivers what it has left on the disk."""
    identity = RankIdentity(
        run="story", rank=rank, local_rank=rank, world_size=2, node="node-a", restart_count=restart_count,
        boot_id=boot_of(rank, life), pid=1,
    )  # fmt: skip
    hello = Hello(identity=identity, first_sequence=1, host_ns=0, wall_ns=0, report_interval_ns=S, left_behind=True)
    return RankJoined(hello, 1_000 * S)


@pytest.mark.parametrize("restart_count", [0, 1, 2])
def test_ended_process_replaces_no_rank(restart_count: int) -> None:
    """Whatever it was: of the same attempt, of one before, or of one that this collector has not seen begin."""
    story = Story(2).join().restart().train(5)
    before = story.snapshot()
    story.run.apply(left_behind(0, restart_count, life=77))
    assert story.snapshot() == before


def test_ended_process_is_added_where_its_rank_has_none() -> None:
    story = Story(2)
    story.join(0)
    story.run.apply(left_behind(1, 0, life=77))
    assert [rank.identity.boot_id for rank in story.snapshot().ranks] == [boot_of(0), boot_of(1, 77)]


def test_orphan_may_come_first_to_a_new_collector() -> None:
    story = Story(2)
    story.run.apply(left_behind(1, 3, life=77))
    assert [rank.identity.boot_id for rank in story.snapshot().ranks] == [boot_of(1, 77)]


def test_next_process_replaces_one_that_has_ended() -> None:
    story = Story(2)
    story.run.apply(left_behind(1, 0, life=77))
    story.join(1)
    assert [rank.identity.boot_id for rank in story.snapshot().ranks] == [boot_of(1)]


def test_smaller_world_after_a_restart_is_the_world() -> None:
    story = Story(4).join().train(5)
    story.ranks = 2
    snapshot = story.restart().train(3).snapshot()
    assert (snapshot.world_size, len(snapshot.ranks)) == (2, 2)


def test_rank_ends_as_its_goodbye_says() -> None:
    story = Story(2).join().train(5).say_goodbye(0, "failed")
    assert [(rank.up, rank.ended) for rank in story.snapshot().ranks] == [(False, "failed"), (True, None)]
    assert not story.run.is_over
    assert story.say_goodbye(1).run.is_over


def test_process_that_is_gone_without_a_word_has_an_unknown_end() -> None:
    story = Story(2).join().train(5)
    story.run.apply(ProcessGone(boot_of(1), story.now_ns))
    assert [rank.ended for rank in story.snapshot().ranks] == [None, None]  # its sidecar may say more
    story.run.apply(ProcessGone(boot_of(1), story.now_ns + GONE_NS_MIN))
    assert [rank.ended for rank in story.snapshot().ranks] == [None, "exit_unknown"]


def test_goodbye_stands_though_the_process_is_gone() -> None:
    story = Story(2).join().train(5).say_goodbye(1)
    for now_ns in (story.now_ns, story.now_ns + GONE_NS_MIN):
        story.run.apply(ProcessGone(boot_of(1), now_ns))
    assert story.snapshot().ranks[1].ended == "finished"


def test_what_the_sidecar_saw_of_an_end_is_the_end() -> None:
    story = Story(2).join().train(5)
    identity = story.snapshot().ranks[1].identity
    seen = RankEnded(sequence=1, identity=identity, host_ns=0, wall_ns=0, reason="crashed", detail="SIGSEGV", signal=11)
    story.run.apply(EndSeen(boot_of(1), seen, story.now_ns))
    found = story.snapshot().ranks[1]
    assert (found.up, found.ended, found.ended_detail, found.end) == (False, "crashed", "SIGSEGV", seen)


def test_rank_seen_alive_is_stalled_not_silent() -> None:
    story = Story(2).join().train(5)
    for _ in range(6):
        story.tick(10.0)
        seen = RankUnresponsive(
            sequence=1, identity=story.snapshot().ranks[1].identity, host_ns=story.now_ns, since_host_ns=0
        )
        story.run.apply(UnresponsiveSeen(boot_of(1), seen, story.now_ns))
    first, second = story.snapshot().ranks
    assert (first.ended, second.ended, second.stalled) == ("silent", None, True)


def test_silent_rank_comes_back_with_its_next_report() -> None:
    story = Story(2).join().train(5).tick(60.0)
    assert [rank.ended for rank in story.snapshot().ranks] == ["silent", "silent"]
    story.train(1)
    assert [rank.ended for rank in story.snapshot().ranks] == [None, None]


def test_absence_of_the_collector_is_not_silence() -> None:
    story = Story(2).join().train(5)
    story.now_ns += 60 * S
    story.run.apply(CollectorAway(60 * S, story.now_ns))
    story.tick(1.0)
    assert [rank.ended for rank in story.snapshot().ranks] == [None, None]
    story.tick(15.0)
    assert [rank.ended for rank in story.snapshot().ranks] == ["silent", "silent"]


def test_silence_counts_from_a_message_before_the_absence() -> None:
    story = Story(2).join().train(5)
    story.now_ns += 60 * S
    story.train(1)
    story.run.apply(CollectorAway(60 * S, story.now_ns))
    story.tick(15.1)
    assert [rank.ended for rank in story.snapshot().ranks] == ["silent", "silent"]


def test_collectives_have_waiting_transfer_and_bandwidth() -> None:
    snapshot = Story(4).join().train(10, data={2: 50.0}).snapshot()
    (totals,) = snapshot.ranks[0].collectives
    assert (totals.group, totals.op, totals.count, totals.matched, totals.bytes) == (
        GROUP,
        "all_reduce",
        10,
        10,
        40_000,
    )
    assert (totals.wait_ns, totals.transfer_ns) == (10 * 40 * MS, 10 * TRANSFER_NS)
    # 4,000 bytes in 5 ms, times 2 (n - 1) / n with n = 4.
    assert totals.bus_bandwidth_bytes_per_s == pytest.approx(4_000 / 0.005 * 1.5)


def test_without_collectives_the_phases_stand_in() -> None:
    story = Story(4).join()
    for first in range(0, 100, 20):
        for rank in range(4):
            data_ns = (60 if rank == 3 and first >= 20 else 10) * MS
            phases = {"data": data_ns, "forward": 10 * MS, "backward": 80 * MS - data_ns, "optimizer": 0, "other": 0}
            records = [
                StepRecord(step=step, start_host_ns=step * 90 * MS, duration_ns=90 * MS, phases_ns=phases)
                for step in range(first, first + 20)
            ]
            story.report(rank, records, [])
        story.tick()
    (finding,) = story.snapshot().open_findings
    assert (finding.rank, finding.since_step, finding.cause) == (3, 20, "data_loading")
    assert finding.figures.startswith("Own time in data, forward and optimizer 70.0 ms per step")


def test_clock_is_asked_for_and_its_error_bound_is_shown() -> None:
    story = Story(2).join().tick()
    assert {effect.boot_id for effect in story.effects if isinstance(effect, AskClock)} == {boot_of(0), boot_of(1)}
    story.run.apply(ClockSampled(boot_of(0), story.now_ns - 400, 77, story.now_ns))
    assert [rank.clock_error_ns for rank in story.snapshot().ranks] == [200 + 1, None]


def test_gaps_and_duplicates_are_counted_by_sequence() -> None:
    story = Story(2).join().train(1)
    story.sequence[0] += 3
    story.train(1)
    story.run.apply(DuplicateSeen(boot_of(0)))
    rank = story.snapshot().ranks[0]
    assert (rank.reports_admitted, rank.report_gaps, rank.reports_duplicate, rank.last_sequence) == (2, 3, 1, 5)


def test_old_steps_beyond_the_window_are_late_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_table, "RING_STEPS_MAX", 0)
    story = Story(2, CollectorConfig(steps_kept=32)).join().train(100)
    old = StepRecord(step=3, start_host_ns=0, duration_ns=5, phases_ns={})
    story.report(0, [old], [])
    assert story.snapshot().ranks[0].records_late == 1


def test_run_without_ranks_has_an_empty_snapshot() -> None:
    assert Story(2).tick().snapshot().ranks == ()
