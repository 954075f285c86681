"""The arithmetic of the report about a GPU, and its file, without one."""

import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rankscope.measure.messages import Report as ReportMessage
from rankscope.measure.records import AgentCost, StepRecord, steps_to_table
from tests.gpu.agent_effect import (
    ARMS,
    WARM_UP_BLOCKS,
    WITHOUT,
    Arm,
    Block,
    Rates,
    describe_arms,
    find_end,
    parse_blocks,
    run_arm,
    split_blocks,
)
from tests.gpu.report import LIMIT_S, Report, Row, render, run_tests
from tests.integration.torchrun import DEADLINE_S, python, started

BLOCKS = [Block(first_step, 10_000.0 if first_step < 100 else 12_500.0) for first_step in range(30, 200, 10)]
"""Blocks of ten steps: 100 steps per second up to step 100, 80 from then on."""


def test_first_blocks_in_which_training_became_warm_do_not_count() -> None:
    printed = "\n".join(f'{{"first_step": {10 * number}, "us": 5.0}}' for number in range(5))
    assert parse_blocks(f"a line of the agent\n{printed}\n") == [Block(30, 5.0), Block(40, 5.0)]


def test_blocks_are_before_the_first_window_or_between_windows() -> None:
    """Windows of the steps 100, 101 and 150, 151; blocks within 20 steps of them do not count."""
    found = split_blocks(BLOCKS, (100, 101, 150, 151))
    assert found.before == [100.0] * 5  # the blocks of the steps 30 to 79
    assert found.between == [80.0] * 2  # those of the steps 180 to 199; 120 to 129 are within 20 steps of 100
    assert found.ended == []


def test_blocks_after_windows_ended_are_apart() -> None:
    """Windows of the steps 60 and 100; by step 165 they had ended, so that CUPTI was detached before."""
    found = split_blocks(BLOCKS, (60, 100), ended_step=165)
    assert found.before == [100.0]  # the block of the steps 30 to 39
    assert found.between == []  # 80 to 89 is within 20 steps of both
    assert found.ended == [80.0] * 3  # the blocks from 170 on; those from 110 to 169 do not count


def test_without_windows_all_blocks_are_before() -> None:
    assert split_blocks(BLOCKS, ()) == ([100.0] * 7 + [80.0] * 10, [], [])


def test_windows_ended_with_the_first_report_that_says_so() -> None:
    def report_of(sequence: int, step: int | None, state: str) -> ReportMessage:
        records = [] if step is None else [StepRecord(step=step, start_host_ns=0, duration_ns=1, phases_ns={})]
        cost = AgentCost(window_effect=state)
        return ReportMessage(sequence=sequence, host_ns=0, steps=steps_to_table(records), cost=cost)

    reports = [report_of(1, 40, "attached"), report_of(2, 70, "detached"), report_of(3, None, "ended")]
    assert find_end([*reports, report_of(4, 90, "ended")]) == 70
    assert find_end(reports[:2]) is None


def test_changes_are_against_the_steps_without_the_agent() -> None:
    governed = Arm(
        Rates([99.0, 101.0], [75.0], [98.0]),
        AgentCost(attached_ratio=0.29, detached_ratio=0.004, window_effect="ended"),
    )
    assert describe_arms({WITHOUT: Arm(Rates([100.0])), "governed": governed, "always": Arm(problem="it crashed")}) == (
        "without the agent 100.0 steps/s (1 blocks); governed: before the first window 100.0 (+0.0 %, 2 blocks), "
        "between windows 75.0 (-25.0 %, 1 blocks), after windows ended 98.0 (-2.0 %, 1 blocks) (by the agent +29.0 % "
        "between windows, +0.4 % detached: ended); always: it crashed"
    )
    assert describe_arms({WITHOUT: Arm(problem="no GPU")}) == "without the agent: no GPU"


def test_file_is_written_after_each_part_and_names_failed_ones(tmp_path: Path) -> None:
    def fail() -> Iterator[Row]:
        yield "first half", "7 us"
        raise RuntimeError("CUDA error | in a line\nof two")

    path = tmp_path / "gpu-a.md"
    report = Report("head", path, lambda: 0.0)
    report.add("one", 1.0, lambda: [("a", "1 us")])
    assert path.read_text() == render("head", [("a", "1 us")])
    report.add("two", 1.0, fail)
    assert report.rows[1:] == [("first half", "7 us"), ("two", "failed: RuntimeError: CUDA error / in a line of two")]
    assert path.read_text().endswith("| two | failed: RuntimeError: CUDA error / in a line of two |\n")


def test_part_that_does_not_fit_is_left_out_with_the_reason(tmp_path: Path) -> None:
    times = iter((0.0, LIMIT_S - 30.0, LIMIT_S - 30.0))
    report = Report("head", tmp_path / "gpu-a.md", lambda: next(times))
    report.add("long", 31.0, lambda: [("a", "1 us")])
    report.add("short", 30.0, lambda: [("b", "2 us")])
    assert report.rows == [("long", f"not run: it takes 31 s, and 30 of {LIMIT_S} s are left"), ("b", "2 us")]


def test_time_that_is_left_is_never_negative(tmp_path: Path) -> None:
    times = iter((0.0, LIMIT_S - 30.0, LIMIT_S + 1.0))
    report = Report("head", tmp_path / "gpu-a.md", lambda: next(times))
    assert (report.find_left_s(), report.find_left_s()) == (30.0, 0.0)


def test_tests_that_are_not_over_in_time_are_killed_and_said() -> None:
    row, exit_status = run_tests("pytest", (sys.executable, "-c", "import signal; signal.pause()"), limit_s=0.0)
    assert (row, exit_status) == (("pytest", "not over after 0 s; printed last: "), 1)


def test_training_without_time_left_is_killed_and_said() -> None:
    assert run_arm("eager", WITHOUT, device="cpu", deadline_s=0.0).problem.startswith("not over after 0.0 s")


def test_rank_of_a_job_within_a_job_is_killed_with_it() -> None:
    """It has a session of its own, and its parent has ended."""
    script = (
        "import os, subprocess, sys\n"
        "marks = {**os.environ, 'JOB_OF_A_TEST': os.environ['JOB_OF_A_TEST'] + ' inner'}\n"
        "wait = [sys.executable, '-c', 'import signal; signal.pause()']\n"
        "print(subprocess.Popen(wait, start_new_session=True, env=marks).pid, 'is the rank', flush=True)"
    )
    with started(python("-c", script)) as job:
        job.wait_for_output("is the rank")
        job.launcher.wait()
        rank = psutil.Process(int(job.printed.split()[0]))
        assert rank.is_running()
    psutil.wait_procs([rank], DEADLINE_S)
    assert not rank.is_running() or rank.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("arm", ARMS[:2])
def test_training_times_itself_with_and_without_the_agent(arm: str) -> None:
    found = run_arm("eager", arm, device="cpu", seconds=0.0, blocks_min=5)
    assert (found.problem, found.cost is None) == ("", arm == WITHOUT)
    assert found.blocks == 5 - WARM_UP_BLOCKS
