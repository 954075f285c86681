"""The fields of a report that a run works with."""

import msgspec

from rankscope.collector.runs import report_fields
from rankscope.collector.runs.report_fields import ReportFields, StepTotals
from rankscope.measure.codec import decode, encode
from rankscope.measure.enqueues import Enqueue, pack_enqueues
from rankscope.measure.messages import Report
from rankscope.measure.records import (
    AllocatorSample,
    CollectiveRecord,
    DeviceSample,
    GroupInfo,
    HostSample,
    LayerTimes,
    Losses,
    PipelineSchedule,
    StepRecord,
    Totals,
    WindowBreakdown,
    WindowSynchronizations,
    collectives_to_table,
    steps_to_table,
)
from rankscope.measure.stalls import WORKS, GroupStatus, QuietPlace, Stall

STEP = StepRecord(step=3, start_host_ns=1, duration_ns=2, phases_ns={"data": 1})
WHOLE = Report(
    sequence=5,
    host_ns=9,
    steps=steps_to_table([STEP]),
    collectives=collectives_to_table(
        [CollectiveRecord(step=3, group="g", op="all_reduce", start_host_ns=1, duration_ns=1, sequence=1)]
    ),
    covered_steps=((3, 3),),
    timed_steps=((4, 5),),
    breakdowns=(
        WindowBreakdown(
            first_step=3, step_count=1, window_ns=9, compute_ns=5, communication_ns=4, overlap_ns=2,
            exposed_communication_ns=2, copy_ns=0, idle_ns=2, operator_count=1,
        ),
    ),
    host=HostSample(host_ns=9, gc_pause_ns=11, gc_collections=1),
    devices=(DeviceSample(host_ns=9, uuid="GPU-1"),),
    totals=Totals(steps=7, step_ns=700),
    losses=Losses(
        steps_overwritten=1, steps_dropped_in_reports=2, reports_dropped=4, steps_made=8, steps_buffered=0
    ),
    groups=(GroupInfo(label="g", description="g", ranks=(0,), backend="b"),),
    allocator=AllocatorSample(host_ns=9, allocated_bytes=2**40),
    progress=(GroupStatus(group="g", enqueued=4),),
    stalled_since_host_ns=5,
    stall=Stall(number=1, since_host_ns=5, taken_host_ns=9, limit_ns=3, activity="step"),
    synchronizations=(WindowSynchronizations(first_step=3, step_count=1, idle_ns=1),),
    enqueues=pack_enqueues([Enqueue(4, "g", 2, 1_500)], [(4, 5)], wall_error_ns=10),
    pipeline=PipelineSchedule(name="Schedule1F1B", stages=(0,), stage_count=2, ranks=2, microbatches=4),
    layers=LayerTimes(kind="Block", samples=4, calls=1, columns=((5,), (9,), (13,), (15,), (None,))),
    quiet=(QuietPlace(42, WORKS, "train.py:52 (main)", "time.sleep"),),
)  # fmt: skip


def test_fields_of_both_structs_are_equal() -> None:
    found = ReportFields.of(WHOLE)
    both = set(ReportFields.__struct_fields__) & set(Report.__struct_fields__)
    assert both == {
        "sequence", "host_ns", "steps", "collectives", "covered_steps", "breakdowns", "groups", "allocator", "progress",
        "stalled_since_host_ns", "stall", "synchronizations", "node", "timed_steps", "out_of_memory",
        "enqueues", "compilations", "pipeline", "layers", "quiet",
    }  # fmt: skip
    assert {name: getattr(found, name) for name in both} == {name: getattr(WHOLE, name) for name in both}


def test_report_fields_equal_the_report() -> None:
    found = ReportFields.of(WHOLE)
    assert found.step_totals == StepTotals(made=8, buffered=0, overwritten=1, dropped_in_reports=2, reported=7)
    assert (found.step_ns, found.reports_dropped) == (700, 4)
    assert found.host_times is not None
    assert found.host_times.gc_pause_ns == 11
    assert (found.has_host, found.has_devices) == (True, True)


def test_report_without_samples_has_none() -> None:
    found = ReportFields.of(Report(sequence=1, host_ns=0))
    assert (found.has_host, found.has_devices, found.host_times) == (False, False, None)
    assert found.step_totals == StepTotals(made=None, buffered=None, overwritten=0, dropped_in_reports=0, reported=0)


def test_frame_is_the_received_one_or_encodes_the_same() -> None:
    frame = encode(WHOLE)
    assert ReportFields.of(WHOLE, frame).frame is frame
    assert decode(ReportFields.of(WHOLE).frame) == WHOLE


def test_reports_with_the_same_columns_share_their_names() -> None:
    one, other = (ReportFields.of(read_anew(WHOLE)) for _ in range(2))
    assert one.steps.names is other.steps.names
    assert one.steps.names == WHOLE.steps.names


def test_shared_names_are_bounded() -> None:
    for number in range(2 * report_fields.NAMES_MAX):
        named = steps_to_table([msgspec.structs.replace(STEP, phases_ns={f"own {number}": 1})])
        assert ReportFields.of(Report(sequence=1, host_ns=0, steps=named)).steps == named
    assert len(report_fields._shared_names) <= report_fields.NAMES_MAX


def test_reports_without_collectives_share_an_empty_table() -> None:
    one, other = (ReportFields.of(read_anew(Report(sequence=number, host_ns=0))) for number in (1, 2))
    assert one.collectives is other.collectives
    assert one.collectives == Report(sequence=1, host_ns=0).collectives


def read_anew(report: Report) -> Report:
    """A report as it comes over the wire, with objects of its own."""
    found = decode(encode(report))
    assert isinstance(found, Report)
    return found
