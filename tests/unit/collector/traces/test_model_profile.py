"""The profile of a model: FLOPs by hand against traces of torch, and rules on traces written by hand."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from rankscope.collector.commands.main import main
from rankscope.collector.reports.trace_tables import build_sections
from rankscope.collector.traces import analyze
from rankscope.collector.traces.model_profile import MAY_STOP_EARLY, NO_BACKWARD, NO_NUMBERS
from rankscope.collector.traces.profile_rows import FlopsModule, ModelProfile
from rankscope.measure.errors import SettingError
from rankscope.measure.flops import NO_FORMULA, NO_SHAPES, Inputs
from rankscope.measure.uncounted_operators import OUTSIDE_OPERATORS
from tests.flop_models import MODELS, B, Block, make_tensor_parallel, one_of_two_ranks, record, train
from tests.unit.measure.written_traces import Event, event, kernel, launch, to_json

ENGINE = "autograd::engine::evaluate_function: "
A100 = "NVIDIA A100-SXM4-80GB"


def profile_of(path: Path, **options: Any) -> ModelProfile:
    (rank,) = analyze(str(path), flops=True, **options).ranks
    assert rank.flops is not None
    return rank.flops


def phases(one: ModelProfile | FlopsModule) -> tuple[int, int, int]:
    return one.forward_flops, one.recompute_flops, one.backward_flops


# -- traces of torch ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_flops_are_those_counted_by_hand(name: str, tmp_path: Path) -> None:
    known = MODELS[name]()
    found = profile_of(record(known.run, tmp_path / "trace.json"))
    assert phases(found) == (known.forward, known.recompute, known.backward)
    assert found.executed_flops == known.forward + known.recompute + known.backward
    assert found.model_flops == 3 * known.forward
    assert (found.is_upper_bound, MAY_STOP_EARLY in found.notes) == (bool(known.recompute), bool(known.recompute))
    assert {row.dtype for row in found.operators} == {"bf16" if name.endswith("bf16") else "fp32"}
    assert sum(row.flops for row in found.operators) == found.executed_flops


def test_rank_of_a_tensor_parallel_model_counts_its_own_part(tmp_path: Path) -> None:
    with one_of_two_ranks():
        known = make_tensor_parallel()
        found = profile_of(record(known.run, tmp_path / "trace.json"))
    assert phases(found) == (known.forward, 0, known.backward)


def test_scaled_product_counts_once(tmp_path: Path) -> None:
    """On a CPU torch computes the one of fp8 by another product inside of it."""
    x, weight = (torch.randn(16, 32).to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.tensor(1.0)

    def multiply() -> None:
        torch._scaled_mm(x, weight.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

    assert phases(profile_of(record(multiply, tmp_path / "trace.json"))) == (2 * 16 * 32 * 16, 0, 0)


class Twice(nn.Module):
    """Two blocks, of which the second runs twice, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = Block(), Block(), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.second(self.second(self.first(x))))
        return found


def test_modules_have_what_ran_in_them_and_in_their_backward(tmp_path: Path) -> None:
    found = profile_of(record(train(Twice(), torch.randn(B, 32, 64)), tmp_path / "trace.json", stacks=True))
    rows = {row.name: row for row in found.modules}
    tokens, scores = B * 32, B * 4 * 2 * 32 * 32 * 16
    up, qkv, out = tokens * 2 * 64 * 256, tokens * 2 * 64 * 192, tokens * 2 * 64 * 64
    block = 2 * up + qkv + out + 2 * scores
    assert phases(rows["Linear_2"]) == (up, 0, 2 * up)
    assert phases(rows["Block_0"]) == (block, 0, 2 * (2 * up + qkv + out) + 5 * scores)
    assert phases(rows["Block_1"]) == tuple(2 * flops for flops in phases(rows["Block_0"]))
    assert (rows["Block_1"].count, rows["Block_1"].path, rows["Block_1"].depth) == (2, "Twice_0/Block_1", 1)
    assert rows["Attention_0"].self_flops == 7 * scores
    assert phases(rows["Twice_0"]) == phases(found)
    roots = [row for row in found.modules if row.depth == 0]
    assert tuple(map(sum, zip(*map(phases, roots), strict=True))) == phases(found)
    assert sum(row.self_flops for row in found.modules) == found.executed_flops
    assert all(row.time_ns for row in found.modules)


