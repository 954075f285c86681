"""StepRun: the records of simple steps, built from the times of their events on demand."""

from rankscope.agent.steps.batch_size import UNKNOWN, BatchSize
from rankscope.agent.steps.step_run import LazyRecords, StepRun, count_steps, emit_each
from rankscope.measure.records import StepRecord

# Begin, batch there, backward begins, ends, optimizer begins, ends, next batch asked for: gaps of 1 to 6, then 10 each.
TIMES_NS = (100, 101, 103, 106, 110, 115, 121, 131, 141, 151, 161, 171, 181)


def two_steps() -> StepRun:
    return StepRun(7, TIMES_NS, [BatchSize(4, 128), UNKNOWN])


def test_gaps_belong_to_phases_that_sum_to_the_step() -> None:
    first, second = two_steps().to_records()
    assert (first.step, first.start_host_ns, first.duration_ns) == (7, 100, 21)
    assert first.phases_ns == {"data": 1, "forward": 2, "backward": 3, "optimizer": 5, "other": 4 + 6}
    assert (second.step, second.start_host_ns, second.duration_ns) == (8, 121, 60)
    assert second.phases_ns == {"data": 10, "forward": 10, "backward": 10, "optimizer": 10, "other": 20}


def test_batch_size_is_that_of_its_step() -> None:
    assert [(r.samples, r.tokens, r.batches, r.backwards) for r in two_steps().to_records()] == [
        (4, 128, 1, 1),
        (None, None, 1, 1),
    ]


def test_a_run_knows_its_length_and_end_without_its_records() -> None:
    run = two_steps()
    assert (len(run), count_steps(run), run.end_host_ns) == (2, 2, 181)
    assert run._records is None


def test_single_steps_and_runs_keep_their_order() -> None:
    alone = StepRecord(step=6, start_host_ns=90, duration_ns=10, phases_ns={})
    records = LazyRecords([alone, two_steps()])
    assert len(records) == 3
    assert [record.step for record in records] == [6, 7, 8]
    assert (records[0], records[-1].step, len(records[1:])) == (alone, 8, 2)


def test_emit_each_passes_records_one_by_one() -> None:
    emitted: list[StepRecord] = []
    emit_each(emitted.append)(two_steps())
    assert emitted == two_steps().to_records()
