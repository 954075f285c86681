"""Memory of a trace over time: categories, the peak, curves and pictures."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from rankscope.collector.commands.main import main
from rankscope.collector.traces import analyze
from rankscope.collector.traces.memory import summarize_memory
from rankscope.collector.traces.memory_timeline import CURVE_POINTS, read_marks
from rankscope.collector.traces.report import MemoryReport, MemoryTimeline
from rankscope.measure.capture_limits import MEMORY_KEY
from rankscope.measure.memory_timeline import MemoryCategory
from rankscope.measure.rank_view import RankView
from tests.unit.measure.written_traces import Event, allocation, event, read_events, to_json

A, B, C = 0x1000, 0x2000, 0x3000
TRACES = Path(__file__).parents[3] / "traces"


def at(time_us: int, address: int, size: int, **args: Any) -> Event:
    return allocation(time_us, size, **{"Addr": address, **args})


def reports_of(*events: Event, every: int = 0, with_flow: bool = False, **head: Any) -> list[MemoryReport]:
    return summarize_memory(RankView(read_events(*events, **head)), every, with_flow=with_flow)


def timeline_of(*events: Event, every: int = 0, **head: Any) -> MemoryTimeline:
    (report,) = reports_of(*events, every=every, **head)
    assert report.timeline is not None
    return report.timeline


# A forward of an operator with an output and scratch memory, then a backward from 20 us on with a gradient.
STEP = (
    event("cpu_op", "aten::mm", 10, 5, **{"Call stack": "train.py(7): step;torch/nn/linear.py(3): forward"}),
    at(11, A, 100, **{"Total Allocated": 1100, "Total Reserved": 4400}),
    at(12, B, 40, **{"Total Allocated": 1140, "Total Reserved": 4400}),
    at(14, B, -40, **{"Total Allocated": 1100, "Total Reserved": 4400}),
    event("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 20, 10),
    at(21, C, 60, **{"Total Allocated": 1160, "Total Reserved": 4640}),
    at(25, A, -100, **{"Total Allocated": 1060, "Total Reserved": 4640}),
)
MARKS = {
    "version": 1,
    "marks": [
        {
            "time_ns": 30_500,
            "parameters": [[0x9000, 500, 0], [0x9900, 70, -1]],
            "gradients": [[C, 60, 0]],
            "optimizer_state": [],
        }
    ],
}


def by_category(found: MemoryTimeline) -> dict[str, int]:
    return {name: size for name, size in found.peak_by_category.items() if size}


def test_peak_is_split_by_category() -> None:
    found = timeline_of(*STEP)
    assert (found.peak_bytes, found.peak_ns, found.older_bytes) == (1160, 11_000, 1000)
    assert by_category(found) == {"activations": 100, "unknown": 1060}
    assert (found.has_totals, found.has_model, found.lifetime_count) == (True, False, 3)
    assert found.fragmentation == pytest.approx(0.75)


def test_capture_with_memory_tells_parameters_and_gradients() -> None:
    found = timeline_of(*STEP, rankscope_memory=MARKS)
    assert found.has_model
    assert by_category(found) == {"parameters": 500, "gradients": 60, "activations": 100, "unknown": 500}


def test_marks_are_by_the_base_of_the_traces_clock() -> None:
    base = {"baseTimeNanoseconds": 30_000}
    assert read_marks({MEMORY_KEY: MARKS, **base}, 0)[0].time_ns == 500
    assert read_marks({MEMORY_KEY: MARKS}, None)[0].storages[MemoryCategory.PARAMETERS] == [(0x9900, 70)]


def test_list_that_is_left_out_of_a_mark_is_as_before() -> None:
    marks = [*MARKS["marks"], {"time_ns": 40_000, "gradients": [[A, 9, 0]]}]  # type: ignore[misc]
    later = read_marks({MEMORY_KEY: {"marks": marks}}, 0)[1].storages
    assert later[MemoryCategory.PARAMETERS] == [(0x9000, 500)]
    assert later[MemoryCategory.GRADIENTS] == [(A, 9)]


@pytest.mark.parametrize("told", [3, {"marks": 3}, {"marks": [{}]}, {"marks": [{"time_ns": 1, "gradients": [[1]]}]}])
def test_marks_that_cannot_be_read_count_as_none(told: Any) -> None:
    assert not timeline_of(*STEP, rankscope_memory=told).has_model


def test_memory_at_the_peak_has_operator_line_and_category() -> None:
    rows = [(r.operator, r.source, r.category, r.bytes, r.count) for r in timeline_of(*STEP).at_peak]
    backward = "autograd::engine::evaluate_function: MmBackward0"
    assert rows == [
        ("aten::mm", "train.py(7): step", "activations", 100, 1),
        (backward, None, "unknown", 60, 1),
    ]


def test_curve_sums_to_what_is_held() -> None:
    curve = timeline_of(*STEP).curve
    assert [sum(sizes) for sizes in zip(*curve.bytes.values(), strict=True)] == [1100, 1140, 1100, 1160, 1060]
    assert (curve.times_ns, curve.operators) == ([1_000, 2_000, 4_000, 11_000, 15_000], None)


def test_curve_at_every_second_operator_has_its_name() -> None:
    curve = timeline_of(*STEP, every=2).curve
    assert (curve.every_operators, len(curve.times_ns)) == (2, 1)
    assert curve.operators == ["autograd::engine::evaluate_function: MmBackward0"]
    assert sum(sizes[0] for sizes in curve.bytes.values()) == 1060


def test_long_curve_is_thinned_and_keeps_the_peak() -> None:
    events = [at(number, A + number, 1) for number in range(3 * CURVE_POINTS)]
    events[700] = at(700, B << 8, 10**6)
    events[701] = at(701, B << 8, -(10**6))
    found = timeline_of(*events)
    assert CURVE_POINTS <= len(found.curve.times_ns) <= CURVE_POINTS + 1
    assert max(sum(sizes) for sizes in zip(*found.curve.bytes.values(), strict=True)) == found.peak_bytes


def test_without_addresses_there_is_no_timeline() -> None:
    (report,) = reports_of(allocation(5, 8), with_flow=True)
    assert (report.timeline, report.flow) == (None, None)


def test_picture_is_there_only_when_it_is_asked_for() -> None:
    assert [one.flow for one in reports_of(*STEP)] == [None]
    (report,) = reports_of(*STEP, with_flow=True)
    assert report.flow is not None
    assert [one.name for one in report.flow.rectangles[:2]] == ["aten::mm", "aten::mm"]


def test_real_trace_of_a_gpu_holds_the_laws() -> None:
    (rank,) = analyze(str(TRACES / "h100_bert_small.json.gz")).ranks
    timelines = [one.timeline for one in rank.memory if one.timeline is not None]
    assert timelines
    for one, report in zip(timelines, rank.memory, strict=True):
        assert (one.peak_bytes, one.peak_ns, one.lost_free_count) == (report.peak_bytes, report.peak_ns, 0)
        assert sum(row.bytes for row in one.at_peak) == one.peak_bytes - one.older_bytes
        assert sum(one.peak_by_category.values()) == one.peak_bytes


def test_command_draws_every_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rank0.json").write_bytes(to_json(*STEP, distributedInfo={"rank": 0, "world_size": 1}))
    picture = tmp_path / "flow.svg"
    assert main(["analyze", str(tmp_path / "rank0.json"), "--memory-flow", str(picture)]) == 0
    texts = [one.text for one in ET.fromstring(picture.read_text()).iter("{http://www.w3.org/2000/svg}text")]  # noqa: S314
    assert texts[0] is not None
    assert texts[0].startswith("Memory flow of rank 0, device 0")
    assert "MEMORY AT THE PEAK, BY CATEGORY" in capsys.readouterr().out


def test_command_says_that_there_is_nothing_to_draw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["analyze", str(TRACES / "a100_nccl_2ranks_r0.json.gz"), "--memory-flow", str(tmp_path / "flow.svg")])
    assert "no memory flow is drawn" in capsys.readouterr().err
    assert not (tmp_path / "flow.svg").exists()


def test_command_refuses_a_curve_without_points(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(TRACES / "h100_bert_small.json.gz"), "--memory-every", "0"]) == 2
    assert "--memory-every is 0; it must be 1 or more" in capsys.readouterr().err
