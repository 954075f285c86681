"""The head of every result: on what, with what and by which command it was measured; and a process to measure in."""

import datetime as dt
import multiprocessing
import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch

from rankscope.measure import __version__

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
GIT_S_MAX = 30.0

P = ParamSpec("P")
T = TypeVar("T")


def describe_run(command: str) -> str:
    """A Markdown table about this machine and the command. To be called before measuring: the load average in it is
    meant to be that of the others.
    """
    load = ", ".join(f"{average:.1f}" for average in os.getloadavg())
    rows = {
        "machine": f"{read_cpu_model()}, {len(os.sched_getaffinity(0))} cores; load average at the start {load}",
        "system": f"{platform.system()} {platform.release()}",
        "versions": f"Python {platform.python_version()}, torch {torch.__version__}",
        "rankscope": f"{__version__}, commit {read_commit()}",
        "command": f"`{command}`",
        "date": f"{dt.datetime.now(dt.timezone.utc):%Y-%m-%d %H:%M} UTC",
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows.items())])


def render_result(title: str, head: str, doc: str | None, *parts: str) -> str:
    """The text of a result: a title, `describe_run`, what the benchmark's own docstring says after its first paragraph,
    and the tables.
    """
    explanation = (doc or "").partition("\n\n")[2].strip()
    return "\n\n".join([f"# {title}", head, explanation, *parts]) + "\n"


def run_apart(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What the function gives in a process of its own, which has nothing of this one in memory. Raises what it does."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, args, kwargs)


def read_cpu_model() -> str:
    """The processor's name, from /proc/cpuinfo where there is one."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def read_commit() -> str:
    """The commit that was measured, and whether the files differ from it."""
    commit = _ask_git("rev-parse", "--short=12", "HEAD")
    if not commit:
        return "unknown"
    changed = _ask_git("status", "--porcelain", "--", "agent", "collector", "measure", "uplink", "bench")
    return f"{commit} with local changes" if changed else commit


def _ask_git(*arguments: str) -> str:
    git = shutil.which("git")
    if git is None:
        return ""
    try:
        answer = subprocess.run(
            [git, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=GIT_S_MAX, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.strip()
