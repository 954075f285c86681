"""The measures of a run's ranks together, of its nodes and of its worst ranks."""

import math

import pytest

from rankscope.collector.publish.metrics.measures import OfOverview
from rankscope.collector.publish.metrics.node_metrics import OVERVIEW
from rankscope.collector.publish.metrics.overview import build_overview
from rankscope.collector.runs.snapshot import RankSnapshot, RunSnapshot, Snapshot
from rankscope.measure.identity import RankIdentity
from rankscope.measure.records import DeviceSample, Totals, WindowBreakdown

MS = 1_000_000
"""ns per ms"""
READERS = {measure.name: measure.read.read for measure in OVERVIEW if isinstance(measure.read, OfOverview)}


def rank_of(rank: int, *, node: str = "n0", **known: object) -> RankSnapshot:
    """A rank that reports, unless `known` says otherwise."""
    identity = RankIdentity(
        run="a", rank=rank, local_rank=rank, world_size=4, node=node, restart_count=0, boot_id="boot-of-it", pid=7
    )  # fmt: skip
    fields: dict[str, object] = {"up": True, "reports_admitted": 1} | known
    return RankSnapshot(identity=identity, **fields)  # type: ignore[arg-type]


def gpu(uuid: str, **known: object) -> DeviceSample:
    return DeviceSample(host_ns=0, uuid=uuid, **known)  # type: ignore[arg-type]


def read(name: str, *ranks: RankSnapshot) -> dict[tuple[str, ...], float | None]:
    """The values of a measure by its labels after the run; those that are not known are left out."""
    run = RunSnapshot(run="a", world_size=4, restart_count=0, ranks=ranks)
    overview = build_overview(Snapshot(wall_s=0.0, version="0", runs=(run,)))
    return {labels[1:]: value for labels, value in READERS[f"rankscope_{name}"](overview) if value is not None}


def window_of(window_ns: int, compute_ns: int, communication_ns: int, overlap_ns: int) -> WindowBreakdown:
    exposed_ns = communication_ns - overlap_ns
    return WindowBreakdown(
        first_step=0, step_count=1, window_ns=window_ns, compute_ns=compute_ns, communication_ns=communication_ns,
        overlap_ns=overlap_ns, exposed_communication_ns=exposed_ns, copy_ns=0,
        idle_ns=window_ns - compute_ns - exposed_ns,
    )  # fmt: skip


# -- a run's ranks together -------------------------------------------------------------------------------------------


def test_the_ratios_of_a_run_are_those_of_all_windows_together() -> None:
    ranks = rank_of(0, breakdown=window_of(100, 60, 20, 10)), rank_of(1, breakdown=window_of(300, 60, 60, 30))
    # 120 of 400 compute, 80 of 400 communicate, 40 of those 80 are hidden.
    assert read("run_compute_ratio", *ranks) == {(): 0.3}
    assert read("run_communication_ratio", *ranks) == {(): 0.2}
    assert read("run_overlap_ratio", *ranks) == {(): 0.5}
    assert read("run_exposed_communication_ratio", *ranks) == {(): 0.1}
    assert read("run_idle_ratio", *ranks) == {(): 0.6}


def test_without_windows_there_are_no_ratios() -> None:
    assert read("run_compute_ratio", rank_of(0)) == {}


def test_steps_of_a_run_do_not_fall_when_its_leading_rank_ends() -> None:
    behind, first = rank_of(0, totals=Totals(steps=7)), rank_of(1, totals=Totals(steps=9))
    ended = rank_of(1, totals=Totals(steps=9), up=False, ended="finished")
    assert read("run_steps_total", behind, first) == read("run_steps_total", behind, ended) == {(): 9}


def test_the_step_of_a_run_is_the_median_of_its_ranks() -> None:
    ranks = (rank_of(rank, step_ns_median=duration * MS) for rank, duration in enumerate((100, 300, 200)))
    assert read("run_step_median_seconds", *ranks, rank_of(3)) == {(): 0.2}


def test_stalled_ranks_are_counted_and_unknown_ones_are_not() -> None:
    ranks = rank_of(0, stalled=True), rank_of(1, stalled=False), rank_of(2, stalled=None)
    assert read("run_stalled_ranks", *ranks) == {(): 1}


@pytest.mark.parametrize("ended", ["finished", "silent"])
def test_of_a_run_without_live_ranks_nothing_is_told(ended: str) -> None:
    gone = rank_of(0, up=False, ended=ended, totals=Totals(steps=9), slowdown_ratio=2.0, devices=(gpu("G"),))
    assert [name for name in READERS if read(name.removeprefix("rankscope_"), gone)] == []


# -- nodes ------------------------------------------------------------------------------------------------------------


