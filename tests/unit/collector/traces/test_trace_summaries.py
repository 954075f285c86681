"""Summaries by any key, operators in groups, tables as files, counter tracks, closures: figures by hand."""

import csv
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankscope.agent.captures.cpu_use import CpuUseNotes, Readings
from rankscope.agent.guard import Guard
from rankscope.collector.commands.main import main
from rankscope.collector.reports.sorted_tables import build_operator_groups, build_sorted_sections, choose_sort_key
from rankscope.collector.reports.table_files import choose_format, write_tables
from rankscope.collector.reports.trace_tables import build_sections
from rankscope.collector.traces import analyze
from rankscope.collector.traces.report import TraceReport
from rankscope.collector.traces.timeline import merge
from rankscope.collector.traces.timeline_counters import mean_of_bins
from rankscope.measure.errors import SettingError
from tests.unit.measure.written_traces import Event, allocation, event, kernel, launch, to_json

# Two calls of mm launch kernels of 30 and 50 us, one of add one of 5 us; the second mm is on another thread. A copy of
# 4,000 bytes lasts 2 us, its call 7 us.
EVENTS: list[Event] = [
    event("user_annotation", "ProfilerStep#0", 0, 500),
    event("user_annotation", "part", 5, 40), event("user_annotation", "part", 60, 20),
    event("cpu_op", "aten::mm", 10, 20), launch(15, 1), kernel("gemm", 100, 30, correlation=1),
    event("cpu_op", "aten::mm", 10, 60, tid=2), launch(15, 2, tid=2), kernel("gemm", 140, 50, correlation=2),
    event("cpu_op", "aten::add", 62, 10), launch(63, 3), kernel("add", 200, 5, correlation=3),
    event("cuda_runtime", "cudaMemcpyAsync", 85, 7, correlation=4),
    event("gpu_memcpy", "Memcpy HtoD", 210, 2, correlation=4, bytes=4_000, device=0, stream=7),
    allocation(12, 1 << 20),
]  # fmt: skip


def report_of(folder: Path, *events: Event, **options: Any) -> TraceReport:
    (folder / "rank0.json").write_bytes(to_json(*(events or EVENTS)))
    return analyze(str(folder), **options)


def rows_of(report: TraceReport, key: str, sort_by: str, top: int = 10) -> list[list[str]]:
    (section,) = [one for one in build_sorted_sections(report, top, sort_by) if one.key == key]
    return [[cell.text for cell in row] for row in section.rows]


def test_operators_have_total_mean_most_least_on_host_and_device(tmp_path: Path) -> None:
    mm, add = rows_of(report_of(tmp_path), "sorted_operators", "gpu_total")
    # 20 + 60 us on the host, of 90; 30 + 50 us on the device, of 85; 1 MiB was allocated inside the first one.
    assert mm == [
        "aten::mm",
        "2",
        "0.080",
        "40.0",
        "60.0",
        "20.0",
        "88.9",
        "0.080",
        "40.0",
        "50.0",
        "30.0",
        "94.1",
        "1.00",
    ]
    assert add[:6] == ["aten::add", "1", "0.010", "10.0", "10.0", "10.0"]


@pytest.mark.parametrize(
    ("sort_by", "order"),
    [("gpu_total", ["gemm", "add"]), ("gpu_min", ["add", "gemm"]), ("calls", ["gemm", "add"])],
)  # fmt: skip
def test_rows_are_sorted_by_the_key(tmp_path: Path, sort_by: str, order: list[str]) -> None:
    # gemm lasts 30 us and 2 us, add 5 us.
    short = [launch(70, 9), kernel("gemm", 300, 2, correlation=9)]
    rows = rows_of(report_of(tmp_path, *EVENTS[:6], *short, *EVENTS[9:12]), "sorted_kernels", sort_by)
    assert [row[0] for row in rows] == order


