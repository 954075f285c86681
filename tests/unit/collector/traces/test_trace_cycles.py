"""All cycles of a schedule side by side: their mean steps by rank, and the differences."""

import json
from pathlib import Path

import pytest

from rankscope.collector.commands.main import build_parser
from rankscope.collector.reports.cycle_table import build_cycle_sections
from rankscope.collector.traces.analysis import analyze
from rankscope.collector.traces.report import TraceReport
from rankscope.measure.errors import SettingError, UnavailableError
from tests.unit.measure.written_traces import event, kernel, launch


def write_cycle(folder: Path, cycle: int, rank: int, lengths_us: list[int]) -> None:
    """Write steps of these lengths; the device computes in all of a step but for its last 10 us."""
    head = {"distributedInfo": {"rank": rank, "world_size": 2}}
    events, start_us = [], 1000
    for place, length_us in enumerate(lengths_us):
        call = launch(start_us, 10 * cycle + place)
        work = kernel("gemm", start_us, length_us - 10, correlation=10 * cycle + place)
        events += [event("user_annotation", f"ProfilerStep#{10 * cycle + place}", start_us, length_us), call, work]
        start_us += length_us
    path = folder / f"host_1{rank}.170000000{cycle}.pt.trace.json"
    path.write_text(json.dumps({**head, "traceEvents": events}))


@pytest.fixture
def report(tmp_path: Path) -> TraceReport:
    """Rank 0 has two cycles, of steps of 100 and 120 us and of 130 and 150 us; rank 1 the first of them only."""
    write_cycle(tmp_path, 1, 0, [100, 120])
    write_cycle(tmp_path, 2, 0, [130, 150])
    write_cycle(tmp_path, 1, 1, [100, 100])
    return analyze(str(tmp_path), cycle="all")


def test_each_rank_has_a_row_in_each_of_its_cycles(report: TraceReport) -> None:
    assert [(row.cycle, row.rank, row.first_step, row.last_step) for row in report.cycles] == [
        (1, 0, 10, 11), (1, 1, 10, 11), (2, 0, 20, 21),
    ]  # fmt: skip


def test_mean_steps_are_compared_with_the_cycle_before(report: TraceReport) -> None:
    first, _, second = report.cycles
    # By the device: from one step's first work to that of the next, the last one without its idle end:
    # 100 and 110 us, then 130 and 140 us.
    assert (first.step_ns, second.step_ns) == (105_000, 135_000)
    assert (first.compute_ns, second.compute_ns) == (100_000, 130_000)
    assert (first.difference_ns, first.difference_ratio) == (None, None)
    assert (second.difference_ns, second.difference_ratio) == (30_000, 30 / 105)


def test_parts_of_a_mean_step_sum_to_it(report: TraceReport) -> None:
    for row in report.cycles:
        parts = (row.compute_ns, row.exposed_communication_ns, row.copy_ns, row.idle_ns)
        assert sum(part or 0 for part in parts) == row.step_ns


def test_rest_of_the_report_is_of_the_last_cycle(report: TraceReport) -> None:
    assert [(rank.rank, [step.step for step in rank.steps]) for rank in report.ranks] == [(0, [20, 21])]


def test_table_shows_the_cycles(report: TraceReport) -> None:
    (section,) = build_cycle_sections(report.cycles, top=2)
    assert [[cell.text for cell in row[:6]] for row in section.rows] == [
        ["1", "0", "10-11", "0.105", "-", "-"], ["1", "1", "10-11", "0.095", "-", "-"],
    ]  # fmt: skip
    assert (section.left_out, build_cycle_sections([], top=2)) == (1, [])


def test_command_line_takes_a_number_or_all() -> None:
    chosen = [build_parser().parse_args(["analyze", "x", "--cycle", text]).cycle for text in ("2", "all")]
    assert chosen == [2, "all"]


def test_one_rank_can_be_chosen(tmp_path: Path) -> None:
    for cycle in (1, 2):
        for rank in (0, 1):
            write_cycle(tmp_path, cycle, rank, [100, 100])
    assert [(row.cycle, row.rank) for row in analyze(str(tmp_path), cycle="all", rank=1).cycles] == [(1, 1), (2, 1)]


def test_traces_without_cycles_are_refused(tmp_path: Path) -> None:
    write_cycle(tmp_path, 1, 0, [100])
    with pytest.raises(UnavailableError, match="--cycle is all, but no rank has several cycles here"):
        analyze(str(tmp_path), cycle="all")


def test_all_cycles_cannot_be_compared_with_other_traces(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="--against compares one cycle"):
        analyze(str(tmp_path), cycle="all", against=str(tmp_path))
