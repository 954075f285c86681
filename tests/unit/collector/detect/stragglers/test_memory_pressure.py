"""Memory pressure, by hand-made cases: rank 3 has an own time of 150 ms, its three peers 100 ms."""

from collections.abc import Mapping, Sequence

import pytest

from rankscope.collector.detect.stragglers.root_cause import Cause, find_cause
from rankscope.collector.detect.view import AllocatorCounts, Samples, TimeCount
from rankscope.measure.records import AllocatorSample, DeviceSample, HostSample, WindowBreakdown
from tests.unit.collector.steps.step_series import MS, series_of, slow_of

SLOW = 3
PEERS = (0, 1, 2)

Allocators = Mapping[int, Sequence[AllocatorCounts]]


def counts(
    retries: int | None = 0, calls: int | None = 0, *, first_step: int = 0, steps: int = 20
) -> list[AllocatorCounts]:
    """Build two samples: at the first step, after a noisy start, and some steps later with the given growth."""
    return [
        AllocatorCounts(first_step, AllocatorSample(host_ns=0, retries=50, device_allocs=90, device_frees=50)),
        AllocatorCounts(
            first_step + steps,
            AllocatorSample(
                host_ns=1,
                retries=None if retries is None else 50 + retries,
                device_allocs=None if calls is None else 90 + calls,
                device_frees=50,
            ),
        ),
    ]


def cause_of(
    allocators: Allocators | None = None,
    hosts: Mapping[int, HostSample] | None = None,
    *,
    level_from_step: int = 0,
    breakdowns: Mapping[int, Sequence[WindowBreakdown]] | None = None,
    gc_steps: int | None = 20,
) -> Cause:
    slow = slow_of(SLOW, PEERS, own_ms=150.0, peers_ms=100.0, level_from_step=level_from_step)
    pauses = {} if gc_steps is None else {rank: (TimeCount(gc_steps, 0),) for rank in (*PEERS, SLOW)}
    devices = {SLOW: (DeviceSample(host_ns=0, uuid=""),)}
    samples = Samples(breakdowns or {}, pauses, devices, allocators or {}, hosts or {})
    return find_cause(slow, series_of([[100.0, 100.0, 100.0, 150.0]] * 10), samples)


def of(slow: Sequence[AllocatorCounts], *peers: Sequence[AllocatorCounts]) -> Allocators:
    return {SLOW: slow} | dict(enumerate(peers))


def test_retries_of_the_allocator_are_memory_pressure() -> None:
    # 20 in 20 steps; its peers none, one of them a few.
    cause = cause_of(of(counts(20), counts(0), counts(0), counts(3)))
    assert cause.name == "memory_pressure"
    assert cause.because == "its GPU's memory full 1.0 times per step, its peers' 0.0 times"
    assert cause.evidence["retries_per_step"] == 1.0


@pytest.mark.parametrize(("retries", "name"), [(2, "memory_pressure"), (1, "unattributed")])
def test_retries_count_from_one_in_ten_steps_on(retries: int, name: str) -> None:
    assert cause_of(of(counts(retries), counts(0))).name == name


def test_blocks_allocated_and_freed_per_step_are_memory_pressure() -> None:
    cause = cause_of(of(counts(0, 60), counts(0, 10), counts(0, 10)))
    assert cause.name == "memory_pressure"
    assert cause.because == "3.0 calls of its allocator to the driver per step, 0.5 on its peers"


@pytest.mark.parametrize(("retries", "calls"), [(20, 0), (0, 200)])
def test_what_its_peers_do_too_is_not_why_it_is_slower(retries: int, calls: int) -> None:
    assert cause_of(of(*[counts(retries, calls)] * 4)).name == "unattributed"


def test_start_of_the_training_is_not_held_against_a_rank() -> None:
    # All it took and retried was before step 30, since when it is slow.
    early = [*counts(40, 40), *counts(40, 40, first_step=30)[1:], AllocatorCounts(60, counts(40, 40)[1].sample)]
    assert cause_of(of(early, counts(0, first_step=30)), level_from_step=30).name == "unattributed"


@pytest.mark.parametrize(
    "allocators",
    [
        {},
        of(counts(20)),
        of([], counts(0)),
        of(counts(20)[:1], counts(0)),
        of(counts(20, steps=0), counts(0)),
        of(counts(None, None), counts(0)),
    ],
    ids=["of nobody", "of it only", "of its peers only", "once", "at one step", "not told"],
)
def test_counts_that_cannot_be_compared_are_no_evidence(allocators: Allocators) -> None:
    assert cause_of(allocators) == Cause("unattributed", "no known cause", {})


def faults(slow: int | None, *peers: int | None) -> dict[int, HostSample]:
    found = {SLOW: HostSample(host_ns=0, major_faults=slow)}
    return found | {rank: HostSample(host_ns=0, major_faults=count) for rank, count in enumerate(peers)}


def test_pages_that_come_back_from_disk_are_memory_pressure() -> None:
    # 300 a step, 0.1 ms each at least: 30 of the 50 ms.
    cause = cause_of(hosts=faults(6_000, 20, 20, 20))
    assert (cause.name, cause.because) == (
        "memory_pressure",
        "300 pages of memory read from disk per step, 1 on its peers",
    )
    assert cause.evidence["major_faults_per_step"] == 300


@pytest.mark.parametrize(("count", "name"), [(5_000, "memory_pressure"), (4_999, "unattributed")])
def test_page_faults_must_explain_half_of_the_excess(count: int, name: str) -> None:
    assert cause_of(hosts=faults(count, 0)).name == name


@pytest.mark.parametrize("gc_steps", [None, 0])
def test_page_faults_without_steps_are_no_evidence(gc_steps: int | None) -> None:
    assert "major_faults_per_step" not in cause_of(hosts=faults(6_000, 0), gc_steps=gc_steps).evidence


@pytest.mark.parametrize("hosts", [{}, faults(None, 0), faults(6_000), faults(6_000, None)])
def test_unreported_page_faults_are_no_evidence(hosts: dict[int, HostSample]) -> None:
    assert "major_faults_per_step" not in cause_of(hosts=hosts).evidence


def window(compute_ms: int) -> tuple[WindowBreakdown, ...]:
    ns = compute_ms * MS
    return (
        WindowBreakdown(
            first_step=0, step_count=1, window_ns=ns, compute_ns=ns, communication_ns=0, overlap_ns=0,
            exposed_communication_ns=0, copy_ns=0, idle_ns=0,
        ),
    )  # fmt: skip


@pytest.mark.parametrize(("compute_ms", "name"), [(125, "gpu_compute"), (124, "memory_pressure")])
def test_longer_kernels_are_no_memory_pressure(compute_ms: int, name: str) -> None:
    windows = {SLOW: window(compute_ms)} | {peer: window(100) for peer in PEERS}
    assert cause_of(of(counts(20), counts(0)), breakdowns=windows).name == name