@pytest.mark.parametrize(
    ("keys", "first"),
    [
        # In total mm has 20 + 60 us on the host and 30 + 50 us on the device, in two calls, one of which allocates.
        (["cpu_total", "gpu_total", "calls", "memory", "cuda_time_total"], "aten::mm"),
        # A call of relu has 70 us and 60 us; of mm 40 in the mean, 60 and 50 at most, 20 and 30 at least.
        (["cpu_avg", "cpu_max", "cpu_min", "gpu_avg", "gpu_max", "gpu_min"], "aten::relu"),
    ],
)
def test_each_key_puts_the_most_first(tmp_path: Path, keys: list[str], first: str) -> None:
    relu = [event("cpu_op", "aten::relu", 10, 70, tid=3), launch(15, 9, tid=3), kernel("relu", 300, 60, correlation=9)]
    report = report_of(tmp_path, *EVENTS, *relu)
    for key in keys:
        (row,) = rows_of(report, "sorted_operators", choose_sort_key(key) or "", top=1)
        assert row[0] == first


def test_kernels_copies_ranges_and_stages_have_their_summaries(tmp_path: Path) -> None:
    report = report_of(tmp_path)
    assert rows_of(report, "sorted_kernels", "gpu_avg")[0][7:12] == ["0.080", "40.0", "50.0", "30.0", "94.1"]
    # The copy: 7 us of its call, 2 us on the device, 4,000 bytes.
    (copy,) = rows_of(report, "sorted_memory", "gpu_total")
    assert (copy[2], copy[7], copy[12]) == ("0.007", "0.002", "<0.01")
    (part,) = rows_of(report, "sorted_ranges", "cpu_max")
    assert part[:6] == ["part", "2", "0.060", "30.0", "40.0", "20.0"]
    stages = {row[0]: row[1:6] for row in rows_of(report, "sorted_stages", "cpu_total")}
    # On the thread of the steps forward is 10 to 70 us and 62 to 72: 62 us of one step.
    assert stages["forward"][0] == "1"


def test_sorted_tables_stand_in_for_the_usual_ones(tmp_path: Path) -> None:
    keys = [section.key for section in build_sections(report_of(tmp_path), 5, sort_by="calls")]
    assert "sorted_operators" in keys
    assert {"operators", "kernels", "copies", "user_ranges", "model"}.isdisjoint(keys)


def test_key_that_is_not_known_is_one_error() -> None:
    assert choose_sort_key("cuda_time") == "gpu_avg"
    with pytest.raises(SettingError, match="--sort-by is 'size'; it is one of cpu_total, cpu_avg"):
        choose_sort_key("size")


def test_operators_nest_the_kernels_they_launched_by_thread(tmp_path: Path) -> None:
    report = report_of(tmp_path, nest=True, by_thread=True)
    groups = report.ranks[0].operator_groups or []
    assert [(row.name, row.thread, row.device_self_ns) for row in groups] == [
        ("aten::mm", "2", 50_000), ("aten::mm", "1", 30_000), ("aten::add", "1", 5_000),
    ]  # fmt: skip
    assert [(one.name, one.count, one.total_ns) for one in groups[0].kernels] == [("gemm", 1, 50_000)]
    (section,) = build_operator_groups(report, 1)
    assert [[cell.text for cell in row][1] for row in section.rows] == ["aten::mm", "  gemm"]
    assert section.left_out == 2


def test_nested_kernels_have_the_delay_of_their_launch(tmp_path: Path) -> None:
    groups = {row.name: row for row in report_of(tmp_path, nest=True).ranks[0].operator_groups or []}
    # Both calls of mm begin at 10 us and launch at 15; their kernels begin at 100 and 140: 85 and 125 us later.
    assert (groups["aten::mm"].launch_delay_ns, groups["aten::mm"].kernels[0].delay_ns) == (5_000, 105_000)
    assert (groups["aten::add"].launch_delay_ns, groups["aten::add"].kernels[0].delay_ns) == (1_000, 137_000)
    (section,) = build_operator_groups(report_of(tmp_path, nest=True), 5)
    assert [row[-1].text for row in section.rows] == ["5.0", "105.0", "1.0", "137.0"]


