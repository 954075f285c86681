"""Kernels by operator and by how they were launched: by hand, and of recorded traces by a loop over their JSON."""

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from rankscope.collector.reports.kernel_tables import build_launches
from rankscope.collector.traces import analyze
from rankscope.collector.traces.files import read_chunks
from rankscope.collector.traces.parallel_reading import read_in_parallel
from rankscope.collector.traces.report import TraceReport
from rankscope.measure.kineto import ReadOptions
from rankscope.measure.kineto_columns import read_trace
from tests.unit.measure.written_traces import Event, event, kernel, launch, to_json

TRACES = Path(__file__).parents[4] / "tests" / "traces"
SMALL = {"grid": [2, 1, 1], "block": [128, 1, 1], "registers per thread": 32, "shared memory": 48}
EVENTS = [
    event("cpu_op", "aten::linear", 0, 30), event("cpu_op", "aten::mm", 5, 10), launch(6, 1), launch(8, 2),
    launch(20, 3), launch(50, 4),
    kernel("gemm", 60, 5, correlation=1, **SMALL), kernel("gemm", 70, 9, correlation=2, **SMALL),
    kernel("gemm", 80, 4, correlation=3, **{**SMALL, "grid": [64, 2, 1]}), kernel("gemm", 90, 2, correlation=4),
]  # fmt: skip


def report_of(folder: Path, *events: Event) -> TraceReport:
    (folder / "rank0.json").write_bytes(to_json(*events))
    return analyze(str(folder / "rank0.json"), launches=True)


def test_kernels_are_told_apart_by_operator_and_launch(tmp_path: Path) -> None:
    report = report_of(tmp_path, *EVENTS)
    first, second, third = report.ranks[0].kernel_launches or []
    assert (first.operator, first.grid, first.block) == ("aten::mm", "2x1x1", "128x1x1")
    assert (first.registers, first.shared_memory_bytes) == (32, 48)
    # 5 + 9 of 20 us in all.
    assert (first.count, first.total_ns, first.mean_ns, first.min_ns, first.max_ns) == (2, 14_000, 7_000, 5_000, 9_000)
    assert (first.pct, first.may_use_tensor_cores) == (70.0, True)
    assert (second.operator, second.grid, second.total_ns) == ("aten::linear", "64x2x1", 4_000)
    assert (third.operator, third.grid, third.registers, third.may_use_tensor_cores) == (None, None, None, False)
    (section,) = build_launches(report, 2)
    assert [cell.text for cell in section.rows[0]][:7] == ["0", "gemm", "aten::mm", "2x1x1", "128x1x1", "32", "48"]
    assert section.left_out == 1


def test_launches_are_there_only_when_asked_for(tmp_path: Path) -> None:
    report_of(tmp_path, *EVENTS)
    report = analyze(str(tmp_path / "rank0.json"))
    assert (report.ranks[0].kernel_launches, build_launches(report, 5)) == (None, [])


@pytest.mark.parametrize("grid", ["x", [], [1, 2, 3, 4], [1.5], [None], {"x": 1}, [2**70], 7])
def test_dimensions_that_are_none_are_not_known(tmp_path: Path, grid: Any) -> None:
    told = {"grid": grid, "block": [1], "registers per thread": "many", "shared memory": [1]}
    (row,) = report_of(tmp_path, kernel("k", 60, 5, **told)).ranks[0].kernel_launches or []
    assert (row.grid, row.block, row.registers, row.shared_memory_bytes) == (None, "1", None, None)


# -- recorded traces ---------------------------------------------------------------------------------------------------


def count_launches(events: list[dict[str, Any]]) -> dict[tuple[Any, ...], list[int]]:
    """Return number and time in ns by kernel, operator and launch, with a look at every operator for every kernel."""
    calls = {
        one["args"]["correlation"]: one
        for one in events
        if one.get("cat") in {"cuda_runtime", "cuda_driver"} and "correlation" in one.get("args", {})
    }
    operators: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for one in events:
        if one.get("cat") == "cpu_op":
            operators[one["tid"]].append(one)
    found: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0])
    for one in events:
        if one.get("cat") != "kernel":
            continue
        call = calls.get(one["args"]["correlation"])
        around = (
            [mine for mine in operators[call["tid"]] if mine["ts"] <= call["ts"] < mine["ts"] + mine["dur"]]
            if call is not None
            else []
        )
        innermost = max(around, key=lambda mine: (mine["ts"], -mine["dur"]), default=None)
        args = one["args"]
        row = found[
            one["name"],
            innermost["name"] if innermost is not None else None,
            "x".join(map(str, args["grid"])),
            "x".join(map(str, args["block"])),
            args["registers per thread"],
            args["shared memory"],
        ]
        row[0] += 1
        row[1] += round(one["dur"] * 1_000)
    return found


@pytest.mark.parametrize("name", ["h100_bert_small.json.gz", "v100_dlrm_8ranks_r1.json.gz"])
def test_launches_are_those_of_a_loop_over_the_events(name: str) -> None:
    text = gzip.decompress((TRACES / name).read_bytes()).decode("utf-8", "replace")
    events = [one for one in json.loads(text, strict=False)["traceEvents"] if one["ph"] == "X"]
    (rank,) = analyze(str(TRACES / name), launches=True).ranks
    found = {
        (row.name, row.operator, row.grid, row.block, row.registers, row.shared_memory_bytes): [row.count, row.total_ns]
        for row in rank.kernel_launches or []
    }
    assert found == count_launches(events)
    assert len(found) > len(rank.kernels)


def test_launches_read_by_several_processes_are_the_same() -> None:
    path = str(TRACES / "a100_nccl_2ranks_r0.json.gz")
    found = read_in_parallel(read_chunks(path), 2, ReadOptions(launches=True), piece_bytes=1_000_000).launch_shapes
    expected = read_trace(read_chunks(path), ReadOptions(launches=True)).launch_shapes
    assert len(expected) == 2_700
    assert found == expected
