"""Kernels launched in user ranges, and the bandwidth of copies: by hand, and of recorded traces by loops over their
JSON.
"""

import csv
import gzip
import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from rankscope.collector.commands.main import main
from rankscope.collector.reports.sorted_tables import NO_RANGE, build_range_kernels, build_sorted_sections
from rankscope.collector.reports.trace_tables import build_sections
from rankscope.collector.traces import analyze
from rankscope.collector.traces.report import RangeKernelRow, TraceReport
from rankscope.collector.traces.user_ranges import DEPTH_MAX, sum_range_kernels, sum_user_ranges
from rankscope.measure.rank_view import RankView
from tests.unit.measure.written_traces import Event, event, kernel, launch, read_events, to_json

TRACES = Path(__file__).parents[4] / "tests" / "traces"


def annotation(name: str, start_us: int, duration_us: int, **args: Any) -> Event:
    return event("user_annotation", name, start_us, duration_us, **args)


def rows_of(*events: Event) -> list[RangeKernelRow]:
    return sum_range_kernels(RankView(read_events(*events)))


def counted(rows: list[RangeKernelRow]) -> dict[tuple[str | None, str], tuple[int, int, int]]:
    """Return by range and kernel how many there are, their time and that of their own, in us."""
    return {(row.range_name, row.name): (row.count, row.total_ns // 1_000, row.own_ns // 1_000) for row in rows}


# "outer" launches a (5 us) itself and b (7 us) in "inner"; a second "inner" outside launches b (3 us); c (9 us) is
# launched in no range, d (1 us) by a call that is not in the trace.
EVENTS = [
    annotation("outer", 0, 10), annotation("inner", 4, 4), annotation("inner", 20, 5),
    launch(1, 1), launch(5, 2), launch(21, 3), launch(40, 4),
    kernel("a", 50, 5, correlation=1), kernel("b", 60, 7, correlation=2), kernel("b", 70, 3, correlation=3),
    kernel("c", 80, 9, correlation=4), kernel("d", 90, 1, correlation=5),
]  # fmt: skip


def test_ranges_have_kernels_launched_inside_and_in_inner_ranges() -> None:
    assert counted(rows_of(*EVENTS)) == {
        ("outer", "b"): (1, 7, 0), ("outer", "a"): (1, 5, 5), ("inner", "b"): (2, 10, 10),
        (None, "c"): (1, 9, 9), (None, "d"): (1, 1, 1),
    }  # fmt: skip


def test_range_with_the_most_is_first_and_no_range_last() -> None:
    rows = rows_of(*EVENTS)
    assert [(row.range_name, row.name) for row in rows] == [
        ("outer", "b"), ("outer", "a"), ("inner", "b"), (None, "c"), (None, "d"),
    ]  # fmt: skip
    assert [round(row.pct, 1) for row in rows] == [58.3, 41.7, 100.0, 90.0, 10.0]
    inner = rows[2]
    assert (inner.mean_ns, inner.min_ns, inner.max_ns, inner.own_count) == (5_000, 3_000, 7_000, 2)


def test_nested_ranges_of_one_name_count_their_work_once() -> None:
    # Recursion with another range between: a > b > a launches k (4 us) in the innermost.
    around = [annotation("a", 0, 30), annotation("b", 1, 20), annotation("a", 2, 10)]
    events = [*around, launch(3, 1), kernel("k", 50, 4, correlation=1)]
    assert counted(rows_of(*events)) == {("a", "k"): (1, 4, 4), ("b", "k"): (1, 4, 0)}
    by_name = {row.name: row.device_total_ns for row in sum_user_ranges(RankView(read_events(*events)))}
    assert by_name == {"a": 4_000, "b": 4_000}


def test_range_on_autograds_thread_is_inside_the_backward_range() -> None:
    # As FSDP marks its hooks: "post" on the engine's thread, inside of "backward" on that of the steps.
    engine = event("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 12, 6, tid=2)
    around = [annotation("ProfilerStep#3", 0, 30), annotation("backward", 10, 10), annotation("post", 13, 3, tid=2)]
    calls = [launch(11, 1), launch(14, 2, tid=2), launch(17, 3, tid=2)]
    work = [kernel("k", 30 + 10 * one, one, correlation=one) for one in (1, 2, 3)]
    assert counted(rows_of(*around, engine, *calls, *work)) == {
        ("backward", "k"): (3, 6, 4), ("post", "k"): (1, 2, 2),
    }  # fmt: skip


def test_without_a_device_there_are_none_and_the_table_says_why(tmp_path: Path) -> None:
    report = report_of(tmp_path, annotation("mine", 0, 10), event("cpu_op", "aten::mm", 2, 5))
    assert report.ranks[0].range_kernels == []
    (section,) = build_range_kernels(report, 5)
    assert (section.rows, section.reason) == ((), "No device work: the traces are of the CPU alone.")


def report_of(folder: Path, *events: Event, **options: Any) -> TraceReport:
    (folder / "rank0.json").write_bytes(to_json(*events))
    return analyze(str(folder / "rank0.json"), nest=True, **options)


def test_kernels_stand_beneath_their_range(tmp_path: Path) -> None:
    report = report_of(tmp_path, *EVENTS)
    (section,) = build_range_kernels(report, 5)
    # Of 25 us in all 12 are in outer; the first line of each is the range's.
    assert [[cell.text for cell in row[1:5]] for row in section.rows] == [
        ["outer", "2", "0.012", "48.0"], ["  b", "1", "0.007", "58.3"], ["  a", "1", "0.005", "41.7"],
        ["inner", "2", "0.010", "40.0"], ["  b", "2", "0.010", "100.0"],
        [NO_RANGE, "2", "0.010", "40.0"], ["  c", "1", "0.009", "90.0"], ["  d", "1", "0.001", "10.0"],
    ]  # fmt: skip
    assert build_range_kernels(report, 1)[0].left_out == 2
    assert build_range_kernels(analyze(str(tmp_path / "rank0.json")), 5) == []


def test_kernels_of_ranges_are_a_file_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "rank3.json").write_bytes(to_json(*EVENTS))
    out = tmp_path / "tables"
    assert main(["analyze", str(tmp_path / "rank3.json"), "--tables", str(out), "--nest"]) == 0
    with (out / "range_kernels.csv").open(newline="") as file:
        first = next(csv.DictReader(file))
    assert (first["rank"], first["range_name"], first["name"], first["total_ns"]) == ("3", "outer", "b", "7000")


def test_ranges_nested_deeper_than_programs_are_is_refused(tmp_path: Path) -> None:
    around = [annotation(f"r{one}", one, 3_000 - 2 * one) for one in range(DEPTH_MAX + 1)]
    work = [launch(1_400, 1), kernel("k", 5_000, 4, correlation=1)]
    (error,) = report_of(tmp_path, *around, *work).errors
    assert error.reason == "more than 500 different user ranges are inside one another"
    assert report_of(tmp_path, *around[1:], *work).errors == []


def test_range_that_calls_itself_very_deep_is_summed_at_once(tmp_path: Path) -> None:
    depth = 40_000
    around = [annotation("again", one, 3 * depth - 2 * one) for one in range(depth)]
    (rank,) = report_of(tmp_path, *around, launch(depth, 1), kernel("k", 9 * depth, 4, correlation=1)).ranks
    assert [(row.range_name, row.count, row.own_count) for row in rank.range_kernels or []] == [("again", 1, 1)]


def test_more_kinds_of_work_than_can_be_told_apart_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankscope.collector.traces.user_ranges.KINDS_MAX", 5)
    (error,) = report_of(tmp_path, *EVENTS).errors
    assert error.reason == "more than 5 kinds of work are told apart by its user ranges"
    assert analyze(str(tmp_path / "rank0.json")).errors == []


# -- of the profiler's own ranges on the device -----------------------------------------------------------------------


def test_device_ranges_have_number_least_most_and_deviation(tmp_path: Path) -> None:
    on_device = [event("gpu_user_annotation", "mine", *one) for one in ((20, 3), (30, 7))]
    report = report_of(tmp_path, annotation("mine", 0, 5), annotation("mine", 8, 1), *on_device, kernel("k", 21, 1))
    (row,) = report.ranks[0].user_ranges
    assert (row.device_count, row.device_min_ns, row.device_max_ns) == (2, 3_000, 7_000)
    # 2 us on either side of 5 and of 3: the root of 2 x 2^2.
    assert row.device_deviation_ns == pytest.approx(2_828.427)
    assert row.host_deviation_ns == pytest.approx(2_828.427)
    (section,) = [one for one in build_sorted_sections(report, 5, "gpu_max") if one.key == "sorted_ranges"]
    assert [cell.text for cell in section.rows[0]][7:11] == ["0.010", "5.0", "7.0", "3.0"]


def test_range_that_is_several_on_the_device_has_no_call_maximum(tmp_path: Path) -> None:
    on_device = [event("gpu_user_annotation", "mine", *one) for one in ((20, 3), (30, 7))]
    report = report_of(tmp_path, annotation("mine", 0, 5), *on_device, kernel("k", 21, 1))
    (section,) = [one for one in build_sorted_sections(report, 5, "gpu_total") if one.key == "sorted_ranges"]
    assert [cell.text for cell in section.rows[0]][7:11] == ["0.010", "10.0", "-", "-"]


# -- recorded traces, counted by a loop over their events --------------------------------------------------------------


def read_json(name: str) -> list[dict[str, Any]]:
    text = gzip.decompress((TRACES / name).read_bytes()).decode("utf-8", "replace")
    found: list[dict[str, Any]] = [one for one in json.loads(text, strict=False)["traceEvents"] if one["ph"] == "X"]
    return found


def is_users(name: str) -> bool:
    return not name.startswith(("ProfilerStep", "nccl:"))


def count_kernels_of_ranges(events: list[dict[str, Any]]) -> dict[tuple[str | None, str], list[int]]:
    """Return by range and kernel the number, and the time in ns, found by looking at every range for every kernel."""
    calls = {
        one["args"]["correlation"]: one
        for one in events
        if one.get("cat") in {"cuda_runtime", "cuda_driver"} and "correlation" in one.get("args", {})
    }
    engine = {one["tid"] for one in events if one["name"].startswith("autograd::engine::evaluate_function")}
    (trained,) = {one["tid"] for one in events if one["name"].startswith("ProfilerStep")}
    ranges = [one for one in events if one.get("cat") == "user_annotation" and is_users(one["name"])]

    def thread(one: dict[str, Any]) -> Any:
        return trained if one["tid"] in engine else one["tid"]

    found: dict[tuple[str | None, str], list[int]] = defaultdict(lambda: [0, 0])
    for one in events:
        if one.get("cat") not in {"kernel", "gpu_memcpy", "gpu_memset"}:
            continue
        call = calls.get(one["args"].get("correlation"))
        around = {
            mine["name"]
            for mine in ranges
            if call is not None and thread(mine) == thread(call) and mine["ts"] <= call["ts"] < mine["ts"] + mine["dur"]
        }
        for name in around or {None}:
            row = found[name, one["name"]]
            row[0] += 1
            row[1] += round(one["dur"] * 1_000)
    return found


@pytest.mark.parametrize("name", ["a100_nccl_2ranks_r0.json.gz", *(f"v100_dlrm_8ranks_r{n}.json.gz" for n in range(4))])
def test_kernels_of_ranges_are_those_of_a_loop_over_the_events(name: str) -> None:
    (rank,) = analyze(str(TRACES / name), nest=True).ranks
    expected = count_kernels_of_ranges(read_json(name))
    rows = rank.range_kernels or []
    assert {(row.range_name, row.name): [row.count, row.total_ns] for row in rows} == expected
    assert len({row.range_name for row in rows}) > 2
    assert sum(row.own_ns for row in rows) == sum(
        [*(one.total_ns for one in rank.kernels), *(one.total_ns for one in rank.copies)]
    )


@pytest.mark.parametrize("name", ["a100_nccl_2ranks_r0.json.gz", "v100_dlrm_8ranks_r3.json.gz"])
def test_bandwidth_of_copies_is_that_which_the_profiler_wrote(name: str) -> None:
    """Kineto writes the bandwidth of each copy; its quantiles by the standard library."""
    written: dict[str, list[float]] = defaultdict(list)
    for one in read_json(name):
        if one.get("cat") in {"gpu_memcpy", "gpu_memset"}:
            written[one["name"]].append(one["args"]["memory bandwidth (GB/s)"])
    (rank,) = analyze(str(TRACES / name)).ranks
    assert {row.name for row in rank.copies} == written.keys()
    for row in rank.copies:
        mine = written[row.name]
        p25, median, p75 = statistics.quantiles(mine, n=4, method="inclusive") if len(mine) > 1 else mine * 3
        p90 = statistics.quantiles(mine, n=10, method="inclusive")[8] if len(mine) > 1 else mine[0]
        found = [
            row.bandwidth_min_bytes_per_s, row.bandwidth_p25_bytes_per_s, row.bandwidth_median_bytes_per_s,
            row.bandwidth_p75_bytes_per_s, row.bandwidth_p90_bytes_per_s, row.bandwidth_max_bytes_per_s,
            row.bandwidth_mean_bytes_per_s,
        ]  # fmt: skip
        expected = [min(mine), p25, median, p75, p90, max(mine), statistics.mean(mine)]
        assert row.bandwidth_count == len(mine)
        assert found == pytest.approx([one * 1e9 for one in expected], rel=1e-6)


# -- the bandwidth of copies -------------------------------------------------------------------------------------------


def copy(name: str, start_us: int, duration_us: float, **args: Any) -> Event:
    return {**kernel(name, start_us, duration_us, **args), "cat": "gpu_memcpy"}


def test_bandwidth_has_least_quantiles_and_most(tmp_path: Path) -> None:
    # 1 to 5 GB/s: 1,000 to 5,000 bytes in 1 us each; of two more bytes or time are not known.
    copies = [copy("Memcpy HtoD", 10 * one, 1, bytes=1_000 * one) for one in range(1, 6)]
    report = report_of(tmp_path, *copies, copy("Memcpy HtoD", 90, 1), copy("Memcpy HtoD", 95, 0, bytes=8))
    (section,) = [one for one in build_sections(report, 5) if one.key == "bandwidths"]
    assert [cell.text for cell in section.rows[0]] == [
        "0", "Memcpy HtoD", "5", "1.00", "2.00", "3.00", "4.00", "4.60", "5.00",
    ]  # fmt: skip
    assert report.ranks[0].copies[0].bandwidth_deviation_bytes_per_s == pytest.approx(1.5811e9, rel=1e-4)


@pytest.mark.parametrize(
    ("written", "expected"), [(0.625, 0.625e9), (0, 1e9), (-1, 1e9), ("fast", 1e9), (None, 1e9), (1e300, 1e9)]
)
def test_bandwidth_is_as_written_before_the_time_was_rounded(tmp_path: Path, written: Any, expected: float) -> None:
    report = report_of(tmp_path, copy("Memcpy HtoD", 10, 1, bytes=1_000, **{"memory bandwidth (GB/s)": written}))
    assert report.ranks[0].copies[0].bandwidth_median_bytes_per_s == expected


def test_without_known_sizes_there_is_no_table_of_bandwidths(tmp_path: Path) -> None:
    report = report_of(tmp_path, copy("Memcpy HtoD", 10, 1))
    assert report.ranks[0].copies[0].bandwidth_min_bytes_per_s is None
    assert "bandwidths" not in [one.key for one in build_sections(report, 5)]
