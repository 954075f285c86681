"""Real NCCL under the agent: several ranks on one GPU, or one where NCCL refuses that."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from rankscope.agent.governor import COLLECTIVE_TIMES
from rankscope.agent.profiler.window_effect import STRETCH_STEPS_MIN
from tests.integration.listening_collector import Life, listening
from tests.integration.torchrun import AGENT, OFTEN, Ended, run, torchrun

pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("nccl")]

SCRIPT = str(Path(__file__).parent / "scripts" / "nccl_on_one_gpu.py")
RANKS = 2
STEPS = 40
LONG = "600"
"""Twenty seconds of two ranks that share a GPU, as far as is known: the recorder is read again after two."""
WITHOUT_WINDOWS = {"RANKSCOPE_FULL_WINDOWS": "0", "RANKSCOPE_COLLECTIVE_WINDOWS": "0"}


def train(**environment: str) -> tuple[int, Ended, list[Life]]:
    """Return the number of ranks that NCCL accepted, how they ended, and their reports."""
    found = train_with(RANKS, environment)
    return train_with(1, environment) if "refused" in found[1].stdout else found


def train_with(ranks: int, environment: Mapping[str, str]) -> tuple[int, Ended, list[Life]]:
    with listening() as collector:
        settings = {**OFTEN, "RANKSCOPE_COLLECTOR": collector.endpoint, **environment}
        return ranks, run(torchrun(ranks, *AGENT, SCRIPT), settings), collector.lives


@pytest.fixture(scope="module")
def job() -> tuple[int, Ended, list[Life]]:
    return train()


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


def test_collectives_are_timed_without_windows() -> None:
    ranks, ended, lives = train(**WITHOUT_WINDOWS, STEPS=LONG)
    assert ended.exit_code == 0, ended.stderr
    if ranks == 1:
        pytest.skip("of a single rank the steps are over before the recorder is read again")
    said = [line for line in ended.heard_of_agent if "collectives are timed (TORCH_NCCL_ENABLE_TIMING=1)" in line]
    assert len(said) == 1, "on this node, of all ranks"
    for life in lives:
        assert COLLECTIVE_TIMES in life.reports[-1].cost.part_ns
        assert life.covered_steps == set()
        assert {record.step for record in life.collectives} <= life.timed_steps
        of_step = [record for record in life.collectives if record.step == max(life.timed_steps)]
        # DDP reduces weight and bias of the layer in one bucket: 1,024 x 1,024 and 1,024 floats.
        assert [(record.op, record.bytes) for record in of_step] == [("all_reduce", 4 * (1024 * 1024 + 1024))]
        assert of_step[0].duration_ns >= 0
        assert life.losses.errors == {}
    assert len(lives) == ranks


def test_timing_is_switched_on_within_a_run() -> None:
    ranks, ended, lives = train(**WITHOUT_WINDOWS, STEPS=LONG, RANKSCOPE_NCCL_TIMING="measured")
    assert ended.exit_code == 0, ended.stderr
    if ranks == 1:
        pytest.skip("of a single rank the steps are over before the recorder is read again")
    said = [line for line in ended.heard_of_agent if "have been timed since step" in line]
    assert len(said) == 1, "on this node, of all ranks"
    for life in lives:
        cost = life.reports[-1].cost
        assert cost.timing_effect in {"kept", "slower"}
        assert cost.timing_ratio is not None
        assert life.collectives, "torch has durations of what was enqueued after the call"
        assert min(life.timed_steps) > 3 * STRETCH_STEPS_MIN, "after the reference and two stretches or more"
        assert life.losses.errors == {}


def test_timing_that_is_off_leaves_nothing_to_read() -> None:
    _, ended, lives = train(**WITHOUT_WINDOWS, RANKSCOPE_NCCL_TIMING="off")
    assert (ended.exit_code, ended.heard_of_agent) == (0, [])
    assert [life.collectives for life in lives] == [[]] * len(lives)