def test_recomputed_products_belong_to_their_module(tmp_path: Path) -> None:
    known = MODELS["block, checkpoint (reentrant)"]()
    rows = {row.name: row for row in profile_of(record(known.run, tmp_path / "t.json", stacks=True)).modules}
    assert phases(rows["Block_0"]) == (known.forward, known.recompute, known.backward)


TRACES = Path(__file__).parents[3] / "traces"
RESNET18_MACS = (
    64 * 3 * 49 * 112**2
    + 4 * 64 * 64 * 9 * 56**2
    + sum(w * w // 2 * 9 * size**2 + 3 * w * w * 9 * size**2 + w * w // 2 * size**2
          for w, size in ((128, 28), (256, 14), (512, 7)))
    + 512 * 1000
)  # fmt: skip
"""Of an image of 224 x 224: the stem, four convolutions of 64 channels, three stages that begin with half the channels
and a convolution of 1 x 1 beside them, and the head.
"""


def test_resnet_on_a_gpu_has_the_operations_of_its_layers() -> None:
    found = profile_of(TRACES / "mi300x_resnet18.json.gz")
    once = 2 * 512 * RESNET18_MACS  # 512 images
    stem = 2 * 512 * 64 * 3 * 49 * 112**2  # whose input needs no gradient
    assert phases(found) == (5 * once, 0, 5 * (2 * once - stem))
    rows = {row.path: row for row in found.modules}
    assert phases(rows["ResNet_0"]) == phases(found)


