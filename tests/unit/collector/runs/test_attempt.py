"""Reports that are added to the step table together, against one by one."""

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from rankscope.collector.config import CollectorConfig
from rankscope.collector.runs import ratios
from rankscope.collector.runs.events import ClockSampled, RankJoined, ReportAdmitted, RunEvent
from rankscope.collector.runs.report_fields import ReportFields
from rankscope.collector.runs.run import RunState
from rankscope.collector.runs.snapshot import RunSnapshot
from rankscope.collector.steps import step_table
from rankscope.collector.steps.measured_steps import STAND_IN_STEPS
from rankscope.measure.enqueues import Enqueue, pack_enqueues
from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import Hello, Report
from rankscope.measure.records import (
    PHASES,
    CollectiveRecord,
    GroupInfo,
    Losses,
    StepRecord,
    Totals,
    WindowBreakdown,
    collectives_to_table,
    steps_to_table,
)
from tests.run_ticks import tick_run

RANKS = 4
NOW_NS = 10**12
KEPT = 128


def hello_of(rank: int) -> RankJoined:
    identity = RankIdentity(
        run="r",
        rank=rank,
        local_rank=rank,
        world_size=RANKS,
        node="n",
        restart_count=0,
        boot_id=f"boot-{rank:04}",
        pid=1,
    )
    hello = Hello(identity=identity, first_sequence=1, host_ns=0, wall_ns=0, report_interval_ns=10**9)
    return RankJoined(hello, NOW_NS)


def report_of(rank: int, sequence: int, steps: range, chance: np.random.Generator) -> ReportAdmitted:
    """These steps with an all-reduce each; every other report has a phase of the user's own."""
    records, collectives = [], []
    for step in steps:
        own = {"checkpoint": 5} if sequence % 2 else {}
        phases = {**{name: int(chance.integers(1, 100)) for name in PHASES}, **own}
        records.append(
            StepRecord(step=step, start_host_ns=step * 1000, duration_ns=sum(phases.values()), phases_ns=phases)
        )
        collectives.append(
            CollectiveRecord(
                step=step, group="default_pg", op="all_reduce", start_host_ns=step * 1000,
                duration_ns=int(chance.integers(1, 100)), sequence=step, bytes=64,
            )
        )  # fmt: skip
    covered = ((steps[0], steps[-1]),) if steps else ()
    made = steps.stop
    report = Report(
        sequence=sequence,
        host_ns=0,
        steps=steps_to_table(records),
        collectives=collectives_to_table(collectives),
        covered_steps=covered,
        totals=Totals(steps=made, step_ns=made * 100),
        losses=Losses(steps_made=made, steps_buffered=0),
        groups=(GroupInfo(label="default_pg", description="d", ranks=tuple(range(RANKS)), backend="gloo"),),
    )
    return ReportAdmitted(f"boot-{rank:04}", ReportFields.of(report), NOW_NS, 1.0)


def random_story(seed: int) -> list[RunEvent]:
    """Ranks that report none to three steps at a time, in any order among each other."""
    chance = np.random.default_rng(seed)
    at, sequence = [0] * RANKS, [0] * RANKS
    events: list[RunEvent] = []
    for _ in range(80):
        rank = int(chance.integers(RANKS))
        count = int(chance.integers(0, 4))
        steps = range(at[rank], at[rank] + count)
        at[rank] += count
        sequence[rank] += 1
        events.append(report_of(rank, sequence[rank], steps, chance))
    return events


def apply_in_batches(
    events: Sequence[RunEvent], batch: int, *, steps_max: int | None = None, kept: int = KEPT
) -> tuple[RunSnapshot, list[list[float]]]:
    run = RunState("r", CollectorConfig(steps_kept=kept, detect_steps=16))
    for rank in range(RANKS):
        run.apply(hello_of(rank))
    for first in range(0, len(events), batch):
        for event in events[first : first + batch]:
            run.apply(event)
        run.flush_reports(steps_max=steps_max)
    run.flush_reports()
    attempt = run.attempt
    assert attempt is not None
    series = attempt.window.series(tuple(range(RANKS)), skip_steps=0)
    return run.snapshot(NOW_NS), [series.step_ns.tolist(), series.own_ns.tolist()]


