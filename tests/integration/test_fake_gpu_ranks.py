"""Four ranks of DDP on the fake GPU under torchrun, from its kernels to the metrics and verdicts of a real collector.

The ranks meet only in the device's collectives, so that waiting is what the device makes of it.
"""

from collections.abc import Mapping
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rankscope.collector.runs.snapshot import RunSnapshot
from rankscope.measure.units import NS_PER_S
from tests.fake_gpu import BLOCKING_CALL, KERNEL, MEMCPY, Work, read_work
from tests.integration.fake_gpu_jobs import find_library, settings
from tests.integration.faults import sized
from tests.integration.serving import Served, have_ended, serving
from tests.integration.torchrun import SCRIPTS, forked_ranks, started
from tests.nvml_stand_in import compile_nvml

SCRIPT = "fake_gpu_ranks.py"
LINES = (SCRIPTS / SCRIPT).read_text().splitlines()
LINE = next(number for number, line in enumerate(LINES, start=1) if line.endswith("# one rank waits here"))
WAITS_AT = f"{SCRIPT}:{LINE} (<module>)"
HOST_S = 0.05
RANKS = 4
EQUAL_STEPS = 120
RUN = "fake-gpu"
KERNEL_NS = 200_000
COMMUNICATION_STREAM = 20
TRANSFER_NS = 300_000
ONE_US = 1e-6
WHOLE_STEPS = 4
INTERVAL_STEPS_MAX = 32
"""Between two windows of a second or more with steps of 50 ms; a begin is known no better."""
WINDOWS = {"full_window_interval_s": "1", "constant_full_window_steps": str(WHOLE_STEPS)}


class Trained(NamedTuple):
    """How the collector has seen a job, its page of metrics when all steps were over, and the work of each rank."""

    run: RunSnapshot
    page: Mapping[tuple[str, int], float]
    work: tuple[list[Work], ...]


def train(folder: Path, steps: int, *options: str, windows: Mapping[str, str] = WINDOWS) -> Trained:
    """Train on four ranks, with NVML's stand-in on each."""
    compile_nvml(folder)
    sizes = ("--steps", str(steps), "--kernel-ns", str(KERNEL_NS))
    # A process of its own: the loader reads LD_LIBRARY_PATH only when a program begins.
    command = forked_ranks(RANKS, SCRIPT, find_library(), str(folder), *sizes, *options).command
    with serving() as served:
        given = settings(served.endpoint, run=RUN, gpu="true", sample_interval_s="0.5", **windows)
        with started(command, {**given, "LD_LIBRARY_PATH": str(folder)}) as job:
            served.wait_for_steps(RUN, steps - 1)  # the last one is over with the script
            page = read_page(served)
            (folder / "end").touch()
            ended = job.wait()
        assert (ended.exit_code, ended.left) == (0, ()), ended.stderr
        seen = served.wait_for_run(RUN, have_ended)
    assert [rank.losses.errors for rank in seen.ranks] == [{}] * RANKS
    return Trained(seen, page, tuple(read_work(folder / f"work.{rank}") for rank in range(RANKS)))


def read_page(served: Served) -> dict[tuple[str, int], float]:
    """Return the value of each sample of a rank, by its name and rank."""
    return {
        (sample.name, int(sample.labels["rank"])): sample.value
        for family in text_string_to_metric_families(served.read_metrics())
        for sample in family.samples
        if sample.labels.get("rank")  # a finding about the run has an empty one
    }


def sum_of_a_step(work: list[Work], kind: int) -> float:
    """Return the seconds of that kind of work on the training's stream in each step after the second, which are
    alike. A step ends with the copy of its loss.
    """
    sums_ns, of_step_ns = [], 0
    for one in work:
        of_step_ns += one.length_ns if one.kind == kind and one.stream != COMMUNICATION_STREAM else 0
        if one.kind == MEMCPY:
            sums_ns.append(of_step_ns)
            of_step_ns = 0
    assert len(set(sums_ns[2:])) == 1, sums_ns
    return sums_ns[-1] / NS_PER_S


def find_idle_after_copies(work: list[Work]) -> list[int]:
    """Return how long the device had no work after each copy to the host, in ns."""
    in_order = sorted((one for one in work if one.kind != BLOCKING_CALL), key=lambda one: one.begin_ns)
    over_ns = accumulate((one.end_ns for one in in_order), max)
    return [
        max(0, following.begin_ns - end_ns)
        for (one, following), end_ns in zip(pairwise(in_order), over_ns, strict=False)
        if one.kind == MEMCPY
    ]


