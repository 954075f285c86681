"""What a slow rank's threads wait for and do: rank 3 takes 150 ms a step, its three peers 100 ms; half of it is 25."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from rankscope.collector.detect.stragglers.host_times import compare_times, find_longer_work, time_per_step
from rankscope.collector.detect.stragglers.root_cause import Cause, find_cause
from rankscope.collector.detect.view import Samples, TimeCount
from rankscope.measure.records import DeviceSample, HostSample, WindowBreakdown
from tests.unit.collector.steps.step_series import MS, series_of, slow_of

SLOW, PEERS = 3, (0, 1, 2)
BLOCKED = "its training thread off the CPU, waiting for something not measured"

Counts = Mapping[int, Sequence[TimeCount]]


def counts(ms_per_step: float, first_step: int = 0) -> tuple[TimeCount, ...]:
    """Two samples, ten steps apart, of a time that had been counted for a minute before the first of them."""
    return TimeCount(first_step, 60_000 * MS), TimeCount(first_step + 10, round((60_000 + 10 * ms_per_step) * MS))


def counts_of(slow_ms: float, *peers_ms: float) -> Counts:
    return {SLOW: counts(slow_ms)} | {peer: counts(ms) for peer, ms in enumerate(peers_ms)}


NO_HOSTS: Mapping[int, HostSample] = {}


def cause_of(
    cpu_ms: tuple[float, float] | None = (90.0, 90.0),
    *,
    core_waits: Counts | None = None,
    block_io: Counts | None = None,
    clock: Counts | None = None,
    process_cpu: Counts | None = None,
    pattern: str = "steady",
    idle_ms: float | None = None,
    hosts: Mapping[int, HostSample] = NO_HOSTS,
) -> Cause:
    """`cpu_ms` is the CPU time of the training thread on the slow rank and its peers; `idle_ms` how much longer the
    slow rank's GPU is idle (None: there is no GPU).
    """
    cpu = None if cpu_ms is None else [[cpu_ms[1]] * 3 + [cpu_ms[0]]] * 10
    series = series_of([[100.0] * 3 + [150.0]] * 10, cpu_ms=cpu)
    slow = slow_of(SLOW, PEERS, own_ms=150.0, peers_ms=100.0)._replace(pattern=pattern, slow_steps=np.arange(10))
    if pattern == "intermittent":
        slow = slow._replace(persistence=0.5)
    devices = {} if idle_ms is None else {rank: [DeviceSample(host_ns=0, uuid="GPU")] for rank in (SLOW, *PEERS)}
    windows = {} if idle_ms is None else {SLOW: [window(10 + idle_ms)]} | {peer: [window(10.0)] for peer in PEERS}
    samples = Samples(
        windows, {}, devices, core_waits=core_waits or {}, block_io=block_io or {}, process_cpu=process_cpu or {},
        host_clock=clock or {}, hosts=hosts,
    )  # fmt: skip
    return find_cause(slow, series, samples)


def window(idle_ms: float) -> WindowBreakdown:
    return WindowBreakdown(
        first_step=0, step_count=1, window_ns=150 * MS, compute_ns=90 * MS, communication_ns=0, overlap_ns=0,
        exposed_communication_ns=0, copy_ns=0, idle_ns=round(idle_ms * MS), operator_count=100,
    )  # fmt: skip


def test_time_per_step_is_between_the_first_sample_and_the_last() -> None:
    samples = (TimeCount(4, 700), TimeCount(8, 900), TimeCount(16, 1900))
    assert (time_per_step(samples, 0), time_per_step(samples, 5)) == (100.0, 125.0)


@pytest.mark.parametrize(
    "samples", [(), (TimeCount(9, 5),), (TimeCount(3, 5), TimeCount(19, 9)), (TimeCount(4, 5), TimeCount(11, 9))]
)
def test_time_per_step_needs_two_samples_some_steps_apart(samples: Sequence[TimeCount]) -> None:
    assert time_per_step(samples, 4) is None


def sampled(*points: tuple[int, float]) -> tuple[TimeCount, ...]:
    return tuple(TimeCount(steps, round(ms * MS)) for steps, ms in points)


STOP = sampled((0, 0), (10, 1_000), (10, 21_000), (12, 41_200), (20, 42_000), (30, 43_000))
"""The time at samples of a run with steps of 100 ms that stands still for 40 s in its eleventh and twelfth one."""


def test_time_counted_while_a_run_stands_still_is_of_no_step() -> None:
    # 2 ms a step, and 30 s in the stop.
    waits = sampled((0, 0), (10, 20), (10, 15_020), (12, 30_020), (20, 30_036), (30, 30_056))
    assert time_per_step(waits, 0, STOP) == 2 * MS
    assert time_per_step(waits, 0) == pytest.approx(30_056 / 30 * MS)


def test_steps_longer_than_the_pause_between_samples_are_no_stop() -> None:
    clock = sampled(*[(steps, 10_000 * steps + late) for steps in range(10) for late in (0, 4_000, 8_000)])
    waits = sampled(*[(steps, 100 * steps + late) for steps in range(10) for late in (0, 40, 80)])
    assert time_per_step(waits, 0, clock) == 100 * MS


def test_too_few_steps_outside_of_stops_are_not_known() -> None:
    clock = sampled((0, 0), (7, 700), (14, 40_000))
    assert time_per_step(sampled((0, 0), (7, 14), (14, 20_000)), 0, clock) is None


def test_clock_of_other_samples_says_nothing() -> None:
    waits = sampled((0, 0), (10, 20), (30, 60))
    assert time_per_step(waits, 0, STOP) == 2 * MS


def test_wait_in_a_stop_explains_no_slow_rank() -> None:
    slow = sampled((0, 0), (10, 20), (10, 15_020), (12, 30_020), (20, 30_036), (30, 30_056))
    peers = sampled((0, 0), (10, 10), (10, 12), (12, 14), (20, 22), (30, 32))
    cause = cause_of(core_waits={SLOW: slow} | dict.fromkeys(PEERS, peers), clock=dict.fromkeys((SLOW, *PEERS), STOP))
    assert cause.name == "unseen_wait"
    assert cause.evidence["core_wait_excess_ns"] == 1 * MS


def test_wait_longer_than_the_step_is_not_told() -> None:
    cause = cause_of(core_waits=counts_of(161.0, 10.0))  # 151 ms longer, in a step of 150 ms
    assert (cause.name, cause.because) == ("unseen_wait", BLOCKED)
    assert "core_wait_excess_ns" not in cause.evidence


@pytest.mark.parametrize(("slow_ms", "name"), [(35.0, "cpu_pressure"), (34.9, "unseen_wait")])
def test_same_cpu_time_and_longer_core_wait_is_cpu_pressure(slow_ms: float, name: str) -> None:
    # The peers wait 10 ms a step: 25 ms more, and 24.9.
    assert cause_of(core_waits=counts_of(slow_ms, 8.0, 10.0, 20.0)).name == name


def test_wait_for_a_core_is_told_with_its_numbers() -> None:
    cause = cause_of(core_waits=counts_of(45.0, 10.0))
    assert cause.because == (
        "its training thread waiting 35.0 ms more per step for a CPU core (45.0 ms, its peers' 10.0 ms)"
    )
    assert cause.evidence["core_wait_ns_per_step"] == 45 * MS
    assert cause.evidence["core_wait_excess_ns"] == 35 * MS


def test_thread_that_computes_longer_is_no_wait_for_a_core() -> None:
    cause = cause_of((115.0, 90.0), core_waits=counts_of(45.0, 10.0))
    assert (cause.name, cause.because) == ("host_cpu", "its training thread computing longer")


@pytest.mark.parametrize(
    ("cpu_ms", "name"),
    [
        (80.0, "host_cpu"),  # with waits like the peers' the 20 ms more take 35
        (75.0, "host_cpu"),  # 15 take 26.25
        (74.0, "unseen_wait"),  # 14 take 24.5; of the 30 that it waits longer 19.5 are left
        (65.0, "cpu_pressure"),  # 5 take 8.75; 26.25 are left
    ],
)
def test_as_much_wait_as_the_peers_have_belongs_to_longer_work(cpu_ms: float, name: str) -> None:
    # The peers compute 60 ms a step and wait 45 for a core; it waits 75.
    assert cause_of((cpu_ms, 60.0), core_waits=counts_of(75.0, 45.0)).name == name


def test_longer_work_on_busy_cores_is_told_with_its_numbers() -> None:
    cause = cause_of((80.0, 60.0), core_waits=counts_of(75.0, 45.0))
    assert cause.because == (
        "its training thread computing 20.0 ms more per step, 35.0 ms on CPU cores as busy as its peers'"
    )


@pytest.mark.parametrize(("cpu_ms", "name"), [((80.0, 60.0), "host_cpu"), ((70.0, 60.0), "cpu_pressure")])
def test_idle_gpu_waits_for_its_host_computing_on_busy_cores(cpu_ms: tuple[float, float], name: str) -> None:
    cause = cause_of(cpu_ms, core_waits=counts_of(80.0, 45.0), idle_ms=40.0)
    assert cause.name == name


def test_wait_for_a_core_counts_without_cpu_times_of_steps() -> None:
    assert cause_of(None, core_waits=counts_of(45.0, 10.0)).name == "cpu_pressure"
    assert cause_of(None, core_waits=counts_of(11.0, 10.0)).name == "unattributed"


@pytest.mark.parametrize(("ratio", "is_told"), [(0.05, True), (0.04, False), (None, False)])
def test_limit_that_stops_the_rank_is_told_beside_its_wait(ratio: float | None, *, is_told: bool) -> None:
    cause = cause_of(core_waits=counts_of(45.0, 10.0), hosts={SLOW: HostSample(host_ns=0, throttled_ratio=ratio)})
    assert ("stopped by its CPU limit in 5 % of its periods" in cause.because) == is_told
    assert cause.evidence.get("throttled_ratio") == ratio


@pytest.mark.parametrize("waits", [{}, {SLOW: counts(45.0)}, {0: counts(10.0)}, {SLOW: (), 0: counts(10.0)}])
def test_core_waits_that_cannot_be_compared_are_no_evidence(waits: Counts) -> None:
    cause = cause_of(core_waits=waits)
    assert (cause.name, cause.because, cause.evidence) == (
        "unseen_wait",
        BLOCKED,
        {"cpu_excess_ns": 0.0, "peers_cpu_ns": 90.0 * MS},
    )


def test_intermittent_wait_for_a_core_falls_on_the_slow_steps() -> None:
    # 15 ms a step more are 30 ms in each slow step, of which there is one in two.
    assert cause_of(core_waits=counts_of(25.0, 10.0)).name == "unseen_wait"
    assert cause_of(core_waits=counts_of(25.0, 10.0), pattern="intermittent").name == "cpu_pressure"


def test_idle_gpu_whose_host_waits_for_a_core_is_cpu_pressure() -> None:
    cause = cause_of(core_waits=counts_of(45.0, 10.0), idle_ms=40.0)
    assert (cause.name, cause.because) == (
        "cpu_pressure",
        (
            "its GPU idle 40.0 ms more per step and its training thread waiting 35.0 ms more per step for a CPU core "
            "(45.0 ms, its peers' 10.0 ms)"
        ),
    )


def test_wait_for_a_core_counts_on_a_gpu_that_no_window_has_seen() -> None:
    series = series_of([[100.0] * 3 + [150.0]] * 10, cpu_ms=[[90.0] * 4] * 10)
    slow = slow_of(SLOW, PEERS, own_ms=150.0, peers_ms=100.0)
    gpus = {rank: [DeviceSample(host_ns=0, uuid="GPU")] for rank in (SLOW, *PEERS)}
    waits = counts_of(45.0, 10.0)
    assert find_cause(slow, series, Samples({}, {}, gpus, core_waits=waits)).name == "cpu_pressure"
    assert find_cause(slow, series, Samples({}, {}, gpus)).name == "unattributed"


def test_wait_for_a_core_does_not_explain_a_gpu_that_is_not_idle() -> None:
    assert cause_of(core_waits=counts_of(45.0, 10.0), idle_ms=5.0).name == "unattributed"


@pytest.mark.parametrize(("slow_ms", "name"), [(125.0, "host_cpu"), (124.9, "unseen_wait")])
def test_other_threads_that_compute_longer_hold_the_host(slow_ms: float, name: str) -> None:
    # The peers' processes compute 100 ms a step, of which their training threads 90.
    assert cause_of(process_cpu=counts_of(slow_ms, 100.0, 100.0, 100.0)).name == name


def test_other_threads_at_work_are_told_in_words_of_their_own() -> None:
    cause = cause_of(process_cpu=counts_of(140.0, 100.0))
    assert cause.because == (
        "its training thread waiting for other threads of its process or Python's interpreter lock: "
        "those compute 40.0 ms more per step"
    )
    assert cause.evidence["other_threads_excess_ns"] == 40 * MS


def test_idle_gpu_beside_busy_other_threads_waits_for_its_host() -> None:
    cause = cause_of(process_cpu=counts_of(140.0, 100.0), idle_ms=40.0)
    assert (cause.name, cause.because) == (
        "host_cpu",
        (
            "its GPU idle 40.0 ms more per step and its training thread waiting for other threads of its "
            "process or Python's interpreter lock: those compute 40.0 ms more per step"
        ),
    )


def test_cpu_time_of_the_training_thread_is_not_that_of_others() -> None:
    # 40 ms more in the process, of which 20 in the training thread: 20 are left.
    assert cause_of((110.0, 90.0), process_cpu=counts_of(140.0, 100.0)).name == "unseen_wait"


def test_waits_for_a_core_come_before_other_threads() -> None:
    cause = cause_of(core_waits=counts_of(45.0, 10.0), process_cpu=counts_of(140.0, 100.0))
    assert cause.name == "cpu_pressure"


def test_work_is_not_compared_where_cpu_times_are_not_known() -> None:
    assert (
        find_longer_work(slow_of(SLOW, PEERS, own_ms=150.0, peers_ms=100.0), 25 * MS, {}, Samples({}, {}, {})) is None
    )


def test_thread_that_waits_for_block_io_has_slow_storage() -> None:
    cause = cause_of(block_io=counts_of(45.0, 0.0, 10.0, 20.0), core_waits=counts_of(45.0, 10.0))
    assert cause.name == "storage"
    assert cause.because.startswith(
        "its training thread waiting 35.0 ms more per step for block I/O (45.0 ms, its peers' 10.0 ms)"
    )
    assert (cause.evidence["block_io_wait_ns_per_step"], cause.evidence["block_io_excess_ns"]) == (45 * MS, 35 * MS)


def test_block_io_of_a_gpu_rank_is_told_without_device_windows() -> None:
    assert cause_of(None, block_io=counts_of(45.0, 10.0)).name == "storage"
    assert cause_of(block_io=counts_of(45.0, 10.0), idle_ms=5.0).name == "unattributed"


@pytest.mark.parametrize("block_io", [{}, counts_of(25.0, 10.0), counts_of(161.0, 10.0)])
def test_short_or_impossible_block_io_is_not_the_cause(block_io: Counts) -> None:
    assert cause_of(block_io=block_io).name == "unseen_wait"


def test_steps_since_the_last_sample_count_for_a_young_level() -> None:
    """Samples every 20 steps; from step 25 on the rank waits 20 ms a step for a core: 300 ms up to step 40."""
    slow = slow_of(SLOW, PEERS, own_ms=150.0, peers_ms=100.0)
    waits = {rank: [TimeCount(0, 0), TimeCount(20, 0), TimeCount(40, 0)] for rank in PEERS}
    waits[SLOW] = [TimeCount(0, 0), TimeCount(20, 0), TimeCount(40, round(300 * MS))]
    assert compare_times(slow._replace(level_from_step=25), waits) == (15 * MS, 0.0)
    assert compare_times(slow._replace(level_from_step=32), waits) is None  # most of these steps were before
