"""Check the shape of the code: sizes, docstrings, and where the length of a second is defined."""

import ast
import statistics
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("agent", "collector", "measure", "uplink")
FUNCTION_LINES_MAX = 70
FUNCTION_LINES_MEDIAN_MAX = 15
NS_PER_S = 10**9

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef


class Found(NamedTuple):
    """Definition and its place."""

    path: Path
    node: Definition

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.node.lineno} {self.node.name}"


def find_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def find_functions(*folders: str) -> Iterator[tuple[Found, int]]:
    """Yield every function and its lines, from `def` to its last one."""
    for path in find_files(*folders):
        for node in ast.walk(parse(path)):
            if isinstance(node, Function):
                assert node.end_lineno is not None
                yield Found(path, node), node.end_lineno - node.lineno + 1


def find_public(path: Path, body: list[ast.stmt]) -> Iterator[Found]:
    """Yield the classes, functions and methods that another file may use."""
    for node in body:
        if isinstance(node, Definition) and not node.name.startswith("_"):
            yield Found(path, node)
            if isinstance(node, ast.ClassDef):
                yield from find_public(path, node.body)


def test_no_function_is_longer_than_a_page() -> None:
    assert [str(found) for found, lines in find_functions(*PACKAGES, "tests") if lines > FUNCTION_LINES_MAX] == []


def test_half_of_the_functions_are_short() -> None:
    lines = [lines for _, lines in find_functions(*PACKAGES)]
    assert statistics.median(lines) <= FUNCTION_LINES_MEDIAN_MAX


def test_everything_public_has_a_docstring() -> None:
    public = [found for path in find_files(*PACKAGES) for found in find_public(path, parse(path).body)]
    assert [str(found) for found in public if ast.get_docstring(found.node) is None] == []


def test_every_file_says_what_it_is_for() -> None:
    files = [path for path in find_files(*PACKAGES, "tests") if parse(path).body]
    assert [str(path.relative_to(ROOT)) for path in files if ast.get_docstring(parse(path)) is None] == []


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