def test_batches_of_any_size_give_the_same_state() -> None:
    """Within a batch tables of one shape are placed together, so only the moment at which a step counts as too late may
    differ; these stories have no step that is late by that.
    """
    for seed in range(6):
        events = [event for event in random_story(seed) if isinstance(event, ReportAdmitted)]
        one_by_one, columns = apply_in_batches(events, 1)
        for batch in (3, 80):
            together, columns_together = apply_in_batches(events, batch)
            np.testing.assert_array_equal(columns_together, columns, err_msg=f"seed {seed}, batches of {batch}")
            assert [rank.collectives for rank in together.ranks] == [rank.collectives for rank in one_by_one.ranks]
            assert [rank.steps.unaccounted for rank in together.ranks] == [0] * RANKS
            assert [rank.last_step for rank in together.ranks] == [rank.last_step for rank in one_by_one.ranks]


def test_steps_matched_later_give_the_same_state() -> None:
    for seed in range(6):
        events = [event for event in random_story(seed) if isinstance(event, ReportAdmitted)]
        at_once, columns = apply_in_batches(events, 3)
        for steps_max in (0, 1):
            later, columns_later = apply_in_batches(events, 3, steps_max=steps_max)
            np.testing.assert_array_equal(columns_later, columns, err_msg=f"seed {seed}, {steps_max} steps a batch")
            assert [rank.collectives for rank in later.ranks] == [rank.collectives for rank in at_once.ranks]


def test_steps_that_leave_the_ring_unmatched_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_table, "RING_STEPS_MAX", 0)
    chance = np.random.default_rng(0)
    events = [report_of(rank, number, range(number * 3 - 3, number * 3), chance) for number in range(1, 31)
              for rank in range(RANKS)]  # fmt: skip
    for steps_max in (None, 0):
        told, _ = apply_in_batches(events, RANKS, steps_max=steps_max, kept=32)
        assert [[kind.count for kind in rank.collectives] for rank in told.ranks] == [[90]] * RANKS


def test_flush_matches_so_many_steps_and_a_snapshot_none() -> None:
    run = RunState("r", CollectorConfig())
    for rank in range(RANKS):
        run.apply(hello_of(rank))
    for rank in range(RANKS):
        run.apply(report_of(rank, 1, range(3), np.random.default_rng(rank)))
    run.flush_reports(steps_max=1)
    assert count_in_snapshot(run) == 1
    run.flush_reports(steps_max=1)
    assert (count_in_snapshot(run), count_in_snapshot(run)) == (2, 2)
    tick_run(run, NOW_NS, 1.0)
    assert count_in_snapshot(run) == 3


def count_in_snapshot(run: RunState) -> int:
    """Return the collectives of rank 0 in a snapshot."""
    return sum(kind.count for kind in run.lazy_snapshot(NOW_NS).build().ranks[0].collectives)


def test_snapshot_includes_pending_reports() -> None:
    run = RunState("r", CollectorConfig())
    run.apply(hello_of(0))
    run.apply(report_of(0, 1, range(3), np.random.default_rng(0)))
    (rank,) = run.snapshot(NOW_NS).ranks
    assert (rank.steps.published, rank.last_step) == (3, 2)


