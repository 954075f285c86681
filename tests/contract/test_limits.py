"""Limits on what makes code hard to carry on: large classes, files that import half of the package, files cut by size.

Each exception has its reason. One that is not needed any more fails too.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("agent", "collector", "measure", "uplink")

METHODS_MAX: Final = 20
IMPORTS_MAX: Final = 20
SMALL_LINES: Final = 60
IMPORTERS_MIN: Final = 2

MANY_METHODS: Final[Mapping[str, str]] = {}

ASSEMBLES: Final = "assembles its program: to import the parts is what it is for"
COMMAND: Final = "a command reaches into every room that it needs; nothing imports it"
MANY_IMPORTS: Final = {
    "collector/commands/main.py": COMMAND,
    "collector/commands/serve.py": COMMAND,
    "collector/commands/status.py": COMMAND,
    "collector/demo/run.py": COMMAND,
    "collector/publish/http_server.py": "speaks HTTP through the standard library, of which it needs eleven modules",
    "collector/publisher.py": ASSEMBLES,
    "collector/relay/service.py": ASSEMBLES,
    "collector/run_updates.py": "meets every event and effect of a run, and the parts that they concern",
    "collector/service.py": ASSEMBLES,
}

ONE_TABLE: Final = "one table a file, apart from the many others"
ONE_COMMAND: Final = "one file a command, so that it is found by its name"
ONE_LOGGER: Final = "one logger a file, which imports it"
SMALL: Final = {
    "agent/steps/executed_code.py": "works around a fault of torch, apart from the session that it is for",
    "agent/integrations/tensorboard.py": ONE_LOGGER,
    "agent/integrations/wandb.py": ONE_LOGGER,
    "collector/captures/incident_captures.py": "which incidents order a capture, apart from how one is taken",
    "collector/commands/demo.py": ONE_COMMAND,
    "collector/commands/keys.py": ONE_COMMAND,
    "collector/commands/merge.py": ONE_COMMAND,
    "collector/commands/relay.py": ONE_COMMAND,
    "collector/relay/relay_auth.py": "the keys of a relay, apart from its loop",
    "collector/run_summaries.py": "which rank is sent a summary, and when, apart from the service's loop",
    "collector/traces/cycles.py": ONE_TABLE,
    "collector/reports/cycle_table.py": ONE_TABLE,
    "collector/reports/notebook_view.py": "what a notebook shows, apart from what a terminal or a page does",
    "collector/embedded.py": "the lifetime of an embedded collector, apart from the command line",
    "collector/publish/api/refused_orders.py": "which refusals are logged, apart from the answers",
}


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def list_files() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imported_modules(path: Path) -> Iterator[str]:
    """Yield the files of the package that a file imports, by their names."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            modules = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        else:
            continue
        for module in modules:
            yield f"{module.removeprefix('rankscope.').replace('.', '/')}.py"


def compare(found: Mapping[str, object], exceptions: Mapping[str, str]) -> None:
    """Fail with what is over a limit and no exception, and with exceptions that are not needed."""
    over = {name: value for name, value in found.items() if name not in exceptions}
    assert (over, sorted(exceptions.keys() - found.keys())) == ({}, [])


def test_classes_have_few_methods() -> None:
    found = {}
    for path in list_files():
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.ClassDef):
                count = sum(isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) for one in node.body)
                if count > METHODS_MAX:
                    found[f"{name_of(path)} {node.name}"] = count
    compare(found, MANY_METHODS)


def test_files_have_few_imports() -> None:
    found = {}
    for path in list_files():
        count = sum(isinstance(node, ast.Import | ast.ImportFrom) for node in parse(path).body)
        if count > IMPORTS_MAX:
            found[name_of(path)] = count
    compare(found, MANY_IMPORTS)


def test_small_files_have_two_importers() -> None:
    importers: dict[str, set[str]] = defaultdict(set)
    for path in list_files():
        for module in imported_modules(path):
            importers[module].add(name_of(path))
    found = {}
    for path in list_files():
        name = name_of(path)
        is_small = path.read_text().count("\n") < SMALL_LINES and path.name not in {"__init__.py", "__main__.py"}
        if is_small and len(importers[name] - {name}) < IMPORTERS_MIN:
            found[name] = sorted(importers[name])
    compare(found, SMALL)
