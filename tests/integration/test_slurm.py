"""The sbatch script on a real Slurm of one node: two jobs share it, one is queued again while it trains, and the
files for Prometheus lead to their collectors.
"""

import json
import stat
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.integration.serving import HTTP_TIMEOUT_S, wait_for
from tests.integration.slurm import Cluster, running_slurm
from tests.integration.torchrun import SCRIPTS

pytestmark = pytest.mark.timeout(900)  # the first test waits for both jobs; each wait has a deadline of its own
SCRIPT = Path(__file__).parents[2] / "deploy" / "slurm" / "train.sbatch"


class Met(NamedTuple):
    """A collector as Prometheus meets it: what the target file says, the runs it lists with the token and their steps,
    the kinds of its incidents, and the status of the same request without the token.
    """

    target: Mapping[str, object]
    runs: Mapping[str, int]
    incidents: list[str]
    status_without_token: int


class Story(NamedTuple):
    """What was seen of the two jobs."""

    first_life: Met
    second_life: Met
    requeued: Mapping[str, str]
    other: Mapping[str, str]
    log: str
    collector_log: str
    keys_before: Mapping[str, str]
    keys_after: Mapping[str, str]
    targets_left: list[str]
    token_mode: int
    rendezvous: set[str]


def ask(address: str, token: str, what: str) -> list[Mapping[str, Any]]:
    """What a collector lists: its runs, or its incidents."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"http://{address}/api/v1/{what}", headers=headers)
    with urllib.request.urlopen(request, timeout=HTTP_TIMEOUT_S) as answer:
        listed: list[Mapping[str, Any]] = json.load(answer)[what]
        return listed


def meet(target: Path, token: Path, run: str, steps: int) -> Met | None:
    """The collector that the file names, once its run has so many steps; None before."""
    try:
        (known,) = json.loads(target.read_text())
        (address,) = known["targets"]
        runs = {one["run"]: one["steps"] or 0 for one in ask(address, token.read_text(), "runs")}
        incidents = [one["kind"] for one in ask(address, token.read_text(), "incidents")]
    except (OSError, json.JSONDecodeError):  # the job is on its way, or the file is that of the life before
        return None
    if runs.get(run, 0) < steps:
        return None
    try:
        ask(address, "", "runs")
    except urllib.error.HTTPError as error:
        return Met(known, runs, incidents, error.code)
    return Met(known, runs, incidents, 200)


def read_keys(folder: Path) -> Mapping[str, str]:
    return {path.name: path.read_text() for path in (folder / "keys").rglob("*.*") if path.is_file()}


@pytest.fixture(scope="module")
def story() -> Iterator[Story]:
    """Two jobs that begin together; one is queued again while it trains, and then ends well."""
    with tempfile.TemporaryDirectory(prefix="slurm-") as name, running_slurm(Path(name)) as cluster:
        yield tell(cluster, Path(name))


def tell(cluster: Cluster, folder: Path) -> Story:
    targets, token, stop = folder / "targets", folder / "secret" / "token", folder / "stop"
    targets.mkdir()
    environment = {"PROMETHEUS_TARGETS": str(targets), "COLLECTOR_TOKEN_FILE": str(token)}
    command = (str(SCRIPTS / "paced.py"), "--stop", str(stop))
    job, other = [cluster.submit(SCRIPT, *command, name=name, environment=environment) for name in ("again", "other")]
    target, run = targets / f"rankscope-{job}.json", f"again-{job}"

    def await_steps(of: Path, run: str) -> Met:
        return wait_for(lambda: meet(of, token, run, 3), lambda: f"{cluster.show(job)}: {cluster.read_log('again')}")

    first_life = await_steps(target, run)
    await_steps(targets / f"rankscope-{other}.json", f"other-{other}")
    rendezvous = set(_find_rendezvous(cluster))
    keys_before = read_keys(folder / f"rankscope-{job}")
    target.unlink()  # what a job that was killed leaves, the next life writes anew
    cluster.requeue(job)
    second_life = await_steps(target, run)
    stop.touch()
    requeued, ended = cluster.wait_for_end(job), cluster.wait_for_end(other)
    return Story(
        first_life=first_life,
        second_life=second_life,
        requeued=requeued,
        other=ended,
        log=cluster.read_log("again"),
        collector_log=(folder / f"rankscope-{job}" / "collector.log").read_text(),
        keys_before=keys_before,
        keys_after=read_keys(folder / f"rankscope-{job}"),
        targets_left=[path.name for path in targets.iterdir()],
        token_mode=stat.S_IMODE(token.stat().st_mode),
        rendezvous=rendezvous,
    )


def _find_rendezvous(cluster: Cluster) -> Iterator[str]:
    """Where the launchers of this Slurm's jobs meet."""
    for words in cluster.read_command_lines():
        if "--rdzv-endpoint" in words:
            yield words[words.index("--rdzv-endpoint") + 1]


def test_job_that_was_queued_again_ends_well(story: Story) -> None:
    assert (story.requeued["Restarts"], story.requeued["JobState"], story.requeued["ExitCode"]) == (
        "1", "COMPLETED", "0:0",
    )  # fmt: skip


def test_job_that_shares_the_node_ends_well(story: Story) -> None:
    assert (story.other["JobState"], story.other["ExitCode"]) == ("COMPLETED", "0:0")


def test_job_that_was_queued_again_has_not_failed(story: Story) -> None:
    assert "run_failure" not in story.second_life.incidents


def test_keys_of_the_first_life_are_used_in_the_second(story: Story) -> None:
    assert set(story.keys_before) == {"agent.key", "agent.pub", "collector.key", "collector.pub"}
    assert story.keys_after == story.keys_before


def test_log_of_the_collector_has_both_lives(story: Story) -> None:
    assert story.collector_log.count("INFO ranks connect to tcp://0.0.0.0:") == 2


def test_log_of_the_job_ends_with_the_report(story: Story) -> None:
    assert story.log.count("rank 0 has trained") == 1
    assert "STEP TIME OVER THE RUN" in story.log


def test_prometheus_finds_the_collector_in_each_life(story: Story) -> None:
    job = story.requeued["JobId"]
    for met in (story.first_life, story.second_life):
        assert met.target["labels"] == {"slurm_job": job}
        assert set(met.runs) == {f"again-{job}"}


def test_collector_that_other_machines_reach_wants_the_token(story: Story) -> None:
    assert (story.first_life.status_without_token, story.second_life.status_without_token) == (401, 401)
    assert story.token_mode == 0o600


def test_target_goes_with_the_job(story: Story) -> None:
    assert story.targets_left == []


def test_jobs_on_one_node_meet_at_places_of_their_own(story: Story) -> None:
    assert len(story.rendezvous) == 2
