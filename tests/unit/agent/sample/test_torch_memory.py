"""Tests of the allocator sample, from torch's nested statistics."""

import inspect
import re

import msgspec
import pytest
import torch

from rankscope.agent.sample.torch_device import TorchDevice
from rankscope.agent.sample.torch_memory import PATHS, PeakSteps, TorchMemorySampler, parse_stats
from rankscope.measure.records import PHASES, AllocatorSample, StepRecord
from rankscope.measure.units import HostNs, WallNs
from tests.cuda_stand_in.allocator import StandInAllocator

GIB = 2**30
DEVICE = TorchDevice(index=2, uuid="GPU-1", pci_address=None, is_amd=False)


class StillClock:
    def monotonic_ns(self) -> HostNs:
        return HostNs(77)

    def wall_ns(self) -> WallNs:
        return WallNs(0)


class TickingClock(StillClock):
    """The clock of a test that sets the time."""

    now_ns = 0

    def monotonic_ns(self) -> HostNs:
        return HostNs(self.now_ns)


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
    by_steps = {"allocated_peak_after_step", "allocated_peak_by_step"}
    assert fields - {"host_ns", "absent"} - by_steps == set(PATHS)


def test_the_statistics_read_are_those_that_torch_describes() -> None:
    described = inspect.getdoc(torch.cuda.memory_stats) or ""
    names = set(re.findall(r"``\"([a-z_]+)", described))
    assert {path[0] for path in PATHS.values()} <= names
    assert inspect.signature(torch.cuda.memory.memory_stats_as_nested_dict).parameters.keys() == {"device"}


# -- when the peak was reached ----------------------------------------------------------------------------------------


def found_after(*readings: tuple[int, int | None], ends: tuple[int, ...]) -> tuple[int | None, int | None]:
    """Return the steps of the last peak. Readings are of an instant; all steps are reported afterwards."""
    steps = PeakSteps()
    for at_ns, peak in readings:
        steps.add_reading(at_ns, at_ns, peak)
    steps.add_ends(enumerate(ends))
    return steps.after_step, steps.by_step


@pytest.mark.parametrize(
    ("readings", "known"),
    [
        ([(25, 5)], (None, 2)),  # there at the first sample, before step 2 has ended
        ([(5, 5), (25, 7)], (None, 2)),  # no step had ended by 5
        ([(15, 5), (25, 7)], (0, 2)),
        ([(15, 5), (25, 7), (35, 7)], (0, 2)),  # reached no later than it was first seen
        ([(15, 5), (25, 7), (35, 6)], (1, 3)),  # lower: the script has reset it since 25
        ([(15, 5), (45, 7)], (0, None)),  # no step has ended since
        ([(20, 5), (30, 7)], (1, 2)),  # a step that ended at the very reading
        ([(15, 5), (25, None)], (None, None)),
        ([(15, 5), (25, None), (35, 7)], (None, 3)),  # what came before it was not known is not compared with
    ],
)  # fmt: skip
def test_peak_was_reached_between_two_readings(
    readings: list[tuple[int, int | None]], known: tuple[int | None, int | None]
) -> None:
    assert found_after(*readings, ends=(10, 20, 30, 40)) == known


def test_step_that_ends_while_the_allocator_is_read_is_in_doubt() -> None:
    steps = PeakSteps()
    steps.add_reading(15, 25, 5)
    steps.add_reading(35, 45, 7)
    steps.add_ends(enumerate((10, 20, 30, 40, 50)))  # step 1 ended within the first reading, step 3 within the second
    assert (steps.after_step, steps.by_step) == (0, 4)


def test_steps_reported_in_time_equal_those_reported_late() -> None:
    steps = PeakSteps()
    steps.add_ends([(0, 10)])
    steps.add_reading(15, 15, 5)
    steps.add_ends([(1, 20)])
    steps.add_reading(25, 25, 7)
    assert (steps.after_step, steps.by_step) == (0, None)
    steps.add_ends([(3, 40), (2, 30)])  # those that wait for their device times may be overtaken
    assert (steps.after_step, steps.by_step) == (0, 2)


def test_sample_has_the_steps_of_its_peak_once_they_have_ended() -> None:
    allocator, clock = StandInAllocator(device_index=2), TickingClock()
    sampler = TorchMemorySampler(clock, lambda: DEVICE, allocator)
    clock.now_ns = 15
    assert sampler.sample() is not None
    clock.now_ns = 25
    allocator.stats["allocated_bytes"]["all"]["peak"] = 61 * GIB
    last = sampler.sample()
    assert last is not None
    assert (last.allocated_peak_after_step, last.allocated_peak_by_step) == (None, None)
    phases_ns = dict.fromkeys(PHASES, 2)
    sampler.add_steps([StepRecord(step=n, start_host_ns=10 * n, duration_ns=10, phases_ns=phases_ns) for n in range(4)])
    known = sampler.with_peak_steps(last)
    assert (known.allocated_peak_after_step, known.allocated_peak_by_step) == (0, 2)
    assert known.allocated_peak_bytes == 61 * GIB
