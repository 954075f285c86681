"""What was broken once has a test that exists, and `make soak` runs those of real jobs five times."""

import ast
from pathlib import Path

import pytest

from tests.kept_promises import PROMISES, ROOT, list_jobs, read_table, render

TESTS = sorted({test for promise in PROMISES for test in promise.tests})


@pytest.mark.parametrize("test", TESTS)
def test_each_test_exists(test: str) -> None:
    file, _, function = test.partition("::")
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert function in names if function else any(name.startswith("test_") for name in names)


def test_soak_runs_those_of_real_jobs_five_times() -> None:
    soak = Path(ROOT / "Makefile").read_text(encoding="utf-8").partition("\nsoak: ")[2].partition("\n\n")[0]
    assert "for turn in 1 2 3 4 5; do" in soak
    assert "$$($(BIN)/python -m tests.kept_promises)" in soak
    assert len(list_jobs()) > 10


def test_table_of_the_page_is_as_it_is_written() -> None:
    assert read_table() == render()
