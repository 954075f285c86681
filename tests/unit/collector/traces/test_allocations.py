"""Single allocations and the memory of a stretch of time: by hand, and of recordings by a loop over their JSON."""

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from rankscope.collector.commands.main import main
from rankscope.collector.reports.trace_text import render_text
from rankscope.collector.traces import analyze
from rankscope.collector.traces.memory_stretch import parse_stretch
from rankscope.collector.traces.report import AllocationRow, RankReport
from rankscope.measure.errors import SettingError
from tests.unit.measure.written_traces import Event, allocation, event, to_json

TRACES = Path(__file__).parents[3] / "traces"
A, B, C, D = 0x1000, 0x2000, 0x3000, 0x4000


def at(time_us: int, address: int, size: Any, **args: Any) -> Event:
    return allocation(time_us, size, **{"Addr": address, **args})


def rank_of(folder: Path, *events: Event, **asked: Any) -> RankReport:
    (folder / "rank0.json").write_bytes(to_json(*events))
    (rank,) = analyze(str(folder), **asked).ranks
    return rank


def rows_of(folder: Path, *events: Event, **asked: Any) -> list[AllocationRow]:
    return list(rank_of(folder, *events, allocations=True, **asked).allocations or [])


# Two steps of 100 us from 0 us on. A (100 bytes) lives from 10 us in mm to 150 us; B (40) from 20 us in the linear
# that calls mm, and is still there; 16 bytes at D were there before and are freed at 60 us; C (8) of 120 us was freed
# and is allocated anew (4) at 130 us.
STEPS = (event("user_annotation", "ProfilerStep#1", 0, 100), event("user_annotation", "ProfilerStep#2", 100, 100))
KNOWN = (
    *STEPS, event("python_function", "nn.Module: Linear_0", 4, 50), event("cpu_op", "aten::linear", 5, 30),
    event("cpu_op", "aten::mm", 8, 5),
    at(10, A, 100), at(20, B, 40), at(60, D, -16), at(120, C, 8), at(130, C, 4), at(150, A, -100),
)  # fmt: skip


def test_each_allocation_has_operator_step_size_and_lifetime(tmp_path: Path) -> None:
    first, second, third, *_ = rows_of(tmp_path, *KNOWN)
    assert (first.operator, first.module, first.step, first.bytes) == ("aten::mm", "Linear_0", 1, 100)
    assert (first.device, first.allocated_ns, first.freed_ns, first.lifetime_ns) == (0, 10_000, 150_000, 140_000)
    assert (second.operator, second.bytes, second.freed_ns, second.lifetime_ns) == ("aten::linear", 40, None, None)
    assert (first.end, second.end, third.bytes) == ("freed", "held", 16)


def test_memory_older_than_the_trace_has_a_row_where_it_is_freed(tmp_path: Path) -> None:
    row = rows_of(tmp_path, *KNOWN)[2]
    assert (row.operator, row.module, row.step, row.allocated_ns, row.lifetime_ns) == (None,) * 5
    assert (row.bytes, row.freed_ns, row.end) == (16, 60_000, "freed")


def test_allocation_whose_free_is_lost_is_not_held(tmp_path: Path) -> None:
    *_, first, anew = rows_of(tmp_path, *KNOWN)
    assert (first.bytes, first.freed_ns, first.end, first.operator) == (8, None, "unknown", None)
    assert (anew.bytes, anew.step, anew.end) == (4, 2, "held")


def test_allocators_of_devices_are_apart(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, at(1, A, 8), at(2, A, 4, **{"Device Id": 1}), at(3, A, -8))
    assert [(row.device, row.bytes, row.end) for row in rows] == [(0, 8, "freed"), (1, 4, "held")]
    (row,) = rows_of(tmp_path, at(1, A, 8, **{"Device Type": 0, "Device Id": -1}))
    assert row.device is None


