"""Operators against the peaks of their device, on traces made with known shapes and times."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from rankscope.collector.commands.main import main
from rankscope.collector.reports.trace_tables import build_sections
from rankscope.collector.traces import analyze
from rankscope.collector.traces.report import RankReport, RooflineRow
from rankscope.collector.traces.roofline import ROOFLINE_ROWS_MAX
from rankscope.measure.device_peaks import find_peaks
from rankscope.measure.errors import SettingError
from tests.unit.measure.written_traces import Event, event, kernel, launch, to_json

TRACES = Path(__file__).parents[3] / "traces"
A100 = "NVIDIA A100-SXM4-80GB"


def operator(name: str, start_us: int, length_us: int, *shapes: list[int], dtype: str = "float", **args: Any) -> Event:
    recorded = {"Input Dims": list(shapes), "Input type": [dtype] * len(shapes)} if shapes else {}
    return event("cpu_op", name, start_us, length_us, **recorded, **args)


def rank_of(folder: Path, *events: Event, device: str = A100, **options: Any) -> RankReport:
    head = {"deviceProperties": [{"id": 0, "name": device}]}
    (folder / "rank0.json").write_bytes(to_json(*events, **head))
    (rank,) = analyze(str(folder), roofline=True, **options).ranks
    return rank


def rows_of(folder: Path, *events: Event, **options: Any) -> dict[str, RooflineRow]:
    return {row.operator: row for row in rank_of(folder, *events, **options).roofline or []}


# 2 * 1000 * 500 * 400 operations, 400 million, in 20 us: 20 TFLOP/s. 4 * (500,000 + 200,000 + 400,000) bytes: 4.4 MB.
PRODUCT = (
    operator("aten::mm", 0, 10, [1000, 500], [500, 400]), launch(1, 1), kernel("sgemm_32x32", 100, 20, correlation=1),
)  # fmt: skip


def test_rates_are_work_over_the_time_of_the_kernels(tmp_path: Path) -> None:
    row = rows_of(tmp_path, *PRODUCT)["aten::mm"]
    assert (row.count, row.kernel_count, row.device_ns, row.flops, row.bytes) == (1, 1, 20_000, 400_000_000, 4_400_000)
    assert (row.flops_per_s, row.bytes_per_s) == (20e12, 220e9)
    assert row.intensity == pytest.approx(400 / 4.4)


def test_peaks_of_the_device_say_what_bounds_an_operator(tmp_path: Path) -> None:
    # In fp32 without tensor cores 19.5e12 FLOP/s over 2,039e9 bytes/s: 9.6 FLOP a byte. The product has 91.
    row = rows_of(tmp_path, *PRODUCT)["aten::mm"]
    assert (row.peak_flops_per_s, row.peak_bytes_per_s, row.bound) == (19.5e12, 2039e9, "compute")
    assert row.roof_ratio == pytest.approx(20 / 19.5)


def test_single_precision_on_tensor_cores_has_their_peak(tmp_path: Path) -> None:
    events = [*PRODUCT[:2], kernel("ampere_sgemm_tf32_s1688gemm", 100, 20, correlation=1)]
    row = rows_of(tmp_path, *events)["aten::mm"]
    # 156e12 over 2,039e9: 76.5 FLOP a byte.
    assert (row.peak_flops_per_s, row.bound) == (156e12, "compute")


def test_few_operations_for_each_byte_are_bound_by_memory(tmp_path: Path) -> None:
    # A vector by a matrix: 2 * 1000 * 1000 operations on 4 * (1000 + 1,000,000 + 1000) bytes, in 4 us: 1002 GB/s.
    events = [operator("aten::mm", 0, 10, [1, 1000], [1000, 1000]), launch(1, 1), kernel("gemv", 50, 4, correlation=1)]
    row = rows_of(tmp_path, *events)["aten::mm"]
    assert (row.bound, row.bytes_per_s) == ("memory", 1002e9)
    assert row.roof_ratio == pytest.approx(1002 / 2039)


def test_operator_without_products_is_bound_by_memory(tmp_path: Path) -> None:
    # 3 * 4 * 1000 bytes in 1 us: 12 GB/s.
    events = [operator("aten::add", 0, 10, [1000], [1000]), launch(1, 1), kernel("add", 50, 1, correlation=1)]
    row = rows_of(tmp_path, *events)["aten::add"]
    assert (row.flops, row.flops_per_s, row.intensity, row.bound) == (None, None, None, "memory")
    assert row.roof_ratio == pytest.approx(12 / 2039)


def test_kernels_belong_to_the_innermost_operator_with_a_formula(tmp_path: Path) -> None:
    events = [
        operator("aten::linear", 0, 20, [2, 3], [4, 3]), operator("aten::mm", 2, 16, [2, 3], [3, 4]),
        operator("aten::inner", 4, 10), launch(5, 1), kernel("gemm", 50, 30, correlation=1), launch(6, 2),
        kernel("split", 80, 5, correlation=2), operator("aten::sort", 30, 9), operator("aten::part", 31, 5),
        launch(32, 3), kernel("sort", 90, 7, correlation=3),
    ]  # fmt: skip
    rows = rows_of(tmp_path, *events)
    assert {name: (row.device_ns, row.kernel, row.kernel_ns, row.kernel_count) for name, row in rows.items()} == {
        "aten::mm": (35_000, "gemm", 30_000, 2),
        "aten::part": (7_000, "sort", 7_000, 1),
    }


def test_calls_of_one_shape_are_one_row(tmp_path: Path) -> None:
    second = [operator("aten::mm", 20, 10, [1000, 500], [500, 400]), launch(21, 2), kernel("b", 130, 60, correlation=2)]
    row = rows_of(tmp_path, *PRODUCT, *second)["aten::mm"]
    assert (row.count, row.device_ns, row.flops, row.kernel) == (2, 80_000, 800_000_000, "b")
    assert row.flops_per_s == 10e12


def test_convolution_counts_by_its_recorded_arguments(tmp_path: Path) -> None:
    values = {"Concrete Inputs": ["", "", "", "[1]", "[0]", "[1]", "False", "[0]", "1"]}
    shapes: list[list[int]] = [[2, 3, 10], [4, 3, 3], [4], [], [], [], [], [], []]
    found = operator("aten::convolution", 0, 10, *shapes)
    found["args"] |= values
    row = rows_of(tmp_path, found, launch(1, 1), kernel("conv", 50, 10, correlation=1))["aten::convolution"]
    assert (row.flops, row.reason) == (2 * 2 * 8 * 36, None)


def test_missing_shapes_are_said_and_counted_as_nothing_known(tmp_path: Path) -> None:
    row = rows_of(tmp_path, operator("aten::mm", 0, 10), launch(1, 1), kernel("gemm", 50, 10, correlation=1))[
        "aten::mm"
    ]
    assert (row.flops, row.bytes, row.flops_per_s, row.bound) == (None, None, None, None)
    assert (row.device_ns, row.reason) == (10_000, "no shapes recorded")


def test_kernel_launched_by_no_operator_keeps_its_time(tmp_path: Path) -> None:
    row = rows_of(tmp_path, *PRODUCT, kernel("graph", 200, 9, correlation=7))["no operator"]
    assert (row.count, row.kernel_count, row.device_ns) == (0, 1, 9_000)
    assert row.reason == "in no recorded operator"


def test_peaks_of_unknown_devices_are_asked_for(tmp_path: Path) -> None:
    rank = rank_of(tmp_path, *PRODUCT, device="Riva 128")
    (row,) = rank.roofline or []
    assert (row.flops_per_s, row.peak_flops_per_s, row.peak_bytes_per_s, row.bound) == (20e12, None, None, None)
    assert "the highest FLOP/s of Riva 128 are not known: give --peak-tflops" in rank.warnings
    assert "the memory bandwidth of Riva 128 is not known: give --peak-gbps" in rank.warnings


@pytest.mark.parametrize(
    ("device", "bf16"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4), ("NVIDIA H100 PCIe", 756), ("NVIDIA H100 NVL", 835.5),
        ("NVIDIA L40S", 362.05),
        ("NVIDIA L40", 181), ("NVIDIA L4", 121), ("Tesla T4", None), ("NVIDIA A40", 149.7), ("NVIDIA A10", 125),
        ("NVIDIA RTX A6000", 154.85), ("NVIDIA B200", 2250), ("NVIDIA GB200", 2500), ("NVIDIA B300 SXM6 AC", 2250),
        ("AMD Instinct MI250X", 191.5), ("AMD Instinct MI355X", 2500),
    ],
)  # fmt: skip
def test_peaks_are_dense_and_by_type(device: str, bf16: float | None) -> None:
    found = find_peaks(device)
    assert found is not None
    assert (found.tflops.get("bf16"), "2026" in found.source) == (bf16, True)


@pytest.mark.parametrize("device", ["NVIDIA GH200 480GB", "NVIDIA H200 NVL", "NVIDIA H20", "NVIDIA GeForce RTX 4090",
                                    "NVIDIA A100-SXM4-40GB MIG 1g.5gb"])  # fmt: skip
def test_disputed_devices_and_parts_of_devices_have_no_peaks(device: str) -> None:
    assert find_peaks(device) is None


def test_given_peaks_go_before_those_of_the_data_sheet(tmp_path: Path) -> None:
    rank = rank_of(tmp_path, *PRODUCT, peak_tflops=40, peak_gbps=100)
    (row,) = rank.roofline or []
    # 40e12 over 100e9 is 400 FLOP a byte: by memory 91 * 100e9 = 9.1e12 FLOP/s are the limit.
    assert (row.peak_flops_per_s, row.peak_bytes_per_s, row.bound) == (40e12, 100e9, "memory")
    assert row.roof_ratio == pytest.approx(2.2)
    assert not [warning for warning in rank.warnings if "known" in warning]


def test_trace_of_a_cpu_has_no_roofline(tmp_path: Path) -> None:
    rank = rank_of(tmp_path, operator("aten::mm", 0, 10, [2, 3], [3, 4]))
    assert (rank.roofline, "no computing kernels on a device: no roofline" in rank.warnings) == ([], True)


def test_rows_beyond_the_limit_are_counted(tmp_path: Path) -> None:
    events = []
    for place in range(ROOFLINE_ROWS_MAX + 3):
        events += [operator("aten::relu", 10 * place, 5, [place + 1]), launch(10 * place + 1, place + 1)]
        events.append(kernel("relu", 10 * place + 3, 1, correlation=place + 1))
    rank = rank_of(tmp_path, *events)
    assert len(rank.roofline or []) == ROOFLINE_ROWS_MAX
    assert "3 rows of the roofline left out, those with the least time" in rank.warnings


@pytest.mark.parametrize("name", ["h100_bert_small", "v100_dlrm_8ranks_r0", "mi300x_resnet18"])
def test_times_sum_to_those_of_computing_kernels(name: str) -> None:
    path = str(TRACES / f"{name}.json.gz")
    (rank,) = analyze(path, roofline=True).ranks
    computing_ns = sum(row.total_ns for row in rank.kernels if not row.is_communication)
    assert sum(row.device_ns for row in rank.roofline or []) == computing_ns
    (plain,) = analyze(path).ranks
    assert (plain.roofline, plain.kernels, plain.operators) == (None, rank.kernels, rank.operators)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"peak_tflops": 3.0},
            "--peak-tflops is given without --roofline or --flops; there is nothing to compare with it",
        ),
        ({"roofline": True, "peak_gbps": 0.0}, "--peak-gbps is 0.0; it must be a number above 0"),
        ({"roofline": True, "peak_tflops": float("nan")}, "--peak-tflops is nan; it must be a number above 0"),
    ],
)
def test_peaks_that_make_no_sense_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingError, match=text):
        analyze(str(TRACES / "h100_bert_small.json.gz"), **options)


def test_command_prints_the_roofline_and_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rank_of(tmp_path, *PRODUCT)
    target = tmp_path / "out" / "report.json"
    target.parent.mkdir()
    main(["analyze", str(tmp_path), "--roofline", "--peak-tflops", "40", "--json-file", str(target)])
    assert "ROOFLINE" in capsys.readouterr().out
    assert msgspec.json.decode(target.read_bytes())["ranks"][0]["roofline"][0]["peak_flops_per_s"] == 40e12
    main(["analyze", str(tmp_path)])
    assert "ROOFLINE" not in capsys.readouterr().out


def test_tables_show_rates_and_what_is_not_known(tmp_path: Path) -> None:
    rank_of(tmp_path, *PRODUCT, operator("aten::sort", 40, 9), launch(41, 2), kernel("sort", 200, 7, correlation=2))
    sections = {one.key: one for one in build_sections(analyze(str(tmp_path), roofline=True), 20)}
    assert [cell.text for cell in sections["roofline"].rows[0]] == [
        "0", "aten::mm", "1000x500 float, 500x400 float", "sgemm_32x32", "1", "0.020", "20.00", "90.9", "220.00",
        "compute", "102.6",
    ]  # fmt: skip
    assert [[cell.text for cell in row] for row in sections["roofline_unknown"].rows] == [
        ["0", "aten::sort", "sort", "1", "0.007", "no formula"]
    ]


def tables_of(folder: Path) -> dict[str, tuple[int, str]]:
    """The number of rows and the reason of each table of the roofline."""
    sections = build_sections(analyze(str(folder), roofline=True), 20)
    return {one.key: (len(one.rows), one.reason) for one in sections if one.key.startswith("roofline")}


def test_empty_tables_do_not_contradict_each_other(tmp_path: Path) -> None:
    rank_of(tmp_path, *PRODUCT)
    assert tables_of(tmp_path)["roofline_unknown"] == (0, "Every operator is in the roofline.")
    rank_of(tmp_path, operator("aten::mm", 0, 10), launch(1, 1), kernel("gemm", 50, 10, correlation=1))
    said = "No operator of which enough is known: the next table has the reasons."
    assert (tables_of(tmp_path)["roofline"], tables_of(tmp_path)["roofline_unknown"][0]) == ((0, said), 1)
    rank_of(tmp_path, operator("aten::mm", 0, 10))
    assert tables_of(tmp_path) == {"roofline": (0, "No computing kernels on a device: no roofline.")}
