"""The agent's windows on a GPU inside the real Kineto, which loses and slows as a real one did: tests/fake_gpu.

What the reports say is compared with the device's own list of kernels.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pytest

from rankscope.agent.profiler.window_effect import STRETCH_STEPS_MIN
from rankscope.collector.runs.rank import RankState
from rankscope.collector.runs.ratio_basis import RatioBasis
from rankscope.collector.runs.report_fields import ReportFields
from rankscope.collector.runs.sample_rings import RankSamples
from rankscope.collector.runs.snapshot import RankSnapshot
from rankscope.collector.runs.window_effect import describe_window_effect
from rankscope.collector.steps.rank_medians import NO_MEDIANS
from rankscope.measure.records import AgentCost
from tests.fake_gpu import Counts, Work, read_work
from tests.integration.fake_gpu_jobs import find_library, settings
from tests.integration.listening_collector import Life, listening
from tests.integration.torchrun import ALONE, OFTEN, Ended, run_forked

KERNEL_NS = 20_000
LAUNCHES_A_STEP_MIN = 20
SLOWED = ("--host-s", "0.034", "--attached-s", "0.1")
"""32 steps take a second; while the device is attached they take four. Asleep, and by so much, that a busy machine does
not hide it: a process that sleeps does not compete for cores."""
UNTIL_DETACHED = ("--after-detached", "140")
"""Four stretches of 32 steps, of which one suffices on a quiet machine, and more."""
BUDGET = "RANKSCOPE_OVERHEAD_RATIO_MAX"
NO_CAPTURES: Mapping[str, str] = MappingProxyType({})
ENDED = "this rank takes no more full profiler windows"


class Job(NamedTuple):
    """How a job ended, what its rank has reported, what the device has seen, and its work."""

    ended: Ended
    life: Life
    counts: Counts
    work: list[Work]

    @property
    def cost(self) -> AgentCost:
        """What the last report says of the agent's cost."""
        return self.life.reports[-1].cost

    def sum_kernels(self, first_step: int, step_count: int) -> int:
        """Return the time of the kernels that these steps have launched, ns."""
        steps = {record.step: record for record in self.life.steps}
        begin_ns = steps[first_step].start_host_ns
        end_ns = steps[first_step + step_count - 1].end_host_ns
        return sum(work.length_ns for work in self.work if begin_ns <= work.called_ns < end_ns)


def train(
    folder: Path,
    device_windows: str,
    steps: int | None,
    *options: str,
    budget: str = OFTEN[BUDGET],
    captures: Mapping[str, str] = NO_CAPTURES,
) -> Job:
    file = folder / "work.txt"
    words = ("fake_gpu.py", find_library(), str(file), "--steps", str(steps or 1), *options)
    with listening() as collector:
        given = settings(collector.endpoint, device_windows=device_windows, **captures)
        ended = run_forked(*words, environment={**ALONE, **given, BUDGET: budget})
    assert (ended.exit_code, ended.left) == (0, ()), ended.stderr
    (life,) = collector.lives
    counts = Counts(*json.loads(ended.stdout.splitlines()[-1]))
    assert life.losses.errors == {}
    assert [record.step for record in life.steps] == list(range(steps or len(life.steps)))
    return Job(ended, life, counts, read_work(file))


def replay(life: Life) -> list[RankSnapshot]:
    """Return the collector's snapshot of the rank after each of its reports."""
    rank, samples, found = RankState.begin(life.hello, 0), RankSamples(), []
    for report in life.reports:
        fields = ReportFields.of(report)
        samples.record(fields)
        rank = rank.record_report(fields, samples.breakdowns.sum, report.host_ns, 0.0)
        rank = rank.record_steps(fields, 0, report.totals.steps - 1)
        found.append(rank.build(report.host_ns, NO_MEDIANS, ()))
    return found


def check_breakdowns(job: Job) -> None:
    """Each breakdown has exactly the kernels that its step launched."""
    assert job.life.breakdowns
    for found in job.life.breakdowns:
        assert found.compute_ns == job.sum_kernels(found.first_step, found.step_count)
        assert found.compute_ns >= LAUNCHES_A_STEP_MIN * KERNEL_NS
        assert found.compute_ns + found.idle_ns == found.window_ns


