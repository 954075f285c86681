"""A run that one collector saves and the next restores: what is there again, and what never decreases."""

import msgspec
import pytest

from rankscope.collector.config import CollectorConfig
from rankscope.collector.ingest.admission import Admission, Admitted, Duplicate, ProcessCounts, UnknownPeer
from rankscope.collector.reports.summary import verdict
from rankscope.collector.runs.clock_alignment import Clocks
from rankscope.collector.runs.events import EndSeen, ProcessGone, ReportAdmitted
from rankscope.collector.runs.goodput import CarriedGoodput, GoodputSnapshot
from rankscope.collector.runs.rank import SavedRank
from rankscope.collector.runs.report_fields import ReportFields
from rankscope.collector.runs.saved_runs import SavedRun, SavedStory, collect_finished_steps, restore_run, save_run
from rankscope.collector.runs.snapshot import RankSnapshot, RunSnapshot, Snapshot
from rankscope.collector.steps.collective_totals import unpack_counts
from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import Hello, Refused, Report, Welcome
from rankscope.measure.node_messages import RankEnded
from rankscope.measure.records import Losses, StepRecord, Totals
from tests.full_snapshot import full_snapshot
from tests.library_exporter import SnapshotExporter
from tests.unit.collector.runs.run_stories import S, Story, boot_of

WALL_S = 1_800_000_000.0
AWAY_S = 20
"""How long there is no collector."""


def wall_of(story: Story) -> Clocks:
    """The clocks of the collector that hears this story; those of all collectors agree on the wall's."""
    return Clocks(story.now_ns, WALL_S + story.now_ns / S)


def kill(story: Story, away_s: float = AWAY_S) -> Story:
    """The collector is gone with all but what it had saved, and the next one goes on with that."""
    clocks = wall_of(story)
    saved = save_run(story.run, clocks)
    assert saved is not None
    run = msgspec.json.decode(msgspec.json.encode(saved.run), type=SavedRun)
    told = msgspec.json.decode(msgspec.json.encode(saved.story), type=SavedStory)
    lives = [
        msgspec.json.decode(msgspec.json.encode(saved.save_rank(rank, clocks)()), type=SavedRank)
        for rank in saved.ranks
    ]
    collectives = unpack_counts(saved.collectives.pack())
    story.now_ns += round(away_s * S)
    clocks = wall_of(story)
    story.run = restore_run(CollectorConfig(), run, told, lives, clocks, collectives=collectives)
    return story


def lose(story: Story, rank: int, reports: int, dropped: int) -> None:
    """One report comes after so many that did not; of those the rank has dropped some itself."""
    story.sequence[rank] += reports + 1
    report = Report(
        sequence=story.sequence[rank], host_ns=story.now_ns, totals=story.totals[rank],
        losses=Losses(reports_dropped=dropped),
    )  # fmt: skip
    story.run.apply(ReportAdmitted(boot_of(rank), ReportFields.of(report), story.now_ns, 0.0))


def rank_of(story: Story, number: int) -> RankSnapshot:
    return story.snapshot().ranks[number]