def test_backward_belongs_to_the_module_of_its_forward(tmp_path: Path) -> None:
    numbers = {"Sequence number": 7, "Fwd thread id": 1}
    events = (
        event("python_function", "nn.Module: Linear_0", 0, 20),
        event("cpu_op", "aten::mm", 2, 5, **{"Sequence number": 7, "Fwd thread id": 0}),
        event("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 30, 10, tid=2, **numbers),
        {**at(35, A, 8), "tid": 2},
    )
    (row,) = rows_of(tmp_path, *events)
    assert (row.module, row.operator) == ("Linear_0", events[2]["name"])


def test_allocations_are_there_only_when_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rank_of(tmp_path, *KNOWN).allocations is None
    assert main(["analyze", str(tmp_path), "--allocations", "--top", "3"]) == 0
    printed = capsys.readouterr().out
    assert "SINGLE ALLOCATIONS" in printed
    assert "2 more rows not shown" in printed
    assert main(["analyze", str(tmp_path)]) == 0
    assert "SINGLE ALLOCATIONS" not in capsys.readouterr().out


def test_without_addresses_the_reason_is_a_warning(tmp_path: Path) -> None:
    without = "memory events without addresses: the single allocations are not known"
    rank = rank_of(tmp_path, allocation(1, 8), at(1, A, 4, **{"Device Id": 1}), allocations=True)
    assert [row.bytes for row in rank.allocations or ()] == [4]
    assert without in rank.warnings
    rank = rank_of(tmp_path, event("cpu_op", "aten::mm", 0, 5), allocations=True)
    assert (rank.allocations is None, len(rank.allocations or ()), without in rank.warnings) == (False, 0, False)


@pytest.mark.parametrize(
    "events",
    [
        [at(0, A, -8), at(0, A, -8)],
        [at(0, A, 0), at(1, A, 8), at(2, A, 0), at(3, A, -9)],
        [at(1, A, -(2**63)), at(1, A, 2**63 - 1)],
        [at(1, A, "many"), at(1, -1, 8), at(2, A, 2**70)],
        [{**at(1, A, 8), "ts": "x"}, at(10**15, A, 8)],
    ],
)
def test_broken_memory_events_break_no_table(tmp_path: Path, events: list[Event]) -> None:
    rank = rank_of(tmp_path, *STEPS, *events, allocations=True, memory_between="1:2")
    assert all((row.freed_ns is None) == (row.end != "freed") for row in rank.allocations or ())
    assert len(rank.memory_stretch or ()) <= 1
    render_text(analyze(str(tmp_path), allocations=True, memory_between="1:2"), 20)


def test_free_of_nothing_does_not_end_a_lifetime(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, at(1, A, 8), at(2, A, 0), at(3, A, -8))
    assert (row.bytes, row.lifetime_ns) == (8, 2_000)


def test_tables_have_every_allocation_of_every_rank(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_bytes(to_json(*KNOWN, distributedInfo={"rank": 0}))
    (tmp_path / "rank1.json").write_bytes(to_json(at(1, A, 7), distributedInfo={"rank": 1}))
    out = [str(tmp_path / name) for name in ("out.json", "csv", "parquet")]
    for kind, folder in (("csv", out[1]), ("parquet", out[2])):
        told = ["--allocations", "--tables", folder, "--tables-as", kind, "--json-file", out[0]]
        assert main(["analyze", str(tmp_path / "rank0.json"), str(tmp_path / "rank1.json"), *told]) == 0
    frame = analyze([str(tmp_path / f"rank{rank}.json") for rank in (0, 1)], allocations=True).to_pandas()[
        "allocations"
    ]
    sizes = [100, 40, 16, 8, 4, 7]
    assert (frame["bytes"].tolist(), frame["rank"].tolist()) == (sizes, [0] * 5 + [1])
    assert frame["freed_ns"].isna().tolist() == [False, True, False, True, True, True]
    assert frame["operator"].tolist()[:2] == ["aten::mm", "aten::linear"]
    written = json.loads(Path(out[0]).read_bytes())["ranks"]
    assert [row["bytes"] for rank in written for row in rank["allocations"]] == sizes
    assert written[0]["allocations"][1]["freed_ns"] is None
    with (Path(out[1]) / "allocations.csv").open() as file:
        assert [(row["rank"], row["bytes"], row["freed_ns"]) for row in csv.DictReader(file)][:2] == [
            ("0", "100", "150000"), ("0", "40", ""),
        ]  # fmt: skip
    parquet = pytest.importorskip("pyarrow.parquet")
    assert parquet.read_table(Path(out[2]) / "allocations.parquet")["bytes"].to_pylist() == sizes


# -- a stretch of time ------------------------------------------------------------------------------------------------


def test_memory_of_steps_is_that_between_their_bounds(tmp_path: Path) -> None:
    rank = rank_of(tmp_path, *KNOWN, memory_between="2:3")
    (row,) = rank.memory_stretch or []
    # Before 100 us: 100 + 40 - 16; then 8 and 4 more, and 100 less.
    assert (row.start_ns, row.end_ns, row.start_bytes, row.end_bytes) == (100_000, 200_000, 124, 36)
    assert (row.peak_bytes, row.peak_ns) == (136, 130_000)
    assert (row.allocated_count, row.allocated_bytes, row.freed_count, row.freed_bytes) == (2, 12, 1, 100)


def test_memory_of_milliseconds_has_operators(tmp_path: Path) -> None:
    rank = rank_of(tmp_path, *KNOWN, memory_between="0.008ms:0.020ms")
    (row,) = rank.memory_stretch or []
    assert (row.start_bytes, row.peak_bytes, row.end_bytes, row.allocated_count) == (0, 100, 100, 1)
    (first, second) = rank.memory_stretch_operators or []
    assert (first.operator, first.allocated_bytes, first.calls, first.device) == ("aten::mm", 100, 1, 0)
    assert (second.operator, second.allocated_bytes, second.total_allocated_bytes) == ("aten::linear", 0, 100)


def test_stretch_in_which_nothing_changes_holds_what_was_there(tmp_path: Path) -> None:
    told = {"Total Allocated": 1_100}
    rank = rank_of(tmp_path, *STEPS, at(50, A, 100, **told), memory_between="0.060ms:0.090ms")
    (row,) = rank.memory_stretch or []
    assert (row.start_bytes, row.peak_bytes, row.peak_ns, row.allocated_count) == (1_100, 1_100, 60_000, 0)
    (row,) = rank_of(tmp_path, *STEPS, at(50, A, 100, **told), memory_between=":0.040ms").memory_stretch or []
    assert (row.start_bytes, row.end_bytes) == (1_000, 1_000)


def test_allocations_are_those_made_or_freed_in_the_stretch(tmp_path: Path) -> None:
    sizes = {text: [row.bytes for row in rows_of(tmp_path, *KNOWN, memory_between=text)]
             for text in ("1:2", "2:", "0.06ms:0.061ms", "0.15ms:", "0.03ms:0.06ms")}  # fmt: skip
    assert sizes == {
        "1:2": [100, 40, 16], "2:": [100, 8, 4], "0.06ms:0.061ms": [16], "0.15ms:": [100], "0.03ms:0.06ms": [],
    }  # fmt: skip


def test_stretch_that_is_not_in_the_trace_is_a_warning(tmp_path: Path) -> None:
    for text in ("7:", "1ms:2ms"):
        rank = rank_of(tmp_path, *KNOWN, memory_between=text, allocations=True)
        assert (rank.memory_stretch, list(rank.allocations or ())) == ([], [])
        assert "nothing of the stretch of --memory-between is in the trace" in rank.warnings


def test_stretch_is_shown_by_rank_and_operator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rank_of(tmp_path, *KNOWN)
    assert main(["analyze", str(tmp_path), "--memory-between", "1:2"]) == 0
    printed = capsys.readouterr().out
    assert "MEMORY OF A STRETCH OF TIME" in printed
    assert "MEMORY BY OPERATOR, IN THAT STRETCH" in printed


@pytest.mark.parametrize("text", ["", ":", "3", "5:3", "3:3", "3ms:5", "ms:ms", "-1:2", "2ms:1ms", "a:b", "1e3ms:"])
def test_stretch_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match="--memory-between"):
        parse_stretch(text)


# -- recorded traces ---------------------------------------------------------------------------------------------------


def follow(events: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return (device type, device, bytes, start in us, end in us) of what each event allocates, event by event."""
    changes = sorted((one for one in events if one["name"] == "[memory]"), key=lambda one: float(one["ts"]))
    there: dict[Any, list[Any]] = {}
    found = []
    for one in changes:
        args = one["args"]
        key = (args["Device Type"], args["Device Id"], args["Addr"])
        before = there.pop(key, None)
        if args["Bytes"] > 0:
            there[key] = [*key[:2], args["Bytes"], one["ts"], None]
            found.append(there[key])
        elif before is not None:
            before[-1] = one["ts"]
        else:
            found.append([*key[:2], -args["Bytes"], None, one["ts"]])
    return sorted(map(tuple, found), key=repr)


def compare(path: Path) -> RankReport:
    """Check the allocations of a trace against `follow`."""
    opened = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    expected = follow(json.loads(opened, strict=False)["traceEvents"])
    (rank,) = analyze(str(path), allocations=True).ranks
    rows = list(rank.allocations or ())
    assert sorted(row.bytes for row in rows) == sorted(one[2] for one in expected)
    lives = sorted(round((one[4] - one[3]) * 1_000) for one in expected if None not in one)
    found = sorted(row.lifetime_ns for row in rows if row.lifetime_ns is not None)
    assert len(found) == len(lives)
    assert max(abs(one - other) for one, other in zip(found, lives, strict=True)) <= 1_000  # of floats at 5 * 10**12 us
    assert len([row for row in rows if row.allocated_ns is None]) == sum(one[3] is None for one in expected)
    return rank


@pytest.mark.parametrize("name", ["h100_bert_small", "mi300x_resnet18"])
def test_allocations_are_those_of_a_loop_over_the_events(name: str) -> None:
    assert compare(TRACES / f"{name}.json.gz").allocations


def test_recorded_training_frees_what_it_allocates(tmp_path: Path) -> None:
    layer = torch.nn.Linear(64, 128)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True) as recorded:
        layer(torch.ones(32, 64)).sum().backward()
        kept = torch.empty(1 << 20, dtype=torch.uint8)
    path = tmp_path / "rank0.json"
    recorded.export_chrome_trace(str(path))
    rank = compare(path)
    largest = (rank.allocations or [])[0]
    assert (largest.bytes, largest.end, largest.operator) == (kept.nbytes, "held", "aten::empty")
    output = next(row for row in rank.allocations or () if row.operator == "aten::addmm")
    assert (output.bytes, output.end) == (32 * 128 * 4, "freed")
    (whole,) = analyze(str(path), memory_between="0ms:").ranks[0].memory_stretch or []
    assert (whole.peak_bytes, whole.end_bytes - whole.start_bytes) == (
        rank.memory[0].peak_bytes, whole.allocated_bytes - whole.freed_bytes,
    )  # fmt: skip
