"""`rankscope profile`: a script runs until a few of its steps are captured, and its FLOPs are those counted by hand."""

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.integration.torchrun import Ended, python, run, started

SCRIPT = "small_mlp.py"
ENDLESS = "1000000000"
FIRST, SECOND = 4 * 2 * 128 * 256, 4 * 2 * 256 * 10
"""FLOPs of the products of both layers for a batch of 4. The input needs no gradient, so the first has one product in
the backward and the second has two.
"""


def profile(*arguments: str) -> Ended:
    ended = run(python("-m", "rankscope.collector", "profile", *arguments))
    assert ended.left == ()
    return ended


def read_flops(path: Path) -> list[Any]:
    return [rank["flops"] for rank in json.loads(path.read_text())["ranks"]]


def read_modules(printed: str) -> dict[str, tuple[str, str]]:
    """Return calls and parameters of each module in the printed tree, by its place in it."""
    table = printed.partition("\nFLOP BY MODULE\n")[2].partition("\n\n")[0]
    rows = [re.split(r"\s{2,}", line.strip()) for line in table.splitlines() if re.match(r"[. ]*\w+ \(\w+\)  ", line)]
    return {row[0]: (row[1], row[-1]) for row in rows}


def test_script_is_ended_and_flops_are_those_by_hand(tmp_path: Path) -> None:
    files = tmp_path / "report.json", tmp_path / "report.html"
    ended = profile(
        *("--steps", "2", "--skip", "2", "--peak-tflops", "1", "--json-file", str(files[0]), "--html", str(files[1])),
        *("-o", str(tmp_path / "traces"), "--", SCRIPT, ENDLESS),
    )
    assert ended.exit_code == 0, ended.stderr
    (flops,) = read_flops(files[0])
    assert flops["step_count"] == 2
    assert (flops["forward_flops"], flops["backward_flops"]) == (2 * (FIRST + SECOND), 2 * (FIRST + 2 * SECOND))
    assert flops["mfu_ratio"] > 0, "by the given peak"
    assert ended.stdout.startswith("training\n1 rank, 2 steps, ")
    titles = [line for line in ended.stdout.splitlines() if line.isupper() and not line.startswith(" ")]
    assert titles == [
        "MODEL PROFILE: FLOATING-POINT OPERATIONS", "MODEL AND HARDWARE FLOP UTILIZATION", "FLOP BY OPERATOR",
        "FLOP BY MODULE", "TOP MODULES BY DEPTH",
    ]  # fmt: skip
    assert read_modules(ended.stdout) == {
        "model (Sequential)": ("1", "35,594"), ". 0 (Linear)": ("1", "33,024"), ". 1 (ReLU)": ("1", "0"),
        ". 2 (Linear)": ("1", "2,570"),
    }  # fmt: skip
    assert files[1].read_text().startswith("<!doctype html>")
    traces = [path.relative_to(tmp_path / "traces") for path in (tmp_path / "traces").rglob("*.gz")]
    assert traces == [Path("profile/steps-2-3/rank-0.pt.trace.json.gz")]
    assert "Traceback" not in ended.stderr


def test_two_ranks_of_torchrun_have_the_same_flops(tmp_path: Path) -> None:
    ended = profile("--nproc-per-node", "2", "--json-file", str(tmp_path / "report.json"), SCRIPT, ENDLESS)
    assert ended.exit_code == 0, ended.stderr
    found = [(one["forward_flops"], one["backward_flops"]) for one in read_flops(tmp_path / "report.json")]
    assert found == [(3 * (FIRST + SECOND), 3 * (FIRST + 2 * SECOND))] * 2
    assert "2 ranks of 2, 3 steps" in ended.stdout
    assert "Traceback" not in ended.stderr, "the launcher reports no ranks that we have ended"


def test_script_ending_early_has_no_profile_and_tells_its_steps() -> None:
    ended = profile(SCRIPT, "4")
    assert (ended.exit_code, ended.stdout) == (1, "training\ntrained\n")
    assert "no profile: the script ended with exit status 0 before the capture was complete." in ended.stderr
    assert "It had 4 steps, and 8 are needed: 5 to skip (--skip) and 3 to capture (--steps)." in ended.stderr


def test_as_many_steps_as_are_needed_are_enough() -> None:
    ended = profile(SCRIPT, "8")
    assert ended.exit_code == 0, ended.stderr
    assert "1 rank, 3 steps, " in ended.stdout


def test_error_of_the_script_comes_through_with_its_exit_status() -> None:
    ended = profile(SCRIPT, ENDLESS, "--raise-in", "2")
    assert (ended.exit_code, ended.stdout) == (1, "training\n")
    assert "ValueError: no step 2" in ended.stderr
    assert "It had 2 steps, and 8 are needed" in ended.stderr


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_ends_the_script_too(number: signal.Signals, exit_code: int) -> None:
    command = python("-m", "rankscope.collector", "profile", "--skip", "1000000", SCRIPT, ENDLESS)
    with started(command) as job:
        job.wait_for_output("training")
        job.launcher.send_signal(number)
        ended = job.wait()
    assert (ended.exit_code, ended.left) == (exit_code, ()), ended.stderr