def test_device_has_its_memory_and_compute_capability(tmp_path: Path) -> None:
    known = {"id": 0, "name": "A100", "totalGlobalMem": 42_297_524_224, "computeMajor": 8, "computeMinor": 0}
    for properties, expected in ([known], (42_297_524_224, "8.0")), ([{"id": 0}], (None, None)), ([], (None, None)):
        (tmp_path / "rank0.json").write_bytes(to_json(*EVENTS, deviceProperties=properties))
        (device,) = analyze(str(tmp_path)).ranks[0].devices
        assert (device.memory_bytes, device.compute_capability) == expected


@pytest.mark.parametrize(
    ("count", "frames"), [(1, ["model.py(5): attend"]), (2, ["model.py(5): attend", "train.py(9): step"])]
)
def test_operators_are_grouped_by_the_innermost_frames(tmp_path: Path, count: int, frames: list[str]) -> None:
    stack = [
        event("python_function", "train.py(9): step", 1, 90), event("python_function", "model.py(5): attend", 2, 40),
    ]  # fmt: skip
    (row, other) = report_of(tmp_path, *stack, *EVENTS, by_frames=count).ranks[0].operator_groups or []
    assert (row.name, row.frames, row.count) == ("aten::mm", frames, 2)
    assert other.frames == ["train.py(9): step"]


def test_number_of_frames_has_limits(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="--by-frames is 0; it is a number of frames from 1 to 64"):
        report_of(tmp_path, by_frames=0)


