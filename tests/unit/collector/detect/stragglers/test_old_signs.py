"""Signs of a fault that were there before a rank became slow, at step 100: rank 3 takes 150 ms, its three peers 100."""

from typing import Any

import msgspec
import pytest

from rankscope.collector.detect.stragglers.persistent import SlowRank
from rankscope.collector.detect.stragglers.root_cause import find_cause, find_old_signs, find_signs
from rankscope.collector.detect.view import AllocatorCounts, Samples
from rankscope.measure.records import AllocatorSample, DeviceSample
from tests.unit.collector.steps.step_series import series_of, slow_of

SLOW = 3
PEERS = (0, 1, 2)
BEGIN = 100
HEALTHY = DeviceSample(host_ns=0, uuid="GPU", pcie_link_width=16, pcie_link_width_max=16)


def cause_of(device: DeviceSample, signs: dict[str, int], **more: Any) -> tuple[str, str]:
    devices = dict.fromkeys(PEERS, (HEALTHY,)) | {SLOW: (device,)}
    samples = Samples({}, {}, devices, signs_by_step={SLOW: signs}, **more)
    found = find_cause(slow_from(BEGIN), series_of([[100.0] * 3 + [150.0]] * 10), samples)
    return found.name, found.because


def slow_from(step: int, before_step: int | None = BEGIN - 1) -> SlowRank:
    slow = slow_of(SLOW, PEERS, own_ms=150.0, peers_ms=100.0, since_step=step, level_from_step=0)
    return slow._replace(before_step=before_step)


@pytest.mark.parametrize(
    ("broken", "sign", "cause"),
    [
        ({"xid_last": 63}, "Xid 63", "gpu_fault"),
        ({"remapping_pending": True}, "a pending row remapping", "gpu_fault"),
        ({"pcie_link_width": 4}, "a PCIe link with 4 lanes", "pcie_downgrade"),
        ({"pcie_link_width": 1}, "a PCIe link with 1 lane", "pcie_downgrade"),
    ],
)
def test_sign_from_before_the_slowness_stands_beside_its_cause(broken: dict[str, Any], sign: str, cause: str) -> None:
    device = msgspec.structs.replace(HEALTHY, **broken)
    assert find_signs(device) == {sign}
    assert cause_of(device, {sign: BEGIN}) == (cause, cause_of(device, {})[1])
    beside = f"no known cause (already before it was slow: {sign})"
    assert cause_of(device, {sign: BEGIN - 2}) == ("unattributed", beside)


def test_sign_of_the_step_in_which_it_began_is_not_from_before() -> None:
    # The sample came with the report of step 99: it may be of step 100.
    device = msgspec.structs.replace(HEALTHY, xid_last=63)
    assert cause_of(device, {"Xid 63": BEGIN - 1}) == ("gpu_fault", "reported by its GPU: Xid 63")


def test_new_sign_beside_an_old_one_is_the_cause() -> None:
    device = msgspec.structs.replace(HEALTHY, xid_last=63, ecc_uncorrected=1)
    name, because = cause_of(device, {"Xid 63": 3})
    assert name == "gpu_fault"
    assert because == "reported by its GPU: uncorrectable memory errors (already before it was slow: Xid 63)"


def test_no_sign_is_old_where_the_begin_is_not_known() -> None:
    samples = Samples({}, {}, {}, signs_by_step={SLOW: {"Xid 63": 3}})
    assert find_old_signs(slow_from(BEGIN, before_step=None), samples) == set()


def test_healthy_gpu_and_one_without_a_link_show_no_sign() -> None:
    assert find_signs(HEALTHY) == set()
    assert find_signs(DeviceSample(host_ns=0, uuid="GPU")) == set()


def counts(*retries: int) -> list[AllocatorCounts]:
    """Counts at steps 0, 60, 80, 120 and 180."""
    return [
        AllocatorCounts(step, AllocatorSample(host_ns=step, retries=count, device_allocs=None))
        for step, count in zip((0, 60, 80, 120, 180), retries, strict=True)
    ]


@pytest.mark.parametrize(
    ("retries", "name"),
    [
        ((0, 60, 80, 120, 180), "unattributed"),  # one a step, since before
        ((0, 0, 0, 40, 100), "memory_pressure"),
        ((0, 30, 40, 80, 140), "memory_pressure"),  # half a step before, one since
    ],
)
def test_retries_must_have_become_more(retries: tuple[int, ...], name: str) -> None:
    allocators = {SLOW: counts(*retries)} | dict.fromkeys(PEERS, counts(0, 0, 0, 0, 0))
    samples = Samples({}, {}, {SLOW: (HEALTHY,)}, allocators)
    slow = slow_from(BEGIN)._replace(level_from_step=BEGIN)
    series = series_of([[100.0] * 3 + [150.0]] * 200)
    assert find_cause(slow, series, samples).name == name


def test_lone_count_before_the_slowness_is_since_process_start() -> None:
    # A retry a step since the first one; the counts between have left the ring.
    mine = [
        AllocatorCounts(step, AllocatorSample(host_ns=step, retries=step, device_allocs=None))
        for step in (60, 120, 180)
    ]
    none = counts(0, 0, 0, 0, 0)
    allocators = {SLOW: mine, **dict.fromkeys(PEERS, none)}
    assert cause_of(HEALTHY, {}, allocators=allocators)[0] == "unattributed"
    later = [one if one.steps > 60 else AllocatorCounts(60, AllocatorSample(host_ns=60, retries=0)) for one in mine]
    assert cause_of(HEALTHY, {}, allocators={**allocators, SLOW: later})[0] == "memory_pressure"
