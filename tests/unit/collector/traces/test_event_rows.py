"""The table of every event: by hand, and of recordings by what torch wrote into them and by other tables."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from rankscope.collector.traces import analyze, find_call_stack, find_inside
from rankscope.collector.traces.report import EventRow
from tests.unit.measure.written_traces import Event, event, kernel, launch, to_json

TRACES = Path(__file__).parents[3] / "traces"


def named(folder: Path, *events: Event) -> dict[str, EventRow]:
    """Return the events by name."""
    (folder / "rank0.json").write_bytes(to_json(*events))
    (rank,) = analyze(str(folder), events=True).ranks
    rows = list(rank.events or ())
    assert [row.event for row in rows] == list(range(len(rows)))
    return {row.name: row for row in rows}


# A frame of a module in a step, in it a range, in that a linear that calls mm, which launches a kernel of 4 blocks that
# runs after the step. On another thread, without frames, a backward operator while the frame `backward` is open.
KNOWN = (
    event("user_annotation", "ProfilerStep#3", 0, 100), event("python_function", "nn.Module: Net_0", 10, 60),
    event("user_annotation", "mine", 12, 40), event("cpu_op", "aten::linear", 15, 30),
    event("cpu_op", "aten::mm", 20, 10), launch(22, 5),
    kernel("gemm", 150, 7, correlation=5, grid=[4, 1, 1], block=[64, 2, 1]),
    event("python_function", "backward", 80, 15),
    event("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 85, 5, tid=2),
    kernel("alone", 160, 2, correlation=77, stream=9),
    {**kernel("Memcpy HtoD", 170, 2, correlation=5, bytes=64), "cat": "gpu_memcpy"},
)  # fmt: skip
BACKWARD = "autograd::engine::evaluate_function: MmBackward0"


def test_event_is_in_the_range_around_it(tmp_path: Path) -> None:
    rows = named(tmp_path, *KNOWN)
    number = {name: row.event for name, row in rows.items()}
    assert {name: row.parent for name, row in rows.items()} == {
        "ProfilerStep#3": None, "nn.Module: Net_0": number["ProfilerStep#3"], "mine": number["nn.Module: Net_0"],
        "aten::linear": number["mine"], "aten::mm": number["aten::linear"], "cudaLaunchKernel": number["aten::mm"],
        "gemm": number["cudaLaunchKernel"], "Memcpy HtoD": number["cudaLaunchKernel"], "alone": None,
        "backward": number["ProfilerStep#3"], BACKWARD: number["backward"],
    }  # fmt: skip


def test_work_belongs_to_what_launched_it(tmp_path: Path) -> None:
    rows = named(tmp_path, *KNOWN)
    gemm, alone, copy = rows["gemm"], rows["alone"], rows["Memcpy HtoD"]
    assert (gemm.operator, gemm.step, gemm.module, gemm.user_range) == (rows["aten::mm"].event, 3, "Net_0", "mine")
    assert (gemm.device, gemm.stream, gemm.grid, gemm.block, gemm.bytes) == (0, 7, "4x1x1", "64x2x1", None)
    assert (gemm.start_ns, gemm.duration_ns, gemm.correlation, gemm.category) == (150_000, 7_000, 5, "kernel")
    assert (alone.operator, alone.step, alone.module, alone.user_range, alone.stream) == (None, None, None, None, 9)
    assert (copy.bytes, copy.category, copy.grid) == (64, "memcpy", None)


def test_event_of_the_host_has_operator_thread_and_step(tmp_path: Path) -> None:
    rows = named(tmp_path, *KNOWN)
    assert (rows["aten::linear"].operator, rows["aten::mm"].operator) == (None, rows["aten::linear"].event)
    assert rows["cudaLaunchKernel"].operator == rows["aten::mm"].event
    assert (rows["aten::mm"].process, rows["aten::mm"].thread, rows[BACKWARD].thread) == ("100", "1", "2")
    assert (rows[BACKWARD].step, rows["aten::mm"].device, rows["aten::mm"].user_range) == (3, None, "mine")
    assert [rows[name].category for name in ("mine", "backward", "aten::mm")] == ["annotation", "python", "cpu_op"]


def test_events_are_there_only_when_asked_for(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_bytes(to_json(*KNOWN))
    report = analyze(str(tmp_path))
    assert (report.ranks[0].events, "events" in report.to_pandas()) == (None, False)


@pytest.mark.parametrize("events", [[], [event("", "x", 0, 0)], [kernel("k", 0, 5)], [event("trace", "x", 0, -5)]])
def test_trace_with_little_has_the_events_that_it_has(tmp_path: Path, events: list[Event]) -> None:
    (tmp_path / "rank0.json").write_bytes(to_json(event("cpu_op", "aten::mm", 0, 1), *events))
    assert len(analyze(str(tmp_path), events=True).ranks[0].events or ()) == 1 + len(events)


# -- data frames ------------------------------------------------------------------------------------------------------


def frame_of(folder: Path, ranks: int = 1) -> Any:
    for rank in range(ranks):
        (folder / f"rank{rank}.json").write_bytes(to_json(*KNOWN, distributedInfo={"rank": rank}))
    return analyze([str(folder / f"rank{rank}.json") for rank in range(ranks)], events=True).to_pandas()["events"]


STACK = ["ProfilerStep#3", "nn.Module: Net_0", "mine", "aten::linear", "aten::mm", "cudaLaunchKernel", "gemm"]


def test_call_stack_goes_from_the_outermost_range_to_the_kernel(tmp_path: Path) -> None:
    events = frame_of(tmp_path, ranks=2)
    for rank in (0, 1):
        (gemm,) = events.index[(events["name"] == "gemm") & (events["rank"] == rank)]
        stack = find_call_stack(events, gemm)
        assert stack["name"].tolist() == STACK
        assert set(stack["rank"]) == {rank}


def test_call_stack_ends_at_what_was_filtered_out(tmp_path: Path) -> None:
    events = frame_of(tmp_path)
    some = events[events["category"].isin(["cpu_op", "runtime", "kernel"])]
    (gemm,) = some.index[some["name"] == "gemm"]
    assert find_call_stack(some, gemm)["name"].tolist() == ["aten::linear", "aten::mm", "cudaLaunchKernel", "gemm"]
    with pytest.raises(KeyError):
        find_call_stack(some, events.index[0])


def test_what_an_operator_called_and_launched_is_inside(tmp_path: Path) -> None:
    events = frame_of(tmp_path, ranks=2)
    linear = events.index[events["name"] == "aten::linear"][1]
    inside = find_inside(events, linear)
    assert inside["name"].tolist() == ["aten::mm", "cudaLaunchKernel", "gemm", "Memcpy HtoD"]
    assert set(inside["rank"]) == {1}
    assert find_inside(events, events.index[-1])["name"].tolist() == []


def test_documented_sums_of_kernels_by_operator(tmp_path: Path) -> None:
    events = frame_of(tmp_path)
    kernels = events[events["category"] == "kernel"]
    own = kernels.groupby(kernels["operator"].map(events["name"]))["duration_ns"].sum()
    assert own["aten::mm"] == 7_000


# -- recorded traces ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["h100_bert_small", "a100_nccl_2ranks_r0"])
def test_parents_are_those_of_a_loop_over_the_events(name: str) -> None:
    events = analyze(str(TRACES / f"{name}.json.gz"), events=True).to_pandas()["events"]
    host = events[~events["category"].isin(["kernel", "memcpy", "memset", "gpu_annotation"])].iloc[:3_000]
    opened: dict[Any, list[tuple[int, int]]] = {}
    for number, process, thread, start_ns, length_ns, parent in zip(
        *(host[column] for column in ("event", "process", "thread", "start_ns", "duration_ns", "parent")), strict=True
    ):
        around = opened.setdefault((process, thread), [])
        while around and around[-1][1] < start_ns + length_ns:
            around.pop()
        if around:
            assert parent == around[-1][0]
        around.append((number, start_ns + length_ns))


def test_frames_are_in_the_frames_that_torch_recorded() -> None:
    text = gzip.decompress((TRACES / "h100_bert_small.json.gz").read_bytes()).decode("utf-8", "replace")
    recorded = [one for one in json.loads(text, strict=False)["traceEvents"] if one.get("cat") == "python_function"]
    name_of = {one["args"]["Python id"]: one["name"] for one in recorded}
    expected = sorted((one["name"], str(name_of.get(one["args"]["Python parent id"]))) for one in recorded)
    events = analyze(str(TRACES / "h100_bert_small.json.gz"), events=True).to_pandas()["events"]
    frames = events[events["category"] == "python"]
    found = []
    for frame in frames.index:
        stack = find_call_stack(events, frame)
        around = stack[stack["category"] == "python"]["name"].tolist()
        found.append((around[-1], around[-2] if len(around) > 1 else "None"))
    assert sorted(found) == expected


def test_kernels_have_the_operators_of_the_table_by_launch() -> None:
    report = analyze(str(TRACES / "h100_bert_small.json.gz"), events=True, launches=True)
    events = report.to_pandas()["events"]
    kernels = events[events["category"] == "kernel"]
    operators = kernels["operator"].map(events["name"]).astype(object)
    keys = zip(kernels["name"], operators, kernels["grid"], kernels["block"], kernels["duration_ns"], strict=True)
    found: dict[Any, int] = {}
    for *key, length_ns in keys:
        found[tuple(key)] = found.get(tuple(key), 0) + length_ns
    expected: dict[Any, int] = {}
    for row in report.ranks[0].kernel_launches or []:
        launch_key = (row.name, row.operator, row.grid, row.block)
        expected[launch_key] = expected.get(launch_key, 0) + row.total_ns
    assert found == expected


def test_recorded_training_has_its_ranges_and_modules(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 4))
    with profile(activities=[ProfilerActivity.CPU], with_stack=True) as recorded, record_function("mine"):
        model(torch.ones(2, 8)).sum().backward()
    recorded.export_chrome_trace(str(tmp_path / "rank0.json"))
    events = analyze(str(tmp_path / "rank0.json"), events=True).to_pandas()["events"]
    (product,) = events.index[events["name"] == "aten::addmm"]
    assert tuple(events.loc[product, ["module", "user_range"]]) == ("Sequential_0/Linear_0", "mine")
    names = find_call_stack(events, product)["name"].tolist()
    assert [name for name in names if name.startswith(("mine", "nn.Module", "aten::linear"))] == [
        "mine", "nn.Module: Sequential_0", "nn.Module: Linear_0", "aten::linear",
    ]  # fmt: skip
    (backward,) = events.index[events["name"] == "AddmmBackward0"]
    assert events.loc[backward, "module"] == "Sequential_0/Linear_0"
    assert any("backward" in name for name in find_call_stack(events, backward)["name"].tolist()[:-2])
