"""Hardware counters of CUPTI's range profiler, by kernel and operator."""

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rankscope.collector.reports.kernel_tables import COUNTER_KERNELS_MIN
from rankscope.collector.reports.trace_tables import build_sections
from rankscope.collector.traces import analyze, hardware_counters
from rankscope.collector.traces.report import RankReport
from tests.unit.measure.written_traces import Event, event, launch, to_json

PUBLISHED = Path(__file__).parents[3] / "traces" / "cupti" / "a100_alexnet_counters.json.gz"
ADDITIONS = "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum"


def counted(name: str, place: int, device: int = 0, **counters: Any) -> Event:
    """A range of counters, in the order of the launches, as Kineto places them."""
    args = {key.replace("__dot__", "."): value for key, value in counters.items()}
    return {**event("cuda_profiler_range", name, 10 * place, 10, **args), "pid": device, "tid": 0}


# aten::mm launches gemm twice, aten::add launches add, a call outside of operators launches gemm.
HOST = (
    event("cpu_op", "aten::mm", 0, 30), launch(1, 1), launch(11, 2, "cuLaunchKernelEx"),
    event("cpu_op", "aten::add", 40, 10), launch(41, 3), launch(60, 4, "cudaLaunchCooperativeKernel"),
)  # fmt: skip
RANGES = (
    counted("gemm", 0, inst__dot__sum=10, sm__dot__avg=0.5), counted("gemm", 1, inst__dot__sum=30, sm__dot__avg=0.25),
    counted("add", 2, inst__dot__sum=5, sm__dot__avg=0.125), counted("gemm", 3, inst__dot__sum=7, sm__dot__avg=1.0),
)  # fmt: skip


def rank_of(folder: Path, *events: Event, name: str = "rank0.json") -> RankReport:
    (folder / name).write_bytes(to_json(*events))
    (rank,) = analyze(str(folder / name)).ranks
    return rank


def values_of(rank: RankReport) -> dict[tuple[str, str | None], dict[str, tuple[float | None, ...]]]:
    return {
        (row.name, row.operator): {one.name: (one.mean, one.min, one.max, one.total) for one in row.counters}
        for row in rank.hardware_counters
    }


def test_counters_are_summed_by_kernel_and_operator(tmp_path: Path) -> None:
    assert values_of(rank_of(tmp_path, *HOST, *RANGES)) == {
        ("gemm", "aten::mm"): {"inst.sum": (20, 10, 30, 40), "sm.avg": (0.375, 0.25, 0.5, None)},
        ("add", "aten::add"): {"inst.sum": (5, 5, 5, 5), "sm.avg": (0.125, 0.125, 0.125, None)},
        ("gemm", None): {"inst.sum": (7, 7, 7, 7), "sm.avg": (1, 1, 1, None)},
    }


def test_ranges_that_do_not_match_launches_have_no_operator(tmp_path: Path) -> None:
    rank = rank_of(tmp_path, *HOST, *RANGES[:3])
    assert {row.operator for row in rank.hardware_counters} == {None}
    assert (
        "3 ranges of hardware counters, but 4 launches of kernels in the trace: which operator launched which kernel "
        "is not known" in rank.warnings
    )


def test_ranges_of_two_devices_have_no_operator(tmp_path: Path) -> None:
    rank = rank_of(tmp_path, *HOST, *RANGES[:3], {**RANGES[3], "pid": 1})
    assert {row.operator for row in rank.hardware_counters} == {None}
    assert any("4 ranges of hardware counters, but 2 devices" in warning for warning in rank.warnings)


def test_counters_are_no_unknown_category_and_no_trace_of_a_cpu(tmp_path: Path) -> None:
    rank = rank_of(tmp_path, event("cpu_op", "aten::mm", 0, 30), *RANGES)
    assert rank.device == "unknown device"
    assert not any("is not known'" in warning or "are not counted" in warning for warning in rank.warnings)


def test_trace_without_counters_has_none(tmp_path: Path) -> None:
    assert rank_of(tmp_path, *HOST).hardware_counters == []