def test_gpu_library_products_have_operations_of_their_shapes() -> None:
    found = profile_of(TRACES / "h200" / "products.json.gz")
    attention, convolution = 4 * 4 * 8 * 512 * 512 * 64, 2 * 8 * 32 * 32 * 32 * (16 // 4) * 9
    lstm, linear = 2 * 8 * 20 * 4 * 256 * (128 + 256), 2 * 64 * 1024 * 1024
    # The backward of fused attention computes its scores again: 2.5 times the forward. The inputs of the convolution
    # and of the linear layer need no gradient.
    rows = {(row.operator.removeprefix("aten::"), row.phase): row.flops for row in found.operators}
    assert rows == {
        ("_scaled_dot_product_cudnn_attention", "forward"): attention,
        ("_scaled_dot_product_cudnn_attention_backward", "backward"): attention * 5 // 2,
        ("convolution", "forward"): convolution,
        ("convolution_backward", "backward"): convolution,
        ("_cudnn_rnn", "forward"): lstm,
        ("_cudnn_rnn_backward", "backward"): 2 * lstm,
        ("addmm", "forward"): linear,
        ("mm", "backward"): linear,
    }


# -- traces written by hand --------------------------------------------------------------------------------------------


def product(
    name: str, start_us: int, *, dtype: str = "float", tid: int = 1, size: int = 100, number: int | None = None
) -> Event:
    """A product of two squares, 2 * size ** 3 FLOPs: 2 million; `number` is the sequence number of autograd."""
    args: dict[str, Any] = {"Input Dims": [[size, size], [size, size]], "Input type": [dtype, dtype]}
    if number is not None:
        args |= {"Sequence number": number, "Fwd thread id": 0}
    return event("cpu_op", name, start_us, 8, tid=tid, **args)


def backward(start_us: int, length_us: int, sequence: int) -> Event:
    numbers = {"Sequence number": sequence, "Fwd thread id": 1}
    return event("cpu_op", ENGINE + "MmBackward0", start_us, length_us, tid=2, **numbers)


def on_device(
    start_us: int, correlation: int, length_us: int, name: str = "sgemm", tid: int = 1
) -> tuple[Event, Event]:
    """A kernel and the call that launches it."""
    return launch(start_us, correlation, tid=tid), kernel(
        name, 1000 + 100 * correlation, length_us, correlation=correlation
    )


# Forward 2 million FLOPs in 10 us; in the backward of number 7 the forward again (12 us), and two products of the
# gradients (20 us each). A recomputed product at the end launches nothing.
STEP = (
    product("aten::mm", 0, number=7), *on_device(1, 1, 10),
    backward(100, 80, 7),
    product("aten::mm", 110, tid=2, number=8), *on_device(111, 2, 12, tid=2),
    product("aten::mm", 120, tid=2, number=9),
    product("aten::mm", 130, tid=2), *on_device(131, 3, 20, tid=2),
    product("aten::mm", 140, tid=2), *on_device(141, 4, 20, tid=2),
)  # fmt: skip
HEAD = {"deviceProperties": [{"id": 0, "name": A100}]}
MILLION = 10**6


def write(folder: Path, *events: Event, **head: Any) -> Path:
    (folder / "rank0.json").write_bytes(to_json(*events, **(head or HEAD)))
    return folder


def test_on_a_device_only_products_with_a_kernel_count(tmp_path: Path) -> None:
    found = profile_of(write(tmp_path, *STEP))
    assert phases(found) == (2 * MILLION, 2 * MILLION, 4 * MILLION)
    assert {(row.phase, row.time_ns) for row in found.operators} == {
        ("forward", 10_000), ("recompute", 12_000), ("backward", 40_000),
    }  # fmt: skip
    assert found.notes == ["1 calls launched no computing kernel and are not counted: aten::mm"]
    assert not found.is_upper_bound


def test_utilization_is_time_at_peak_over_time_of_the_steps(tmp_path: Path) -> None:
    found = profile_of(write(tmp_path, *STEP))
    # From the first kernel at 1,100 us to the end of the last at 1,420 us. The A100's fp32: 19.5 TFLOP/s.
    assert (found.window_ns, found.step_count) == (320_000, None)
    assert found.mfu_ratio == pytest.approx(3 * 2e6 / 19.5e12 / 320e-6)
    assert found.hfu_ratio == pytest.approx(8e6 / 19.5e12 / 320e-6)
    assert found.executed_flops_per_s == pytest.approx(8e6 / 320e-6)
    given = profile_of(tmp_path, peak_tflops=0.5)
    assert given.hfu_ratio == pytest.approx(8e6 / 0.5e12 / 320e-6)
    assert [row.peak_flops_per_s for row in given.by_dtype] == [0.5e12]


def test_each_type_of_number_has_its_own_peak(tmp_path: Path) -> None:
    events = (
        product("aten::mm", 0, dtype="c10::BFloat16"), *on_device(1, 1, 10, "ampere_bf16_s16816gemm"),
        product("aten::mm", 20), *on_device(21, 2, 10, "ampere_s1688gemm_tf32_128"),
    )  # fmt: skip
    found = profile_of(write(tmp_path, *events))
    assert {row.dtype: (row.forward_flops, row.peak_flops_per_s) for row in found.by_dtype} == {
        "bf16": (2 * MILLION, 312e12), "tf32": (2 * MILLION, 156e12),
    }  # fmt: skip
    assert found.window_ns == 110_000
    assert found.hfu_ratio == pytest.approx((2e6 / 312e12 + 2e6 / 156e12) / 110e-6)
    assert (found.model_flops, found.mfu_ratio) == (4 * MILLION, found.hfu_ratio)
    assert NO_BACKWARD in found.notes


@pytest.mark.parametrize(
    ("events", "head", "reason"),
    [
        (STEP, {"deviceProperties": [{"id": 0, "name": "Riva 128"}]},
         "the peak of Riva 128 for fp32 is not known: give --peak-tflops"),
        ((product("aten::mm", 0, dtype="c10::complex<float>"), *on_device(1, 1, 5)), HEAD,
         f"the peak of {A100} for c10::complex<float> is not known: give --peak-tflops"),
        (on_device(1, 1, 5), HEAD, "no products were counted"),
        (STEP[:1], {"note": 1}, "the peak of CPU for fp32 is not known: give --peak-tflops"),
    ],
)  # fmt: skip
def test_utilization_that_is_not_known_has_a_reason(
    events: tuple[Event, ...], head: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    found = profile_of(write(tmp_path, *events, **head))
    assert (found.mfu_ratio, found.hfu_ratio, found.utilization_reason) == (None, None, reason)


def test_two_devices_of_a_file_have_two_peaks(tmp_path: Path) -> None:
    events = (
        product("aten::mm", 0),
        *on_device(1, 1, 10),
        launch(2, 2),
        kernel("add", 1100, 5, correlation=2, device=1),
    )
    both = {"deviceProperties": [{"id": 0, "name": A100}, {"id": 1, "name": A100}]}
    found = profile_of(write(tmp_path, *events, **both))
    assert found.device_count == 2
    assert found.hfu_ratio == pytest.approx(2e6 / 19.5e12 / 10e-6 / 2)
    mixed = {"deviceProperties": [{"id": 0, "name": A100}, {"id": 1, "name": "NVIDIA H100 PCIe"}]}
    assert profile_of(write(tmp_path, *events, **mixed)).utilization_reason == (
        f"devices of several kinds in one file: {A100}, NVIDIA H100 PCIe"
    )


def test_figures_are_of_the_steps_alone(tmp_path: Path) -> None:
    steps = [event("user_annotation", f"ProfilerStep#{number}", 100 * number, 100) for number in (1, 2)]
    events = [product("aten::mm", start_us) for start_us in (10, 110, 210, 310)]  # the first and the last are outside
    found = profile_of(write(tmp_path, *steps, *events, note=1), peak_tflops=1)
    assert (found.step_count, found.window_ns, found.forward_flops) == (2, 200_000, 4 * MILLION)
    assert found.mfu_ratio == pytest.approx(4e6 / 1e12 / 200e-6)
    assert profile_of(tmp_path, steps=(2, 3)).forward_flops == 2 * MILLION


def test_outer_product_with_another_inside_does_not_count(tmp_path: Path) -> None:
    """As of a DTensor: the outer has the global shapes."""
    outer = {**product("aten::mm", 0, size=200), "dur": 50}
    assert profile_of(write(tmp_path, outer, product("aten::mm", 10), note=1)).executed_flops == 2 * MILLION


def test_recomputation_is_not_told_without_autograd_numbers(tmp_path: Path) -> None:
    engine = event("cpu_op", "MmBackward", 100, 80, tid=2)
    found = profile_of(write(tmp_path, product("aten::mm", 0), engine, product("aten::mm", 110, tid=2), note=1))
    assert (phases(found), found.notes) == ((2 * MILLION, 0, 2 * MILLION), [NO_NUMBERS])


def test_costly_operators_without_a_formula_are_named(tmp_path: Path) -> None:
    events = (
        product("aten::mm", 0), *on_device(1, 1, 50),
        event("cpu_op", "mylib::attention", 20, 8), *on_device(21, 2, 30),
        event("cpu_op", "mylib::small", 40, 8), *on_device(41, 3, 3),
        event("cpu_op", "aten::add", 60, 8), *on_device(61, 4, 12),
        launch(80, 5, "cudaGraphLaunch"), kernel("gemm", 1500, 5, correlation=5),
    )  # fmt: skip
    found = profile_of(write(tmp_path, *events))
    assert [(row.operator, row.reason, row.count, row.time_ns, row.time_ratio) for row in found.uncounted] == [
        ("mylib::attention", NO_FORMULA, 1, 30_000, 0.3), ("cudaGraphLaunch", OUTSIDE_OPERATORS, 1, 5_000, 0.05),
    ]  # fmt: skip
    assert (found.is_lower_bound, found.executed_flops) == (True, 2 * MILLION)


def count_attention(inputs: Inputs) -> int:
    flops: int = 4 * inputs.shapes[0][0]
    return flops


def test_formula_of_ones_own_counts_an_operator(tmp_path: Path) -> None:
    own = event("cpu_op", "mylib::attention", 20, 8, **{"Input Dims": [[30]], "Input type": ["c10::Half"]})
    write(tmp_path, product("aten::mm", 0), *on_device(1, 1, 50), own, *on_device(21, 2, 30))
    found = profile_of(tmp_path, flop_formulas={"mylib::attention": count_attention})
    assert (found.executed_flops, found.uncounted) == (2 * MILLION + 120, [])
    assert {(row.operator, row.dtype) for row in found.operators} == {
        ("aten::mm", "fp32"),
        ("mylib::attention", "fp16"),
    }


def test_product_without_shapes_is_named_whatever_its_time(tmp_path: Path) -> None:
    events = (
        event("cpu_op", "aten::mm", 0, 1),
        event("cpu_op", "aten::add", 10, 900),
        product("aten::mm", 950, size=1),
    )
    broken = event("cpu_op", "aten::mm", 970, 1, **{"Input Dims": "x", "Input type": ["float"]})
    found = profile_of(write(tmp_path, *events, broken, note=1))
    assert {(row.operator, row.reason, row.count) for row in found.uncounted} == {
        ("aten::mm", NO_SHAPES, 1), ("aten::mm", "inputs not understood", 1),
    }  # fmt: skip
    assert found.utilization_reason == (
        "products are not counted, of aten::mm: inputs not understood, no shapes recorded"
    )
    assert found.executed_flops == 2


def test_operators_of_a_cpu_without_a_formula_are_named(tmp_path: Path) -> None:
    events = (product("aten::mm", 0), event("cpu_op", "mylib::attention", 20, 50), event("cpu_op", "aten::add", 80, 42))
    (row,) = profile_of(write(tmp_path, *events, note=1)).uncounted
    assert (row.operator, row.time_ns, row.time_ratio) == ("mylib::attention", 50_000, 0.5)


def test_work_of_an_unknown_device_has_no_times(tmp_path: Path) -> None:
    found = profile_of(write(tmp_path, product("aten::mm", 0), launch(1, 1, "hpuLaunch"), note=1))
    assert [(row.flops, row.time_ns, row.flops_per_s) for row in found.operators] == [(2 * MILLION, None, None)]


def test_profile_that_is_not_asked_for_is_not_made(tmp_path: Path) -> None:
    (rank,) = analyze(str(write(tmp_path, *STEP))).ranks
    assert rank.flops is None
    assert "flops" not in analyze(str(tmp_path)).to_pandas()


def test_formulas_without_a_profile_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="flop_formulas are given without flops=True; nothing is counted with them"):
        analyze(str(write(tmp_path, *STEP)), flop_formulas={"mylib::attention": count_attention})


# -- what is shown -----------------------------------------------------------------------------------------------------


def module(name: str, start_us: int, length_us: int, tid: int = 1) -> Event:
    return event("python_function", f"nn.Module: {name}", start_us, length_us, tid=tid)


def test_tables_show_the_profile(tmp_path: Path) -> None:
    other = event("cpu_op", "mylib::other", 60, 8)
    events = (*STEP, module("Net_0", -5, 30), module("Linear_0", -2, 20), other, *on_device(61, 5, 38))
    write(tmp_path, *events)
    sections = {one.key: one for one in build_sections(analyze(str(tmp_path), flops=True), 20)}
    texts = {key: [[cell.text for cell in row] for row in one.rows] for key, one in sections.items()}
    assert texts["flops"] == [["0", "-", "0.438", "0.001", "0.002", "0.002", "0.004", "0.006", "0.008"]]
    assert texts["flops_utilization"] == [["0", "fp32", "1", "0.014", "0.018", "0.1", "0.1", "-"]]
    assert texts["flops_operators"][0] == ["aten::mm", "backward", "fp32", "2", "0.004", "50.0", "0.040", "0.100"]
    assert texts["flops_modules"] == [
        ["Net_0", "1", "0.002", "0.002", "0.004", "100.0", "0.062", "62.0", "0.129"],
        [". Linear_0", "1", "0.002", "0.002", "0.004", "100.0", "0.062", "62.0", "0.129"],
        ["outside of modules", "-", "0.000", "0.000", "0.000", "0.0", "0.038", "38.0", "0.000"],
    ]
    assert texts["flops_depths"] == [
        ["0", "Net_0", "0.008", "100.0", "0.062", "62.0"],
        ["1", "Net_0/Linear_0", "0.008", "100.0", "0.062", "62.0"],
    ]
    assert texts["flops_uncounted"] == [["0", "mylib::other", "1", "0.038", "38.0", "no formula"]]
    assert len(texts["flops_notes"]) == 1


def test_tables_without_modules_or_products_say_why(tmp_path: Path) -> None:
    write(tmp_path, *on_device(1, 1, 5))
    sections = {one.key: one for one in build_sections(analyze(str(tmp_path), flops=True), 20)}
    assert "record_shapes=True" in sections["flops_operators"].reason
    assert "with_stack=True" in sections["flops_modules"].reason
    assert "flops_depths" not in sections


def test_ranks_are_summed_in_the_tables_of_operators_and_modules(tmp_path: Path) -> None:
    for rank, size in enumerate((100, 200)):
        events = (module("Net_0", -5, 30), product("aten::mm", 0, size=size))
        (tmp_path / f"rank{rank}.json").write_bytes(to_json(*events, note=1))
    sections = {one.key: one for one in build_sections(analyze(str(tmp_path), flops=True), 20)}
    assert [cell.text for cell in sections["flops_operators"].rows[0]][3:5] == ["2", "0.018"]
    assert [cell.text for cell in sections["flops_modules"].rows[0]][:3] == ["Net_0", "2", "0.018"]


def test_command_prints_the_profile_and_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, *STEP)
    (tmp_path / "out").mkdir()
    target = tmp_path / "out" / "report.json"
    main(
        ["analyze", str(tmp_path), "--flops", "--json-file", str(target), "--html", str(tmp_path / "out" / "page.html")]
    )
    assert "MODEL PROFILE" in capsys.readouterr().out
    assert msgspec.json.decode(target.read_bytes())["ranks"][0]["flops"]["executed_flops"] == 8 * MILLION
    assert "Model profile" in (tmp_path / "out" / "page.html").read_text()
    main(["analyze", str(tmp_path)])
    assert "MODEL PROFILE" not in capsys.readouterr().out


