"""Check runs on GPUs without profiler windows, in which the devices' own times show who is late."""

import functools

import pytest

from rankscope.collector.config import CollectorConfig
from rankscope.collector.detect.finding import STRAGGLER
from rankscope.collector.runs.snapshot import RunSnapshot
from tests.simulation.clocks import CLOCKS, ClockNoise
from tests.simulation.faults import Fault
from tests.simulation.network import NETWORKS
from tests.simulation.noise import NOISES
from tests.simulation.ranks import DeviceTimes, Windows
from tests.simulation.topology import Topology
from tests.simulation.world import Outcome, Scenario, World

NO_WINDOWS = Windows(end=0)
STEPS = 320
BEGIN = 160
SLOW = 3
EVERY = 4
WITHOUT_RECORDER, WITH_RECORDER = DeviceTimes(EVERY), DeviceTimes(EVERY, has_recorder=True)
UNTIMED = DeviceTimes(EVERY, has_enqueues=True)
UNTIMED_HOSTS = DeviceTimes(None, has_enqueues=True)
"""Of the steps only host phases are known, too."""

LAYOUTS = {
    "dp": Topology.mesh(dp=8),
    "fsdp": Topology.mesh(dp=8),
    "tp": Topology.mesh(tp=4, dp=4),
    "pp": Topology.mesh(pp=2, dp=4),
}


def fault(cause: str, ratio: float) -> Fault:
    return Fault(cause=cause, ranks=(SLOW,), ratio=ratio, begin=BEGIN)


@functools.cache
def watch(
    kind: str,
    *faults: Fault,
    device_times: DeviceTimes | None = WITHOUT_RECORDER,
    windows: Windows = NO_WINDOWS,
    noise: str = "usual",
    steps: int = STEPS,
    seed: int = 1,
    network: str | None = None,
) -> tuple[Outcome, RunSnapshot]:
    scenario = Scenario(
        topology=LAYOUTS[kind],
        kind=kind,
        noise=NOISES[noise],
        faults=faults,
        steps=steps,
        seed=seed,
        windows=windows,
        device_times=device_times,
        network=None if network is None else NETWORKS[network],
        clocks=CLOCKS["drifting"] if network is not None else ClockNoise(),
    )
    world = World(scenario, CollectorConfig())
    outcome = world.run()
    return outcome, world.snapshot()


def blamed(outcome: Outcome) -> list[tuple[tuple[int, ...], str]]:
    return [(one.finding.ranks, one.finding.cause) for one in outcome.opened if one.finding.kind == STRAGGLER]


@pytest.mark.parametrize(
    ("cause", "ratio", "named"),
    [
        ("gpu_compute", 1.15, "unattributed"),  # only windows show kernels
        ("gpu_compute", 1.3, "unattributed"),
        ("host_cpu", 1.3, "unattributed"),  # and an idle device
        ("data_loading", 1.15, "data_loading"),
        ("gpu_power_cap", 1.3, "gpu_power_cap"),
        ("garbage_collection", 1.15, "garbage_collection"),
    ],
)
def test_slow_rank_of_data_parallel_is_named_without_windows(cause: str, ratio: float, named: str) -> None:
    outcome, snapshot = watch("dp", fault(cause, ratio))
    assert blamed(outcome) == [((SLOW,), named)]
    (finding,) = snapshot.open_findings
    assert finding.since_step == pytest.approx(BEGIN, abs=EVERY)
    assert finding.slowdown_ratio == pytest.approx(ratio, abs=0.03)
    assert finding.figures.startswith("Own time on the GPU (without the end of backward")


def test_slow_rank_is_named_once_windows_have_ended() -> None:
    late = Fault(cause="gpu_compute", ranks=(SLOW,), ratio=1.3, begin=700)
    outcome, snapshot = watch("dp", late, windows=Windows(distance=8, end=64), steps=900)
    assert blamed(outcome) == [((SLOW,), "unattributed")]
    assert snapshot.open_findings[0].since_step == pytest.approx(700, abs=EVERY)


def test_timed_collectives_show_the_wait_for_the_slow_rank() -> None:
    outcome, snapshot = watch("dp", fault("gpu_compute", 1.15), device_times=WITH_RECORDER)
    assert blamed(outcome) == [((SLOW,), "unattributed")]
    evidence = snapshot.open_findings[0].evidence
    # A rank works for 100 ms in a step; 15 ms more on one of them is what all others wait.
    assert evidence["peers_timed_wait_ns"] - evidence["timed_wait_ns"] > 10_000_000
    assert evidence["timed_wait_steps"] >= 12


