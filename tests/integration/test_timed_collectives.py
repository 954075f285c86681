"""Collectives between windows: the flight recorder of a real job, read by worker server and sidecar."""

import json
import statistics
from pathlib import Path

import pytest

from rankscope.agent.agent_overhead import NCCL_TIMING
from rankscope.agent.governor import COLLECTIVE_TIMES
from rankscope.agent.profiler.nccl_timing import TIMING_VARIABLE
from rankscope.collector.runs.snapshot import RunSnapshot
from rankscope.measure.units import NS_PER_MS, NS_PER_S
from tests.integration.listening_collector import listening
from tests.integration.serving import serving
from tests.integration.torchrun import AGENT, ALONE, CHECKOUT, OFTEN, forked_ranks, python, run, started

ONE_OF_TWO = {
    "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0",
    "RANKSCOPE_COLLECTIVE_WINDOWS": "0", "RANKSCOPE_FULL_WINDOWS": "0", "PYTHONPATH": CHECKOUT,
}  # fmt: skip


def test_sidecar_reads_what_the_recorder_has() -> None:
    with listening() as collector:
        settings = {**OFTEN, "RANKSCOPE_COLLECTOR": collector.endpoint}
        ended = run(forked_ranks(2, *AGENT, "recorder_dump.py"), settings)
    assert (ended.exit_code, ended.left, ended.heard_of_agent) == (0, (), [])
    told = [json.loads(line) for line in ended.stdout.splitlines()]
    assert sorted(line["rank"] for line in told) == [0, 1]
    for line in told:
        assert line["outside"] == line["here"], "the numbers of the process's own dump"
        assert line["outside"][1] >= 25
        assert (line["at_once"], line["skipped"]) == (False, {}), "the sidecar has parsed it"


def test_timed_collectives_of_steps_without_windows_are_reported() -> None:
    with listening() as collector:
        settings = {**OFTEN, **ONE_OF_TWO, TIMING_VARIABLE: "1", "RANKSCOPE_COLLECTOR": collector.endpoint}
        ended = run(python("timed_nccl.py"), {**settings, "TORCH_FR_BUFFER_SIZE": "600"})
        (life,) = collector.lives
    assert (ended.exit_code, ended.left) == (0, ())
    (said,) = ended.heard_of_agent
    assert said.startswith("rankscope: NCCL's collectives are timed (TORCH_NCCL_ENABLE_TIMING=1), which costs ")
    assert said.endswith(
        "The job set the variable itself; RANKSCOPE_NCCL_TIMING=off stops rankscope from reading the durations "
        "(docs/cost.md)."
    )
    made = [tuple(one) for one in json.loads(ended.stdout.splitlines()[-1])]

    told = sorted((record.step, record.sequence, record.duration_ns) for record in life.collectives)
    assert told == [one for one in made if one[0] in life.timed_steps], "each once, in its step, and all of a step"
    assert told
    assert life.covered_steps == set(), "no own time follows from them"

    cost = life.reports[-1].cost
    assert cost.part_ns[COLLECTIVE_TIMES] > 0
    assert NCCL_TIMING not in cost.part_ns, "which the job has asked for"
    assert life.losses.windows_skipped.keys() <= {"timed_too_old"}, "where this machine was slow"


def test_without_timing_the_times_of_enqueuing_are_reported() -> None:
    with listening() as collector:
        settings = {**OFTEN, **ONE_OF_TWO, TIMING_VARIABLE: "0", "RANKSCOPE_COLLECTOR": collector.endpoint}
        ended = run(python("timed_nccl.py"), {**settings, "TORCH_FR_BUFFER_SIZE": "600"})
        (life,) = collector.lives
    assert (ended.exit_code, ended.left) == (0, ())
    (said,) = ended.heard_of_agent
    assert said.startswith("rankscope: NCCL's collectives are not timed (TORCH_NCCL_ENABLE_TIMING was 0). When ranks ")
    made = {(step, number): between_ns for step, number, between_ns in json.loads(ended.stdout.splitlines()[-1])}

    told = [report.enqueues for report in life.reports if report.enqueues is not None]
    names = ("step", "sequence", "enqueued_host_ns")
    rows = [row for one in told for row in zip(*(one.table.column(name).tolist() for name in names), strict=True)]
    assert rows
    for step, number, host_ns in rows:
        before_ns, after_ns = made[step, number]
        assert before_ns - NS_PER_MS < host_ns < after_ns + NS_PER_MS, "in its step, by the host clock"
    (numbers, ranges) = {(step, number) for step, number, _ in rows}, {span for one in told for span in one.steps}
    assert len(numbers) == len(rows), "each once"
    assert all(any(first <= step <= last for first, last in ranges) for step, _ in numbers)
    assert (life.collectives, life.timed_steps, life.covered_steps) == ([], set(), set())
    assert life.reports[-1].cost.part_ns[COLLECTIVE_TIMES] > 0


