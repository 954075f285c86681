"""Operators by the shapes of their inputs."""

from collections import Counter
from pathlib import Path

import pytest

from rankscope.collector.commands.main import main
from rankscope.collector.reports.trace_tables import build_sections
from rankscope.collector.traces import analyze
from rankscope.collector.traces.asked_rows import OPERATOR_SHAPES_MAX
from rankscope.collector.traces.report import OperatorShapeRow, RankReport
from rankscope.collector.traces.tables import SHAPES_TEXT_MAX, describe_shapes
from tests.unit.measure.written_traces import Event, event, kernel, launch, to_json

TRACES = Path(__file__).parents[3] / "traces"


def operator(name: str, start_us: int, length_us: int, *shapes: list[int]) -> Event:
    recorded = {"Input Dims": list(shapes), "Input type": ["float"] * len(shapes)} if shapes else {}
    return event("cpu_op", name, start_us, length_us, **recorded)


# Two products of one shape, one of another that calls an operator without shapes, and one not recorded. The first
# launches 30 us of work, the third 70, of which 50 inside `inner`.
KNOWN = (
    operator("aten::mm", 0, 10, [2, 3], [3, 4]), launch(1, 1), kernel("gemm", 100, 30, correlation=1),
    operator("aten::mm", 20, 10, [2, 3], [3, 4]),
    operator("aten::mm", 40, 10, [8, 3], [3, 4]), launch(41, 2), kernel("gemm", 140, 20, correlation=2),
    operator("inner", 43, 5), launch(44, 3), kernel("gemm", 200, 50, correlation=3),
    operator("aten::mm", 60, 5),
)  # fmt: skip


def rank_of(folder: Path, *events: Event, shapes: bool = True) -> RankReport:
    (folder / "rank0.json").write_bytes(to_json(*events))
    (rank,) = analyze(str(folder), shapes=shapes).ranks
    return rank


def times(row: OperatorShapeRow) -> tuple[int, ...]:
    return row.count, row.host_total_ns, row.host_self_ns, row.device_total_ns, row.device_self_ns


def test_calls_with_inputs_of_one_shape_are_one_row(tmp_path: Path) -> None:
    rows = rank_of(tmp_path, *KNOWN).operator_shapes or []
    assert {(row.name, row.shapes): times(row) for row in rows} == {
        ("aten::mm", "2x3 float, 3x4 float"): (2, 20_000, 20_000, 30_000, 30_000),
        ("aten::mm", "8x3 float, 3x4 float"): (1, 10_000, 5_000, 70_000, 20_000),
        ("aten::mm", None): (1, 5_000, 5_000, 0, 0),
        ("inner", None): (1, 5_000, 5_000, 50_000, 50_000),
    }


def test_the_most_device_time_of_its_own_comes_first(tmp_path: Path) -> None:
    rows = rank_of(tmp_path, *KNOWN).operator_shapes or []
    assert [row.device_self_ns for row in rows] == [50_000, 30_000, 20_000, 0]


def test_shapes_are_not_read_unless_asked_for(tmp_path: Path) -> None:
    assert rank_of(tmp_path, *KNOWN, shapes=False).operator_shapes is None


@pytest.mark.parametrize("name", ["v100_dlrm_8ranks_r0", "mi300x_resnet18", "cpu_only_r34"])
def test_rows_of_one_operator_sum_to_its_row_without_shapes(name: str) -> None:
    (rank,) = analyze(str(TRACES / f"{name}.json.gz"), shapes=True).ranks
    sums: dict[str, Counter[str]] = {}
    for row in rank.operator_shapes or []:
        sums.setdefault(row.name, Counter()).update(
            {"count": row.count, "device": row.device_self_ns, "host": row.host_self_ns}
        )
    assert {one: (of["count"], of["device"], of["host"]) for one, of in sums.items()} == {
        row.name: (row.count, row.device_self_ns, row.host_self_ns) for row in rank.operators
    }


def test_asking_for_shapes_changes_nothing_else() -> None:
    path = str(TRACES / "v100_dlrm_8ranks_r0.json.gz")
    (plain,), (shaped,) = analyze(path).ranks, analyze(path, shapes=True).ranks
    assert (plain.signs, plain.collectives, plain.operators) == (shaped.signs, shaped.collectives, shaped.operators)


def test_rows_beyond_the_limit_are_counted(tmp_path: Path) -> None:
    many = [operator("aten::mm", 10 * place, 5, [place + 1]) for place in range(OPERATOR_SHAPES_MAX + 3)]
    rank = rank_of(tmp_path, *many)
    assert len(rank.operator_shapes or []) == OPERATOR_SHAPES_MAX
    assert "3 operators by shape left out, those with the least time: 10,000 are listed" in rank.warnings


def test_table_is_there_when_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rank_of(tmp_path, *KNOWN)
    assert main(["analyze", str(tmp_path), "--shapes"]) == 0
    assert "OPERATORS BY SHAPE" in capsys.readouterr().out
    assert main(["analyze", str(tmp_path)]) == 0
    assert "OPERATORS BY SHAPE" not in capsys.readouterr().out


def test_table_shows_inputs_beside_the_operator(tmp_path: Path) -> None:
    rank_of(tmp_path, *KNOWN)
    sections = build_sections(analyze(str(tmp_path), shapes=True), 20)
    (found,) = (one for one in sections if one.key == "operator_shapes")
    assert [cell.text for cell in found.rows[1]] == [
        "aten::mm", "2x3 float, 3x4 float", "2", "0.030", "0.030", "0.020", "0.020",
    ]  # fmt: skip


# -- the text of shapes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("types", "dims", "text"),
    [
        (b'["float", "Scalar"]', b"[[], []]", "float, Scalar"),
        (b'["TensorList"]', b"[[[], [3]]]", "(scalar; 3) TensorList"),
        (b'["float"]', b"[7]", "7 float"),
        (b'["float"]', b"[[1], [2]]", '["float"] [[1], [2]]'),
        (b"3", b"[]", "3 []"),
        (b'["\xff"]', b"[[1]]", '["\ufffd"] [[1]]'),
    ],
)
def test_inputs_are_described_as_far_as_they_can_be_read(types: bytes, dims: bytes, text: str) -> None:
    assert describe_shapes(types, dims) == text


def test_long_descriptions_are_cut() -> None:
    text = describe_shapes(b'["TensorList"]', b"[[" + b",".join([b"[100, 100]"] * 500) + b"]]")
    assert (len(text), text[-3:]) == (SHAPES_TEXT_MAX, "...")