@pytest.mark.parametrize(
    ("kind", "noise", "seed"),
    [("dp", "usual", 1), ("dp", "rough", 2), ("dp", "uneven_batches", 3), ("fsdp", "rough", 1), ("tp", "usual", 1)],
)
def test_nobody_is_blamed_in_a_healthy_run_without_windows(kind: str, noise: str, seed: int) -> None:
    outcome, _ = watch(kind, noise=noise, device_times=WITH_RECORDER, seed=seed)
    assert blamed(outcome) == []


@pytest.mark.parametrize("cause", ["gpu_compute", "data_loading"])
def test_sharded_run_without_windows_blames_nobody_else(cause: str) -> None:
    outcome, _ = watch("fsdp", fault(cause, 1.3), device_times=WITH_RECORDER)
    # All ranks wait for the slow one in each layer, so that all seem equally slow but for the end of backward.
    assert {ranks for ranks, _ in blamed(outcome)} <= {(SLOW,)}


@pytest.mark.parametrize("kind", ["tp", "pp"])
def test_small_group_is_not_blamed_for_the_rank_it_waits_for(kind: str) -> None:
    outcome, snapshot = watch(kind, fault("gpu_compute", 1.3), device_times=WITH_RECORDER)
    assert blamed(outcome) == []
    assert snapshot.abstained is not None
    assert "a process group has several, but not all ranks" in snapshot.abstained


# -- collectives that torch does not time: when hosts enqueued them, on clocks that drift and are 1,000 s apart --------


@pytest.mark.parametrize("times", [UNTIMED, UNTIMED_HOSTS])
def test_slow_host_enqueues_late_by_what_it_is_slower_by(times: DeviceTimes) -> None:
    outcome, snapshot = watch("dp", fault("data_loading", 1.15), device_times=times, network="lossy")
    assert blamed(outcome) == [((SLOW,), "data_loading")]
    (finding,) = snapshot.open_findings
    # A rank works for 100 ms in a step; a message takes 1 ms, and the clocks drift apart by 0.1 ms a second.
    assert finding.evidence["enqueue_late_ns"] == pytest.approx(15_000_000, rel=0.15)
    assert 500_000 < finding.evidence["enqueue_error_ns"] < 5_000_000
    assert f"ollectives not timed; rank {SLOW} enqueues them up to 1" in finding.sentence


def test_slow_device_enqueues_as_early_as_the_others() -> None:
    outcome, snapshot = watch("dp", fault("gpu_compute", 1.3), device_times=UNTIMED, network="lossy")
    assert blamed(outcome) == [((SLOW,), "unattributed")]
    (finding,) = snapshot.open_findings
    # But for what its kernels are slower in the optimizer, 8 of 100 ms: so much later it begins the next step.
    assert finding.evidence["enqueue_late_ns"] == pytest.approx(0.3 * 8_000_000, abs=1_000_000)
    assert "most of its slowness not its host's." in finding.sentence


def test_nothing_follows_from_badly_aligned_clocks() -> None:
    outcome, snapshot = watch("dp", fault("data_loading", 1.15), device_times=UNTIMED, network="slow", steps=240)
    assert blamed(outcome) == [((SLOW,), "data_loading")]
    (finding,) = snapshot.open_findings
    assert finding.evidence["enqueue_error_ns"] > 100_000_000
    assert "enqueues them late not known: clocks within" in finding.sentence


@pytest.mark.parametrize(
    ("kind", "noise", "seed", "times"),
    [
        ("dp", "usual", 1, UNTIMED),
        ("dp", "rough", 2, UNTIMED_HOSTS),
        ("dp", "uneven_batches", 3, UNTIMED_HOSTS),
        ("fsdp", "rough", 1, UNTIMED),
        ("tp", "usual", 1, UNTIMED_HOSTS),
    ],
)
def test_enqueues_blame_nobody_in_a_healthy_run(kind: str, noise: str, seed: int, times: DeviceTimes) -> None:
    outcome, _ = watch(kind, noise=noise, device_times=times, seed=seed, network="lossy")
    assert blamed(outcome) == []
