"""A GPU's windows from the profiler's activities to the metrics, through everything on the way but torch and sockets.

Two ranks, steps of 100 ms by the host clock, their devices 10 ms behind. Rank 1 enters the all-reduce of each step
30 ms late; what it moves takes 10 ms. Rank 1's machine has been up for an hour more: the host clocks do not agree.
"""

import pytest

from rankscope.agent.profiler.reduction_process import ReductionProcesses
from rankscope.agent.profiler.window_reduction import GroupSource, WindowReduction
from rankscope.agent.profiler.window_scheduler import RawWindow
from rankscope.agent.reporting.builder import Interval, ReportBuilder
from rankscope.collector.config import CollectorConfig
from rankscope.collector.runs.events import RankJoined, ReportAdmitted
from rankscope.collector.runs.report_fields import ReportFields
from rankscope.collector.runs.run import RunState
from rankscope.collector.runs.snapshot import Snapshot
from rankscope.measure.codec import decode, encode
from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import Hello, Report
from rankscope.measure.records import GroupInfo, StepRecord
from rankscope.measure.units import NS_PER_MS, NS_PER_S
from tests.library_exporter import SnapshotExporter
from tests.unit.agent.traced_activities import PARAM_COMMS, TracedActivity

RANKS = (0, 1)
FIRST_STEP, WHOLE_STEPS = 4, 2
STEP_MS = 100
HOST_AHEAD_NS = {0: 0, 1: 3600 * NS_PER_S}
WALL_MINUS_HOST_NS = 1_700_000_000 * NS_PER_S
WORLD = GroupInfo(label="default_pg", description="default_pg", ranks=RANKS, backend="nccl")
ELEMENTS = 1_000_000
TOLD = (
    f'"Collective name": "allreduce", "In msg nelems": {ELEMENTS}, "Out msg nelems": {ELEMENTS}, "Group size": 2, '
    '"dtype": "BFloat16", "Process Group Name": "0", "Process Group Description": "default_pg", "Seq": '
)


class Device:
    """The activities of one rank's window. Times in ms from step 0's begin, by the host clock."""

    def __init__(self, rank: int) -> None:
        self._zero_ns = HOST_AHEAD_NS[rank] + WALL_MINUS_HOST_NS
        self.activities: list[TracedActivity] = []

    def run(self, called_ms: int, length_ms: int, name: str, stream: int = 7, told: str | None = None) -> None:
        """A call, and 10 ms later the kernel that it launched."""
        number = len(self.activities)
        operator = None if told is None else TracedActivity(PARAM_COMMS, "cpu_op", 0, 0, 0, metadata=told)
        called_ns = self._zero_ns + called_ms * NS_PER_MS
        begin_ns, length_ns = called_ns + 10 * NS_PER_MS, length_ms * NS_PER_MS
        self.activities += [
            TracedActivity("cudaLaunchKernel", "cuda_runtime", called_ns, 1_000, 100, correlation=number),
            TracedActivity(name, "kernel", begin_ns, length_ns, stream, correlation=number, linked=operator),
        ]

    def trace_activities(self) -> list[TracedActivity]:
        return list(self.activities)


def window_of(rank: int) -> RawWindow:
    """Compute for 30 ms (rank 1: 60), then the all-reduce, over at 80 ms on both."""
    device, late_ms = Device(rank), 30 * rank
    for step in range(FIRST_STEP, FIRST_STEP + WHOLE_STEPS + 1):
        begin_ms = step * STEP_MS
        device.run(begin_ms, 30 + late_ms, "gemm")
        device.run(begin_ms + 30 + late_ms, 40 - late_ms, "ncclDevKernel_AllReduce", 20, told=f"{TOLD}{step + 1}")
    return RawWindow(True, steps_of(rank), device, WALL_MINUS_HOST_NS, {}, {}, 0, on_device=True)


