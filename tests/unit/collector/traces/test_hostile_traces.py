"""Traces that are made to take long: what grows with the square of something in them is refused."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from rankscope.collector.traces import analyze
from rankscope.collector.traces.files import MEMBERS_MAX
from rankscope.collector.traces.modules import DEPTH_MAX
from rankscope.collector.traces.parallel_reading import read_in_parallel
from rankscope.collector.traces.rank_analysis import COLLECTIVE_KINDS_MAX, DEVICES_MAX, STEPS_MAX, STREAMS_MAX
from rankscope.measure.errors import TraceError
from rankscope.measure.kineto_columns import CATEGORIES_MAX, NAMES_MAX


def write(path: Path, events: list[dict[str, Any]]) -> str:
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return str(path)


def test_more_devices_than_a_machine_has_are_refused(tmp_path: Path) -> None:
    kernels = [
        {"ph": "X", "cat": "kernel", "name": "k", "pid": one, "tid": 7, "ts": one, "dur": 1,
         "args": {"device": one, "stream": 7}}
        for one in range(DEVICES_MAX + 1)
    ]  # fmt: skip
    (error,) = analyze(write(tmp_path / "devices.json", kernels)).errors
    assert error.reason == "it has work on 1,025 devices; a machine has at most 1,024"


def test_too_many_steps_are_refused_and_some_may_be_chosen(tmp_path: Path) -> None:
    steps = [
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": f"ProfilerStep#{one}",
            "pid": 1,
            "tid": 1,
            "ts": 2 * one,
            "dur": 1,
        }
        for one in range(STEPS_MAX + 1)
    ]
    path = write(tmp_path / "steps.json", steps)
    (error,) = analyze(path).errors
    assert error.reason == "it has 20,001 steps; choose some of them (--steps A:B), at most 20,000"
    assert len(analyze(path, steps=(5, 9)).ranks[0].steps) == 4


def test_step_whose_number_no_counter_holds_is_none(tmp_path: Path) -> None:
    base = {"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1}
    steps = [{**base, "name": f"ProfilerStep#{number}", "ts": 1, "dur": 5} for number in ("9" * 30, "9" * 18)]
    (rank,) = analyze(write(tmp_path / "rank0.json", steps)).ranks
    assert [step.step for step in rank.steps] == [int("9" * 18)]


def operators(count: int, **changed: str) -> list[dict[str, Any]]:
    """Return operators one behind the other, in which the fields `changed` have their number in their text."""
    base = {"ph": "X", "cat": "cpu_op", "name": "op", "pid": 1, "tid": 1, "dur": 1}
    return [{**base, "ts": 2 * one, **{key: f"{text}{one}" for key, text in changed.items()}} for one in range(count)]


READ_MAX = "the most that are read"


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ("name", f"names, {READ_MAX}. Leave numbers out of the names of ranges, or record fewer steps"),
        ("tid", f"threads and streams, {READ_MAX}"),
        ("pid", f"threads and streams, {READ_MAX}"),
    ],
)
def test_more_names_or_threads_than_can_be_summed_up_are_refused(tmp_path: Path, field: str, reason: str) -> None:
    (error,) = analyze(write(tmp_path / "rank0.json", operators(NAMES_MAX + 1, **{field: "x"}))).errors
    assert error.reason == f"it has more than 100,000 different {reason}"


def test_more_categories_than_a_profiler_has_are_refused(tmp_path: Path) -> None:
    (error,) = analyze(write(tmp_path / "rank0.json", operators(CATEGORIES_MAX + 1, cat="x"))).errors
    assert error.reason == "it has more than 10,000 different categories, the most that are read"


def test_names_of_several_pieces_count_together() -> None:
    text = json.dumps({"traceEvents": operators(NAMES_MAX + 1, name="x")}).encode()
    with pytest.raises(TraceError, match="more than 100,000 different names"):
        read_in_parallel(
            [text[start : start + 100_000] for start in range(0, len(text), 100_000)], 1, piece_bytes=1 << 20
        )


def nested_modules(levels: int, name: str) -> list[dict[str, Any]]:
    """Return the frames of modules, each inside of the one before."""
    base = {"ph": "X", "cat": "python_function", "pid": 1, "tid": 1}
    return [
        {**base, "name": f"nn.Module: {name}_{one}", "ts": one, "dur": 2 * levels - 2 * one} for one in range(levels)
    ]


@pytest.mark.parametrize("asked", [{"modules": True}, {"flops": True}])
def test_modules_nested_deeper_than_calls_can_be_are_refused(tmp_path: Path, asked: dict[str, Any]) -> None:
    path = write(tmp_path / "rank0.json", nested_modules(DEPTH_MAX + 1, "Block"))
    (error,) = analyze(path, **asked).errors
    assert error.reason == "its modules are 501 levels deep; at most 500 are told apart"
    assert analyze(path).errors == []


def test_path_of_deep_modules_with_long_names_is_bounded(tmp_path: Path) -> None:
    (rank,) = analyze(write(tmp_path / "rank0.json", nested_modules(DEPTH_MAX, 100 * "x")), modules=True).ranks
    paths = [row.path for row in rank.modules or () if row.path is not None]
    assert len(set(paths)) == DEPTH_MAX
    assert max(map(len, paths)) < 4_100


def test_more_streams_than_a_process_has_are_refused(tmp_path: Path) -> None:
    kernels = [
        {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 1, "ts": one, "dur": 1,
         "args": {"device": 0, "stream": one}}
        for one in range(STREAMS_MAX + 1)
    ]  # fmt: skip
    (error,) = analyze(write(tmp_path / "rank0.json", kernels)).errors
    assert error.reason == "it has work on 10,001 streams; one process has at most 10,000"


def test_too_many_kinds_of_collectives_are_refused(tmp_path: Path) -> None:
    kernels = [
        {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "pid": 0, "tid": 7, "ts": 2 * one, "dur": 1,
         "args": {"device": 0, "stream": 7, "Collective name": "allreduce", "In msg nelems": 4, "Out msg nelems": 4,
                  "Group size": 4, "dtype": "Float", "Process Group Name": str(one)}}
        for one in range(COLLECTIVE_KINDS_MAX + 1)
    ]  # fmt: skip
    (error,) = analyze(write(tmp_path / "rank0.json", kernels)).errors
    assert error.reason == "it has 10,001 kinds of collectives; at most 10,000 are summed up"


def test_gzip_file_of_very_many_members_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents":[') + MEMBERS_MAX * gzip.compress(b"") + gzip.compress(b"]}"))
    (error,) = analyze(str(path)).errors
    assert error.reason == "the gzip file has more than 100,000 members: inflate it and compress it as one"
