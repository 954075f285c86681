"""Check the GPU tests on a machine without GPU: they are collected, skipped with a reason, and the report passes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import torch

from tests.gpu import report
from tests.gpu.nvidia_smi import COLUMNS, parse_answer

ROOT = Path(__file__).parents[2]
MINUTES_S = 180
NO_GPU = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": f"{ROOT / '.package'}{os.pathsep}{ROOT}"}
"""As in the Makefile; also where there is a GPU."""


def run_python(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env=NO_GPU, capture_output=True, text=True, timeout=MINUTES_S, check=False)


def test_gpu_tests_are_skipped_with_a_reason_without_gpu() -> None:
    options = ["-m", "gpu", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = run_python("-m", "pytest", "tests/gpu", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = done.stdout.splitlines()[-1]
    assert "skipped" in summary
    assert not {"passed", "failed", "error"} & set(summary.split())
    assert "GPU" in done.stdout


def test_every_module_is_there_with_nothing_installed() -> None:
    """Of what is installed under a name of its own; the files that are shipped are found beside the sources."""
    mapped = re.findall(r'^"rankscope\.(\w+)" = "([\w/.]+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    folders = {name: ROOT / folder for name, folder in mapped if name != "shipped"}
    assert set(folders) >= {"agent", "collector", "measure", "uplink"}
    assert {name: (ROOT / ".package" / "rankscope" / name).resolve() for name in folders} == folders


def test_without_a_gpu_the_report_says_so_and_ends_well() -> None:
    done = run_python("-m", "tests.gpu.report")
    assert (done.returncode, done.stdout) == (0, f"no report: torch {torch.__version__} finds no CUDA device here\n")


def test_an_answer_of_nvidia_smi_is_read_by_column() -> None:
    line = "GPU-1, NVIDIA H200, 570.1, 143771, 512, 75.90, 700.00, 28, 345, [N/A], 0"
    found = parse_answer(line)
    assert list(found) == list(COLUMNS)
    assert (found["name"], found["memory.total"], found["clocks.mem"]) == ("NVIDIA H200", 143771.0, None)


def test_the_cost_of_an_event_is_told_where_there_are_events() -> None:
    assert report.describe_us([1_000.0, 3_000.0, 2_000.0], events=500) == "2.00 ms (1.00 to 3.00), 4.00 us an event"
    assert report.describe_us([1_000.0], events=0) == "1.00 ms (1.00 to 1.00)"
