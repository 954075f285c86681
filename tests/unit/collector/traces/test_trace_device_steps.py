"""Steps by the device's clock, where the host runs ahead of its device."""

from pathlib import Path
from typing import Any

import pytest

from rankscope.collector.traces import analyze
from rankscope.collector.traces.windows import break_down_steps, find_step_bounds
from rankscope.measure.rank_view import RankView
from tests.unit.measure.written_traces import Event, event, kernel, launch, read_events, to_json

MS = 1_000_000
HOST_STEP_US = 2_000
TRANSFER_US = 1_000


def step_of(number: int, start_us: int, length_us: int = HOST_STEP_US) -> Event:
    return event("user_annotation", f"ProfilerStep#{number}", start_us, length_us)


def all_reduce(start_us: int, length_us: int, number: int) -> Event:
    arguments = {
        "Collective name": "allreduce", "Process Group Name": "0", "Process Group Description": "default_pg",
        "Process Group Ranks": "[0, 1]", "Group size": 2, "dtype": "Float", "In msg nelems": 1000,
        "Out msg nelems": 1000, "Seq": number, "stream": 20, "correlation": 100 + number,
    }  # fmt: skip
    return kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", start_us, length_us, **arguments)


def rank_ahead(rank: int, computes_us: int, slowest_us: int, steps: int = 5) -> dict[str, Any]:
    """Return a rank whose host needs 2 ms for a step, and whose device computes and then waits in an all-reduce for the
    rank that computes for `slowest_us`.
    """
    period_us = slowest_us + TRANSFER_US
    events = []
    for number in range(steps):
        host_us, device_us = number * HOST_STEP_US, 1_000 + number * period_us
        events += [
            step_of(number, host_us),
            launch(host_us + 100, number),
            launch(host_us + 200, 100 + number),
            kernel("gemm", device_us, computes_us, correlation=number),
            all_reduce(device_us + computes_us, period_us - computes_us, number),
        ]
    info = {"rank": rank, "world_size": 2, "pg_count": 1, "backend": "nccl"}
    return {"events": events, "head": {"distributedInfo": info, "host_name": "a", "baseTimeNanoseconds": 10**18}}


def analyze_pair(folder: Path, computes_us: tuple[int, int]) -> Any:
    for rank, mine_us in enumerate(computes_us):
        made = rank_ahead(rank, mine_us, max(computes_us))
        (folder / f"rank{rank}.json").write_bytes(to_json(*made["events"], **made["head"]))
    return analyze(str(folder))


def test_slow_rank_is_found_where_hosts_run_ahead(tmp_path: Path) -> None:
    # By the host each step has 2 ms. On the device rank 1 computes 60 ms, rank 0 30 ms; both transfer for 1 ms.
    report = analyze_pair(tmp_path, (30_000, 60_000))
    (found,) = report.cross_rank.findings
    assert (found.rank, found.cause) == (1, "gpu_compute")
    assert found.slowdown_ratio == pytest.approx(61 / 31, abs=0.01)
    assert found.sentence == (
        "Rank 1 (a): 2.0x slower than the other rank, steps 0-4. Own time 61.0 ms per step, peers 31.0 ms. "
        "Cause gpu_compute: 30.0 ms more per step on its GPU, in 2 kernels, 2 on its peers. "
        "Cost: run 2.0x slower, 1.0 of 2 ranks wasted. "
        "Longer at as many launches: gemm 2.00x (150.0 ms more in the trace). "
        "Last in 5 of 5 collectives, with 100 % of the waiting caused."
    )


def test_equal_ranks_whose_hosts_run_ahead_accuse_nobody(tmp_path: Path) -> None:
    assert analyze_pair(tmp_path, (60_000, 60_000)).cross_rank.findings == []


def test_both_views_of_a_step_are_there(tmp_path: Path) -> None:
    report = analyze_pair(tmp_path, (30_000, 60_000)).ranks[0]
    second = report.steps[1]
    assert (second.step, second.start_ns, second.window_ns) == (1, 2 * MS, 2 * MS)
    on_device = second.on_device
    # From 1 ms + 61 ms on: 30 ms of computing, then 31 in the all-reduce.
    assert (on_device.start_ns, on_device.window_ns, on_device.compute_ns) == (62 * MS, 61 * MS, 30 * MS)
    assert (on_device.exposed_communication_ns, on_device.idle_ns, on_device.kernel_count) == (31 * MS, 0, 2)


def test_last_step_ends_with_the_work_that_it_launched() -> None:
    events = [step_of(3, 0), launch(5, 1), kernel("a", 4_000, 30, correlation=1), kernel("later", 9_000, 1)]
    (step,) = break_down_steps(RankView(read_events(*events)))
    assert step.on_device is not None
    assert (step.on_device.start_ns, step.on_device.window_ns) == (4_000_000, 30_000)


@pytest.mark.parametrize(
    "events",
    [
        [step_of(3, 0), step_of(4, 2_000), launch(5, 1), kernel("a", 9_000, 30, correlation=1)],
        [step_of(3, 0), step_of(4, 2_000), launch(5, 1), launch(2_005, 2), kernel("a", 9_000, 30, correlation=1),
         kernel("b", 8_000, 30, correlation=2)],
        [step_of(3, 0), step_of(4, 2_000), event("cpu_op", "a", 0, 5)],
    ],
    ids=["a step that launched nothing", "a step whose work is before the one in front", "no device"],
)  # fmt: skip
def test_without_bounds_on_the_device_the_hosts_are_compared(events: list[Event]) -> None:
    view = RankView(read_events(*events))
    assert find_step_bounds(view) == [(3, 0, 2 * MS), (4, 2 * MS, 4 * MS)]
    assert break_down_steps(view)[0].on_device is None
