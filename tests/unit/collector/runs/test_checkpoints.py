"""Checkpoints of a run, from the time that its ranks mark with the phase `checkpoint`."""

import msgspec
import pytest

from rankscope.collector.runs.checkpoints import (
    KEPT_MAX,
    NS_MAX,
    Checkpoint,
    Checkpoints,
    RunCheckpoints,
)
from rankscope.collector.runs.events import ReportAdmitted
from rankscope.collector.runs.report_fields import ReportFields
from rankscope.measure.messages import Report
from rankscope.measure.records import PHASES, StepRecord, steps_to_table
from rankscope.measure.table import Table
from tests.unit.collector.runs.run_stories import MS, S, Story, boot_of

WALL_S = 1_800_000_000.0
STEP_NS = 100 * MS


def record_of(step: int, checkpoint_ns: int | None, *, end_ns: int = 50 * S) -> StepRecord:
    """A step of 100 ms, and the checkpoint in it."""
    phases = dict.fromkeys(PHASES, 20 * MS) | ({} if checkpoint_ns is None else {"checkpoint": checkpoint_ns})
    duration_ns = STEP_NS + (checkpoint_ns or 0)
    return StepRecord(step=step, start_host_ns=end_ns - duration_ns, duration_ns=duration_ns, phases_ns=phases)


def report_of(*records: StepRecord, host_ns: int = 50 * S) -> ReportFields:
    """A report with these steps, made at the end of the last one unless another time is given."""
    return ReportFields.of(Report(sequence=1, host_ns=host_ns, steps=steps_to_table(records)))


def seen_of(*reports: tuple[int, ReportFields]) -> Checkpoints:
    """What is known after these reports of ranks, all of which come at WALL_S."""
    kept = RunCheckpoints()
    for rank, report in reports:
        kept.record(rank, report, WALL_S)
        kept.validate()
    return kept.seen


def test_checkpoint_has_its_step_its_end_and_its_duration() -> None:
    # The step ended 3 s before the report was made, which came at WALL_S.
    seen = seen_of((0, report_of(record_of(7, None), record_of(8, 2 * S, end_ns=47 * S))))
    only = Checkpoint(attempt=0, step=8, wall_s=WALL_S - 3.0, duration_ns=2 * S, rank=0)
    assert seen == Checkpoints(count=1, duration_ns=2 * S, latest=(only,))


def test_ranks_that_save_in_one_step_make_one_checkpoint() -> None:
    reports = [(rank, report_of(record_of(8, length_ns))) for rank, length_ns in ((1, 3 * S), (0, 2 * S), (2, 3 * S))]
    seen = seen_of(*reports)
    assert (seen.count, seen.duration_ns) == (1, 3 * S)
    assert [(one.step, one.duration_ns, one.rank) for one in seen.latest] == [(8, 3 * S, 1)]


def test_checkpoint_ended_when_its_first_report_says_so() -> None:
    early, late = report_of(record_of(8, S), host_ns=51 * S), report_of(record_of(8, 2 * S))
    assert [one.wall_s for one in seen_of((0, late), (1, early)).latest] == [WALL_S - 1.0]


@pytest.mark.parametrize("spent_ns", [None, 0, 20_000, MS - 1])
def test_call_that_saves_nothing_is_no_checkpoint(spent_ns: int | None) -> None:
    # `with phase("checkpoint"): save_if_due(step)` takes microseconds in most steps.
    assert seen_of((0, report_of(record_of(7, 2 * S), record_of(8, spent_ns)))).count == 1


def test_checkpoints_of_a_late_report_are_put_in_order() -> None:
    seen = seen_of((0, report_of(record_of(20, S))), (1, report_of(record_of(10, 2 * S))))
    assert [one.step for one in seen.latest] == [10, 20]
    assert (seen.count, seen.duration_ns) == (2, 3 * S)


def test_only_the_latest_are_listed_and_none_counts_twice() -> None:
    steps = [record_of(step, S) for step in range(KEPT_MAX + 3)]
    seen = seen_of((0, report_of(*steps)), (1, report_of(*steps)))
    assert [one.step for one in seen.latest] == list(range(3, KEPT_MAX + 3))
    assert (seen.count, seen.duration_ns) == (KEPT_MAX + 3, (KEPT_MAX + 3) * S)


def test_next_attempt_counts_its_steps_anew() -> None:
    kept = RunCheckpoints()
    kept.record(0, report_of(record_of(8, S)), WALL_S)
    kept.begin_attempt()
    kept.record(0, report_of(record_of(8, S)), WALL_S + 60)
    assert [(one.attempt, one.step) for one in kept.seen.latest] == [(0, 8), (1, 8)]


def test_nonsense_of_a_client_can_still_be_stored() -> None:
    names = ("step", "start_host_ns", "duration_ns", "phase:checkpoint")
    rows = [(step, 2**63 - 1, 2**63 - 1, 2**63 - 1) for step in (-5, None, 4, 2**63 - 1)]
    report = msgspec.structs.replace(report_of(), steps=Table.from_rows(names, rows))
    seen = seen_of((0, report))
    assert [one.step for one in seen.latest] == [4, 2**63 - 1]
    assert msgspec.json.decode(msgspec.json.encode(seen), type=Checkpoints).duration_ns == NS_MAX


def save_in(story: Story, rank: int, step: int, seconds: int) -> None:
    """A rank reports a step with a checkpoint."""
    story.sequence[rank] += 1
    made = Report(sequence=story.sequence[rank], host_ns=50 * S, steps=steps_to_table([record_of(step, seconds * S)]))
    story.run.apply(ReportAdmitted(boot_of(rank, story.life), ReportFields.of(made), story.now_ns, WALL_S))


def test_run_keeps_its_checkpoints_over_a_restart() -> None:
    story = Story(2).join()
    save_in(story, 0, 8, 2)
    story.restart()
    save_in(story, 1, 3, 1)
    story.run.validate()
    seen = story.snapshot().checkpoints
    assert [(one.attempt, one.step, one.rank) for one in seen.latest] == [(0, 8, 0), (1, 3, 1)]
    assert (seen.count, seen.duration_ns) == (2, 3 * S)


def test_run_without_a_marked_one_has_none() -> None:
    assert Story(2).join().train(4).snapshot().checkpoints == Checkpoints()