@pytest.fixture(scope="module", params=range(sized(1, 20)))
def equal(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A job of equal ranks."""
    return train(tmp_path_factory.mktemp("equal"), EQUAL_STEPS)


def test_device_seconds_are_sums_of_devices_and_nobody_is_blamed(equal: Trained) -> None:
    assert [found for found in equal.run.findings if found.kind == "straggler"] == []
    for rank, work in enumerate(equal.work):
        seconds = [equal.page[f"rankscope_device_{name}_seconds_total", rank] for name in ("compute", "copy")]
        of_a_step = [sum_of_a_step(work, kind) for kind in (KERNEL, MEMCPY)]
        windows = round(seconds[0] / of_a_step[0])
        assert windows >= WHOLE_STEPS
        assert seconds == pytest.approx([windows * one for one in of_a_step], abs=ONE_US)


def test_members_of_a_collective_end_together_after_its_transfer(equal: Trained) -> None:
    collectives = [[one for one in work if one.stream == COMMUNICATION_STREAM] for work in equal.work]
    assert len(collectives[0]) >= EQUAL_STEPS
    for members in zip(*collectives, strict=True):
        assert len({member.end_ns for member in members}) == 1
        assert min(member.length_ns for member in members) >= TRANSFER_NS


@pytest.mark.parametrize("time", range(sized(1, 20)))
def test_only_rank_with_slow_kernels_is_blamed_for_its_device(tmp_path: Path, time: int) -> None:
    del time
    slow_from = 60
    trained = train(tmp_path, 200, "--slow-rank", "2", "--slow-ratio", "1.3", "--slow-from", str(slow_from))
    stragglers = [found for found in trained.run.findings if found.kind == "straggler"]
    assert {(found.ranks, found.cause) for found in stragglers} == {((2,), "gpu_compute")}
    assert stragglers[0].since_step == pytest.approx(slow_from, abs=INTERVAL_STEPS_MAX)
    assert stragglers[0].slowdown_ratio == pytest.approx(1.3, abs=0.1)


@pytest.mark.parametrize("time", range(sized(1, 20)))
def test_only_rank_waiting_for_its_device_is_blamed_with_line(tmp_path: Path, time: int) -> None:
    del time
    trained = train(tmp_path, 80, "--waiting-rank", "1", "--host-s", str(HOST_S))
    stragglers = [found for found in trained.run.findings if found.kind == "straggler"]
    assert {(found.ranks, found.cause) for found in stragglers} == {((1,), "host_device_sync")}
    # Every rank works on its host in every step, and only this one's device is idle meanwhile, after the first copy of
    # a step: for the work of the host, and some 0.5 ms until backward launches its first kernel.
    idle_ns = median(find_idle_after_copies(trained.work[1])[::2])
    assert idle_ns == pytest.approx(HOST_S * NS_PER_S, rel=0.1)
    assert stragglers[0].evidence["sync_excess_ns"] == pytest.approx(idle_ns, rel=0.1)
    assert f"{WAITS_AT} (aten::_local_scalar_dense, cudaStreamSynchronize)" in stragglers[0].sentence


@pytest.mark.parametrize("time", range(sized(1, 20)))
def test_without_windows_only_rank_with_slow_kernels_is_blamed(tmp_path: Path, time: int) -> None:
    del time
    slow_from = 90
    # The host runs ahead of its device: a busy machine that holds up one host does not make its device late.
    options = ("--slow-rank", "2", "--slow-ratio", "1.3", "--slow-from", str(slow_from), "--read-every", "10")
    trained = train(tmp_path, 180, *options, windows={"device_windows": "off"})
    assert {rank.totals.windows for rank in trained.run.ranks} == {0}
    stragglers = [found for found in trained.run.findings if found.kind == "straggler"]
    assert {(found.ranks, found.cause) for found in stragglers} == {((2,), "unattributed")}  # kernels are not known
    assert stragglers[0].since_step == pytest.approx(slow_from, abs=INTERVAL_STEPS_MAX)
    assert stragglers[0].slowdown_ratio == pytest.approx(1.3, abs=0.1)
    late, others = 2, (0, 1, 3)
    tails_s = [trained.page["rankscope_device_tail_seconds_total", rank] for rank in range(RANKS)]
    assert tails_s[late] < min(tails_s[rank] for rank in others)
