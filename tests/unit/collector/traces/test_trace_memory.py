"""The allocators of one trace."""

from typing import Any

import pytest

from rankscope.collector.traces.memory import OPERATORS_MAX, summarize_memory
from rankscope.collector.traces.memory_timeline import OUTSIDE_OPERATORS
from rankscope.collector.traces.report import MemoryReport
from rankscope.measure.rank_view import RankView
from tests.unit.measure.written_traces import Event, allocation, event, read_events


def reports_of(*events: Event) -> list[MemoryReport]:
    return summarize_memory(RankView(read_events(*events)))


def report_of(*events: Event) -> MemoryReport:
    found = reports_of(*events)
    assert len(found) == 1
    return found[0]


def total(time_us: int, size: int, allocated: Any, reserved: Any = None) -> Event:
    return allocation(time_us, size, **{"Total Allocated": allocated, "Total Reserved": reserved})


def step(number: int, start_us: int, duration_us: int) -> Event:
    return event("user_annotation", f"ProfilerStep#{number}", start_us, duration_us)


def test_without_memory_events_there_is_no_report() -> None:
    assert reports_of(event("cpu_op", "aten::mm", 0, 5)) == []


def test_peak_is_the_allocators_own_total() -> None:
    report = report_of(
        event("cpu_op", "a", 2, 1), total(5, 8, 108, 256), total(7, 50, 158, 512), total(9, -50, 108, 512)
    )
    # Time counts from the first event, at 2 us.
    assert (report.device, report.peak_bytes, report.peak_ns, report.reserved_peak_bytes) == (0, 158, 5_000, 512)


@pytest.mark.parametrize("told", [None, "many", 2**70])
def test_without_all_totals_events_are_summed(told: Any) -> None:
    report = report_of(total(5, 8, 108), total(7, 50, told), total(9, -50, 108))
    assert (report.peak_bytes, report.reserved_peak_bytes) == (58, None)


def test_each_allocator_has_a_report_the_cpus_without_number() -> None:
    cpu = allocation(3, 4, **{"Device Type": 0, "Device Id": -1})
    second = allocation(4, 16, **{"Device Id": 1})
    reports = reports_of(second, cpu, allocation(5, 8))
    assert [(report.device, report.peak_bytes) for report in reports] == [(None, 4), (0, 8), (1, 16)]


def test_growth_is_what_is_held_more_at_the_end_of_each_step() -> None:
    steps = [step(1, 0, 10), step(2, 10, 10), step(3, 20, 10)]
    # 10 bytes at 10 us, 15 at 20 us, 12 at 30 us.
    report = report_of(*steps, allocation(5, 10), allocation(15, 5), allocation(25, -3))
    assert (report.growth_by_step_bytes, report.growth_bytes) == ([5, -3], 2)


def test_before_its_first_event_an_allocator_holds_nothing() -> None:
    assert report_of(step(1, 0, 10), step(2, 10, 10), allocation(15, 5)).growth_by_step_bytes == [5]


def test_totals_tell_what_is_held_before_the_first_event() -> None:
    # 100 bytes at 10 us, 105 at 20 us.
    assert report_of(step(1, 0, 10), step(2, 10, 10), total(15, 5, 105)).growth_by_step_bytes == [5]
    assert report_of(step(1, 0, 10), step(2, 10, 10), step(3, 20, 9), total(25, 5, 105)).growth_by_step_bytes == [0, 5]


def test_without_steps_there_is_no_growth() -> None:
    report = report_of(allocation(5, 10))
    assert (report.growth_by_step_bytes, report.growth_bytes) == ([], 0)


def test_allocations_belong_to_the_innermost_operator() -> None:
    events = [event("cpu_op", "aten::mm", 0, 10), event("cpu_op", "aten::empty", 2, 3)]
    changes = [allocation(3, 8), allocation(4, 8), allocation(7, -8), allocation(20, -4)]
    rows = [(r.operator, r.count, r.allocated_bytes, r.kept_bytes) for r in report_of(*events, *changes).operators]
    assert rows == [("aten::empty", 2, 16, 16), ("aten::mm", 0, 0, -8), (OUTSIDE_OPERATORS, 0, 0, -4)]


def test_memory_of_operators_inside_is_in_the_totals() -> None:
    # linear has mm, which has empty, called twice: 8 and 6 bytes in empty, 5 in mm itself, 3 of them freed in linear.
    calls = [("aten::linear", 0, 20), ("aten::mm", 1, 15), ("aten::empty", 2, 3), ("aten::empty", 6, 3)]
    events = [event("cpu_op", *call) for call in calls] + [event("cpu_op", "aten::linear", 40, 5)]
    changes = [allocation(3, 8), allocation(7, 6), allocation(11, 5), allocation(18, -3), allocation(30, 7)]
    rows = {row.operator: row for row in report_of(*events, *changes).operators}
    linear, mm, outside = rows["aten::linear"], rows["aten::mm"], rows[OUTSIDE_OPERATORS]
    assert (linear.count, linear.allocated_bytes, linear.kept_bytes, linear.calls) == (0, 0, -3, 2)
    assert (linear.total_count, linear.total_allocated_bytes, linear.total_kept_bytes) == (3, 19, 16)
    assert (mm.count, mm.total_count, mm.allocated_bytes, mm.total_allocated_bytes) == (1, 3, 5, 19)
    assert (rows["aten::empty"].calls, rows["aten::empty"].total_allocated_bytes) == (2, 14)
    assert (outside.calls, outside.count, outside.total_allocated_bytes) == (0, 1, 7)


def test_only_the_operators_that_allocate_most_are_listed() -> None:
    events = [event("cpu_op", f"op{place}", 10 * place, 5) for place in range(OPERATORS_MAX + 5)]
    changes = [allocation(10 * place + 1, 1 + place) for place in range(OPERATORS_MAX + 5)]
    rows = report_of(*events, *changes).operators
    assert (len(rows), rows[0].operator) == (OPERATORS_MAX, f"op{OPERATORS_MAX + 4}")
