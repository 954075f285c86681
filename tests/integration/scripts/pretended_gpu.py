"""Trains on a GPU that is not there: torch's CUDA is the stand-in of the tests, on the real clock, before the agent is
started. The device is slow: it takes 6 ms for a backward that the host has enqueued in no time, 1 ms for each of six
blocks and half of that for their forwards, and the host waits for it at the end of the step, as `loss.item()` does. The
forward of block n leaves n + 1 KiB allocated, which its backward frees.
"""

import time
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

import rankscope
from tests.cuda_stand_in import StandInCuda
from tests.cuda_stand_in.allocator import StandInAllocator

BLOCKS, BLOCK_NS = 6, 1_000_000
STEPS = 120


class LiveCuda(StandInCuda):
    """On the clock of the machine, which nobody sets."""

    @property
    def now_ns(self) -> int:
        return time.monotonic_ns()

    @now_ns.setter
    def now_ns(self, now_ns: int) -> None:
        del now_ns

    def read_clock_ns(self) -> int:
        return self.now_ns

    def current_device(self) -> int:
        return 0

    def get_device_properties(self, _device: int) -> object:
        return SimpleNamespace(total_memory=80 * 1024**3)


pretended, allocator = LiveCuda(), StandInAllocator()
allocator.stats["reserved_bytes"]["all"]["current"] = 4096
real: Any = torch
real.version.cuda = "0.0"
for name in (
    "Event", "current_stream", "is_current_stream_capturing", "is_initialized", "current_device",
    "get_device_properties",
):  # fmt: skip
    setattr(real.cuda, name, getattr(pretended, name))
for name in ("get_allocator_backend", "memory_stats_as_nested_dict"):
    setattr(real.cuda, name, getattr(allocator, name))


class DeviceWork(torch.autograd.Function):
    """The work of a block, in the stream."""

    @staticmethod
    def forward(ctx: Any, features: torch.Tensor, number: int) -> torch.Tensor:
        """Half of it."""
        ctx.number = number
        pretended.work(BLOCK_NS // 2)
        allocator.stats["allocated_bytes"]["all"]["current"] += 1024 * (number + 1)
        return features.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """All of it."""
        pretended.work(BLOCK_NS)
        allocator.stats["allocated_bytes"]["all"]["current"] -= 1024 * (ctx.number + 1)
        return gradients[0], None


class Block(torch.nn.Module):
    """One of the blocks."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.linear = number, torch.nn.Linear(16, 16)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Work."""
        worked: torch.Tensor = DeviceWork.apply(features, self.number)  # type: ignore[no-untyped-call]
        moved: torch.Tensor = self.linear(worked)
        return moved


assert rankscope.start()
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Sequential(*map(Block, range(BLOCKS))))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (batch,) in DataLoader(TensorDataset(torch.randn(2 * STEPS, 16)), batch_size=2):
    model(batch).sum().backward()
    optimizer.step()
    while pretended.stream.busy_until_ns > time.monotonic_ns():
        time.sleep(0.0001)
print("trained to the end")