def options_of(how: str, *more: str, kernel_ns: int = KERNEL_NS) -> Sequence[str]:
    return ("--kernel-ns", str(kernel_ns), "--how", how, *more)


@pytest.mark.parametrize("how", ["waits", "ahead"])
def test_windows_have_all_kernels_also_where_the_device_lags(tmp_path: Path, how: str) -> None:
    job = train(tmp_path, "always", 120, *options_of(how))
    check_breakdowns(job)
    assert job.life.losses.windows_skipped == {"first_of_device": 1}
    assert job.counts.lost <= 1, "the first session, which is discarded, may be"


LAYERS, PRODUCT = 4, 2 * 4 * 16 * 16
"""The model of scripts/fake_gpu.py, and the FLOPs of a product of its batch of 4 with one of its weights."""


@pytest.mark.parametrize("how", ["waits", "ahead"])
def test_window_with_shapes_has_flops_of_a_step_and_all_kernels(tmp_path: Path, how: str) -> None:
    inside = ("--operators", "aten::addmm", "aten::mm", "aten::sum", "--faults", json.dumps({"at_end": 1}))
    job = train(tmp_path, "always", 200, *options_of(how, *inside))
    for one in job.life.breakdowns:
        assert one.compute_ns == job.sum_kernels(one.first_step, one.step_count) > 0
    found = job.life.reports[-1].flops
    assert found.model is not None, found.absent
    assert found.executed is not None
    assert found.model.per_step == 3 * LAYERS * PRODUCT
    # The input needs no gradient.
    assert found.executed.per_step == (LAYERS + 2 * LAYERS - 1) * PRODUCT
    assert found.source == "measured"


def test_without_the_wait_windows_are_lost_as_on_a_real_device(tmp_path: Path) -> None:
    # Kernels so long that the device is behind however slowly a busy machine's host launches them.
    job = train(tmp_path, "always", 120, *options_of("ahead", "--impatient", kernel_ns=10 * KERNEL_NS))
    assert job.life.losses.windows_skipped["steps_cut"] > 0
    assert job.counts.lost > 1


@pytest.mark.parametrize("budget", ["0.005", OFTEN[BUDGET]])
def test_windows_that_slow_training_end_and_speed_comes_back(tmp_path: Path, budget: str) -> None:
    job = train(tmp_path, "governed", None, *options_of("waits", *SLOWED, *UNTIL_DETACHED), budget=budget)
    assert (job.counts.detached, job.counts.is_attached) == (1, False)
    assert ENDED in job.ended.stderr
    assert job.cost.dropped["full_windows"]
    assert job.cost.attached_ratio is not None
    assert job.cost.detached_ratio is not None
    assert job.cost.attached_ratio > 0.5
    assert job.cost.detached_ratio < job.cost.attached_ratio / 2
    check_breakdowns(job)
    assert min(found.first_step for found in job.life.breakdowns) > STRETCH_STEPS_MIN
    check_ratios_end(job.life)


def check_ratios_end(life: Life) -> None:
    """The collector has ratios while there are windows, and a reason afterwards."""
    snapshots = replay(life)
    last, newest = snapshots[-1], max(found.first_step for found in life.breakdowns)
    assert any(one.breakdown is not None for one in snapshots)
    assert (last.breakdown, last.ratio_basis.age_steps) == (None, life.reports[-1].totals.steps - 1 - newest)
    assert (last.ratio_basis.absent or "").startswith(f"full windows ended after step {newest} because steps took")
    assert (describe_window_effect([last]) or "").startswith(
        "full windows ended on 1 of 1 ranks: between windows, steps took"
    )


def test_windows_end_without_a_detach_where_a_graph_exists(tmp_path: Path) -> None:
    job = train(tmp_path, "governed", 240, *options_of("waits", *SLOWED, "--has-graph"))
    assert (job.counts.detached, job.counts.is_attached) == (0, True)
    assert "could not be tested" in job.ended.stderr
    assert (job.cost.dropped["full_windows"], job.cost.detached_ratio) == (True, None)


