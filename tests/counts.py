"""Print the counts that say where the code is hard to carry on. They are looked at; no test fails for one of them.

What makes code hard is no number: a class of 21 methods may be one idea, and a file that was cut to have 20 imports is
two halves of one. So look at the head of each list now and then, and read what stands there.
"""

import argparse
import ast
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
PACKAGES: Final = ("agent", "collector", "measure", "uplink")
SMALL_LINES: Final = 60
ACTIVE_METHODS: Final = 5
"""A class of fewer is a record or a setting, whose many fields are no burden."""
TRAINING: Final = """
import os, sys, time, torch
from torch import distributed, nn
from rankscope.agent import launch
distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
reporter, until_s = launch.session._reporter, time.monotonic() + 120
has_windows = launch.session._training.windows.scheduler is not None
while not reporter._builder.totals.steps or (has_windows and reporter._window_results.full_events_a_step is None):
    assert time.monotonic() < until_s, "no report, or no full window, in two minutes"
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
for name, module in list(sys.modules.items()):
    if name.startswith("rankscope.") and getattr(module, "__file__", None):
        print(os.path.realpath(module.__file__))
"""
"""A rank of a default job, which prints the files of ours that it has imported once it has reported steps, and a full
window if it has any.
"""
START: Final = """
import gc, os, sys, tempfile, time
import torch, torch.distributed, torch.utils.data, msgspec, numpy, zmq
sys.dont_write_bytecode, sys.pycache_prefix = True, os.path.join(tempfile.gettempdir(), "no-bytecode-of-rankscope")
read_bytes = lambda: int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
gc.collect()
gc.disable()
before_bytes, begin_ns = read_bytes(), time.thread_time_ns()
from rankscope.agent.config import read_config
from rankscope.agent.session import Session
Session(read_config(os.environ), {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"})
print((time.thread_time_ns() - begin_ns) / 1e6, (read_bytes() - before_bytes) / 2**20)
"""
"""Prints the CPU time, in ms, of importing and assembling the agent from source after torch, and the MiB it takes."""
STARTS: Final = 10
WITHOUT_WINDOWS: Final = {"RANKSCOPE_FULL_WINDOWS": "0", "RANKSCOPE_COLLECTIVE_WINDOWS": "0"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


class ClassCounts(NamedTuple):
    """What a class has, by its place."""

    place: str
    methods: int
    attributes: int
    arguments: int
    callbacks: int


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def count_lines(path: Path) -> int:
    return path.read_text().count("\n")


def list_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders or PACKAGES for path in (ROOT / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def count_imports(path: Path) -> int:
    """The import statements at the head of a file."""
    return sum(isinstance(node, ast.Import | ast.ImportFrom) for node in parse(path).body)


def imported_files(path: Path) -> Iterator[str]:
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


def functions() -> Iterator[tuple[str, int]]:
    """Yield the place of every function and its lines."""
    for path in list_files():
        for node in ast.walk(parse(path)):
            if isinstance(node, Function):
                yield f"{name_of(path)} {node.name}", (node.end_lineno or node.lineno) - node.lineno + 1


def read_class(path: Path, node: ast.ClassDef) -> ClassCounts:
    methods = [child for child in node.body if isinstance(child, Function)]
    fields = [child for child in node.body if isinstance(child, ast.AnnAssign)]
    arguments = len(fields)
    attributes = {child.target.id for child in fields if isinstance(child.target, ast.Name)}
    annotations = [field.annotation for field in fields]
    for method in methods:
        assigned = (child for child in ast.walk(method) if isinstance(child, ast.Attribute))
        attributes |= {
            child.attr
            for child in assigned
            if isinstance(child.ctx, ast.Store) and isinstance(child.value, ast.Name) and child.value.id == "self"
        }
        if method.name == "__init__":
            taken = [*method.args.posonlyargs, *method.args.args, *method.args.kwonlyargs][1:]
            arguments = len(taken)
            annotations = [argument.annotation for argument in taken if argument.annotation is not None]
    callbacks = sum("Callable" in ast.unparse(annotation) for annotation in annotations)
    return ClassCounts(f"{name_of(path)} {node.name}", len(methods), len(attributes), arguments, callbacks)


def classes() -> Iterator[ClassCounts]:
    """Yield the counts of every class of the package."""
    for path in list_files():
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.ClassDef):
                yield read_class(path, node)


def small_files() -> Iterator[tuple[str, int]]:
    """Yield short files that at most one other imports: maybe a part of that one."""
    importers: dict[str, set[str]] = defaultdict(set)
    for path in list_files():
        for imported in imported_files(path):
            importers[imported].add(name_of(path))
    for path in list_files():
        name, lines = name_of(path), count_lines(path)
        if (
            lines < SMALL_LINES
            and path.name not in {"__init__.py", "__main__.py"}
            and len(importers[name] - {name}) < 2
        ):
            yield name, lines


def imported_by_a_rank(**variables: str) -> list[Path]:
    """Train for a moment with the agent; return the files of ours that the process has imported."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "training.py"
        script.write_text(TRAINING)
        process = subprocess.run(
            [sys.executable, script],
            env={**os.environ, "RANKSCOPE": "1", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", **variables},
            capture_output=True,
            text=True,
            check=True,
        )
    return sorted({Path(line) for line in process.stdout.splitlines() if line.startswith(str(ROOT))})


def measure_starts(**variables: str) -> tuple[float, float]:
    """Return the median CPU time, in ms, and the median resident memory, in MiB, of several starts of the agent."""
    command = [sys.executable, "-c", START]
    environment = {**os.environ, **variables}
    texts = [subprocess.check_output(command, env=environment, text=True) for _ in range(STARTS)]
    times_ms, sizes_mib = zip(*(map(float, text.split()) for text in texts), strict=True)
    return statistics.median(times_ms), statistics.median(sizes_mib)


def show(title: str, rows: Iterable[tuple[object, object]], at_most: int) -> None:
    print(f"\n{title}")
    for place, count in sorted(rows, key=lambda row: (-float(str(row[1])), str(row[0])))[:at_most]:
        print(f"{count!s:>8}  {place}")


def show_folders() -> None:
    totals: Counter[str] = Counter()
    for path in list_files():
        folder, *rest = path.relative_to(ROOT).parts
        totals[folder] += count_lines(path)
        totals[f"{folder}/{rest[0]}" if len(rest) > 1 else f"{folder}/*.py"] += count_lines(path)
    print("Lines by folder")
    for folder in sorted(totals):
        print(f"{totals[folder]:8}  {folder}")
    print(f"{sum(totals[package] for package in PACKAGES):8}  the package")
    print(f"{count_lines(ROOT / 'README.md'):8}  README.md")
    for folder in ("tests", "bench", "deploy"):
        print(f"{sum(map(count_lines, list_files(folder))):8}  {folder}")


def main() -> None:
    """Print all counts."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--top", type=int, default=20, help="how many rows of each list")
    parser.add_argument("--no-job", action="store_true", help="train with no agent, to count what it imports")
    options = parser.parse_args()
    show_folders()
    lines = list(functions())
    print(f"\n{len(lines)} functions, the median of {statistics.median(count for _, count in lines):.0f} lines")
    show("Longest functions: lines", lines, options.top)
    counted = list(classes())
    active = [row for row in counted if row.methods >= ACTIVE_METHODS]
    for number, title in enumerate(("methods", "attributes", "constructor arguments", "callbacks among them"), 1):
        show(f"Classes: {title}", ((row.place, row[number]) for row in active), options.top)
    show("Files: imports", ((name_of(path), count_imports(path)) for path in list_files()), options.top)
    show(f"Files under {SMALL_LINES} lines that at most one imports: lines", small_files(), options.top * 5)
    names = Counter(row.place.split()[-1] for row in counted)
    show(
        "Names of several classes: how many", ((name, count) for name, count in names.items() if count > 1), options.top
    )
    if not options.no_job:
        for title, variables in (("by default", {}), ("without windows", WITHOUT_WINDOWS)):
            files = imported_by_a_rank(**variables)
            took_ms, size_mib = measure_starts(**variables)
            print(f"\nA rank {title} imports {len(files)} files of ours: {sum(map(count_lines, files))} lines")
            print(f"Its start takes {took_ms:.0f} ms of CPU time without bytecode, and {size_mib:.1f} MiB")


if __name__ == "__main__":
    main()