def test_tables_of_data_frames_have_the_profile(tmp_path: Path) -> None:
    frames = analyze(str(write(tmp_path, *STEP)), flops=True).to_pandas()
    assert list(frames["flops"]["executed_flops"]) == [8 * MILLION]
    assert sorted(frames["flops_operators"]["phase"]) == ["backward", "forward", "recompute"]
    assert {"flops_by_dtype", "flops_modules", "flops_uncounted"} <= frames.keys()


# -- parameters --------------------------------------------------------------------------------------------------------

SPANS = (("nn.Module: Net_0", 0, 100), ("nn.Module: Linear_0", 10, 80))
COUNTS = {"Net_0": 90, "Linear_0": 40}
NOTES = {"version": 1, "parameters": COUNTS}


def record_modules(
    path: Path, notes: Any, marked: Sequence[tuple[str, int, int]] = SPANS, frames: Sequence[tuple[str, int, int]] = ()
) -> Path:
    """A model with one layer in a capture that has marked its modules; Python frames may have them, too."""
    product = event("cpu_op", "aten::mm", 20, 40, **{"Input Dims": [[2, 3], [3, 4]], "Input type": ["float", "float"]})
    spans = [event("user_annotation", *one) for one in marked] + [event("python_function", *one) for one in frames]
    path.write_bytes(to_json(*spans, product, rankscope_modules=notes))
    return path


