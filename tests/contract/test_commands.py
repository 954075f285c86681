"""Check that all commands are alike: the words for JSON and for what is refused, and the exit codes on their page."""

import argparse
import ast
import re
from pathlib import Path

import pytest

from rankscope.agent.preflight.options import build_parser
from rankscope.agent.preflight.results import EXIT_STATUS
from rankscope.collector.commands.command import Command, give_json
from rankscope.collector.commands.main import COMMANDS, USAGE_ERROR
from rankscope.measure.errors import UnavailableError

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/commands.md").read_text()
WITHOUT_JSON = {"serve", "relay", "top", "view", "log", "keys", "files", "merge", "capture"}
"""They have no answer: they serve, make files, or order."""
JSON = {"--json": (0, "instead of the text"), "--json-file": (None, "write the JSON to this file, besides")}
"""Both options: number of values, and how the help ends."""
SAME = {"--anyway", "--any-world", "--overwrite", "--yes", "--ignore-errors", "--unequal"}
"""Other words for `--force`."""


def prepare(command: Command) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    command.prepare_parser(parser)
    return parser


PARSERS = {command.name: prepare(command) for command in COMMANDS} | {"preflight": build_parser()}


@pytest.mark.parametrize("name", sorted(PARSERS))
def test_every_command_with_an_answer_prints_it_and_writes_it(name: str) -> None:
    found = {word: action for action in PARSERS[name]._actions for word in action.option_strings}
    assert {word for word in found if "json" in word} == (set() if name in WITHOUT_JSON else set(JSON))
    for word in JSON.keys() & found.keys():
        values, end = JSON[word]
        assert found[word].nargs == values
        assert str(found[word].help).endswith(end)
    assert not SAME & found.keys()


def test_page_names_the_commands_that_have_no_json() -> None:
    (listed,) = re.findall(r"Others\s+serve \(([^)]*)\), make files \(([^)]*)\) or order \(([^)]*)\)", PAGE)
    assert set(re.findall(r"`([a-z-]+)`", "".join(listed))) == WITHOUT_JSON


def test_page_has_every_exit_code_of_every_command() -> None:
    codes = {int(code) for row in re.findall(r"^\| ([\d, ]+) \| ", PAGE, re.MULTILINE) for code in row.split(", ")}
    paths = sorted((ROOT / "collector/commands").glob("*.py"))
    returned = {code for path in paths for code in find_returned(ast.parse(path.read_text()))}
    assert {0, 1, 3} <= returned | {USAGE_ERROR, *EXIT_STATUS.values()} <= codes


def find_returned(tree: ast.Module) -> set[int]:
    """Return the numbers that functions called `run` or `find_exit_status` return, as such or by a constant."""
    known = {
        node.target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        and isinstance(node.value, ast.Constant) and type(node.value.value) is int
    }  # fmt: skip
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    values = [
        value
        for function in functions
        if function.name in {"run", "find_exit_status", "print_errors"}
        for node in ast.walk(function)
        if isinstance(node, ast.Return) and node.value is not None
        for value in ast.walk(node.value)
    ]
    return {value.value for value in values if isinstance(value, ast.Constant) and type(value.value) is int} | {
        known[value.id] for value in values if isinstance(value, ast.Name) and value.id in known
    }


@pytest.mark.parametrize(("prints", "writes"), [(True, False), (False, True), (True, True), (False, False)])
def test_json_is_printed_and_written_as_asked(
    prints: bool, writes: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "found.json"
    options = argparse.Namespace(json=prints, json_file=path if writes else None)
    assert give_json(options, {"a": 1}) is not prints
    text = '{\n  "a": 1\n}\n'
    assert capsys.readouterr().out == (text if prints else "")
    assert (path.read_text() if writes else None) == (text if writes else None)
    if writes:
        options.json_file = tmp_path / "no/found.json"
        with pytest.raises(UnavailableError, match=r"found.json \(from --json-file\) cannot be written: No such"):
            give_json(options, {})
