"""Real NCCL under the agent: several ranks on one GPU, or one where NCCL refuses that."""

from pathlib import Path

import pytest
import torch

from tests.integration.listening_collector import Life, listening
from tests.integration.torchrun import AGENT, OFTEN, Ended, run, torchrun

pytestmark = pytest.mark.gpu

SCRIPT = str(Path(__file__).parent / "scripts" / "nccl_on_one_gpu.py")
RANKS = 2
STEPS = 40


def train(ranks: int) -> tuple[Ended, list[Life]]:
    with listening() as collector:
        ended = run(torchrun(ranks, *AGENT, SCRIPT), {**OFTEN, "RANKSCOPE_COLLECTOR": collector.endpoint})
        return ended, collector.lives


@pytest.fixture(scope="module")
def job() -> tuple[int, Ended, list[Life]]:
    """Return the number of ranks that NCCL accepted, how they ended, and their reports."""
    ended, lives = train(RANKS)
    if "refused" in ended.stdout:
        ended, lives = train(1)
        return 1, ended, lives
    return RANKS, ended, lives


def find_numbers(ended: Ended, word: str) -> list[int]:
    """Return the numbers that the ranks printed after a word, one line each."""
    lines = [line.split() for line in ended.stdout.splitlines()]
    return [int(line[1]) for line in lines if len(line) == 2 and line[0] == word]


def test_run_ends_as_without_the_agent(job: tuple[int, Ended, list[Life]]) -> None:
    ranks, ended, _ = job
    assert ended.exit_code == 0, ended.stderr
    assert find_numbers(ended, "sum") == [ranks] * ranks
    assert ended.left == ()


def test_ranks_that_share_a_gpu_run_kernels_of_nccl(job: tuple[int, Ended, list[Life]]) -> None:
    ranks, ended, _ = job
    if ranks == 1:
        pytest.skip(f"NCCL {torch.cuda.nccl.version()} refuses two ranks on one GPU; of a single one it has no kernels")
    assert min(find_numbers(ended, "kernels")) > 0


def test_users_profiler_works_and_all_steps_are_reported(job: tuple[int, Ended, list[Life]]) -> None:
    ranks, _, lives = job
    assert len(lives) == ranks
    for life in lives:
        assert [record.step for record in life.steps] == list(range(STEPS))
        assert life.losses.errors == {}


def test_each_rank_knows_its_group_and_its_gpu(job: tuple[int, Ended, list[Life]]) -> None:
    ranks, _, lives = job
    for life in lives:
        groups = [group for report in life.reports for group in report.groups or ()]
        assert {(group.backend, group.ranks) for group in groups} == {("nccl", tuple(range(ranks)))}
        devices = {device.uuid for report in life.reports for device in report.devices}
        assert len(devices) == 1