def test_every_table_is_a_csv_file(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_bytes(to_json(*EVENTS))
    out = tmp_path / "tables"
    assert main(["analyze", str(tmp_path / "rank0.json"), "--tables", str(out), "--nest"]) == 0
    with (out / "kernels.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["name"], row["total_ns"], row["rank"]) for row in rows] == [
        ("gemm", "80000", "0"),
        ("add", "5000", "0"),
    ]
    with (out / "operator_groups.csv").open(newline="") as file:
        assert json.loads(next(csv.DictReader(file))["kernels"])[0]["name"] == "gemm"


def test_tables_as_parquet_have_the_same_rows(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    write_tables(report_of(tmp_path), tmp_path / "tables", choose_format("parquet"))
    table = parquet.read_table(tmp_path / "tables" / "kernels.parquet").to_pydict()
    assert (table["name"], table["total_ns"]) == (["gemm", "add"], [80_000, 5_000])
    with pytest.raises(SettingError, match="--tables-as is 'xls'; it is csv or parquet"):
        choose_format("xls")


# -- the kernel table -------------------------------------------------------------------------------------------------


def test_blocks_and_occupancy_of_a_kernel_are_weighted_with_time(tmp_path: Path) -> None:
    first = {"blocks per SM": 2.0, "est. achieved occupancy %": 50, "correlation": 1}
    second = {"blocks per SM": 0.5, "est. achieved occupancy %": 20, "correlation": 2}
    (rank,) = report_of(tmp_path, kernel("k", 0, 30, **first), kernel("k", 50, 10, **second)).ranks
    # (2 x 30 + 0.5 x 10) / 40 blocks, (50 x 30 + 20 x 10) / 40 %.
    assert (rank.kernels[0].blocks_per_sm, rank.kernels[0].occupancy_ratio) == (1.625, 0.425)
    # 10 us on either side of 20: the root of 2 x 10^2.
    assert rank.kernels[0].median_ns == 20_000
    assert rank.kernels[0].deviation_ns == pytest.approx(14_142.136)


def test_operators_that_multiply_have_their_time_on_tensor_cores(tmp_path: Path) -> None:
    found = report_of(
        tmp_path,
        event("cpu_op", "aten::linear", 0, 30), event("cpu_op", "aten::mm", 5, 20), launch(6, 1), launch(8, 2),
        event("cpu_op", "aten::add", 40, 9), launch(41, 3),
        kernel("ampere_bf16_s16816gemm", 100, 30, correlation=1), kernel("reduce_kernel", 130, 10, correlation=2),
        kernel("elementwise_kernel", 150, 5, correlation=3),
    )  # fmt: skip
    rows = {one.name: one for one in found.ranks[0].operators}
    # Of 40 us of the product's own kernels 30 are on tensor cores.
    assert (rows["aten::mm"].tensor_core_ns, rows["aten::mm"].device_self_ns) == (30_000, 40_000)
    assert (rows["aten::linear"].tensor_core_ns, rows["aten::add"].tensor_core_ns) == (0, 0)
    assert (rows["aten::linear"].tensor_core_total_ns, rows["aten::add"].tensor_core_total_ns) == (30_000, 0)
    assert [rows[name].may_use_tensor_cores for name in ("aten::mm", "aten::add")] == [True, False]


def test_kernel_and_copy_tables_show_occupancy_and_host_time(tmp_path: Path) -> None:
    known = {"blocks per SM": 2.0, "est. achieved occupancy %": 50, "correlation": 1}
    copied = event("gpu_memcpy", "Memcpy HtoD", 210, 2, correlation=4, bytes=4_000, device=0, stream=7)
    call = event("cuda_runtime", "cudaMemcpyAsync", 85, 7, correlation=4)
    kernels = kernel("ampere_bf16_s16816gemm", 0, 30, **known), kernel("mine", 50, 10, correlation=2)
    found = report_of(tmp_path, *kernels, call, copied)
    shown = {one.key: [[cell.text for cell in row] for row in one.rows] for one in build_sections(found, 5)}
    assert [[row[0], *row[7:10]] for row in shown["kernels"]] == [
        ["ampere_bf16_s16816gemm", "2.00", "50.0", "yes"], ["mine", "-", "-", "not known"],
    ]  # fmt: skip
    assert shown["copies"] == [["Memcpy HtoD", "1", "0.002", "0.007", "4,000", "2.00"]]


# -- stages -----------------------------------------------------------------------------------------------------------


def test_closure_of_an_optimizer_is_forward_and_backward(tmp_path: Path) -> None:
    events = [
        event("user_annotation", "ProfilerStep#0", 0, 100),
        event("user_annotation", "Optimizer.step#Adam.step", 10, 80),
        event("cpu_op", "aten::linear", 12, 20), event("cpu_op", "autograd::engine::evaluate_function: Mm", 40, 20),
        event("cpu_op", "aten::_fused_adam_", 70, 15),
    ]  # fmt: skip
    (rank,) = report_of(tmp_path, *events).ranks
    # The closure ends with the engine, at 60 us: the optimizer has 60 to 90, backward 40 to 60, forward 12 to 32.
    assert {row.stage: row.host_ns for row in rank.model} == {
        "data_loader": 0, "forward": 20_000, "backward": 20_000, "optimizer": 30_000, "other": 30_000,
    }  # fmt: skip


# -- the processors ---------------------------------------------------------------------------------------------------


class _Session:
    """A session of torch's profiler that keeps what is added to its head."""

    def __init__(self) -> None:
        self.head: dict[str, str] = {}

    def add_metadata_json(self, key: str, value: str) -> None:
        self.head[key] = value


def test_use_of_processors_in_a_capture_is_in_the_device_summary(tmp_path: Path) -> None:
    readings = iter([Readings(0, 0, 100, 1_000), Readings(200, 300, 400, 2_000)])
    use, session = CpuUseNotes(Guard(error_budget=3), lambda: next(readings)), _Session()
    use.session = session
    use.begin()
    use.end()
    notes = json.loads(session.head["rankscope_cpu"])
    (tmp_path / "rank0.json").write_bytes(to_json(*EVENTS, rankscope_cpu=notes))
    (section,) = [one for one in build_sections(analyze(str(tmp_path)), 5) if one.key == "devices"]
    # 300 ns of CPU time in 200 ns are 1.5 cores; of all processors 300 of 1,000 ticks.
    shown = {row[2].text: row[4].text for row in section.rows}
    assert (shown["CPU, process"], shown["CPU, machine"]) == ("150.0", "30.0")


@pytest.mark.parametrize("notes", [None, 5, {"window_ns": 0, "process_ns": 1}, {"window_ns": "x"}])
def test_notes_of_processors_that_are_not_sound_are_none(tmp_path: Path, notes: Any) -> None:
    (tmp_path / "rank0.json").write_bytes(to_json(*EVENTS, rankscope_cpu=notes))
    assert analyze(str(tmp_path)).ranks[0].cpu_use is None


# -- counter tracks ---------------------------------------------------------------------------------------------------


def test_levels_of_bins_are_means_over_their_time() -> None:
    # 2 GB/s from 0 to 10 and 4 GB/s from 5 to 15: 4, 4.. of each bin of 10.
    edges = np.array([0, 10, 20])
    found = mean_of_bins(np.array([0, 5]), np.array([10, 15]), np.array([2.0, 4.0]), edges)
    assert found.tolist() == [4.0, 2.0]
    assert mean_of_bins(np.array([0, 5]), np.array([10, 15]), np.array([2.0, 4.0]), edges, most=3.0).tolist() == [
        2.5,
        1.5,
    ]


def test_merged_timeline_has_counter_tracks_that_sum_to_the_work(tmp_path: Path) -> None:
    work = [kernel("k", 100, 400, correlation=1), kernel("k", 600, 500, correlation=2)]
    copies = event("gpu_memcpy", "Memcpy", 500, 50, bytes=1_000_000, correlation=3, device=0, stream=8)
    tracks = read_tracks(tmp_path, launch(50, 1), launch(90, 2), launch(95, 3), *work, copies)
    # The window is 1,000 us long, in 1,000 bins: each point is the mean of 1 us.
    busy = tracks["GPU 0 utilization (%)"]
    assert [value for _, value in busy] == [100.0, 0.0, 100.0]
    assert [after - before for (before, _), (after, _) in pairwise(busy)] == [400.0, 100.0]
    # 1 MB in 50 us.
    assert [value for _, value in tracks["GPU 0 copies (GB/s)"]] == [0.0, 20.0, 0.0]
    assert "GPU 0 queue length" in tracks


def read_tracks(folder: Path, *events: Event, **head: Any) -> dict[str, list[tuple[float, float]]]:
    """Return the counter tracks of a merged timeline: time in us and value of each point."""
    (folder / "rank0.json").write_bytes(to_json(*events, **head))
    merge(str(folder / "rank0.json"), folder / "merged.json", counters=True)
    tracks: dict[str, list[tuple[float, float]]] = {}
    for one in json.loads((folder / "merged.json").read_text())["traceEvents"]:
        if one["ph"] == "C":
            tracks.setdefault(one["name"], []).append((one["ts"], one["args"]["value"]))
    return tracks


def test_counter_tracks_match_values_computed_by_hand(tmp_path: Path) -> None:
    reduce_us = {
        "Collective name": "allreduce", "In msg nelems": 1_000_000, "Out msg nelems": 1_000_000, "dtype": "Float",
        "Group size": 2, "Process Group Name": "0", "correlation": 3, "device": 0, "stream": 8,
    }  # fmt: skip
    tracks = read_tracks(
        tmp_path,
        launch(0, 1), launch(50, 2), launch(60, 3),
        kernel("k", 100, 400, correlation=1, **{"blocks per SM": 0.25}),
        kernel("k", 600, 300, correlation=2, **{"blocks per SM": 3.0}),
        kernel("ncclDevKernel_AllReduce", 900, 200, **reduce_us),
        allocation(300, 3_000_000, **{"Total Allocated": 5_000_000}),
        allocation(700, -4_000_000, **{"Total Allocated": 1_000_000}),
    )  # fmt: skip
    # From 100 us on, where the device begins, to 1,100: a point where a value changes, in bins of 1 us.
    begin = tracks["GPU 0 SM efficiency (%)"][0][0]
    found = {name: [(time_us - begin, value) for time_us, value in points] for name, points in tracks.items()}
    assert found["GPU 0 SM efficiency (%)"] == [(0, 25.0), (400, 0.0), (500, 100.0), (800, 0.0)]
    # The first kernel has just begun; two wait, then the all-reduce alone.
    assert found["GPU 0 queue length"] == [(0, 2.0), (500, 1.0), (800, 0.0)]
    assert found["GPU 0 allocated (MB)"] == [(0, 2.0), (200, 5.0), (600, 1.0)]
    # 4 MB in 200 us.
    assert found["collectives (GB/s)"] == [(0, 0.0), (800, 20.0)]


def test_timeline_has_no_counters_unless_asked_for(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_bytes(to_json(*EVENTS))
    merge(str(tmp_path / "rank0.json"), tmp_path / "merged.json")
    assert '"ph":"C"' not in (tmp_path / "merged.json").read_text()


def test_critical_path_is_drawn_through_the_ranks_without_gaps(tmp_path: Path) -> None:
    # Rank 1 computes until 7 ms, rank 0 until 3 and waits; the all-reduce ends at 8 ms on both.
    for rank, compute_us in enumerate((3_000, 7_000)):
        arguments = {
            "Collective name": "allreduce",
            "In msg nelems": 9,
            "Out msg nelems": 9,
            "dtype": "Float",
            "Seq": 1,
        }
        group = {"Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Group size": 2}
        reduce_us = {"correlation": 2, **arguments, **group}
        events = [
            event("user_annotation", "ProfilerStep#1", 0, 8_000), launch(5, 1), launch(8, 2),
            kernel("gemm", 10, compute_us - 10, correlation=1),
            kernel("ncclx", compute_us, 8_000 - compute_us, **reduce_us),
        ]  # fmt: skip
        info = {"rank": rank, "world_size": 2, "pg_count": 1, "backend": "nccl"}
        (tmp_path / f"rank{rank}.json").write_bytes(to_json(*events, distributedInfo=info, host_name="a"))
    merge(str(tmp_path), tmp_path / "merged.json", critical_path=True)
    found = [
        one
        for one in json.loads((tmp_path / "merged.json").read_text())["traceEvents"]
        if one.get("cat") == "critical_path"
    ]
    pieces = [one for one in found if one["ph"] == "X"]
    assert [(one["tid"], one["args"]["kind"]) for one in pieces][-2:] == [(2, "compute"), (1, "communication")]
    assert all(one["ts"] + one["dur"] == pytest.approx(after["ts"]) for one, after in pairwise(pieces))
    # From 10 us on, where the step begins by the device's clock, to 8 ms.
    assert sum(one["dur"] for one in pieces) == pytest.approx(7_990)
    assert [(one["ph"], one["tid"]) for one in found if one["ph"] in "sf"] == [("s", 2), ("f", 1)]


def test_host_on_the_path_of_a_busy_device_is_noted(tmp_path: Path) -> None:
    # The host computes something for 9 ms in a range, and the device works meanwhile on what was launched before.
    events = [
        event("user_annotation", "ProfilerStep#0", 0, 10_000), launch(5, 1), kernel("gemm", 10, 8_000, correlation=1),
        event("cpu_op", "mine", 20, 9_000), launch(9_500, 2), kernel("gemm", 9_600, 300, correlation=2),
    ]  # fmt: skip
    path = report_of(tmp_path, *events, critical_path=True).critical_path
    assert path is not None
    # From 10 us on, where the step begins by the device's clock, to the end of the first kernel.
    assert path.steps[0].host_while_busy_ns == 8_000_000
    assert "the host is on the path while its device worked" in path.notes[-1]
