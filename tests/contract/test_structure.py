"""Check what the code means to keep: each file says what it is for, one knows a second's length, one logs tracebacks.

Counts of style are printed by `make counts`, and fail nothing.
"""

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("agent", "collector", "measure", "uplink")
NS_PER_S = 10**9


def find_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def test_every_file_says_what_it_is_for() -> None:
    # Most of the 2,000 files begin with it, and need not be parsed for that.
    others = [path for path in find_files(*PACKAGES, "bench", "tests") if not path.read_text().startswith('"""')]
    parsed = {str(path.relative_to(ROOT)): parse(path) for path in others}
    assert [name for name, tree in parsed.items() if tree.body and ast.get_docstring(tree) is None] == []


def test_one_file_knows_how_many_nanoseconds_a_second_has() -> None:
    knowing = {
        path.relative_to(ROOT).as_posix()
        for path in find_files(*PACKAGES)
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Constant) and type(node.value) in {int, float} and node.value == NS_PER_S
    }
    assert knowing == {"measure/units.py"}


def test_one_file_of_the_collector_logs_tracebacks() -> None:
    # fault_log.py has a limit of each kind a minute; a traceback logged otherwise may come with every message.
    logging = {
        path.relative_to(ROOT).as_posix()
        for path in find_files("collector")
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and (
            (node.func.attr == "exception" and isinstance(node.func.value, ast.Name) and node.func.value.id == "LOG")
            or any(keyword.arg == "exc_info" for keyword in node.keywords)
        )
    }
    assert logging == {"collector/fault_log.py"}


@pytest.mark.parametrize("package", PACKAGES)
def test_the_packages_are_found(package: str) -> None:
    # The tests above pass on an empty list: check that it has entries.
    assert len(find_files(package)) > 5
