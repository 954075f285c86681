"""Tests of the allocator sample, from torch's nested statistics."""

import inspect
import re

import msgspec
import pytest
import torch

from rankscope.agent.sample.torch_device import TorchDevice
from rankscope.agent.sample.torch_memory import PATHS, TorchMemorySampler, parse_stats
from rankscope.measure.records import AllocatorSample
from rankscope.measure.units import HostNs, WallNs
from tests.cuda_stand_in.allocator import StandInAllocator

GIB = 2**30
DEVICE = TorchDevice(index=2, uuid="GPU-1", pci_address=None, is_amd=False)


class StillClock:
    def monotonic_ns(self) -> HostNs:
        return HostNs(77)

    def wall_ns(self) -> WallNs:
        return WallNs(0)


def sample(allocator: StandInAllocator, device: TorchDevice | None = DEVICE) -> AllocatorSample | None:
    return TorchMemorySampler(StillClock(), lambda: device, allocator).sample()


def test_allocator_is_read_in_bytes_and_counts() -> None:
    allocator = StandInAllocator(device_index=2)
    stats = allocator.stats
    stats["allocated_bytes"]["all"].update(current=40 * GIB, peak=50 * GIB, allocated=900 * GIB)
    stats["allocated_bytes"]["large_pool"].update(current=39 * GIB)
    stats["reserved_bytes"]["all"].update(current=60 * GIB, peak=62 * GIB)
    stats["active_bytes"]["all"].update(current=41 * GIB, peak=51 * GIB)
    stats["inactive_split_bytes"]["all"].update(current=3 * GIB)
    stats.update(num_alloc_retries=4, num_ooms=1, num_device_alloc=310, num_device_free=12)
    assert sample(allocator) == AllocatorSample(
        host_ns=77, allocated_bytes=40 * GIB, reserved_bytes=60 * GIB, active_bytes=41 * GIB,
        inactive_split_bytes=3 * GIB, allocated_peak_bytes=50 * GIB, reserved_peak_bytes=62 * GIB,
        active_peak_bytes=51 * GIB, retries=4, ooms=1, device_allocs=310, device_frees=12,
    )  # fmt: skip


def test_allocator_that_has_done_nothing_is_measured_as_zero() -> None:
    found = sample(StandInAllocator(device_index=2))
    assert found is not None
    assert {getattr(found, field) for field in PATHS} == {0}
    assert found.absent == {}


def test_only_a_missing_count_is_absent() -> None:
    allocator = StandInAllocator(device_index=2)
    del allocator.stats["num_device_alloc"]
    found = sample(allocator)
    assert found is not None
    assert (found.device_allocs, found.absent) == (None, {"device_allocs": "not_told_by_this_torch"})
    assert found.device_frees == 0


@pytest.mark.parametrize("backend", ["cudaMallocAsync", "pluggable"])
def test_fields_of_other_allocators_are_absent(backend: str) -> None:
    found = sample(StandInAllocator(device_index=2, backend=backend))
    assert found == AllocatorSample(host_ns=77, absent=dict.fromkeys(PATHS, f"allocator_{backend}"))


def test_without_a_gpu_in_use_nothing_is_asked() -> None:
    assert sample(StandInAllocator(device_index=2), device=None) is None


def test_unused_device_has_absent_statistics() -> None:
    found = parse_stats({}, host_ns=0)  # what torch answers before CUDA has been started
    assert found.absent.keys() == PATHS.keys()
    assert found.allocated_bytes is None


def test_every_field_has_a_path_in_the_statistics() -> None:
    fields = {field.name for field in msgspec.structs.fields(AllocatorSample)}
    assert fields - {"host_ns", "absent"} == set(PATHS)


def test_the_statistics_read_are_those_that_torch_describes() -> None:
    described = inspect.getdoc(torch.cuda.memory_stats) or ""
    names = set(re.findall(r"``\"([a-z_]+)", described))
    assert {path[0] for path in PATHS.values()} <= names
    assert inspect.signature(torch.cuda.memory.memory_stats_as_nested_dict).parameters.keys() == {"device"}