def series_of(run: RunSnapshot) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every counter of a run as Prometheus sees it."""
    exporter = SnapshotExporter(lambda: Snapshot(wall_s=0.0, version="0", runs=(run,)))
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in exporter.collect()
        if family.type == "counter"
        for sample in family.samples
        if "run" in sample.labels
    }


# -- what is there again ----------------------------------------------------------------------------------------------


def test_no_counter_of_the_run_goes_backwards() -> None:
    story = Story(4).join().train(60).train(60, forward={2: 30.0})
    before = series_of(story.snapshot())
    kill(story).come_back().train(5)
    after = series_of(story.snapshot())
    assert {name for name, _ in before} >= {
        "rankscope_collective_wait_seconds_total", "rankscope_lost_gpu_seconds_total", "rankscope_run_seconds_total",
    }  # fmt: skip
    assert {key: value for key, value in before.items() if after.get(key, -1.0) < value} == {}


def test_collectives_are_counted_on() -> None:
    story = Story(4).join().train(40)
    kill(story).come_back().train(5)
    (kind,) = rank_of(story, 1).collectives
    assert (kind.count, kind.matched, kind.transfer_ns) == (45, 45, 45 * 5_000_000)


def test_awaited_rank_has_no_counters_and_counts_as_up() -> None:
    story = kill(Story(4).join().train(40))
    assert [(rank.awaited, rank.up) for rank in story.snapshot().ranks] == [(True, True)] * 4
    assert series_of(story.snapshot()) == {}
    story.come_back(2)
    story.report(2, [], [])
    assert [rank.awaited for rank in story.snapshot().ranks] == [True, True, False, True]
    assert {
        dict(labels)["rank"] for name, labels in series_of(story.snapshot()) if name == "rankscope_steps_total"
    } == {"2"}


def test_a_rank_that_never_comes_back_falls_silent() -> None:
    story = kill(Story(2).join().train(20))
    story.tick(CollectorConfig().rank_silent_s + 1.0)
    assert [rank.ended for rank in story.snapshot().ranks] == ["silent", "silent"]


def test_reports_acknowledged_before_are_not_missing() -> None:
    story = kill(Story(1).join().train(20))
    lose(story, 0, reports=7, dropped=0)
    seen = rank_of(story, 0)
    assert (seen.report_gaps, seen.reports_admitted, seen.last_sequence) == (0, 9, 9)


def test_missing_reports_are_those_the_rank_dropped() -> None:
    story = kill(Story(1).join().train(20))
    lose(story, 0, reports=7, dropped=3)
    assert rank_of(story, 0).report_gaps == 3


def test_what_is_missing_later_is_missing() -> None:
    story = kill(Story(1).join().train(20))
    story.report(0, [], [])
    lose(story, 0, reports=2, dropped=0)
    assert rank_of(story, 0).report_gaps == 2


def test_how_ranks_ended_is_known_again() -> None:
    story = Story(3).join().train(20).say_goodbye(0)
    identity = RankIdentity(
        run="story", rank=1, local_rank=1, world_size=3, node="node-a", restart_count=0, boot_id=boot_of(1), pid=1
    )
    notice = RankEnded(sequence=1, identity=identity, host_ns=0, wall_ns=0, reason="crashed", signal=11)
    story.run.apply(EndSeen(boot_of(1), notice, story.now_ns))
    for _ in range(2):
        story.run.apply(ProcessGone(boot_of(2), story.now_ns))
        story.tick(3.0)
    kill(story)
    ranks = story.snapshot().ranks
    assert [rank.ended for rank in ranks] == ["finished", "crashed", "exit_unknown"]
    assert [rank.totals.steps for rank in ranks] == [20, 20, 20]
    assert story.run.is_over
    ended_ns = ranks[0].ended_collector_ns
    assert ended_ns is not None
    assert story.now_ns - ended_ns == pytest.approx((AWAY_S + 6) * S, abs=1_000_000)


def find_gone(story: Story) -> None:
    """The processes of all ranks are found gone, and nobody says how they ended."""
    for _ in range(2):
        for rank in range(story.ranks):
            story.run.apply(ProcessGone(boot_of(rank), story.now_ns))
        story.tick(3.0)


def test_run_ended_with_its_collector_may_restart_for_a_while() -> None:
    # A scheduler ends a job with the collector in it, and queues it again.
    story = kill(Story(2).join().train(20))
    assert not story.run.may_start_again(story.now_ns)
    find_gone(story)
    assert story.run.ending.end is not None
    assert story.run.ending.end.reason == "exit_unknown"
    assert story.run.may_start_again(story.now_ns)
    assert not story.run.may_start_again(story.now_ns + 900 * S)


def test_run_that_a_collector_saw_end_has_failed_at_once() -> None:
    story = Story(2).join().train(20)
    find_gone(story)
    assert not story.run.may_start_again(story.now_ns)
    assert not kill(story).run.may_start_again(story.now_ns)


def test_slurm_job_gone_with_its_sidecars_may_start_again() -> None:
    story = Story(2)
    story.slurm_job_id = "4711"
    find_gone(story.join().train(20))
    assert story.run.may_start_again(story.now_ns)
    assert not story.restart(counted=False).run.may_start_again(story.now_ns)


def test_run_with_a_known_failure_has_failed_at_once() -> None:
    story = kill(Story(2).join().train(20).say_goodbye(0, "failed"))
    find_gone(story)
    assert not story.run.may_start_again(story.now_ns)


def test_what_was_lost_is_not_forgotten_and_findings_number_on() -> None:
    story = Story(4).join().train(40).train(60, forward={2: 30.0})
    (before,) = story.snapshot().lost
    (finding,) = story.snapshot().open_findings
    kill(story).come_back()
    assert story.snapshot().lost == (before,)
    assert [one.number for one in story.snapshot().findings] == [finding.number]
    story.train(60, forward={2: 30.0})
    (open_now,) = story.snapshot().open_findings
    assert (open_now.rank, open_now.number) == (2, finding.number + 1)
    assert story.snapshot().lost[0].lost_rank_seconds > before.lost_rank_seconds


def test_restored_run_refuses_its_former_processes() -> None:
    story = Story(2).join().train(20).restart(counted=False).train(20)
    kill(story)
    story.life = 0
    story.come_back()
    assert [rank.identity.boot_id for rank in story.snapshot().ranks] == [boot_of(0, 1), boot_of(1, 1)]


def test_a_new_attempt_begins_as_ever() -> None:
    story = kill(Story(2).join().train(20)).restart().train(10)
    saved = save_run(story.run, wall_of(story))
    assert saved is not None
    assert (saved.run.attempt, saved.run.restart_count) == (1, 1)
    assert [rank.totals.steps for rank in story.snapshot().ranks] == [10, 10]


def test_run_without_ranks_has_nothing_to_save() -> None:
    story = Story(2)
    assert save_run(story.run, wall_of(story)) is None
    assert collect_finished_steps(story.run, 0.0) == []


# -- goodput ----------------------------------------------------------------------------------------------------------


def test_time_without_a_collector_comes_with_the_next_report() -> None:
    """100 steps of 35 ms are 3.5 s; meanwhile the run made 400 more, 14 s of the 20 s."""
    story = Story(2).join().train(100)
    kill(story)
    for rank in range(2):
        totals = story.totals[rank]
        story.totals[rank] = Totals(steps=totals.steps + 400, step_ns=totals.step_ns + 14 * S)
        story.report(rank, [], [])
    goodput = story.snapshot().goodput
    assert goodput.steps_ns == pytest.approx(17.5 * S, rel=0.02)
    assert goodput.wall_ns == pytest.approx(24.5 * S, rel=0.02)
    parts = (
        goodput.productive_ns + goodput.slow_ns + goodput.startup_ns + goodput.between_steps_ns + goodput.stalled_ns
        + goodput.restart_ns + goodput.unreported_ns
    )  # fmt: skip
    assert parts == goodput.wall_ns


def test_a_run_that_is_over_gets_no_more_time() -> None:
    story = Story(2).join().train(20).say_goodbye(0).say_goodbye(1).tick()
    before = story.snapshot().goodput
    kill(story).tick(100.0)
    assert story.snapshot().goodput == before


def end_all(story: Story) -> Story:
    return story.say_goodbye(0).say_goodbye(1).tick()


ENDED = {
    "clean": lambda: end_all(Story(2).join().train(20)),
    "slow": lambda: end_all(Story(2).join().train(20).train(40, data={1: 60.0})),
    "short": lambda: end_all(Story(2).join().train(2)),
    "lost": lambda: Story(2).join().train(20).tick(100.0).tick(),
}


def medians_of(rank: RankSnapshot) -> tuple[object, ...]:
    return (
        rank.step_ns_median, rank.phases_ns_median, rank.own_ns_median, rank.slowdown_ratio, rank.wait_caused_ns_median
    )  # fmt: skip


@pytest.mark.parametrize("name", ENDED)
def test_facts_of_an_ended_run_survive_a_restart_unchanged(name: str) -> None:
    story = ENDED[name]()
    before = story.snapshot()
    assert before.end is not None
    after = kill(story).tick(100.0).tick().snapshot()
    for field in ("end", "abstained", "not_judged", "findings", "open_findings", "lost"):
        assert getattr(after, field) == getattr(before, field), field
    assert verdict(after) == verdict(before)
    assert [medians_of(rank) for rank in after.ranks] == [medians_of(rank) for rank in before.ranks]
    assert name == "short" or None not in {rank.step_ns_median for rank in after.ranks}
    assert after.wait_untraced_ns == before.wait_untraced_ns
    if not before.end.lost_ranks:  # a lost run may go on: its time is not settled
        assert after.goodput == before.goodput


def test_pipeline_layers_and_experts_of_an_ended_run_survive() -> None:
    (full,) = full_snapshot().runs
    story = end_all(Story(2).join().train(20))
    assert story.run.attempt is not None
    attempt = story.run.attempt
    attempt.pipeline, attempt.layers, attempt.experts = full.pipeline, full.layers, full.experts
    after = kill(story).tick().snapshot()
    assert full.experts is not None
    assert (after.pipeline, after.layers, after.experts) == (full.pipeline, full.layers, full.experts)


def test_medians_of_a_run_that_goes_on_come_with_its_next_steps() -> None:
    story = kill(Story(4).join().train(40))
    assert {rank.step_ns_median for rank in story.snapshot().ranks} == {None}
    assert None not in {rank.step_ns_median for rank in story.come_back().train(40).snapshot().ranks}


def test_restored_ended_run_is_judged_again_once_it_reports() -> None:
    story = kill(ENDED["lost"]()).tick()
    assert story.run.view(story.now_ns) is None
    assert story.come_back().train(20).snapshot().end is None
    assert story.run.view(story.now_ns) is not None


def test_restored_run_without_steps_is_in_startup() -> None:
    account = CarriedGoodput()
    account.resume(GoodputSnapshot(wall_ns=10, unreported_ns=10), 100, is_over=False)
    account.add_steps(150, 20)
    assert account.snapshot(150) == GoodputSnapshot(wall_ns=50, productive_ns=20, startup_ns=30)


def test_a_wall_clock_that_was_set_back_makes_no_negative_time() -> None:
    story = kill(Story(2).join().train(20), away_s=-5.0)
    assert story.snapshot().goodput.unreported_ns == 0


# -- admission --------------------------------------------------------------------------------------------------------


def hello_of(rank: int, first_sequence: int) -> Hello:
    identity = RankIdentity(
        run="story", rank=rank, local_rank=rank, world_size=2, node="n", restart_count=0, boot_id=boot_of(rank), pid=1
    )
    return Hello(
        identity=identity, first_sequence=first_sequence, host_ns=0, wall_ns=0, report_interval_ns=S
    )  # fmt: skip


KEPT = ProcessCounts(first_sequence=1, last_sequence=41, admitted=40, missing=1, duplicates=2, gaps=0)


def test_restored_rank_must_say_hello() -> None:
    admission = Admission(runs_max=1, ranks_max=2)
    hello = hello_of(0, 40)
    assert admission.restore(hello.identity, KEPT)
    assert isinstance(admission.number(b"peer", 42), UnknownPeer)
    answer = admission.hello(b"peer", hello)
    assert isinstance(answer, Welcome)
    assert answer.admitted_through == 41
    assert isinstance(admission.number(b"peer", 41), Duplicate)
    assert isinstance(admission.number(b"peer", 42), Admitted)
    assert admission.counts(boot_of(0)) == ProcessCounts(
        first_sequence=1, last_sequence=42, admitted=41, missing=1, duplicates=3, gaps=0
    )


def test_sidecar_may_report_about_a_restored_rank() -> None:
    admission = Admission(runs_max=1, ranks_max=2)
    admission.restore(hello_of(0, 1).identity, KEPT)
    assert admission.knows(hello_of(0, 1).identity)


def test_restored_run_belongs_to_its_first_key() -> None:
    admission = Admission(runs_max=1, ranks_max=2)
    admission.restore(hello_of(0, 1).identity, KEPT)
    admission.restore(hello_of(1, 1).identity, KEPT)
    assert admission.knows(hello_of(0, 1).identity, key="k")  # its rank may have died while no collector was there
    assert isinstance(admission.hello(b"peer", hello_of(0, 1), key="k"), Welcome)
    assert isinstance(admission.hello(b"peer", hello_of(0, 1), key="other"), Refused)
    assert isinstance(admission.hello(b"two", hello_of(1, 1), key="other"), Refused)
    assert not admission.knows(hello_of(0, 1).identity, key="other")


def test_restored_ranks_are_bounded() -> None:
    admission = Admission(runs_max=2, ranks_max=2)
    assert admission.restore(hello_of(0, 1).identity, KEPT)
    other = msgspec.structs.replace(hello_of(1, 1).identity, run="other")  # its world too has two ranks
    assert not admission.restore(other, KEPT)
    assert isinstance(admission.hello(b"peer", msgspec.structs.replace(hello_of(1, 1), identity=other)), Refused)


def test_checkpoints_are_there_again_in_the_next_collector() -> None:
    story = Story(2).join()
    step = StepRecord(step=8, start_host_ns=0, duration_ns=3 * S, phases_ns={"checkpoint": 2 * S})
    story.report(1, [step], [])
    before = story.tick().snapshot().checkpoints
    assert [(one.attempt, one.step, one.duration_ns, one.rank) for one in before.latest] == [(0, 8, 2 * S, 1)]
    story = kill(story)
    assert story.snapshot().checkpoints == before
    story.run.validate()
