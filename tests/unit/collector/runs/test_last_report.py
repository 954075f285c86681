"""The last report of a rank, packed: what is unpacked is what was said, and samples stay until there is a newer one."""

import msgspec
import pytest

from rankscope.collector.runs.last_report import FRAME_BYTES_KEPT, NOTHING_REPORTED, Counted, LastReport, ReportFields
from rankscope.measure.codec import encode
from rankscope.measure.messages import Report
from rankscope.measure.records import (
    AgentCost,
    AllocatorSample,
    DeviceSample,
    GroupInfo,
    HostSample,
    Losses,
    StepRecord,
    Totals,
    steps_to_table,
)
from rankscope.measure.stalls import GroupStatus

TOTALS = Totals(steps=7, step_ns=700, phases_ns={"data": 5}, samples=None, tokens=2**62)
LOSSES = Losses(steps_overwritten=1, errors={"probe": 2}, steps_made=8)
COST = AgentCost(part_ns={"step_hooks": 3}, dropped={"full_windows": True}, full_stretch_ratio=1.5)
HOST = HostSample(host_ns=9, cpu_ns=8, gc_pause_ns=None)
GPU = DeviceSample(host_ns=9, uuid="GPU-1", power_watts=0.1, throttle_reasons=("sw_power_cap",), absent={"xid": "no"})
ALLOCATOR = AllocatorSample(host_ns=9, allocated_bytes=2**40, absent={"retries": "no"})
WHOLE = Report(
    sequence=1, host_ns=9, totals=TOTALS, losses=LOSSES, cost=COST, overhead_ratio=0.004, host=HOST, devices=(GPU, GPU),
    allocator=ALLOCATOR,
)  # fmt: skip


def samples_of(latest: LastReport) -> tuple[object, ...]:
    return latest.host, latest.devices, latest.allocator


def test_before_any_report_nothing_is_known() -> None:
    assert NOTHING_REPORTED.counted == Counted()
    assert samples_of(NOTHING_REPORTED) == (None, (), None)


@pytest.mark.parametrize("steps", [1, 200])
def test_everything_is_read_as_it_was_said(steps: int) -> None:
    """Whether the frame is kept, or too large for that."""
    records = [StepRecord(step=step, start_host_ns=1, duration_ns=2, phases_ns={"data": 1}) for step in range(steps)]
    report = msgspec.structs.replace(WHOLE, steps=steps_to_table(records))
    assert (len(encode(report)) > FRAME_BYTES_KEPT) == (steps > 1)
    latest = NOTHING_REPORTED.after(ReportFields.of(report))
    assert latest.counted == (TOTALS, LOSSES, 0.004, COST)
    assert samples_of(latest) == (HOST, (GPU, GPU), ALLOCATOR)
    assert len(latest._counted) <= FRAME_BYTES_KEPT


def test_samples_stay_and_counts_are_of_the_last_report() -> None:
    latest = NOTHING_REPORTED.after(ReportFields.of(WHOLE)).after(
        ReportFields.of(Report(sequence=2, host_ns=10, totals=Totals(steps=9)))
    )
    assert latest.counted == Counted(Totals(steps=9))
    assert samples_of(latest) == (HOST, (GPU, GPU), ALLOCATOR)
    newer = msgspec.structs.replace(HOST, host_ns=11)
    after = latest.after(ReportFields.of(Report(sequence=3, host_ns=11, host=newer)))
    assert samples_of(after) == (newer, (GPU, GPU), ALLOCATOR)


def test_what_the_rest_of_a_report_is_does_not_matter() -> None:
    """Of a frame with everything in it, and of one whose sender knows only the first fields."""
    steps = steps_to_table([StepRecord(step=3, start_host_ns=1, duration_ns=2, phases_ns={"data": 1})])
    group = GroupInfo(label="g", description="g", ranks=(0,), backend="b")
    full = msgspec.structs.replace(
        WHOLE, steps=steps, covered_steps=((1, 2),), groups=(group,),
        progress=(GroupStatus(group="g", enqueued=4),), stalled_since_host_ns=5,
    )  # fmt: skip
    latest = NOTHING_REPORTED.after(ReportFields.of(full))
    assert (latest.counted.totals, *samples_of(latest)) == (TOTALS, HOST, (GPU, GPU), ALLOCATOR)
    short = encode(Report(sequence=1, host_ns=0))[:7] + msgspec.msgpack.encode([1, 0])
    latest = NOTHING_REPORTED.after(ReportFields.of(Report(sequence=1, host_ns=0), short))
    assert (latest.counted, *samples_of(latest)) == (Counted(), None, (), None)


def test_a_frame_is_kept_and_not_copied() -> None:
    frame = encode(WHOLE)
    assert NOTHING_REPORTED.after(ReportFields.of(WHOLE, frame))._counted is frame


def test_a_report_does_not_change_what_a_picture_refers_to() -> None:
    kept = NOTHING_REPORTED.after(ReportFields.of(WHOLE))
    kept.after(ReportFields.of(Report(sequence=2, host_ns=10)))
    assert kept.counted.totals == TOTALS


def test_what_was_saved_is_gone_on_with() -> None:
    latest = LastReport.restore(TOTALS, LOSSES, (GPU,))
    assert latest.counted == Counted(TOTALS, LOSSES)
    assert samples_of(latest) == (None, (GPU,), None)
