"""Check that no code turns bytes into code, or text into a command: received input stays data."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("agent", "collector", "measure", "uplink")

MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "code", "codeop"}
"""Modules whose reading runs what it reads, or which run text."""

CALLS = {"eval", "exec", "compile", "__import__"}
METHODS = {
    "os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "yaml.load", "yaml.unsafe_load",
    "yaml.full_load", "torch.load", "numpy.load", "np.load", "msgspec.msgpack.Ext", "builtins.eval", "builtins.exec",
    "pandas.read_pickle", "asyncio.create_subprocess_shell",
}  # fmt: skip

ALLOWED = {
    # `python -m rankscope.agent SCRIPT` runs the user's own script: that is its purpose.
    ("agent/script_launch.py", "exec"),
    ("agent/script_launch.py", "compile"),
    # A text of our own, after which CPython knows again that Ctrl-C has ended the script.
    ("agent/shutdown/script_exit.py", "exec"),
    # Memory snapshots of torch are pickles: read in a limited child process, by an unpickler without names, after a
    # pass that accepts only the opcodes of plain data (tests/unit/collector/memory/test_hostile_snapshots.py).
    ("collector/memory/plain_pickle.py", "pickle"),
    # It writes such a snapshot, as torch does, and reads none.
    ("agent/sample/memory_history.py", "pickle"),
}


def find_dangers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of everything in a file that may run what it is given."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names if name.name.partition(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in MODULES:
            yield node.lineno, node.module or ""
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in CALLS | METHODS:
                yield node.lineno, name
            for keyword in node.keywords:
                is_off = isinstance(keyword.value, ast.Constant) and not keyword.value.value
                if keyword.arg in {"shell", "allow_pickle"} and not is_off:
                    yield node.lineno, f"{keyword.arg}="


def find_files() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("package", PACKAGES)
def test_nothing_that_is_received_can_be_run(package: str) -> None:
    found = {
        (path.relative_to(ROOT).as_posix(), name): line
        for path in find_files()
        if path.relative_to(ROOT).parts[0] == package
        for line, name in find_dangers(ast.parse(path.read_text()))
    }
    assert {place: line for place, line in found.items() if place not in ALLOWED} == {}


def test_what_is_allowed_is_there() -> None:
    # An unused exception would allow the next mistake.
    found = {
        (path, name)
        for path in {path for path, _ in ALLOWED}
        for _, name in find_dangers(ast.parse((ROOT / path).read_text()))
    }
    assert found == ALLOWED


@pytest.mark.parametrize(
    "text",
    [
        "import pickle", "from pickle import loads", "import os, marshal", "eval(x)", "exec(code, {})",
        "subprocess.run(x, shell=True)", "subprocess.Popen(x, shell=flag)", "os.system(x)", "yaml.load(x)",
        "np.load(f, allow_pickle=True)", "torch.load(f)", "__import__(name)",
    ],
)  # fmt: skip
def test_each_danger_is_seen(text: str) -> None:
    assert list(find_dangers(ast.parse(text)))


@pytest.mark.parametrize(
    "text", ["subprocess.run(x, shell=False)", "re.compile(x)", "model.eval()", "yaml.safe_load(x)"]
)
def test_what_is_harmless_is_left_alone(text: str) -> None:
    assert not list(find_dangers(ast.parse(text)))
