"""Operators by all that was recorded of their inputs: by hand, and of a recording by a loop over its JSON."""

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rankscope.collector.commands.main import main
from rankscope.collector.traces import analyze
from rankscope.collector.traces.asked_rows import OPERATOR_SHAPES_MAX
from rankscope.collector.traces.files import read_chunks
from rankscope.collector.traces.parallel_reading import read_in_parallel
from rankscope.collector.traces.report import RankReport
from rankscope.collector.traces.tables import SHAPES_TEXT_MAX, describe_arguments
from rankscope.measure.kineto import ReadOptions
from rankscope.measure.kineto_columns import read_trace
from tests.unit.measure.written_traces import Event, event, to_json

TRACES = Path(__file__).parents[3] / "traces"


def scaled(start_us: int, length_us: int, strides: list[int], factor: str) -> Event:
    recorded = {
        "Input Dims": [[2, 3], []], "Input type": ["float", "Scalar"], "Input Strides": [strides, []],
        "Concrete Inputs": ["", factor],
    }  # fmt: skip
    return event("cpu_op", "aten::mul", start_us, length_us, **recorded)


# Of one shape: two calls by 2, one of them on a transposed tensor, one by 3, and one without any argument.
KNOWN = (
    scaled(0, 10, [3, 1], "2"), scaled(20, 12, [3, 1], "2"), scaled(40, 5, [1, 2], "2"), scaled(60, 4, [3, 1], "3"),
    event("cpu_op", "aten::mul", 80, 1),
)  # fmt: skip


def rank_of(folder: Path, *events: Event, **asked: Any) -> RankReport:
    (folder / "rank0.json").write_bytes(to_json(*events))
    (rank,) = analyze(str(folder), **asked).ranks
    return rank


def test_calls_that_differ_in_strides_or_a_value_are_apart(tmp_path: Path) -> None:
    rows = rank_of(tmp_path, *KNOWN, arguments=True).operator_arguments or []
    assert [(row.shapes, row.arguments, row.count, row.host_total_ns) for row in rows] == [
        ("2x3 float, Scalar", "(3, 1), 2", 2, 22_000),
        ("2x3 float, Scalar", "(1, 2), 2", 1, 5_000),
        ("2x3 float, Scalar", "(3, 1), 3", 1, 4_000),
        (None, None, 1, 1_000),
    ]


def test_arguments_are_there_only_when_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rank_of(tmp_path, *KNOWN, shapes=True).operator_arguments is None
    assert main(["analyze", str(tmp_path), "--arguments"]) == 0
    printed = capsys.readouterr().out
    assert "OPERATORS BY ARGUMENTS" in printed
    assert "(1, 2), 2" in printed
    assert main(["analyze", str(tmp_path), "--shapes"]) == 0
    assert "OPERATORS BY ARGUMENTS" not in capsys.readouterr().out


def test_rows_beyond_the_limit_are_counted(tmp_path: Path) -> None:
    many = [scaled(10 * place, 5, [3, 1], str(place)) for place in range(OPERATOR_SHAPES_MAX + 2)]
    rank = rank_of(tmp_path, *many, arguments=True)
    assert len(rank.operator_arguments or []) == OPERATOR_SHAPES_MAX
    assert "2 operators by arguments left out, those with the least time: 10,000 are listed" in rank.warnings


@pytest.mark.parametrize(
    ("strides", "values", "text"),
    [
        (b"[[1]]", b'["", "7"]', "(1), 7"),
        (b"[3, null]", b"", "3, None"),
        (b"", b"[1.5, [2], null]", "1.5, [2], None"),
        (b"[[[], [3]]]", b'["x"]', "((), (3))"),
        (b"{}", b'["x"]', '{} ["x"]'),
        (b'["\xff"]', b"", '["\ufffd"]'),
    ],
)
def test_arguments_are_described_as_far_as_they_can_be_read(strides: bytes, values: bytes, text: str) -> None:
    assert describe_arguments(strides, values) == text


def test_long_descriptions_are_cut() -> None:
    text = describe_arguments(b"[[" + b",".join([b"[100, 1]"] * 500) + b"]]", b"")
    assert (len(text), text[-3:]) == (SHAPES_TEXT_MAX, "...")


# -- recorded traces ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mi300x_resnet18", "cpu_only_r34"])
def test_groups_are_those_of_a_loop_over_the_events(name: str) -> None:
    path = TRACES / f"{name}.json.gz"
    fields = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    operators = [one for one in events if one.get("cat") == "cpu_op" and not one["name"].startswith("ProfilerStep")]
    expected = Counter(
        (one["name"], *(json.dumps(one.get("args", {}).get(field)) for field in fields)) for one in operators
    )
    (rank,) = analyze(str(path), arguments=True, shapes=True).ranks
    by_name: dict[str, list[int]] = {}
    for (operator, *_), count in expected.items():
        by_name.setdefault(operator, []).append(count)
    found: dict[str, list[int]] = {}
    for row in rank.operator_arguments or []:
        found.setdefault(row.name, []).append(row.count)
    assert {operator: sorted(counts) for operator, counts in found.items()} == {
        operator: sorted(counts) for operator, counts in by_name.items()
    }
    assert len(rank.operator_arguments or []) > len(rank.operator_shapes or [])


def test_arguments_read_by_several_processes_are_the_same() -> None:
    path = str(TRACES / "mi300x_resnet18.json.gz")
    found = read_in_parallel(read_chunks(path), 2, ReadOptions(arguments=True), piece_bytes=1_000_000).arguments
    expected = read_trace(read_chunks(path), ReadOptions(arguments=True)).arguments
    assert len(expected) > 1_000
    assert found == expected