def test_rows_beyond_the_limit_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware_counters, "COUNTER_ROWS_MAX", 1)
    rank = rank_of(tmp_path, *HOST, *RANGES)
    assert [(row.name, row.count) for row in rank.hardware_counters] == [("gemm", 2)]
    assert "2 rows of hardware counters left out: 1 are listed" in rank.warnings


# -- the published trace ----------------------------------------------------------------------------------------------


def test_published_trace_has_what_its_owners_say_of_it() -> None:
    (rank,) = analyze(str(PUBLISHED)).ranks
    assert sum(row.count for row in rank.hardware_counters) == 77
    found = [row for row in rank.hardware_counters if "fft2d_r2c_32x32" in row.name]
    values = {(row.operator, one.min) for row in found for one in row.counters if one.name == ADDITIONS}
    assert ("aten::cudnn_convolution", 86_114_304) in values


def test_totals_of_the_published_trace_are_those_of_its_ranges() -> None:
    ranges = [
        one["args"]
        for one in json.loads(gzip.decompress(PUBLISHED.read_bytes()))["traceEvents"]
        if one.get("cat") == "cuda_profiler_range"
    ]
    truth: Counter[str] = sum(map(Counter, ranges), Counter())
    (rank,) = analyze(str(PUBLISHED)).ranks
    found: Counter[str] = Counter()
    for row in rank.hardware_counters:
        found.update({one.name: int(one.total or 0) for one in row.counters})
    assert +found == +truth


# -- the table --------------------------------------------------------------------------------------------------------


def table_of(folder: Path, top: int = 20) -> Any:
    return next((one for one in build_sections(analyze(str(folder)), top) if one.key == "hardware_counters"), None)


def test_table_lists_each_counter_by_kernel_over_all_ranks(tmp_path: Path) -> None:
    for number in range(2):
        rank_of(tmp_path, *HOST, *RANGES, event("cpu_op", f"of rank {number}", 90, 1), name=f"rank{number}.json")
    assert [[cell.text for cell in row] for row in table_of(tmp_path).rows] == [
        ["inst.sum", "gemm", "aten::mm", "4", "20", "80", "76.9"],
        ["inst.sum", "gemm", "-", "2", "7", "14", "13.5"],
        ["inst.sum", "add", "aten::add", "2", "5", "10", "9.6"],
        ["sm.avg", "gemm", "-", "2", "1", "-", "-"],
        ["sm.avg", "gemm", "aten::mm", "4", "0.375", "-", "-"],
        ["sm.avg", "add", "aten::add", "2", "0.125", "-", "-"],
    ]


def test_counter_that_is_zero_everywhere_has_one_row(tmp_path: Path) -> None:
    rank_of(tmp_path, *(counted(name, place, dp__dot__sum=0) for place, name in enumerate("abc")))
    assert [[cell.text for cell in row] for row in table_of(tmp_path).rows] == [
        ["dp.sum", "-", "-", "3", "0", "0", "-"],
    ]


def test_table_is_cut_to_the_largest_and_says_so(tmp_path: Path) -> None:
    rank_of(tmp_path, *(counted(name, place, inst__dot__sum=place) for place, name in enumerate("abcdef")))
    found = table_of(tmp_path, top=1)
    assert [row[1].text for row in found.rows] == ["f", "e", "d"]
    assert found.left_out == 6 - COUNTER_KERNELS_MIN


def test_common_prefix_of_counters_stands_once_above_the_table(tmp_path: Path) -> None:
    rank_of(tmp_path, counted("a", 0, smsp__inst_executed_add=1, smsp__inst_executed_mul=2))
    found = table_of(tmp_path)
    assert [row[0].text for row in found.rows] == ["...add", "...mul"]
    assert found.explanation.endswith(" All counters begin with smsp__inst_executed_.")


def test_different_kernels_with_one_short_name_stay_apart(tmp_path: Path) -> None:
    rank_of(tmp_path, counted("k<float>()", 0, inst__dot__sum=1), counted("k<half>()", 1, inst__dot__sum=2))
    assert [row[1].text for row in table_of(tmp_path).rows] == ["k ~2", "k"]


def test_without_counters_there_is_no_table(tmp_path: Path) -> None:
    rank_of(tmp_path, *HOST)
    assert table_of(tmp_path) is None
