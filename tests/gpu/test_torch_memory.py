"""Torch's allocator on a real GPU: the sample has what was allocated."""

import threading
import time

import pytest
import torch

from rankscope.agent.sample.torch_device import TrainingDevice
from rankscope.agent.sample.torch_memory import PATHS, TorchMemorySampler
from rankscope.agent.steps.step_recorder import FORWARD
from rankscope.measure.clock import SystemClock
from rankscope.measure.records import PHASES, AllocatorSample, StepRecord

pytestmark = pytest.mark.gpu

MIB = 2**20


@pytest.fixture
def sampler() -> TorchMemorySampler:
    torch.zeros(1, device="cuda")
    device = TrainingDevice()
    device.observe()
    return TorchMemorySampler(SystemClock(), device.seen, torch.cuda)


def read(sampler: TorchMemorySampler) -> AllocatorSample:
    sample = sampler.sample()
    assert sample is not None
    return sample


def test_tensor_is_seen_to_come_and_go(sampler: TorchMemorySampler) -> None:
    before = read(sampler)
    tensor = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    during = read(sampler)
    del tensor
    after = read(sampler)
    assert before.allocated_bytes is not None
    assert during.allocated_bytes == before.allocated_bytes + 64 * MIB
    assert after.allocated_bytes == before.allocated_bytes
    assert after.allocated_peak_bytes is not None
    assert after.allocated_peak_bytes >= before.allocated_bytes + 64 * MIB


def test_every_field_has_a_value(sampler: TorchMemorySampler) -> None:
    sample = read(sampler)
    assert sample.absent == {}
    assert [field for field in PATHS if getattr(sample, field) is None] == []


def test_peak_is_that_of_the_step_that_reached_it(sampler: TorchMemorySampler) -> None:
    torch.cuda.reset_peak_memory_stats()  # an earlier test may have needed more
    last, begin_ns = read(sampler), time.monotonic_ns()
    for step, size in enumerate((1, 1, 256, 1)):
        torch.empty(size * MIB, dtype=torch.uint8, device="cuda")
        end_ns = time.monotonic_ns()
        phases_ns = dict.fromkeys(PHASES, 0) | {FORWARD: end_ns - begin_ns}
        sampler.add_steps(
            [StepRecord(step=step, start_host_ns=begin_ns, duration_ns=end_ns - begin_ns, phases_ns=phases_ns)]
        )
        begin_ns, last = end_ns, read(sampler)
    assert find_peak_steps(sampler, last) == (1, 3)
    torch.cuda.reset_peak_memory_stats()
    assert find_peak_steps(sampler, read(sampler)) == (3, None)


def find_peak_steps(sampler: TorchMemorySampler, last: AllocatorSample) -> tuple[int | None, int | None]:
    known = sampler.with_peak_steps(last)
    return known.allocated_peak_after_step, known.allocated_peak_by_step


def test_freed_memory_counts_as_requested_and_freed(sampler: TorchMemorySampler) -> None:
    before = read(sampler)
    tensor = torch.empty(2048 * MIB, dtype=torch.uint8, device="cuda")
    del tensor
    torch.cuda.empty_cache()
    after = read(sampler)
    assert before.device_allocs is not None
    assert before.device_frees is not None
    assert after.device_allocs is not None
    assert after.device_frees is not None
    assert after.device_allocs > before.device_allocs
    assert after.device_frees > before.device_frees


def test_memory_can_be_read_during_a_capture(sampler: TorchMemorySampler) -> None:
    samples: list[AllocatorSample] = []
    vector = torch.ones(1024, device="cuda")
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, capture_error_mode="global"):
        total = vector * 2
        asking = threading.Thread(target=lambda: samples.append(read(sampler)))
        asking.start()
        asking.join()
    graph.replay()
    torch.cuda.synchronize()
    assert len(samples) == 1
    assert torch.equal(total, torch.full_like(total, 2))
