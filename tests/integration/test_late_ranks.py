"""Jobs whose ranks no launcher has numbered: each is found when it joins its process group."""

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import MappingProxyType
from typing import NamedTuple

import pytest

from tests.integration.listening_collector import Life, listening
from tests.integration.serving import find_fixed_port
from tests.integration.torchrun import AGENT, OFTEN, Ended, python, run

STEPS = 12
SWITCH = {"RANKSCOPE": "1"}
FAILED = ("failed", "ValueError: the loss is not a number", 1)
NOT_A_NUMBER = ("--fails", "1")


class Job(NamedTuple):
    """A job of two ranks: the words before the script, those after it, and the environment."""

    before: tuple[str, ...]
    after: tuple[str, ...]
    environment: Mapping[str, str] = MappingProxyType({})
    has_collector: bool = True


def numbered(launcher: str, *words: str) -> tuple[str, ...]:
    return ("as_launcher.py", launcher, "2", *python(*words))


SEEN_JOBS = {
    "spawned": Job((), ("--start", "spawn", "--meet", "environment", *NOT_A_NUMBER), SWITCH),
    "forked": Job((), ("--start", "fork", "--meet", "address", *NOT_A_NUMBER), SWITCH),
    "by srun": Job(numbered("slurm"), ("--meet", "mesh"), SWITCH),
    "by mpirun": Job(numbered("openmpi", *AGENT), ("--meet", "address")),
    "by its own call": Job((), ("--start", "spawn", "--meet", "address", "--start-agent")),
}
FAILING = ("spawned", "forked")
OTHERS = {
    "alone": Job((), ("--start", "spawn", "--meet", "environment"), SWITCH, has_collector=False),
    "told too late": Job(numbered("nobody", *AGENT), ("--meet", "address")),
    "children of a measured process": Job(AGENT, ("--start", "spawn", "--meet", "address")),
}
LIGHTNING = ("loops/lightning_trainer.py", "2")
LIGHTNING_STEPS = 2 * 12 // 4
"""Epochs times samples of a rank by samples of a batch."""


class Seen(NamedTuple):
    """How a job ended, and what its ranks reported."""

    ended: Ended
    lives: list[Life]
    port: int


def watch(job: Job) -> Seen:
    port = find_fixed_port()
    command = python(*job.before, "late_ranks.py", "--port", str(port), *job.after)
    return see(command, job.environment, port, has_collector=job.has_collector)


def see(command: list[str], environment: Mapping[str, str], port: int = 0, *, has_collector: bool = True) -> Seen:
    with listening() as collector:
        told = {"RANKSCOPE_COLLECTOR": collector.endpoint} if has_collector else {}
        return Seen(run(command, {**OFTEN, **told, **environment}), collector.lives, port)


@pytest.fixture(scope="module")
def jobs() -> Iterator[dict[str, "Future[Seen]"]]:
    """Each runs once, two at a time: half of what it takes is waiting."""
    with ThreadPoolExecutor(2) as pool:
        watched = {name: pool.submit(watch, job) for name, job in (SEEN_JOBS | OTHERS).items()}
        yield {**watched, "Lightning": pool.submit(see, python(*LIGHTNING), SWITCH)}
        pool.shutdown(cancel_futures=True)


@pytest.fixture
def seen(request: pytest.FixtureRequest, jobs: dict[str, "Future[Seen]"]) -> Seen:
    return jobs[request.param].result()


each_seen = pytest.mark.parametrize("seen", SEEN_JOBS, indirect=True)


@each_seen
def test_every_rank_is_who_its_group_says(seen: Seen) -> None:
    identities = [life.hello.identity for life in seen.lives]
    assert [(one.rank, one.local_rank, one.world_size) for one in identities] == [(0, 0, 2), (1, 1, 2)]
    (name,) = {one.run for one in identities}
    assert name == f"{identities[0].node}:{seen.port}"
    assert (seen.ended.heard_of_agent, seen.ended.left) == ([], ())


@each_seen
def test_every_step_is_counted_and_its_all_reduce_seen(seen: Seen) -> None:
    for life in seen.lives:
        assert [record.step for record in life.steps] == list(range(STEPS))
        assert {record.backwards for record in life.steps} == {1}
        assert life.losses.errors == {}
        assert {record.op for record in life.collectives} == {"all_reduce"}


@pytest.mark.parametrize("seen", FAILING, indirect=True)
def test_a_rank_that_fails_says_with_what(seen: Seen) -> None:
    """Though multiprocessing hands the exception to the parent, and lets the process end with 1."""
    assert seen.ended.exit_code == 1
    assert "ValueError: the loss is not a number" in seen.ended.stderr
    assert [life.ending for life in seen.lives if life.rank == 1] == [FAILED]


@pytest.mark.parametrize("seen", [name for name in SEEN_JOBS if name not in FAILING], indirect=True)
def test_a_rank_that_has_trained_says_that_it_has_finished(seen: Seen) -> None:
    assert (seen.ended.exit_code, "trained" in seen.ended.stdout) == (0, True)
    assert [life.ending for life in seen.lives] == [("finished", "", None)] * 2


@pytest.mark.parametrize("seen", ["Lightning"], indirect=True)
def test_ranks_of_lightnings_own_launcher_need_no_callback(seen: Seen) -> None:
    """It trains in the process that was started and in one more, which it starts itself."""
    assert (seen.ended.exit_code, seen.ended.heard_of_agent) == (0, []), seen.ended.stderr
    identities = [life.hello.identity for life in seen.lives]
    assert [(one.rank, one.local_rank, one.world_size) for one in identities] == [(0, 0, 2), (1, 1, 2)]
    assert len({one.run for one in identities}) == 1
    for life in seen.lives:
        assert [record.step for record in life.steps] == list(range(LIGHTNING_STEPS))
        assert life.ending == ("finished", "", None)


@pytest.mark.parametrize("seen", ["alone"], indirect=True)
def test_first_late_rank_starts_a_collector_where_there_is_none(seen: Seen) -> None:
    assert (seen.ended.exit_code, seen.ended.stdout) == (0, "trained\n")
    assert seen.ended.stderr.count("rankscope: watching run ") == 1
    assert re.search(rf"^rankscope: run \S+:{seen.port}: 2 ranks, {STEPS} steps,", seen.ended.stderr, re.MULTILINE)


@pytest.mark.parametrize("seen", ["told too late"], indirect=True)
def test_a_process_that_was_taken_for_a_job_of_its_own_says_so(seen: Seen) -> None:
    assert seen.ended.exit_code == 0
    for rank in (0, 1):
        said = f"measured as rank 0 of 1, but its process group made it rank {rank} of 2 after"
        assert seen.ended.stderr.count(said) == 1
    assert "set RANKSCOPE=1" in seen.ended.stderr
    assert [life.hello.identity.world_size for life in seen.lives] == [1, 1]


@pytest.mark.parametrize("seen", ["children of a measured process"], indirect=True)
def test_a_measured_process_keeps_its_children_to_itself(seen: Seen) -> None:
    """They may be a server's workers, and another group than the one that trains."""
    assert (seen.ended.exit_code, seen.ended.stdout, seen.ended.heard_of_agent) == (0, "trained\n", [])
    assert [(life.hello.identity.world_size, len(life.steps)) for life in seen.lives] == [(1, 0)]