def test_node_has_its_live_ranks_and_the_highest_slowdown() -> None:
    ranks = (
        rank_of(0, node="x", slowdown_ratio=1.1),
        rank_of(1, node="x", slowdown_ratio=1.4),
        rank_of(2, node="y", slowdown_ratio=None),
        rank_of(3, node="y", up=False, ended="killed", slowdown_ratio=9.0),
    )
    assert read("node_ranks", *ranks) == {("x",): 2, ("y",): 1}
    assert read("node_slowdown_ratio", *ranks) == {("x",): 1.4}


def test_gpus_of_a_node_are_told_by_their_worst_or_their_mean() -> None:
    cool = gpu(
        "A", utilization_ratio=1.0, memory_used_bytes=30, memory_total_bytes=100, power_watts=300.0,
        temperature_celsius=50.0, sm_clock_hertz=1_900, throttle_reasons=(), xid_count=0, ecc_uncorrected=1,
    )  # fmt: skip
    hot = gpu(
        "B", utilization_ratio=0.5, memory_used_bytes=90, memory_total_bytes=100, power_watts=500.0,
        temperature_celsius=88.0, sm_clock_hertz=1_200, throttle_reasons=("hw_thermal_slowdown",), xid_count=3,
        ecc_uncorrected=0,
    )  # fmt: skip
    found = {
        name: read(f"node_{name}", rank_of(0, devices=(cool,)), rank_of(1, devices=(hot,)))["n0",]
        for name in (
            "gpus", "gpu_utilization_ratio", "gpu_memory_used_ratio", "gpu_power_watts", "gpu_temperature_celsius",
            "gpu_sm_clock_hertz", "gpus_throttled", "gpu_xid_errors", "gpu_uncorrected_ecc_errors",
        )
    }  # fmt: skip
    assert found == {
        "gpus": 2, "gpu_utilization_ratio": 0.75, "gpu_memory_used_ratio": 0.9, "gpu_power_watts": 800.0,
        "gpu_temperature_celsius": 88.0, "gpu_sm_clock_hertz": 1_200, "gpus_throttled": 1, "gpu_xid_errors": 3,
        "gpu_uncorrected_ecc_errors": 1,
    }  # fmt: skip


def test_a_gpu_that_two_ranks_share_counts_once() -> None:
    shared = gpu("A", power_watts=300.0)
    ranks = rank_of(0, devices=(shared,)), rank_of(1, devices=(shared,))
    assert read("node_gpus", *ranks) == {("n0",): 1}
    assert read("node_gpu_power_watts", *ranks) == {("n0",): 300.0}


@pytest.mark.parametrize(
    ("ratios", "mean"), [((1e308, 1e308), math.inf), ((math.inf, -math.inf), math.nan), ((1.0, math.nan), math.nan)]
)
def test_ratios_that_are_not_finite_are_told_and_fail_no_page(ratios: tuple[float, ...], mean: float) -> None:
    rank = rank_of(0, devices=tuple(gpu(str(place), utilization_ratio=ratio) for place, ratio in enumerate(ratios)))
    for found in (read("run_gpu_utilization_ratio", rank), read("node_gpu_utilization_ratio", rank)):
        assert list(found.values()) == [pytest.approx(mean, nan_ok=True)]


@pytest.mark.parametrize("devices", [(), (gpu("A"),), (gpu("A", memory_used_bytes=5, memory_total_bytes=0),)])
def test_what_no_gpu_of_a_node_tells_is_absent(devices: tuple[DeviceSample, ...]) -> None:
    rank = rank_of(0, devices=devices)
    assert read("node_gpus_throttled", rank) == read("node_gpu_memory_used_ratio", rank) == {}
    assert read("node_gpus", rank) == ({("n0",): 1} if devices else {})


# -- the worst ranks --------------------------------------------------------------------------------------------------


def test_the_ten_slowest_live_ranks_are_told_with_their_nodes() -> None:
    ranks = [rank_of(rank, node=f"n{rank // 4}", slowdown_ratio=1 + rank / 100) for rank in range(12)]
    ended = rank_of(12, slowdown_ratio=9.0, up=False, ended="killed")
    found = read("worst_rank_slowdown_ratio", *ranks, ended, rank_of(13))
    assert found == {(f"n{rank // 4}", str(rank)): 1 + rank / 100 for rank in range(2, 12)}


def test_only_ranks_known_to_keep_most_waiting_are_told() -> None:
    ranks = [rank_of(rank, wait_caused_ns_median=rank * 8.0 * MS) for rank in range(11)]
    found = read("worst_rank_caused_wait_seconds", *ranks, rank_of(11))
    assert found == pytest.approx({("n0", str(rank)): rank * 0.008 for rank in range(1, 11)})
