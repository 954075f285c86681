"""Environments of Python in which a test installs what was built."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

LONGEST_S = 500.0


def run(*command: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    """Run it to its end; what it printed is text."""
    settings = {"capture_output": True, "text": True, "timeout": LONGEST_S, **options}
    parts = [str(part) for part in command]
    return subprocess.run(parts, check=False, **settings)  # type: ignore[call-overload,no-any-return]


def make_empty(folder: Path) -> Path:
    """The programs of a new environment that has nothing but pip."""
    venv.create(folder, with_pip=True)
    return folder / "bin"


def make_environment(package: Path | str, folder: Path, *options: str | Path) -> Path:
    """The programs of a new environment with the package. Without pip, and without the bytecode of what no test
    imports: these would take two thirds of the time.
    """
    venv.create(folder)
    programs = folder / "bin"
    done = run_pip(programs, "install", "--quiet", "--no-compile", package, *options)
    assert done.returncode == 0, done.stderr
    return programs


def run_pip(programs: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run this environment's pip for that of these programs."""
    pip = ("-m", "pip", "--disable-pip-version-check", "--python", programs / "python")
    return run(sys.executable, *pip, *words)


def clean_environment(**more: str) -> dict[str, str]:
    """As a new user has it: nothing that leads Python elsewhere."""
    return {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **more}


def lend_torch(programs: Path) -> None:
    """Let the environment see torch and what torch needs, from this one: it is too large to install once more."""
    ours = Path(sysconfig.get_path("purelib"))
    (theirs,) = (programs.parent / "lib").glob("python*/site-packages")
    for entry in ours.iterdir():
        if "rankscope" not in entry.name and entry.suffix != ".pth" and not (theirs / entry.name).exists():
            (theirs / entry.name).symlink_to(entry)
