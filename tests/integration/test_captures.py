"""Captures of real jobs: the same steps of all ranks, for `rankscope analyze`, and training as if there were none."""

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rankscope.collector.traces.analysis import analyze
from tests.integration.listening_collector import Life, listening
from tests.integration.small_disk import why_not_with_full, with_full
from tests.integration.torchrun import AGENT, OFTEN, Ended, forked_ranks, name_job, python, run

JOB = name_job()
RANKS = 4
SCRIPT = ("small_ddp.py", "--epochs", "2", "--steps", "40")
SCHEDULE = "skip_first=10, wait=10, warmup=1, active=3, repeat=2"
STEPS = [(21, 23), (35, 37)]
"""21 is the first after 10 + 10 + 1 steps; a cycle has 14."""


def settings(folder: Path, **more: str) -> dict[str, str]:
    given = {"capture_folder": str(folder), "capture_schedule": SCHEDULE, "run": JOB, **more}
    return {f"RANKSCOPE_{name.upper()}": value for name, value in given.items()}


def capture(
    folder: Path, *script: str, ranks: int = RANKS, begin: Sequence[str] = (), **more: str
) -> tuple[Ended, list[Life]]:
    with listening() as collector:
        environment = {**OFTEN, "RANKSCOPE_COLLECTOR": collector.endpoint, **settings(folder, **more)}
        job = forked_ranks(ranks, *AGENT, *script)
        ended = run([*begin, *job.command] if begin else job, environment)
    assert (ended.exit_code, ended.left) == (0, ()), ended.stderr
    return ended, collector.lives


def read(folder: Path, steps: tuple[int, int]) -> dict[int, Mapping[str, Any]]:
    """Return the traces of a capture by rank."""
    paths = (folder / JOB / f"steps-{steps[0]}-{steps[1]}").iterdir()
    return {
        int(path.name.split(".")[0].removeprefix("rank-")): json.loads(gzip.decompress(path.read_bytes()))
        for path in paths
    }


def find_steps(trace: Mapping[str, Any]) -> list[int]:
    """Return the steps whose begin and end are in a trace, as torch names them."""
    names = [event["name"] for event in trace["traceEvents"] if event.get("cat") == "user_annotation"]
    return sorted(int(name.partition("#")[2]) for name in names if name.startswith("ProfilerStep#"))


def find_losses(ended: Ended) -> str:
    (line,) = (line for line in ended.stdout.splitlines() if line.startswith("losses "))
    return line


class Captured(NamedTuple):
    """The folder of the captures of all ranks, how the job ended, and what its ranks reported."""

    folder: Path
    ended: Ended
    lives: list[Life]


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Captured:
    """A job whose captures have stacks and shapes."""
    folder = tmp_path_factory.mktemp("captured")
    return Captured(folder, *capture(folder, *SCRIPT, capture_options="stacks, shapes"))


def test_ranks_capture_the_same_steps_and_training_is_bit_equal(captured: Captured) -> None:
    plain = run(forked_ranks(RANKS, *SCRIPT))
    assert find_losses(captured.ended) == find_losses(plain)
    for steps in STEPS:
        traces = read(captured.folder, steps)
        assert sorted(traces) == list(range(RANKS)), captured.ended.stderr
        assert {rank: find_steps(trace) for rank, trace in traces.items()} == {
            rank: list(range(steps[0], steps[1] + 1)) for rank in range(RANKS)
        }
        assert all(trace["distributedInfo"]["rank"] == rank for rank, trace in traces.items())
    for life in captured.lives:
        # Prepared in the step before, and ended in the step after.
        assert [one.step for one in life.steps if one.captured] == [*range(20, 25), *range(34, 39)]
        assert life.losses.errors == {}
        assert life.reports[-1].cost.part_ns["captures"] > 0
    assert [line for line in captured.ended.stderr.splitlines() if line.startswith("rankscope: captured steps")]


def test_analyze_reads_a_capture_of_all_ranks(captured: Captured, tmp_path: Path) -> None:
    folder = str(captured.folder / JOB / "steps-21-23")
    ended = run(python("-m", "rankscope.collector", "analyze", folder, "--json-file", str(tmp_path / "report.json")))
    assert ended.exit_code == 0, ended.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert [(rank["rank"], rank["world_size"]) for rank in report["ranks"]] == [(n, RANKS) for n in range(RANKS)]
    assert {step["step"] for rank in report["ranks"] for step in rank["steps"]} == {21, 22, 23}


@pytest.mark.parametrize(
    ("script", "root", "calls"),
    [
        (("small_ddp.py", "--epochs", "1", "--steps", "30"), "DistributedDataParallel_0", [3, 3]),
        (("sharded.py", "--steps", "30"), "FSDPSequential_0", [6, 6, 6]),  # repeated in the backward
    ],
)
def test_modules_are_marked_and_training_is_bit_equal(
    tmp_path: Path, script: tuple[str, ...], root: str, calls: list[int]
) -> None:
    plain = run(forked_ranks(2, *script))
    ended, lives = capture(tmp_path, *script, ranks=2, capture_options="modules")
    losses = [{line for line in one.stdout.splitlines() if line.startswith("losses ")} for one in (plain, ended)]
    assert losses[0] == losses[1] != set()
    assert [life.losses.errors for life in lives] == [{}, {}]
    for rank in analyze(str(tmp_path / JOB / "steps-21-23"), modules=True).ranks:
        rows = [row for row in rank.modules or () if row.path is not None]
        assert [row.path for row in rows if row.depth == 0] == [root]
        linear = [row for row in rows if row.name.startswith("Linear_")]
        assert [row.count for row in linear] == calls
        assert all(row.backward_host_self_ns > 0 for row in linear)


def test_profiler_of_the_script_has_its_whole_traces(tmp_path: Path) -> None:
    """The script profiles steps 0 to 2, then in two cycles 9 to 14 and 21 to 26, then on another thread."""
    plain = run(forked_ranks(2, "profiled.py"))
    schedule = "wait=1, warmup=0, active=6, repeat=0"
    ended, lives = capture(tmp_path, "profiled.py", ranks=2, capture_schedule=schedule)
    traces = [[line for line in one.stdout.splitlines() if line.startswith("rank ")] for one in (plain, ended)]
    assert sorted(traces[0]) == sorted(traces[1])
    assert "a profiler of the script was on" in ended.stderr
    for life in lives:
        assert life.losses.errors == {}


def test_evaluation_ends_a_capture(tmp_path: Path) -> None:
    schedule = "skip_first=6, wait=0, warmup=0, active=20"
    ended, _ = capture(
        tmp_path, "small_ddp.py", "--epochs", "2", "--steps", "10", "--evaluate", ranks=2, capture_schedule=schedule
    )
    (folder,) = (tmp_path / JOB).iterdir()
    assert folder.name == "steps-6-9", "the steps of the epoch from the sixth on"
    assert "It ended early: an evaluation" in ended.stderr


def test_full_disk_costs_the_captures_only(tmp_path: Path) -> None:
    if why := why_not_with_full():
        pytest.skip(why)
    full = tmp_path / "full"
    full.mkdir()
    ended, lives = capture(full, "small_ddp.py", "--epochs", "1", "--steps", "40", ranks=2, begin=with_full(full))
    assert "the capture of steps 21 to 23 was lost: " in ended.stderr
    assert "captured steps" not in ended.stderr
    assert [[one.step for one in life.steps] for life in lives] == [list(range(40))] * 2
    assert [life.losses.errors for life in lives] == [{}, {}]
