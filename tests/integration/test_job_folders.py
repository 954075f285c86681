"""A job is started in a folder whose files have the names of Python's own modules: nobody of us imports those."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.torchrun import ALONE, SCRIPTS, Ended, run

RUNS = "import sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"


def find_names_free_to_take() -> list[str]:
    """Names of the standard library that Python itself does not need before it runs a module."""
    needed = subprocess.run([sys.executable, "-c", f"import runpy; {RUNS}"], capture_output=True, text=True, check=True)
    return sorted(sys.stdlib_module_names - set(needed.stdout.split()) - set(sys.builtin_module_names))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the job is started: a file for each of those names, and the script in a folder of its own."""
    home = tmp_path_factory.mktemp("job")
    for name in find_names_free_to_take():
        (home / f"{name}.py").write_text(f"raise SystemError('{name} of the working directory was imported')\n")
    (home / "src").mkdir()
    shutil.copy(SCRIPTS / "paced.py", home / "src" / "train.py")
    return home


def start_there(folder: Path, *command: str, **environment: str) -> Ended:
    return run(["sh", "-c", f'cd "{folder}" && exec "$@"', "sh", sys.executable, *command], {**ALONE, **environment})


@pytest.mark.parametrize("way", ["module", "switch"])
def test_job_trains_among_files_named_like_the_standard_library(way: str, folder: Path) -> None:
    line = ("-m", "rankscope.agent", "src/train.py") if way == "module" else ("src/train.py",)
    switch = {} if way == "module" else {"RANKSCOPE": "1"}
    ended = start_there(folder, *line, "--steps", "40", **switch)
    assert (ended.exit_code, ended.left) == (0, ()), ended.stderr
    assert "of the working directory was imported" not in ended.stderr
    assert re.search(r"^rankscope: run \S+: 1 ranks, 40 steps", ended.stderr, re.MULTILINE), "the collector's words"
    assert "sidecar" not in ended.stderr, "it has started"


def test_script_imports_its_own_module_of_a_name_the_agent_needs(folder: Path) -> None:
    """`calendar` is imported by what finds torch's entry points, before the script begins."""
    (folder / "src" / "calendar.py").write_text("OWN = 1\n")
    (folder / "src" / "own.py").write_text("import calendar\nprint(calendar.OWN)\n")
    ended = start_there(folder, "-m", "rankscope.agent", "src/own.py")
    assert (ended.exit_code, ended.stdout) == (0, "1\n"), ended.stderr