def test_capturing_run_attaches_no_device_before_its_first_graph(tmp_path: Path) -> None:
    graph_at = 60
    options = options_of("waits", "--host-s", "0.02", "--is-seen-by-torch", "--graph-at", str(graph_at))
    job = train(tmp_path, "always", 120, *options, captures=captured_with(tmp_path, cuda_graphs="yes"))
    assert Counts(*json.loads(job.ended.stdout.splitlines()[0])) == Counts(0, 0, 0, is_attached=False)
    assert "the capture of steps 41 to 44 was refused: cuda_graphs = yes" in job.ended.stderr
    assert job.life.losses.windows_skipped["before_first_graph"] > 0
    assert job.life.losses.windows_skipped["first_of_device"] == 1
    assert min(found.first_step for found in job.life.breakdowns) > graph_at
    assert "captured steps 86 to 89" in job.ended.stderr
    check_breakdowns(job)
    reasons = [snapshot.ratio_basis.absent for snapshot in replay(job.life)]
    assert (
        "this collector has seen no full window: none begins before the run's first CUDA graph (cuda_graphs)" in reasons
    )
    assert reasons[-1] is None


def test_a_device_whose_windows_are_off_is_never_attached(tmp_path: Path) -> None:
    job = train(tmp_path, "off", 60, *options_of("waits", *SLOWED))
    assert job.counts == Counts(0, 0, 0, is_attached=False)
    assert (job.life.breakdowns, job.life.losses.windows_skipped) == ([], {})
    expected = "this collector has seen no full window: device_windows = off"
    assert replay(job.life)[-1].ratio_basis == RatioBasis(absent=expected)


def captured_with(folder: Path, **more: str) -> Mapping[str, str]:
    """Return the settings by which the steps 41 to 44 and 86 to 89 are captured."""
    schedule = "wait=40, warmup=1, active=4, repeat=2"
    return {"capture_folder": str(folder / "captures"), "capture_schedule": schedule, **more}


@pytest.mark.parametrize("how", ["waits", "ahead"])
def test_on_demand_the_device_is_recorded_in_captures_only(tmp_path: Path, how: str) -> None:
    options = options_of(how, "--host-s", "0.005", "--is-seen-by-torch")
    job = train(tmp_path, "on_demand", 120, *options, captures=captured_with(tmp_path))
    assert job.counts.sessions == 2
    # The last captured step only bounds the one before.
    assert [found.first_step for found in job.life.breakdowns] == [41, 42, 43, 86, 87, 88]
    check_breakdowns(job)
    assert job.life.losses.windows_skipped == {}
    last = replay(job.life)[-1]
    assert last.breakdown is not None
    assert (last.breakdown.first_step, last.breakdown.step_count) == (86, 3)
    assert (last.ratio_basis.on_demand, last.ratio_basis.age_steps, last.ratio_basis.absent) == (True, 31, None)


def test_captures_that_keep_the_host_busy_give_no_ratios(tmp_path: Path) -> None:
    captures = captured_with(tmp_path, capture_options="stacks")
    job = train(tmp_path, "on_demand", 100, *options_of("waits", "--is-seen-by-torch"), captures=captures)
    assert job.counts.sessions == 2
    assert (job.life.breakdowns, job.life.losses.windows_skipped) == ([], {})
    assert replay(job.life)[-1].breakdown is None


def test_flops_come_from_host_operators_without_device_windows(tmp_path: Path) -> None:
    given = {"peak_tflops": "1", "collective_windows": "false"}
    # A session may come at the steps 48, 96 and 193 after the warm-up, as far as the budget is there by then.
    job = train(tmp_path, "off", 260, *options_of("waits", "--host-s", "0.02"), captures=given)
    found = job.life.reports[-1].flops
    assert found.model is not None, found.absent
    assert found.executed is not None
    assert found.model.per_step == 3 * LAYERS * PRODUCT
    assert found.executed.per_step == (LAYERS + 2 * LAYERS - 1) * PRODUCT
    step_s = sum(record.duration_ns for record in job.life.steps[-found.model.steps :]) / 1e9
    assert found.mfu == pytest.approx(3 * LAYERS * PRODUCT * found.model.steps / step_s / 1e12, rel=1e-9)
    assert job.counts == Counts(sessions=0, lost=0, detached=0, is_attached=False)
    assert job.life.breakdowns == []
    assert job.cost.part_ns["full_windows"] > 0, "what it costs is counted"