def steps_of(rank: int) -> tuple[StepRecord, ...]:
    length_ns = STEP_MS * NS_PER_MS
    return tuple(
        StepRecord(step=step, start_host_ns=HOST_AHEAD_NS[rank] + step * length_ns, duration_ns=length_ns, phases_ns={})
        for step in range(FIRST_STEP, FIRST_STEP + WHOLE_STEPS + 1)
    )


def report_of(rank: int) -> Report:
    source = GroupSource(lambda: {"0": WORLD}, lambda: ([], {}))
    reducing = WindowReduction(source, ReductionProcesses(), events_max=1_000)
    reducing.reduce(window_of(rank))
    (found,) = reducing.collect()
    assert found.covered_steps is not None
    interval = Interval(
        steps=steps_of(rank),
        collectives=found.collectives,
        covered_steps=[found.covered_steps],
        breakdowns=found.breakdowns,
        groups={"0": WORLD},
    )
    sent = decode(encode(ReportBuilder().build(interval, 0)))
    assert isinstance(sent, Report)
    return sent


@pytest.fixture(scope="module")
def metrics() -> dict[tuple[str, str], float]:
    """The value of each sample by its name and rank."""
    job = RunState("a", CollectorConfig())
    for rank in RANKS:
        identity = RankIdentity(
            run="a", rank=rank, local_rank=rank, world_size=2, node="n", restart_count=0, boot_id=f"boot-{rank}", pid=7
        )  # fmt: skip
        hello = Hello(identity=identity, first_sequence=1, host_ns=0, wall_ns=0, report_interval_ns=NS_PER_S)
        job.apply(RankJoined(hello, 0))
    for rank in RANKS:
        job.apply(ReportAdmitted(f"boot-{rank}", ReportFields.of(report_of(rank)), 0, 0.0))
    snapshot = Snapshot(wall_s=0.0, version="0", runs=(job.snapshot(0),))
    families = SnapshotExporter(lambda: snapshot).collect()
    samples = [sample for family in families for sample in family.samples]
    return {(sample.name, sample.labels.get("rank", "")): sample.value for sample in samples}


def of_ranks(metrics: dict[tuple[str, str], float], name: str) -> list[float]:
    return [metrics[f"rankscope_{name}", str(rank)] for rank in RANKS]


def test_the_devices_time_is_exported_by_what_it_went_into(metrics: dict[tuple[str, str], float]) -> None:
    in_both_steps = 2 / 1000
    assert of_ranks(metrics, "device_window_seconds_total") == pytest.approx([100 * in_both_steps] * 2)
    assert of_ranks(metrics, "device_compute_seconds_total") == pytest.approx([30 * in_both_steps, 60 * in_both_steps])
    assert of_ranks(metrics, "device_exposed_communication_seconds_total") == pytest.approx(
        [40 * in_both_steps, 10 * in_both_steps]
    )
    assert of_ranks(metrics, "idle_ratio") == pytest.approx([0.3, 0.3])


def test_kernel_durations_tell_waiting_from_transfer(
    metrics: dict[tuple[str, str], float],
) -> None:
    assert of_ranks(metrics, "collectives_total") == [2, 2]
    assert of_ranks(metrics, "collective_seconds_total") == pytest.approx([0.08, 0.02])
    assert of_ranks(metrics, "collective_transfer_seconds_total") == pytest.approx([0.02, 0.02])
    assert of_ranks(metrics, "collective_wait_seconds_total") == pytest.approx([0.06, 0.0])


def test_bytes_and_bus_bandwidth_are_those_of_nccl_tests(metrics: dict[tuple[str, str], float]) -> None:
    assert of_ranks(metrics, "collective_bytes_total") == [2 * 2 * ELEMENTS] * 2  # 2 bytes each, 2 all-reduces
    # 2,000,000 bytes in 10 ms, times 2 (n - 1) / n = 1 with n = 2.
    assert of_ranks(metrics, "collective_bus_bandwidth_bytes_per_second") == pytest.approx([2e8, 2e8])
