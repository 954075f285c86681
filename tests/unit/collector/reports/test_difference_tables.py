"""Tables of a comparison of two sets of traces."""

from rankscope.collector.reports.difference_tables import build_difference_sections
from rankscope.collector.traces.report import Comparison, DifferenceRow, DifferenceTable

MS = 1_000_000
ROW = DifferenceRow(
    kind="compute", name="gemm", step_ns=30 * MS, against_step_ns=20 * MS, difference_ns=10 * MS, share_ratio=2.0,
    step_count=4.5, against_step_count=4.0,
)  # fmt: skip
COMPARED = Comparison(
    against_files=["b.json"], refused=None, notes=["the device differs: A100, against H100"], clock="device",
    ranks=[0, 1], against_ranks=[0, 1], steps=6, against_steps=4, step_ns=105 * MS, against_step_ns=100 * MS,
    difference_ns=5 * MS, tables=[DifferenceTable(key="kernels", rows=[ROW, ROW], remainder_ns=-3)],
)  # fmt: skip


def test_without_a_comparison_there_are_no_tables() -> None:
    assert build_difference_sections(None, 20) == []


def test_refused_comparison_has_its_reason() -> None:
    (section,) = build_difference_sections(Comparison(against_files=[], refused="no steps"), 20)
    assert (section.rows, section.reason) == ((), "Not compared: no steps.")


def test_steps_of_both_sides_are_in_front_with_what_else_differs() -> None:
    steps, notes, _ = build_difference_sections(COMPARED, 20)
    assert "by the device's clock on both sides" in steps.explanation
    assert [[cell.text for cell in row] for row in steps.rows] == [
        ["these", "0-1", "6", "105.000", "5.000", "5.0"],
        ["against", "0-1", "4", "100.000", "-", "-"],
    ]
    assert [[cell.text for cell in row] for row in notes.rows] == [["the device differs: A100, against H100"]]


def test_table_says_its_remainder_and_cuts_its_rows() -> None:
    kernels = build_difference_sections(COMPARED, 1)[2]
    assert "but for -3 ns of rounding" in kernels.explanation
    assert [[cell.text for cell in row] for row in kernels.rows] == [
        ["compute", "gemm", "30.000", "20.000", "10.000", "200.0", "4.5", "4.0"]
    ]
    assert (kernels.left_out, len(kernels.columns)) == (1, 8)