def test_windows_that_cannot_be_are_left_out_and_noted() -> None:
    """100 ns: 70 of computing, 30 of them hidden communication, 10 exposed, 20 idle; then four that contradict that."""
    window = WindowBreakdown(
        first_step=1, step_count=1, window_ns=100, compute_ns=70, communication_ns=40, overlap_ns=30,
        exposed_communication_ns=10, copy_ns=0, idle_ns=20,
    )  # fmt: skip
    changes: list[dict[str, int]] = [
        {"compute_ns": 170}, {"idle_ns": -20, "copy_ns": 40}, {"communication_ns": 20}, {"window_ns": 0},
    ]  # fmt: skip
    wrong = tuple(msgspec.structs.replace(window, **change) for change in changes)
    admitted = report_of(0, 1, range(1), np.random.default_rng(1))
    report = msgspec.structs.replace(admitted.report, breakdowns=(wrong[0], window, *wrong[1:]))
    run = RunState("r", CollectorConfig())
    run.apply(hello_of(0))
    run.apply(msgspec.structs.replace(admitted, report=report))
    (noted,) = run.pop_impossible()
    assert (noted.kind, noted.times) == ("window", 4)
    assert "compute_ns=170" in noted.inputs
    (rank,) = run.snapshot(NOW_NS).ranks
    assert rank.breakdown is not None
    assert ratios.read_ratios(rank.breakdown)["compute"] == 0.7


def test_timed_steps_count_collectives_but_have_no_own_time() -> None:
    chance = np.random.default_rng(5)
    run = RunState("r", CollectorConfig())
    for rank in range(RANKS):
        run.apply(hello_of(rank))
        event = report_of(rank, 1, range(3), chance)
        timed = msgspec.structs.replace(event.report, covered_steps=(), timed_steps=((0, 2),))
        run.apply(msgspec.structs.replace(event, report=timed))
    run.flush_reports()
    tick_run(run, NOW_NS)
    assert run.attempt is not None
    series = run.attempt.window.series(tuple(range(RANKS)), skip_steps=0)
    assert np.isnan(series.own_ns).all()
    assert not np.isnan(series.step_ns).any()
    totals = [one for rank in run.snapshot(NOW_NS).ranks for one in rank.collectives]
    assert [(one.count, one.matched) for one in totals] == [(3, 3)] * RANKS


def test_enqueues_of_all_ranks_are_compared_on_collector_time() -> None:
    chance = np.random.default_rng(5)
    run = RunState("r", CollectorConfig())
    for rank in range(RANKS):
        run.apply(hello_of(rank))
        offset_ns = 10**9 * rank
        boot_id = hello_of(rank).hello.identity.boot_id
        run.apply(ClockSampled(boot_id, 1_000, 1_050 + offset_ns, 1_100))
        event = report_of(rank, 1, range(3), chance)
        at_ns = 50_000 + offset_ns + (7_000 if rank == 1 else 0)
        enqueues = pack_enqueues([Enqueue(2, "default_pg", 4, at_ns)], [(2, 2)])
        group = GroupInfo(label="default_pg", description="default_pg", ranks=tuple(range(RANKS)), backend="nccl")
        report = msgspec.structs.replace(event.report, covered_steps=(), enqueues=enqueues, groups=(group,))
        run.apply(msgspec.structs.replace(event, report=report))
    run.flush_reports()
    assert run.attempt is not None
    found = run.attempt.enqueues.read()
    assert found is not None
    assert found.steps.tolist() == [2]
    late_ns = found.late_ns[0] - found.late_ns[0, 0]
    assert late_ns.tolist() == [7_000 if rank == 1 else 0 for rank in range(RANKS)]
    # Half the round trip, and the drift since the ping: of 49 us 4.9 ns, of 56 us 5.6.
    assert found.error_ns[0].tolist() == [56 if rank == 1 else 55 for rank in range(RANKS)]
    assert run.attempt.read_series(tuple(range(RANKS)), skip_steps=0).enqueues is None, "a window may still come"
    far = run.attempt.window.latest_step + 2 * STAND_IN_STEPS
    for rank in range(RANKS):
        event = report_of(rank, 2, range(far, far + 3), chance)
        run.apply(msgspec.structs.replace(event, report=msgspec.structs.replace(event.report, covered_steps=())))
    run.flush_reports()
    series = run.attempt.read_series(tuple(range(RANKS)), skip_steps=0)
    assert not series.own_is_measured
    assert series.enqueues is not None
    assert series.enqueues.steps.tolist() == [2], "though the step table has no longer"
