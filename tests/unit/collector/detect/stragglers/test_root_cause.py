"""The cause of a straggler, by hand-made cases: rank 3 has an own time of 150 ms, its three peers 100 ms.

The excess is 50 ms, so a part must hold 25 ms of it to be the cause.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from rankscope.collector.detect.stragglers.root_cause import Cause, find_cause
from rankscope.collector.detect.view import AllocatorCounts, Samples, TimeCount
from rankscope.measure.records import (
    AllocatorSample,
    CompiledFrame,
    DeviceSample,
    HostCopies,
    Synchronization,
    WindowBreakdown,
    WindowSynchronizations,
)
from tests.unit.collector.steps.step_series import MS, UNKNOWN, Rows, series_of, slow_of

SLOW = 3
PEERS = (0, 1, 2)
GHZ = 1_000_000_000
NO_CAUSE = ("unattributed", "no known cause")
UNSEEN = "its training thread off the CPU, waiting for something not measured"

Devices = Mapping[int, Sequence[DeviceSample]]


def alike(slow_ms: float, peers_ms: float = 10.0) -> Rows:
    """Ten steps in which the slow rank takes the one time and its peers the other."""
    return [[peers_ms] * 3 + [slow_ms]] * 10


def cause_of(
    *,
    phases_ms: Mapping[str, Rows] | None = None,
    cpu_ms: Rows | None = None,
    breakdowns: Mapping[int, Sequence[WindowBreakdown]] | None = None,
    gc_pauses: Mapping[int, Sequence[TimeCount]] | None = None,
    devices: Devices | None = None,
    synchronizations: Mapping[int, Sequence[WindowSynchronizations]] | None = None,
    allocators: Mapping[int, Sequence[AllocatorCounts]] | None = None,
    compiled: Mapping[int, Sequence[CompiledFrame] | None] | None = None,
    level_from_step: int = 0,
    own_ms: float = 150.0,
    are_of_traces: bool = False,
) -> Cause:
    series = series_of(alike(own_ms, 100.0), cpu_ms=cpu_ms, phases_ms=phases_ms)
    slow = slow_of(SLOW, PEERS, own_ms=own_ms, peers_ms=100.0, level_from_step=level_from_step)
    samples = Samples(breakdowns or {}, gc_pauses or {}, devices or {}, synchronizations=synchronizations or {})
    samples = samples._replace(are_of_traces=are_of_traces)
    return find_cause(slow, series, samples._replace(allocators=allocators or {}, compiled=compiled or {}))


# -- data -------------------------------------------------------------------------------------------------------------


def test_longer_wait_for_data_is_data_loading() -> None:
    cause = cause_of(phases_ms={"data": alike(55.0, 10.0)})
    assert cause == Cause(
        "data_loading", "45.0 ms more per step waiting for its data loader", {"data_excess_ns": 45 * MS}
    )


@pytest.mark.parametrize(("data_ms", "name"), [(35.0, "data_loading"), (34.9, "unattributed")])
def test_data_is_the_cause_from_half_of_the_excess_on(data_ms: float, name: str) -> None:
    assert cause_of(phases_ms={"data": alike(data_ms, 10.0)}).name == name


def test_only_steps_of_the_present_level_are_compared() -> None:
    # Before step 6 the peers were the ones that waited for data.
    data_ms = [[90.0] * 3 + [10.0]] * 6 + [[10.0] * 3 + [60.0]] * 4
    assert cause_of(phases_ms={"data": data_ms}, level_from_step=6).evidence == {"data_excess_ns": 50 * MS}


def test_steps_that_are_not_known_of_all_are_left_out() -> None:
    data_ms = [[10.0, 10.0, 10.0, 60.0]] * 3 + [[500.0, UNKNOWN, 10.0, 10.0], [500.0, 500.0, 500.0, UNKNOWN]] * 3
    assert cause_of(phases_ms={"data": [*data_ms, *alike(60.0)[:1]]}).evidence == {"data_excess_ns": 50 * MS}


def test_phase_that_no_step_knows_of_all_ranks_is_no_evidence() -> None:
    assert cause_of(phases_ms={"data": alike(UNKNOWN)}).evidence == {}


@pytest.mark.parametrize(
    ("pattern", "expected"), [("steady", {"cpu_excess_ns": 50 * MS, "peers_cpu_ns": 90 * MS}), ("intermittent", {})]
)
def test_steps_without_known_waits_count_for_steady_slowness(pattern: str, expected: dict[str, int]) -> None:
    unknown = [UNKNOWN] * 4
    series = series_of(alike(150.0, 100.0), cpu_ms=[unknown] * 7 + [[90.0] * 3 + [140.0]] + [unknown] * 2)
    slow = slow_of(SLOW, PEERS, own_ms=150.0, peers_ms=100.0)
    slow = slow._replace(slow_steps=np.arange(3), pattern=pattern)
    assert find_cause(slow, series, Samples({}, {}, {})).evidence == expected


def test_slow_host_is_not_named_by_device_own_times_alone() -> None:
    by_host = series_of(alike(150.0, 100.0), cpu_ms=alike(140.0, 90.0), own_is_measured=False)
    slow = slow_of(SLOW, PEERS, own_ms=150.0, peers_ms=100.0)
    assert find_cause(slow, by_host, Samples({}, {}, {})).name == "host_cpu"
    by_device = dataclasses.replace(by_host, is_by_device=True)
    assert find_cause(slow, by_device, Samples({}, {}, {}))[:2] == NO_CAUSE


# -- compilation ------------------------------------------------------------------------------------------------------


def compiling(ms: float) -> list[CompiledFrame]:
    return [
        CompiledFrame(step=step, frame="train.py:24 (scale)", duration_ns=round(ms * MS), reason=f"k == {step}")
        for step in range(10)
    ]


def test_longer_compilation_is_the_cause_with_frame_and_guard() -> None:
    cause = cause_of(compiled={SLOW: compiling(45.0), 0: compiling(5.0), 1: compiling(5.0), 2: None})
    assert cause.name == "recompilation"
    assert (
        cause.because
        == "40.0 ms more per step in torch.compile, all of it for train.py:24 (scale): the guard k == 9 failed"
    )
    assert cause.evidence == {"recompilation_excess_ns": 40 * MS}


@pytest.mark.parametrize(("slow_ms", "name"), [(25.0, "recompilation"), (24.0, "unattributed")])
def test_compilation_is_the_cause_from_half_of_the_excess_on(slow_ms: float, name: str) -> None:
    assert cause_of(compiled={SLOW: compiling(slow_ms)} | dict.fromkeys(PEERS, ())).name == name


@pytest.mark.parametrize("compiled", [{SLOW: compiling(45.0)}, {SLOW: None, 0: ()}], ids=["no peer", "not of it"])
def test_compilation_that_cannot_be_compared_is_no_evidence(
    compiled: Mapping[int, Sequence[CompiledFrame] | None],
) -> None:
    assert cause_of(compiled=compiled) == Cause(*NO_CAUSE, {})


# -- garbage ----------------------------------------------------------------------------------------------------------


def pauses(ms_per_step: float, first_step: int = 0) -> tuple[TimeCount, ...]:
    """Ten samples, two steps apart, of a rank that has already paused for a second before the first of them."""
    return tuple(
        TimeCount(first_step + 2 * sample, round((1_000 + 2 * sample * ms_per_step) * MS)) for sample in range(10)
    )


def pauses_of(slow_ms: float, *peers_ms: float) -> dict[int, tuple[TimeCount, ...]]:
    return {SLOW: pauses(slow_ms)} | {peer: pauses(ms) for peer, ms in enumerate(peers_ms)}


def test_longer_pauses_of_the_garbage_collector_are_the_cause() -> None:
    cause = cause_of(gc_pauses=pauses_of(42.0, 1.0, 2.0, 3.0))
    assert cause.name == "garbage_collection"
    assert cause.because == "40.0 ms more per step in Python's garbage collector"
    assert cause.evidence == {"gc_excess_ns": 40 * MS}


@pytest.mark.parametrize(("pause_ms", "name"), [(27.0, "garbage_collection"), (26.0, "unattributed")])
def test_pauses_are_the_cause_from_half_of_the_excess_on(pause_ms: float, name: str) -> None:
    assert cause_of(gc_pauses=pauses_of(pause_ms, 2.0, 2.0)).name == name


def test_pauses_before_the_present_level_do_not_count() -> None:
    # Counted up: 0 at step 0, 900 ms at step 10, and nothing after it.
    early = (TimeCount(0, 0), TimeCount(10, 900 * MS), TimeCount(20, 900 * MS))
    assert cause_of(gc_pauses={SLOW: early, 0: pauses(0.0)}, level_from_step=10).name == "unattributed"


@pytest.mark.parametrize(
    "gc_pauses",
    [
        {},
        {0: pauses(1.0)},
        {SLOW: pauses(42.0)},
        {SLOW: pauses(42.0), 0: ()},
        {SLOW: pauses(42.0)[:1], 0: pauses(1.0)},
        {SLOW: (TimeCount(5, 0), TimeCount(5, 900 * MS)), 0: pauses(1.0)},
    ],
    ids=["of nobody", "not of it", "of it only", "empty of a peer", "one sample", "no step between the samples"],
)
def test_pauses_that_cannot_be_compared_are_no_evidence(gc_pauses: Mapping[int, Sequence[TimeCount]]) -> None:
    assert cause_of(gc_pauses=gc_pauses) == Cause(*NO_CAUSE, {})


# -- the GPU ----------------------------------------------------------------------------------------------------------


def gpu(clock_ghz: float | None = None, *reasons: str, unread: bool = False) -> tuple[DeviceSample, ...]:
    hertz = None if clock_ghz is None else round(clock_ghz * GHZ)
    told = None if unread else reasons
    return (DeviceSample(host_ns=0, uuid="GPU-1", sm_clock_hertz=hertz, throttle_reasons=told),)


def gpus(slow: tuple[DeviceSample, ...], peer: tuple[DeviceSample, ...]) -> Devices:
    return {SLOW: slow} | dict.fromkeys(PEERS, peer)


@pytest.mark.parametrize(
    ("reasons", "name", "because"),
    [
        ((), "gpu_slow_clock", "its GPU at 60 % of its peers' clock (1,200 against 2,000 MHz)"),
        (("hw_slowdown",), "gpu_slow_clock", "its GPU at 60 % of its peers' clock (1,200 against 2,000 MHz)"),
        (("sw_power_cap",), "gpu_power_cap", "its GPU throttled (sw_power_cap)"),
        (("package_power",), "gpu_power_cap", "its GPU throttled (package_power)"),
        (("memory_thermal",), "gpu_thermal_throttle", "its GPU throttled (memory_thermal)"),
        (
            ("sw_power_cap", "hw_thermal_slowdown", "sw_thermal_slowdown"),
            "gpu_thermal_throttle",
            "its GPU throttled (hw_thermal_slowdown, sw_thermal_slowdown)",
        ),
    ],
)
def test_slow_clock_is_the_cause_by_the_reason_the_gpu_gives(reasons: tuple[str, ...], name: str, because: str) -> None:
    cause = cause_of(devices=gpus(gpu(1.2, *reasons), gpu(2.0, "sw_power_cap")))
    assert cause == Cause(name, because, {"sm_clock_ratio": 0.6})


def test_reason_without_a_slower_clock_is_not_the_cause() -> None:
    cause = cause_of(devices=gpus(gpu(1.98, "sw_power_cap"), gpu(2.0)))
    assert cause == Cause(*NO_CAUSE, {"sm_clock_ratio": 0.99})


@pytest.mark.parametrize(("clock_ghz", "name"), [(1.6, "gpu_slow_clock"), (1.7, "unattributed")])
def test_clock_is_the_cause_if_it_can_explain_half_the_excess(clock_ghz: float, name: str) -> None:
    # At the peers' clock its 150 ms would be at best 120 ms and 127.5 ms: 30 ms and 22.5 ms of 50 ms explained.
    assert cause_of(devices=gpus(gpu(clock_ghz), gpu(2.0))).name == name


def test_clock_within_five_per_cent_of_the_peers_is_not_slow() -> None:
    slow = slow_of(SLOW, PEERS, own_ms=110.0, peers_ms=105.0)
    samples = Samples({}, {}, gpus(gpu(1.9), gpu(2.0)))
    assert find_cause(slow, series_of(alike(110.0, 105.0)), samples).name == "unattributed"


@pytest.mark.parametrize("clocks", [(None, 2.0), (1.0, None), (0.0, 2.0)])
@pytest.mark.parametrize(("reason", "name"), [("sw_power_cap", "gpu_power_cap"), ("reliability", "unattributed")])
def test_without_clocks_a_reason_of_its_own_is_enough(
    clocks: tuple[float | None, float | None], reason: str, name: str
) -> None:
    assert cause_of(devices=gpus(gpu(clocks[0], reason), gpu(clocks[1]))).name == name


@pytest.mark.parametrize(("sharing", "name"), [(1, "gpu_power_cap"), (2, "unattributed"), (3, "unattributed")])
def test_common_throttle_reason_without_clocks_is_no_cause(sharing: int, name: str) -> None:
    peers = {peer: gpu(None, "sw_power_cap") if peer < sharing else gpu() for peer in PEERS}
    assert cause_of(devices={SLOW: gpu(None, "sw_power_cap"), **peers}).name == name


def test_own_throttle_reason_is_enough_without_peer_data() -> None:
    assert cause_of(devices=gpus(gpu(None, "sw_thermal_slowdown"), gpu(unread=True))).name == "gpu_thermal_throttle"


def test_gpu_of_which_nothing_could_be_read_is_no_evidence() -> None:
    assert cause_of(devices=gpus(gpu(unread=True), gpu(2.0, "sw_power_cap"))) == Cause(*NO_CAUSE, {})


def test_every_gpu_of_the_rank_is_looked_at() -> None:
    devices = gpus((*gpu(2.0), *gpu(1.0)), gpu(2.0))
    assert cause_of(devices=devices).name == "gpu_slow_clock"


def test_host_is_not_blamed_where_a_gpu_does_the_work() -> None:
    cause = cause_of(devices=gpus(gpu(), gpu()), cpu_ms=alike(140.0, 90.0), phases_ms={"forward": alike(60.0)})
    assert (cause.name, cause.because) == ("unattributed", "no known cause, 50.0 ms of it in forward")


@pytest.mark.parametrize(("cpu_ms", "name"), [(65.0, "unseen_wait"), (65.1, "unattributed"), (90.0, "unattributed")])
def test_host_computing_less_by_its_longer_forward_waits_itself(cpu_ms: float, name: str) -> None:
    # Its peers spin until their devices are done, and so have the CPU for 90 ms of each step.
    cause = cause_of(devices=gpus(gpu(), gpu()), cpu_ms=alike(cpu_ms, 90.0), phases_ms={"forward": alike(60.0)})
    assert cause.name == name
    other = cause_of(devices=gpus(gpu(), gpu()), cpu_ms=alike(cpu_ms, 90.0), phases_ms={"backward": alike(60.0)})
    assert other.name == "unattributed"


# -- PCIe link --------------------------------------------------------------------------------------------------------


def linked(
    lanes: int | None, generation: int | None = 5, utilization_ratio: float | None = 0.9, **most: Any
) -> DeviceSample:
    return DeviceSample(
        host_ns=0, uuid="GPU", pcie_link_width=lanes, pcie_link_generation=generation,
        utilization_ratio=utilization_ratio, **most,
    )  # fmt: skip


def pcie_cause(slow: DeviceSample, *peers: DeviceSample, **known: Any) -> Cause:
    return cause_of(devices={SLOW: [slow]} | {rank: [peer] for rank, peer in enumerate(peers)}, **known)


def test_link_with_fewer_lanes_than_most_peers_is_pcie_downgrade() -> None:
    assert pcie_cause(linked(4), linked(16), linked(16), linked(8)) == Cause(
        "pcie_downgrade",
        "its GPU's PCIe link with 4 lanes, those of its peers with 16",
        {"pcie_lanes": 4, "peers_pcie_lanes": 16},
    )


def test_busy_link_of_a_lower_generation_is_pcie_downgrade() -> None:
    cause = pcie_cause(linked(16, 1), linked(16), linked(16), linked(16))
    assert cause.name == "pcie_downgrade"
    assert cause.because == "its GPU's PCIe link at generation 1, those of its peers at 5"


@pytest.mark.parametrize(
    ("slow", "peers"),
    [
        (linked(8), [linked(8), linked(8), linked(16)]),  # as most peers
        (linked(16), [linked(8)] * 3),
        (linked(None, None), [linked(16)] * 3),
        (linked(0), [linked(16)] * 3),  # a virtual GPU
        (linked(-1), [linked(16)] * 3),
        (linked(4), [linked(-1)] * 3),
        (linked(8, pcie_link_width_max=8), [linked(16)] * 3),  # all that its slot has
        (linked(16, 4, pcie_link_generation_max=4), [linked(16)] * 3),
        (linked(4), [linked(None, None)] * 3),
        (linked(16, 1, 0.1), [linked(16)] * 3),  # an idle GPU lowers its generation
        (linked(16, 1, None), [linked(16)] * 3),
        (linked(16, 1), [linked(16, 5, 0.0)] * 3),
        (linked(16, 0), [linked(16)] * 3),
    ],
)
def test_link_like_those_of_peers_or_unknown_is_no_cause(slow: DeviceSample, peers: list[DeviceSample]) -> None:
    assert pcie_cause(slow, *peers) == Cause(*NO_CAUSE, {})


def test_link_below_its_own_maximum_is_pcie_downgrade() -> None:
    narrow = linked(1, pcie_link_width_max=8)
    assert (
        pcie_cause(narrow, *[linked(16)] * 3).because == "its GPU's PCIe link with 1 lane, those of its peers with 16"
    )


def test_memory_pressure_comes_before_a_narrow_link() -> None:
    # Ten retries in ten steps.
    counts = {
        rank: [AllocatorCounts(n, AllocatorSample(host_ns=0, retries=n if rank == SLOW else 0)) for n in (0, 10)]
        for rank in (SLOW, *PEERS)
    }
    assert pcie_cause(linked(4), *[linked(16)] * 3, allocators=counts).name == "memory_pressure"


def test_narrow_link_does_not_explain_longer_kernels() -> None:
    # 50 ms of 50 are computing; with 24 of 50 the rest may be copies.
    work = {SLOW: [window(150.0, 10)]} | {peer: [window(100.0, 10)] for peer in PEERS}
    narrow = (linked(4), linked(16), linked(16), linked(16))
    assert pcie_cause(*narrow, breakdowns=work).name == "gpu_compute"
    work[SLOW] = [window(124.0, 10)]
    assert pcie_cause(*narrow, breakdowns=work).name == "pcie_downgrade"


# -- copies from the host ---------------------------------------------------------------------------------------------


def copying(exposed_ms: float, *, size: int = 20 * 2**20, pageable: bool = False, **more: int) -> list[WindowBreakdown]:
    """A window of two steps, each with a copy of that size."""
    exposed_ns = round(2 * exposed_ms * MS)
    copies = HostCopies(
        count=2, duration_ns=exposed_ns, exposed_ns=exposed_ns, bytes=2 * size,
        pageable_ns=exposed_ns if pageable else 0,
    )  # fmt: skip
    window = WindowBreakdown(
        first_step=2, step_count=2, window_ns=200 * MS + exposed_ns, compute_ns=150 * MS, communication_ns=0,
        overlap_ns=0, exposed_communication_ns=0, copy_ns=exposed_ns, idle_ns=50 * MS, operator_count=2_000,
        host_copies=msgspec.structs.replace(copies, **more),
    )  # fmt: skip
    return [window]


def test_longer_copies_of_as_many_bytes_are_slow_copies() -> None:
    cause = cause_of(breakdowns={SLOW: copying(50.0)} | dict.fromkeys(PEERS, copying(5.0)))
    assert cause == Cause(
        "slow_copies",
        "copies from its host 45.0 ms longer per step for as many bytes, its GPU waiting",
        {"host_copy_excess_ns": 45 * MS},
    )


@pytest.mark.parametrize(("exposed_ms", "name"), [(30.0, "slow_copies"), (29.9, "unattributed")])
def test_copies_are_the_cause_from_half_of_the_excess_on(exposed_ms: float, name: str) -> None:
    assert cause_of(breakdowns={SLOW: copying(exposed_ms)} | dict.fromkeys(PEERS, copying(5.0))).name == name


def test_rank_that_alone_does_not_pin_is_told_so() -> None:
    cause = cause_of(breakdowns={SLOW: copying(50.0, pageable=True)} | dict.fromkeys(PEERS, copying(5.0)))
    assert "from memory that its peers pin and it does not" in cause.because
    everybody = {SLOW: copying(50.0, pageable=True)} | dict.fromkeys(PEERS, copying(5.0, pageable=True))
    assert "pin" not in cause_of(breakdowns=everybody).because


@pytest.mark.parametrize(("ratio", "name"), [(1.04, "slow_copies"), (1.06, "more_work")])
def test_copies_of_more_bytes_are_more_work(ratio: float, name: str) -> None:
    size = round(ratio * 20 * 2**20)
    cause = cause_of(breakdowns={SLOW: copying(50.0, size=size)} | dict.fromkeys(PEERS, copying(5.0)))
    assert cause.name == name
    if name == "more_work":
        assert cause.because == "21.2 MiB copied from its host per step, 20.0 MiB on its peers"


def test_copies_of_unknown_bytes_are_counted() -> None:
    alike_counts = {SLOW: copying(50.0, unsized=2)} | dict.fromkeys(PEERS, copying(5.0, unsized=2))
    assert "for as many copies" in cause_of(breakdowns=alike_counts).because
    alike_counts[SLOW] = copying(50.0, unsized=4, count=4)
    assert cause_of(breakdowns=alike_counts)[:2] == ("more_work", "2 copies from its host per step, 1 on its peers")


def test_copies_that_are_not_told_are_no_evidence() -> None:
    known = {rank: copying(50.0 if rank == SLOW else 5.0) for rank in (SLOW, *PEERS)}
    untold = {rank: [msgspec.structs.replace(one, host_copies=None) for one in kept] for rank, kept in known.items()}
    assert cause_of(breakdowns=untold) == Cause(*NO_CAUSE, {"compute_excess_ns": 0, "operator_ratio": 1.0})


def test_narrow_link_is_the_cause_with_its_copies_extra_time() -> None:
    work = {SLOW: copying(50.0)} | dict.fromkeys(PEERS, copying(5.0))
    cause = pcie_cause(linked(4), *[linked(16)] * 3, breakdowns=work)
    assert (cause.name, cause.because) == (
        "pcie_downgrade",
        "its GPU's PCIe link with 4 lanes, those of its peers with 16, copies from its host 45.0 ms longer per step",
    )


# -- more work --------------------------------------------------------------------------------------------------------


def window(
    compute_ms: float, operators: int | None, first_step: int = 0, step_count: int = 1, idle_ms: float = 0.0
) -> WindowBreakdown:
    """A window in which the rank computes or is idle."""
    compute_ns, idle_ns = round(compute_ms * MS), round(idle_ms * MS)
    return WindowBreakdown(
        first_step=first_step, step_count=step_count, window_ns=compute_ns + idle_ns, compute_ns=compute_ns,
        communication_ns=0, overlap_ns=0, exposed_communication_ns=0, copy_ns=0, idle_ns=idle_ns,
        operator_count=operators,
    )  # fmt: skip


def windows(slow: WindowBreakdown, peer: WindowBreakdown) -> Mapping[int, Sequence[WindowBreakdown]]:
    return {SLOW: (slow,)} | dict.fromkeys(PEERS, (peer,))


def test_more_operators_that_take_longer_are_more_work() -> None:
    cause = cause_of(breakdowns=windows(window(130.0, 150), window(80.0, 100)))
    assert (cause.name, cause.because) == ("more_work", "150 operators per step, 100 on its peers")
    assert cause.evidence == {"compute_excess_ns": 50 * MS, "operator_ratio": 1.5}


HEALTHY = gpus(gpu(2.0), gpu(2.0))


def test_gpu_with_longer_kernels_and_no_reason_is_slow_itself() -> None:
    cause = cause_of(devices=HEALTHY, breakdowns=windows(window(130.0, 100), window(90.0, 100)))
    assert cause.name == "gpu_compute"
    assert cause.because == "40.0 ms more per step on its GPU for the same work, no reason reported"


def idle_cause(cpu_ms: Rows | None) -> Cause:
    """Of a rank whose GPU is idle 40 ms longer, in steps of 150 ms against 100."""
    work = windows(window(90.0, 100, idle_ms=50.0), window(90.0, 100, idle_ms=10.0))
    return cause_of(devices=HEALTHY, breakdowns=work, phases_ms={"forward": alike(55.0)}, cpu_ms=cpu_ms)


@pytest.mark.parametrize(
    "cpu_ms",
    [
        pytest.param(alike(125.0, 100.0), id="computes longer by half of the excess, and is off the CPU for 25 ms"),
        pytest.param(alike(130.0, 150.0), id="computes no longer than peers that spin, and is off the CPU for 20 ms"),
    ],
)
def test_idle_gpu_whose_host_is_at_work_waits_for_it(cpu_ms: Rows) -> None:
    cause = idle_cause(cpu_ms)
    assert cause.name == "host_cpu"
    assert cause.because == "its GPU idle 40.0 ms more per step, waiting for its host, 45.0 ms of it in forward"
    assert cause.evidence["idle_excess_ns"] == 40 * MS


def test_idle_gpu_with_its_host_off_cpu_has_an_unseen_wait() -> None:
    cause = idle_cause(alike(124.9, 100.0))  # off the CPU for 25.1 ms, above half of the 50 that it is slower
    assert cause.name == "unseen_wait"
    assert cause.because == (
        "its GPU idle 40.0 ms more per step, its training thread off the CPU, waiting for "
        "something not measured, 45.0 ms of it in forward"
    )
    assert cause.evidence["off_cpu_ns"] == pytest.approx(25.1 * MS)


def test_idle_gpu_without_cpu_times_is_not_explained() -> None:
    cause = idle_cause(None)
    assert cause.name == "unattributed"
    assert cause.because == "its GPU idle 40.0 ms more per step, CPU time of its training thread not known"


def test_gpu_neither_slower_nor_idle_longer_is_not_explained() -> None:
    assert cause_of(devices=HEALTHY, breakdowns=windows(window(90.0, None), window(90.0, 100))).name == "unattributed"


@pytest.mark.parametrize(
    ("broken", "because"),
    [
        ({"xid_last": 63}, "reported by its GPU: Xid 63"),
        ({"ecc_uncorrected": 1}, "reported by its GPU: uncorrectable memory errors"),
        ({"remapping_pending": True}, "reported by its GPU: a pending row remapping"),
        ({"remapping_pending": True, "remapping_failed": True}, "reported by its GPU: a failed row remapping"),
    ],
)
def test_gpu_that_reports_a_fault_of_its_own_has_it(broken: Mapping[str, Any], because: str) -> None:
    (healthy,) = gpu(2.0)
    cause = cause_of(devices=gpus((msgspec.structs.replace(healthy, **broken),), (healthy,)))
    assert (cause.name, cause.because) == ("gpu_fault", because)


def test_program_faults_and_common_faults_are_not_the_gpu() -> None:
    (healthy,) = gpu(2.0)
    by_program = msgspec.structs.replace(healthy, xid_last=31)
    broken = msgspec.structs.replace(healthy, ecc_uncorrected=1)
    assert cause_of(devices=gpus((by_program,), (healthy,))).name == "unattributed"
    assert cause_of(devices=gpus((broken,), (broken,))).name == "unattributed"


@pytest.mark.parametrize(
    ("compute_ms", "operators", "name"),
    [
        (105.0, 105, "more_work"),
        (104.9, 105, "unattributed"),
        (105.0, 104, "unattributed"),
        (105.0, None, "unattributed"),
    ],
)
def test_more_work_needs_half_of_the_excess_and_more_operators(
    compute_ms: float, operators: int | None, name: str
) -> None:
    assert cause_of(breakdowns=windows(window(compute_ms, operators), window(80.0, 100))).name == name


def test_windows_of_several_steps_count_by_the_step() -> None:
    cause = cause_of(breakdowns=windows(window(260.0, 300, step_count=2), window(80.0, 100)))
    assert cause.evidence == {"compute_excess_ns": 50 * MS, "operator_ratio": 1.5}


@pytest.mark.parametrize("early", [window(130.0, 150, first_step=4), window(130.0, 150, first_step=5, step_count=0)])
def test_windows_before_the_present_level_do_not_count(early: WindowBreakdown) -> None:
    cause = cause_of(breakdowns=windows(early, window(80.0, 100, first_step=5)), level_from_step=5)
    assert cause == Cause(*NO_CAUSE, {})


def test_peers_that_run_no_operator_at_all_are_compared_with_too() -> None:
    assert cause_of(breakdowns=windows(window(50.0, 7), window(0.0, 0))).evidence["operator_ratio"] == 7.0


# -- the host ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cpu_ms", "name", "because"),
    [
        (115.0, "host_cpu", "its training thread computing longer, 40.0 ms of it in forward"),
        (114.9, "unseen_wait", f"{UNSEEN}, 40.0 ms of it in forward"),
    ],
)
def test_what_is_left_is_the_host_computing_or_an_unseen_wait(cpu_ms: float, name: str, because: str) -> None:
    cause = cause_of(cpu_ms=alike(cpu_ms, 90.0), phases_ms={"data": alike(20.0), "forward": alike(50.0)})
    assert (cause.name, cause.because) == (name, because)


def test_cpu_time_is_compared_on_commonly_measured_steps() -> None:
    # The slow rank measures every other step, peer 0 every fourth, peer 1 none and peer 2 those between.
    slow, peers = [140.0, UNKNOWN], ([90.0, *[UNKNOWN] * 3], [UNKNOWN], [UNKNOWN, 10.0])
    columns = [*(peer * (12 // len(peer)) for peer in peers), slow * 6]
    cause = cause_of(cpu_ms=[list(row) for row in zip(*columns, strict=True)][:10])
    assert (cause.name, cause.evidence) == ("host_cpu", {"cpu_excess_ns": 50 * MS, "peers_cpu_ns": 90 * MS})


def test_phase_with_less_than_half_the_excess_is_not_named() -> None:
    cause = cause_of(cpu_ms=alike(90.0, 90.0), phases_ms={"forward": alike(30.0), "optimizer": alike(34.9)})
    assert cause.because == UNSEEN


def test_without_cpu_time_and_windows_there_is_no_cause() -> None:
    assert cause_of(phases_ms={"forward": alike(50.0)}).name == "unattributed"
    assert cause_of() == Cause(*NO_CAUSE, {})


@pytest.mark.parametrize(
    ("slow", "name", "because"),
    [
        (window(130.0, 100), "host_cpu", "50.0 ms more per step in operators"),
        (window(80.0, 100, idle_ms=50.0), "host_cpu", "50.0 ms more per step in no operator"),
        (window(130.0, 150), "more_work", "150 operators per step, 100 on its peers"),
        (window(80.0, 100), *NO_CAUSE),
    ],
)
def test_host_of_traces_is_known_by_its_operators(slow: WindowBreakdown, name: str, because: str) -> None:
    cause = cause_of(breakdowns=windows(slow, window(80.0, 100)), are_of_traces=True)
    assert (cause.name, cause.because) == (name, because)


def test_device_of_traces_that_is_idle_waits_for_its_host() -> None:
    idle = windows(window(80.0, 100, idle_ms=50.0), window(80.0, 100))
    cause = cause_of(breakdowns=idle, devices=gpus(gpu(2.0), gpu(2.0)), are_of_traces=True)
    assert (cause.name, cause.because) == ("host_cpu", "its GPU idle 50.0 ms more per step, waiting for its host")


def test_device_of_traces_that_computes_longer_says_in_how_many_kernels() -> None:
    cause = cause_of(
        breakdowns=windows(window(130.0, 101), window(80.0, 100)),
        devices=gpus(gpu(2.0), gpu(2.0)),
        are_of_traces=True,
    )
    because = "50.0 ms more per step on its GPU, in 101 kernels, 100 on its peers"
    assert (cause.name, cause.because) == ("gpu_compute", because)


def test_phase_of_traces_holds_up_the_host() -> None:
    cause = cause_of(phases_ms={"forward": alike(60.0)}, are_of_traces=True)
    assert (cause.name, cause.because) == ("host_cpu", "its host held up, 50.0 ms of it in forward")


def test_vanished_excess_is_not_explained_by_missing_data() -> None:
    # Medians of mixed steps: the ratio is slow, the times do not differ.
    slow = slow_of(SLOW, PEERS, own_ms=100.0, peers_ms=100.0)
    assert find_cause(slow, series_of(alike(100.0, 100.0)), Samples({}, {}, {})).name == "unattributed"


# -- which first ------------------------------------------------------------------------------------------------------


def test_the_more_specific_cause_is_asked_first() -> None:
    data, garbage = {"data": alike(60.0)}, pauses_of(50.0, 1.0)
    slow_gpu, work = gpus(gpu(1.0), gpu(2.0)), windows(window(130.0, 150), window(80.0, 100))
    names = [
        cause_of(phases_ms=data, gc_pauses=garbage, devices=slow_gpu, breakdowns=work).name,
        cause_of(gc_pauses=garbage, devices=slow_gpu, breakdowns=work).name,
        cause_of(devices=slow_gpu, breakdowns=work).name,
        cause_of(breakdowns=work, cpu_ms=alike(140.0, 90.0)).name,
    ]
    assert names == ["data_loading", "garbage_collection", "gpu_slow_clock", "more_work"]


# -- a host that waits for its GPU ------------------------------------------------------------------------------------

ITEM = Synchronization(call="cudaStreamSynchronize", operator="aten::item", line="train.py:24 (main)")


def waits(
    waits_ms: float, idle_ms: float, *kinds: Synchronization, first_step: int = 0, step_count: int = 1
) -> WindowSynchronizations:
    return WindowSynchronizations(
        first_step=first_step,
        step_count=step_count,
        call_ns={ITEM.call: round(waits_ms * MS)},
        idle_ns=round(idle_ms * MS),
        kinds=kinds,
    )


def all_wait(
    slow: WindowSynchronizations, peer: WindowSynchronizations
) -> Mapping[int, Sequence[WindowSynchronizations]]:
    return {SLOW: (slow,)} | dict.fromkeys(PEERS, (peer,))


def idle_of(kind: Synchronization, idle_ms: float, **changed: str | None) -> Synchronization:
    return msgspec.structs.replace(kind, count=1, waits_ns=40 * MS, idle_ns=round(idle_ms * MS), **changed)


LONGER_IDLE = windows(window(80.0, None, idle_ms=70.0), window(80.0, None, idle_ms=20.0))
"""GPUs that compute for as long; that of the slow rank is idle 50 ms longer."""


def test_longer_waits_with_gpu_idle_at_end_are_host_device_sync() -> None:
    mine = waits(45.0, 40.0, idle_of(ITEM, 30.0), idle_of(ITEM, 10.0, line="train.py:30 (log)"))
    cause = cause_of(synchronizations=all_wait(mine, waits(5.0, 2.0)), breakdowns=LONGER_IDLE)
    assert cause.name == "host_device_sync"
    assert cause.because == (
        "its host waiting at least 38.0 ms more per step for the GPU, its GPU idle as much longer, "
        "79 % of it in train.py:24 (main) (aten::item, cudaStreamSynchronize)"
    )
    assert cause.evidence == {"sync_excess_ns": 38 * MS}


@pytest.mark.parametrize(
    ("why", "mine", "name"),
    [
        ("half of the excess", waits(30.0, 25.0), "host_device_sync"),
        ("less than half", waits(30.0, 24.9), "unattributed"),
        ("its GPU computes longer, and is not idle", waits(60.0, 0.0), "unattributed"),
        ("its host is busy after a wait as long as its peers'", waits(0.0, 60.0), "unattributed"),
        ("two steps", waits(98.0, 98.0, step_count=2), "host_device_sync"),
        ("two steps, too short", waits(48.0, 48.0, step_count=2), "unattributed"),
    ],
)
def test_both_the_wait_and_the_idle_time_must_be_longer(why: str, mine: WindowSynchronizations, name: str) -> None:
    assert cause_of(synchronizations=all_wait(mine, waits(0.0, 0.0)), breakdowns=LONGER_IDLE).name == name, why


@pytest.mark.parametrize(("idle_ms", "name"), [(45.0, "host_device_sync"), (44.9, "unattributed")])
def test_idle_time_of_the_step_must_be_longer_too(idle_ms: float, name: str) -> None:
    of_device = windows(window(80.0, None, idle_ms=idle_ms), window(80.0, None, idle_ms=20.0))
    assert cause_of(synchronizations=all_wait(waits(45.0, 40.0), waits(0.0, 0.0)), breakdowns=of_device).name == name


def test_without_breakdowns_waits_are_no_cause() -> None:
    assert cause_of(synchronizations=all_wait(waits(45.0, 40.0), waits(0.0, 0.0))) == Cause(*NO_CAUSE, {})


@pytest.mark.parametrize(
    ("cpu_ms", "peers_ms", "waits_ms", "name"),
    [
        (150.0, 150.0, 35.0, "host_cpu"),  # it waits 25 ms less for its GPU, with as much CPU time
        (150.0, 150.0, 35.1, "unattributed"),
        (125.0, 150.0, 35.0, "unseen_wait"),
        (125.1, 150.0, 35.0, "unattributed"),
        (125.0, 125.0, 35.0, "unattributed"),  # peers that are off the CPU for 25 ms may not spin in their waits
        (125.1, 125.1, 35.0, "host_cpu"),
    ],
)
def test_host_that_is_longer_in_forward_and_waits_less_for_its_gpu_computes(
    cpu_ms: float, peers_ms: float, waits_ms: float, name: str
) -> None:
    cause = cause_of(
        devices=gpus(gpu(), gpu()),
        cpu_ms=alike(cpu_ms, peers_ms),
        phases_ms={"forward": alike(60.0)},
        breakdowns=windows(window(80.0, 100, idle_ms=20.0), window(80.0, 100, idle_ms=20.0)),
        synchronizations=all_wait(waits(waits_ms, 0.0), waits(60.0, 0.0)),
    )
    assert cause.name == name


@pytest.mark.parametrize("longer", ["exposed_communication_ns", "copy_ns"])
def test_host_whose_gpu_is_longer_at_something_may_wait_for_it_in_its_launches(longer: str) -> None:
    mine, theirs = window(80.0, 100, idle_ms=20.0), window(80.0, 100, idle_ms=20.0)
    cause = cause_of(
        devices=gpus(gpu(), gpu()),
        cpu_ms=alike(150.0, 150.0),
        phases_ms={"forward": alike(60.0)},
        breakdowns=windows(msgspec.structs.replace(mine, **{longer: 25 * MS}), theirs),
        synchronizations=all_wait(waits(35.0, 0.0), waits(60.0, 0.0)),
    )
    assert cause.name == "unattributed"


def test_host_whose_gpu_no_window_has_shown_may_wait_for_it_in_its_launches() -> None:
    cause = cause_of(
        devices=gpus(gpu(), gpu()),
        cpu_ms=alike(150.0, 150.0),
        phases_ms={"forward": alike(60.0)},
        synchronizations=all_wait(waits(35.0, 0.0), waits(60.0, 0.0)),
    )
    assert cause.name == "unattributed"


@pytest.mark.parametrize(("operators", "name"), [(100, "gpu_compute"), (140, "more_work")])
def test_gpu_that_computes_longer_is_no_wait_of_the_host(operators: int, name: str) -> None:
    # All hosts work 30 ms after a wait, and all GPUs are idle 30 ms a step. The peers wait 2 ms, so that idle time of
    # their calls is cut at 2; the slow rank's GPU computes 140 instead of 100 ms, so its host waits 42: min(30, 42).
    cause = cause_of(
        synchronizations=all_wait(waits(42.0, 30.0, idle_of(ITEM, 30.0)), waits(2.0, 2.0, idle_of(ITEM, 2.0))),
        breakdowns=windows(window(140.0, operators, idle_ms=30.0), window(100.0, 100, idle_ms=30.0)),
        devices=gpus(gpu(2.0), gpu(2.0)),
        own_ms=140.0,
    )
    assert cause.name == name
    assert "sync_excess_ns" not in cause.evidence


def test_the_line_named_is_the_one_that_the_peers_lack() -> None:
    usual, debug = idle_of(ITEM, 30.0, line="train.py:50 (main)"), idle_of(ITEM, 20.0, line="debug.py:80 (dump)")
    cause = cause_of(
        synchronizations=all_wait(waits(60.0, 50.0, usual, debug), waits(32.0, 30.0, usual)),
        breakdowns=windows(window(60.0, None, idle_ms=52.0), window(60.0, None, idle_ms=32.0)),
        own_ms=120.0,
    )
    assert cause.because == (
        "its host waiting at least 20.0 ms more per step for the GPU, its GPU idle as much longer, "
        "100 % of it in debug.py:80 (dump) (aten::item, cudaStreamSynchronize)"
    )


def test_no_line_is_named_that_has_less_than_half_of_the_excess() -> None:
    kinds = [idle_of(ITEM, 13.0, line=f"train.py:{number} (main)", operator=f"aten::op{number}") for number in range(3)]
    cause = cause_of(synchronizations=all_wait(waits(45.0, 39.0, *kinds), waits(0.0, 0.0)), breakdowns=LONGER_IDLE)
    assert cause.because.endswith("its GPU idle as much longer")


def test_without_a_line_the_operator_and_the_call_are_named() -> None:
    mine = waits(45.0, 40.0, idle_of(ITEM, 40.0, line=None))
    cause = cause_of(synchronizations=all_wait(mine, waits(0.0, 0.0)), breakdowns=LONGER_IDLE)
    assert cause.because.endswith(", 100 % of it in aten::item, cudaStreamSynchronize")


def test_without_kinds_nothing_is_named() -> None:
    cause = cause_of(synchronizations=all_wait(waits(45.0, 40.0), waits(0.0, 0.0)), breakdowns=LONGER_IDLE)
    assert cause.because.endswith("its GPU idle as much longer")


def test_share_of_a_kind_idle_beyond_its_window_is_all() -> None:
    mine = waits(45.0, 40.0, idle_of(ITEM, 900.0))
    cause = cause_of(synchronizations=all_wait(mine, waits(0.0, 0.0)), breakdowns=LONGER_IDLE)
    assert ", 100 % of it in" in cause.because


def test_windows_before_the_present_level_are_no_evidence() -> None:
    old = all_wait(waits(45.0, 40.0, first_step=3), waits(0.0, 0.0, first_step=3))
    assert cause_of(synchronizations=old, breakdowns=LONGER_IDLE, level_from_step=4).evidence == {}


def test_waits_are_not_compared_with_peers_without_any_known() -> None:
    cause = cause_of(synchronizations={SLOW: (waits(45.0, 40.0),)}, breakdowns=LONGER_IDLE)
    assert "sync_excess_ns" not in cause.evidence


def test_texts_of_the_job_are_one_line_of_bounded_length() -> None:
    kind = idle_of(ITEM, 40.0, line="a.py:1 (\x1b[2J" + "m" * 300, operator="x\ny")
    cause = cause_of(synchronizations=all_wait(waits(45.0, 40.0, kind), waits(0.0, 0.0)), breakdowns=LONGER_IDLE)
    where = cause.because.partition(" of it in ")[2]
    assert where.startswith("a.py:1 (\\x1b[2Jm")
    assert where.endswith("m... (x\\ny, cudaStreamSynchronize)")
    assert len(where) < 200
