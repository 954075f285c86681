"""The agent's samples of a GPU, compared with `nvidia-smi` at the same time."""

import time
from collections.abc import Callable

import pytest
import torch

from rankscope.agent.sample.nvml import NvmlSampler
from rankscope.measure.clock import SystemClock
from rankscope.measure.records import DeviceSample
from tests.gpu.nvidia_smi import find_nvidia_smi, read_gpu
from tests.gpu.training_device import observe_device

MIB = 2**20
AGREE_S_MAX = 30.0
"""Two programs never read at the same time; the reads are repeated until they agree, or for this long."""

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(find_nvidia_smi() is None, reason="nvidia-smi, which is compared with, is not on PATH"),
]

ONLY_AMD = {"xgmi_tx_bytes", "xgmi_rx_bytes"}
"""None without a reason on NVIDIA's GPUs."""

Answer = dict[str, float | str | None]
Comparison = Callable[[DeviceSample, Answer], bool]


def is_near(ours: float | None, theirs: float | str | None, tolerance: float) -> bool:
    """Return whether both values agree, or both are missing."""
    if ours is None or not isinstance(theirs, float):
        return ours is None and theirs is None
    return abs(ours - theirs) <= tolerance


COMPARISONS: dict[str, Comparison] = {
    "memory_total": lambda ours, theirs: is_near(
        None if ours.memory_total_bytes is None else ours.memory_total_bytes / MIB, theirs["memory.total"], 1
    ),
    # What the driver keeps for itself is in it or not, by version: about 1 %.
    "memory_used": lambda ours, theirs: is_near(
        None if ours.memory_used_bytes is None else ours.memory_used_bytes / MIB, theirs["memory.used"], 2_048
    ),
    "power": lambda ours, theirs: is_near(ours.power_watts, theirs["power.draw"], 40),
    "power_limit": lambda ours, theirs: is_near(ours.power_limit_watts, theirs["enforced.power.limit"], 0.5),
    "temperature": lambda ours, theirs: is_near(ours.temperature_celsius, theirs["temperature.gpu"], 2),
    "sm_clock": lambda ours, theirs: is_near(
        None if ours.sm_clock_hertz is None else ours.sm_clock_hertz / 1e6, theirs["clocks.sm"], 60
    ),
    "memory_clock": lambda ours, theirs: is_near(
        None if ours.memory_clock_hertz is None else ours.memory_clock_hertz / 1e6, theirs["clocks.mem"], 1
    ),
    "utilization": lambda ours, theirs: is_near(
        None if ours.utilization_ratio is None else 100 * ours.utilization_ratio, theirs["utilization.gpu"], 10
    ),
}
"""Tolerances for the time between two reads, in nvidia-smi's units."""


def keep_busy() -> None:
    """Run about a quarter of a second of work, on a GPU of any size."""
    matrix = torch.ones(4096, 4096, device="cuda", dtype=torch.bfloat16)
    end_s = time.monotonic() + 0.25
    while time.monotonic() < end_s:
        for _ in range(20):
            matrix @ matrix
        torch.cuda.synchronize()


@pytest.fixture
def sampler() -> NvmlSampler:
    torch.cuda.init()
    return NvmlSampler(SystemClock(), observe_device().uuid)


def sample_one(sampler: NvmlSampler) -> DeviceSample:
    (sample,) = sampler.sample()
    return sample


def test_the_gpu_that_is_sampled_is_the_one_torch_uses(sampler: NvmlSampler) -> None:
    sample = sample_one(sampler)
    assert sampler.unavailable is None
    assert str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid) in sample.uuid
    assert sample.model == read_gpu(sample.uuid)["name"]


@pytest.mark.parametrize("name", COMPARISONS)
def test_nvml_and_nvidia_smi_agree_while_the_gpu_works(sampler: NvmlSampler, name: str) -> None:
    end_s = time.monotonic() + AGREE_S_MAX
    while True:
        keep_busy()
        ours = sample_one(sampler)
        theirs = read_gpu(ours.uuid)
        if COMPARISONS[name](ours, theirs):
            return
        assert time.monotonic() < end_s, f"{name}: {ours} against {theirs}"


def test_current_gpu_has_its_values_and_reasons_for_others(sampler: NvmlSampler) -> None:
    sample = sample_one(sampler)
    assert sample.memory_total_bytes is not None
    assert sample.temperature_celsius is not None
    missing = {name for name in DeviceSample.__struct_fields__ if getattr(sample, name) is None}
    assert missing - ONLY_AMD <= set(sample.absent)
