"""docs/faults.md: its tables are as the program writes them, and name tests that exist."""

import ast
import re
from pathlib import Path

import pytest

from tests.integration.fault_figures import FaultFigure, InputFigure
from tests.integration.fault_tables import PAGE, replace_between, write

TESTS = Path(__file__).parents[1] / "integration"
FAULT = FaultFigure(
    fault="a plug pulled", outcome="it is put back", command="python -m pytest tests/integration/test_a.py::test_b",
    ranks=4, made=12_345, lost={"overwritten": 1_000, "dropped_in_reports": 0, "late": 2}, unaccounted=0, gaps=0,
    delivered_s=1.25, peak_bytes=52 << 20,
)  # fmt: skip
INPUT = InputFigure(
    sent="noise", refused="bad_magic", command="python -m pytest tests/integration/test_c.py::test_d", count=1_000,
    grown_bytes=-4096, answer_s=0.0021,
)  # fmt: skip


def named_tests() -> set[tuple[str, str]]:
    """Return the tests that the tables name, each with its file."""
    return set(re.findall(r"`(test_\w+\.py)::(test_\w+)`", PAGE.read_text(encoding="utf-8")))


def test_every_test_in_the_tables_exists() -> None:
    assert named_tests()
    for file, test in named_tests():
        tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
        assert test in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_fault_test_with_a_cost_is_in_the_tables() -> None:
    """Find them by their calls of Fault or BadInput, which a new one has too."""
    noting = set()
    for path in TESTS.glob("test_*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and {"Fault", "BadInput"} & {
                call.func.id
                for call in ast.walk(node)
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
            }:
                noting.add((path.name, node.name))
    assert noting == named_tests()


def test_a_fault_and_an_input_are_a_row_each() -> None:
    rows = [
        line for line in write(PAGE.read_text(encoding="utf-8"), [FAULT, INPUT], "").splitlines() if "test_" in line
    ]
    assert (
        "| a plug pulled | it is put back | 4 | 12,345 | 1,000 overwritten, 2 late | 0 | 1.2 s | 52 MiB "
        "| `test_a.py::test_b` |"
    ) in rows
    assert "| noise | bad_magic | 1,000 | 0.0 MiB | 2 ms | `test_c.py::test_d` |" in rows


def test_a_page_without_the_marks_is_refused() -> None:
    with pytest.raises(ValueError, match=r"has no <!-- b --> with an <!-- end --> behind it"):
        replace_between("a\n", "<!-- b -->\n", "c\n")
