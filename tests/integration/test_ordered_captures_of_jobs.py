"""Captures that a real collector orders of real jobs: the same steps, analyzed, and training as if nothing had been."""

import contextlib
import gzip
import json
from pathlib import Path

import pytest

import rankscope.collector.demo
from rankscope.agent.captures.marked_ranges import COMPILED
from rankscope.collector.captures.capture import Capture, CaptureRequest
from tests.integration.faults import sized
from tests.integration.ordering_collectors import running, wait_for_end, wait_for_order
from tests.integration.relaying import relaying
from tests.integration.torchrun import AGENT, ALONE, OFTEN, Ended, forked_ranks, name_job, python, run, started

JOB = name_job()
REQUEST = CaptureRequest(run=JOB, ranks=(1, 3), steps=5)
TRAINING = ("small_ddp.py", "--epochs", "40", "--steps", "20", "--pause-s", "0.02")


DEMO = str(Path(rankscope.collector.demo.__file__).with_name("train.py"))
SLOW_RANK = 2
SLOWED = ("--steps", "300", "--fault", "host", "--slow-rank", str(SLOW_RANK), "--slow-from", "40")
ANALYZED_S_MAX = 60.0


def environment_of(endpoint: str) -> dict[str, str]:
    return {**OFTEN, "RANKSCOPE_COLLECTOR": endpoint, "RANKSCOPE_RUN": JOB}


def find_steps(path: Path) -> list[int]:
    """Return the steps whose begin and end are in a trace, as torch names them."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    names = [event["name"] for event in events if event.get("cat") == "user_annotation"]
    return sorted(int(name.partition("#")[2]) for name in names if name.startswith("ProfilerStep#"))


def check_same_steps(folder: Path, done: Capture) -> None:
    """Check that both files have the five steps that were ordered."""
    assert done.first_step is not None
    files = folder / "store.db-captures" / done.id
    steps = [find_steps(files / f"rank-{rank}.pt.trace.json.gz") for rank in (1, 3)]
    assert steps == [list(range(done.first_step, done.first_step + 5))] * 2


@pytest.mark.parametrize("time", range(sized(1, 20)))
def test_ranks_of_a_job_capture_the_ordered_steps(tmp_path: Path, time: int) -> None:
    del time
    with running(tmp_path) as service, started(forked_ranks(4, *AGENT, *TRAINING), environment_of(service.endpoint)):
        wait_for_order(service, REQUEST)
        done = wait_for_end(service)
    assert (done.state, done.problem) == ("complete", "")
    assert {file.name for file in done.files} >= {"report.html", "report.json", "merged.json.gz"}
    check_same_steps(tmp_path, done)


def test_killed_collector_delivers_and_training_goes_on(tmp_path: Path) -> None:
    with started(python("dying_collector.py", "tcp://127.0.0.1:0", str(tmp_path / "store.db"), JOB)) as collector:
        collector.wait_for_output("endpoint tcp")
        endpoint = collector.printed.split()[1]
        with started(forked_ranks(4, *AGENT, *TRAINING), environment_of(endpoint)) as job:
            assert collector.wait().exit_code == -9
            with running(tmp_path, endpoint) as service:
                done = wait_for_end(service)
                ended = job.wait()
    assert ended.exit_code == 0, ended.stderr
    assert (done.state, done.problem) == ("complete", "")
    check_same_steps(tmp_path, done)


@pytest.mark.parametrize("through_relay", [False, True])
def test_files_are_fetched_when_the_job_ends_after_the_last_step(tmp_path: Path, through_relay: bool) -> None:
    told, end = tmp_path / "told", tmp_path / "end"
    job = forked_ranks(2, *AGENT, "told_end.py", str(end))
    with contextlib.ExitStack() as ends:
        service = ends.enter_context(running(tmp_path))
        endpoint = ends.enter_context(relaying(service.endpoint)).endpoint if through_relay else service.endpoint
        training = ends.enter_context(started(job, environment_of(endpoint)))
        asked = wait_for_order(service, CaptureRequest(run=JOB, ranks="all", steps=5))
        told.write_text(str((asked.last_step or 0) + 1))  # it is told a second or more before the first of these steps
        told.rename(end)
        ended = training.wait()
        done = wait_for_end(service)
    assert ended.exit_code == 0, ended.stderr
    assert [(one.state, one.reason, one.last_step) for one in done.ranks] == [("fetched", "", asked.last_step)] * 2


def test_demo_incident_has_an_analyzed_capture_of_its_rank(tmp_path: Path) -> None:
    job = forked_ranks(4, *AGENT, DEMO, *SLOWED)
    with running(tmp_path, captures_on_incident=True) as service, started(job, environment_of(service.endpoint)):
        done = wait_for_end(service)
        (incident,) = [one for one in service._journal.incidents if str(one.id) == done.incident]
    assert (incident.ranks, incident.cause) == ((SLOW_RANK,), "unseen_wait")
    assert (done.state, done.problem, done.asked_by) == ("complete", "", f"incident {incident.id}")
    # The rank, its healthiest peer and a neighbor.
    assert len(done.ranks) == 3
    assert SLOW_RANK in {one.rank for one in done.ranks}
    assert {file.name for file in done.files} >= {"report.html", "report.json", "merged.json.gz"}
    assert done.verdict
    assert done.changed_wall_s - incident.opened_wall_s <= ANALYZED_S_MAX


def find_figures(ended: Ended) -> list[str]:
    """Return the lines about compiled graphs and losses."""
    return [line for line in ended.stdout.splitlines() if line.startswith(("graphs ", "losses "))]


@pytest.mark.parametrize(
    ("options", "state", "problem"), [((), "complete", ""), (("modules",), "failed", f"rank 0: {COMPILED}")]
)
def test_compiled_training_is_captured_or_refused_and_unchanged(
    tmp_path: Path, options: tuple[str, ...], state: str, problem: str
) -> None:
    steps = ("--steps", "300")
    plain = run(forked_ranks(1, "compiled_steps.py", *steps))
    command = python(
        "-W", "error::UserWarning:torch._dynamo.eval_frame", *AGENT, "compiled_steps.py", *steps, "--pause-s", "0.03"
    )
    with (
        running(tmp_path) as service,
        started(command, {**ALONE, **environment_of(service.endpoint)}) as job,
    ):
        wait_for_order(service, CaptureRequest(run=JOB, ranks="all", steps=3, options=options))
        done = wait_for_end(service)
        ended = job.wait()
    assert [one.exit_code for one in (plain, ended)] == [0, 0], ended.stderr
    assert (done.state, done.problem) == (state, problem)
    assert find_figures(ended) == find_figures(plain)
    assert len(find_figures(plain)) == 2