def parameters_of(path: Path) -> dict[str, int | None]:
    return {row.name: row.parameters for row in profile_of(path).modules}


def test_parameters_are_those_that_a_capture_has_counted(tmp_path: Path) -> None:
    path = record_modules(tmp_path / "trace.json", NOTES)
    assert parameters_of(path) == COUNTS
    tables = {one.key: one for one in build_sections(analyze(str(path), flops=True), 10)}
    assert tables["flops_modules"].columns[-1].head == "parameters"
    assert [row[-1].text for row in tables["flops_modules"].rows] == ["90", "40"]


def test_modules_are_named_by_attribute_where_a_capture_has_it(tmp_path: Path) -> None:
    spans = (*SPANS, ("nn.Module: Linear_1", 20, 60))
    notes = {"paths": {"Net_0": "", "Linear_0": "layers.1", "Linear_1": "layers.1.mlp.0"}}
    path = record_modules(tmp_path / "trace.json", notes, spans)
    tables = {one.key: one for one in build_sections(analyze(str(path), flops=True), 10)}
    tree = [row[0].text for row in tables["flops_modules"].rows]
    assert tree == ["model (Net)", ". layers.1 (Linear)", ". . mlp.0 (Linear)"]
    assert [row[1].text for row in tables["flops_depths"].rows][-1] == "layers.1.mlp.0 (Linear)"
    partly = record_modules(tmp_path / "partly.json", {"paths": {"Linear_1": "layers.1.mlp.0"}}, spans)
    names = {row.name: row.attributes for row in profile_of(partly).modules}
    assert names == {"Net_0": None, "Linear_0": None, "Linear_1": "layers.1.mlp.0"}


@pytest.mark.parametrize("notes", [{}, {"parameters": {"Net_0": "many"}}, [], None])
def test_without_counts_there_is_no_column_of_parameters(notes: Any, tmp_path: Path) -> None:
    path = record_modules(tmp_path / "trace.json", notes)
    assert parameters_of(path) == dict.fromkeys(COUNTS)
    tables = {one.key: one for one in build_sections(analyze(str(path), flops=True), 10)}
    assert "parameters" not in [column.head for column in tables["flops_modules"].columns]


def test_frames_have_counts_where_named_like_the_marked_ranges(tmp_path: Path) -> None:
    assert parameters_of(record_modules(tmp_path / "same.json", NOTES, frames=SPANS)) == COUNTS
    other = (SPANS[0], ("nn.Module: Linear_1", 10, 80))
    found = parameters_of(record_modules(tmp_path / "other.json", NOTES, frames=other))
    assert found == {"Net_0": None, "Linear_1": None}
