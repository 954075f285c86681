"""The bars of steps by rank: their parts are the figures of the tables."""

import json
import re
from pathlib import Path

import pytest

from rankscope.collector.reports.step_bars import BARS_MAX, PARTS, build_bars, find_compared, render_bars
from rankscope.collector.traces import analyze
from rankscope.collector.traces.report import RankReport, StepReport, TraceReport
from tests.pipelines import Job, write_traces
from tests.unit.collector.reports.test_trace_page import rank_of, report_of, step_of

TRACES = Path(__file__).parents[3] / "traces"


def step(number: int, window_ns: int, waiting_ns: int | None) -> StepReport:
    """Of `window_ns` 40 are computing, 10 of them with communication, 30 communication alone, 5 copies."""
    return StepReport(
        step=number, start_ns=0, window_ns=window_ns, compute_ns=40, communication_ns=40, overlap_ns=10,
        exposed_communication_ns=30, copy_ns=5, idle_ns=window_ns - 75, busy_ratio=None, overlap_ratio=None,
        kernel_count=0, launched=None, waiting_ns=waiting_ns,
    )  # fmt: skip


def rank_with(rank: int, *steps: StepReport) -> RankReport:
    return rank_of(rank, steps=list(steps), step_timelines=[step_of(one.step, 0, one.window_ns) for one in steps])


def data_of(drawing: str) -> list[list[list[int] | None]]:
    return [json.loads(text) for text in re.findall(r'data-parts="(.*?)"', drawing)]


def test_waiting_is_taken_from_exposed_communication() -> None:
    found = build_bars(rank_with(0, step(1, 100, 20)), [1])
    assert found.steps[0] is not None
    assert dict(zip(PARTS, found.steps[0].parts_ns, strict=True)) == {
        "compute": 30, "overlap": 10, "communication": 10, "waiting": 20, "copy": 5, "idle": 25,
    }  # fmt: skip


def test_average_is_over_the_steps_of_a_rank() -> None:
    _, drawing = render_bars(report_of(rank_with(0, step(1, 100, 20), step(2, 200, 10))), 10)
    # Waiting 20 and 10, idle 25 and 125.
    assert "exposed without waiting</li>" in drawing
    assert data_of(drawing) == [
        [[30, 10, 15, 15, 5, 75], [30, 10, 10, 20, 5, 25], [30, 10, 20, 10, 5, 125]],
    ]


def test_bars_of_the_longest_rank_are_as_wide_as_the_page() -> None:
    _, drawing = render_bars(report_of(rank_with(0, step(1, 100, 0)), rank_with(1, step(1, 200, 0))), 10)
    widths = [float(text) for text in re.findall(r'width="([\d.]+)" height', drawing)]
    # The rank of 100 ns gets half of 1,000 units.
    assert (sum(widths[:6]), sum(widths[6:])) == (500, 1_000)


def test_step_that_a_rank_lacks_has_no_bar() -> None:
    _, drawing = render_bars(report_of(rank_with(0, step(1, 100, 0)), rank_with(1, step(2, 100, 0))), 10)
    assert [[view is None for view in rank] for rank in data_of(drawing)] == [
        [False, False, True],
        [False, True, False],
    ]


def test_unknown_waiting_is_not_shown_as_none() -> None:
    section, drawing = render_bars(report_of(rank_with(0, step(1, 100, None))), 10)
    assert "Waiting could not be told from communication" in drawing
    assert "swatch waiting" not in drawing
    assert "exposed communication</li>" in drawing
    assert "without waiting" not in drawing
    assert [row[6].text for row in section.rows] == ["-", "-"]


def test_ranks_without_steps_have_a_reason() -> None:
    section, drawing = render_bars(report_of(rank_of(0)), 10)
    assert (section.rows, section.reason, drawing) == ((), "No steps: call profiler.step() once a step.", "")


def test_more_ranks_than_bars_are_counted() -> None:
    report = report_of(*(rank_with(rank, step(1, 100, 0)) for rank in range(BARS_MAX + 1)))
    assert "256 of 257 ranks are drawn." in render_bars(report, 10)[1]


def drawn_and_written(report: TraceReport) -> list[tuple[list[int] | None, list[int]]]:
    """Each bar with what the table of steps has for it, which other code has computed."""
    _, drawing = render_bars(report, 10)
    found = []
    for rank, views in zip(report.ranks, data_of(drawing), strict=True):
        for (_, one), bar in zip(find_compared(rank), views[1:], strict=True):
            parts = [one.compute_ns - one.overlap_ns, one.overlap_ns, one.exposed_communication_ns]
            found.append((bar, [*parts, one.copy_ns, one.idle_ns, one.window_ns]))
    return found


@pytest.mark.parametrize("path", ["a100_nccl_2ranks_r0.json.gz", "gloo-2.13/ddp_2r_slow1_forward"])
def test_bars_of_recorded_steps_sum_to_the_tables(path: str) -> None:
    for bar, written in drawn_and_written(analyze(str(TRACES / path))):
        assert bar is not None
        assert [*bar[:2], bar[2] + bar[3], *bar[4:], sum(bar)] == written


def test_waiting_of_a_pipeline_is_the_bubble_of_its_table(tmp_path: Path) -> None:
    truth = write_traces(tmp_path, Job("1F1B", 4, 8, steps=3), backend="nccl")
    for rank, views in enumerate(data_of(render_bars(analyze(str(tmp_path)), 10)[1])):
        assert views[0] is not None
        # Moving the messages, some 30 us each, is no waiting.
        assert views[0][3] == pytest.approx(truth.bubble_us[rank] * 1_000 / 3, rel=0.1)