def test_late_enqueuing_rank_is_named_with_lateness_and_error(tmp_path: Path) -> None:
    late_ns, end = 0.02 * NS_PER_S, tmp_path / "end"

    def is_compared(run: RunSnapshot) -> bool:
        return any("enqueue_late_ns" in finding.evidence for finding in run.open_findings)

    with serving() as served:
        given = {
            **OFTEN,
            "RANKSCOPE_COLLECTIVE_WINDOWS": "0",
            "RANKSCOPE_FULL_WINDOWS": "0",
            "RANKSCOPE_RUN": "untimed",
        }
        command = forked_ranks(2, "untimed_ranks.py", str(end)).command
        with started(command, {**given, "RANKSCOPE_COLLECTOR": served.endpoint, "PYTHONPATH": CHECKOUT}) as job:
            run = served.wait_for_run("untimed", is_compared)
            end.touch()
            ended = job.wait()
    assert (ended.exit_code, ended.left) == (0, ()), ended.stderr
    (finding,) = [one for one in run.open_findings if one.kind == "straggler"]
    assert (finding.ranks, finding.cause) == ((1,), "data_loading")
    evidence = finding.evidence
    assert evidence["enqueue_late_ns"] == pytest.approx(late_ns, rel=0.3)
    assert 0 < evidence["enqueue_error_ns"] < 2 * NS_PER_MS, "both ranks read one clock"
    assert "Collectives not timed; rank 1 enqueues them" in finding.sentence


@pytest.mark.parametrize(
    ("command", "environment", "printed"),
    [
        (AGENT, ALONE, ["1", "1"]),
        ((), {**ALONE, "RANKSCOPE": "1"}, ["1", "1"]),
        ((), {"RANKSCOPE": "1"}, ["None", "1"]),  # the rank is known with the first group, but the variable before it
    ],
)
def test_every_way_to_start_is_before_the_first_group(
    command: tuple[str, ...], environment: dict[str, str], printed: list[str]
) -> None:
    with listening() as collector:
        settings = {**environment, "RANKSCOPE_COLLECTOR": collector.endpoint, "RANKSCOPE_NCCL_TIMING": "on"}
        ended = run(python(*command, "timing_variable.py"), settings)
    assert (ended.exit_code, ended.stdout.split(), ended.heard_of_agent) == (0, printed, [])


def test_timing_that_slows_training_is_measured_said_and_counted() -> None:
    settings = {**OFTEN, "RANKSCOPE_NCCL_TIMING": "measured", "RANKSCOPE_OVERHEAD_RATIO_MAX": "0.2"}
    with listening() as collector:
        ended = run(
            forked_ranks(2, *AGENT, "measured_timing.py"), {**settings, "RANKSCOPE_COLLECTOR": collector.endpoint}
        )
        lives = collector.lives
    assert (ended.exit_code, ended.left) == (0, ()), ended.stderr
    (said,) = [line for line in ended.heard_of_agent if "NCCL" in line]
    assert "% longer than before it. No other part of the agent began meanwhile." in said
    told = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [(line["calls"], line["variable"]) for line in told] == [(1, None)] * 2, "one group, and no variable"
    (from_step,) = {line["from_step"] for line in told}
    for life in lives:
        cost = life.reports[-1].cost
        durations_ns = [one.duration_ns for one in life.steps]
        before_ns, after_ns = statistics.median(durations_ns[:from_step]), statistics.median(durations_ns[from_step:])
        assert cost.timing_effect == "slower"
        assert cost.timing_ratio == pytest.approx(after_ns / before_ns - 1, abs=0.2)
        assert after_ns / before_ns - 1 > 0.3, "32 steps before, at least 64 after"
        ratio = cost.timing_ratio or 0.0
        assert cost.part_ns[NCCL_TIMING] == pytest.approx(sum(durations_ns[from_step:]) * ratio / (1 + ratio), rel=0.05)
        assert min(life.covered_steps) > from_step, "no window before"
        assert life.losses.errors == {}
    assert len(lives) == 2


def test_timing_that_is_off_is_not_read() -> None:
    with listening() as collector:
        settings = {**OFTEN, **ONE_OF_TWO, TIMING_VARIABLE: "1", "RANKSCOPE_COLLECTOR": collector.endpoint}
        ended = run(python("timed_nccl.py"), {**settings, "RANKSCOPE_NCCL_TIMING": "off"})
        (life,) = collector.lives
    assert (ended.exit_code, ended.left, ended.heard_of_agent) == (0, (), [])
    assert (life.collectives, life.timed_steps) == ([], set())
    assert COLLECTIVE_TIMES not in life.reports[-1].cost.part_ns
