"""Trains DDP on the fake GPU under torchrun, and rank 1 runs out of its memory: as torch does, observers are called
inside the allocation, and then the error is raised. It is caught, and training goes on; with `--dies` it is not. Then
the peak of allocated memory rises within a step of both ranks, and training ends once the agent has its steps.

The script has torch record the history of the memory. With `--edge` it does not, and little of the memory is left from
the start, so that the agent does; the error comes once that records.
"""

import argparse
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rankscope
from rankscope.agent import launch
from tests.fake_gpu import FakeGpu

GIB = 2**30
FAILING_RANK = 1
AFTERWARDS = 300
"""Steps after the error: the agent reads what held the memory after it has reported the error."""
STEPS_MAX = 100_000

parser = argparse.ArgumentParser()
parser.add_argument("library")
parser.add_argument("--step", type=int, required=True, help="the first step from which on it may fail")
parser.add_argument("--dies", action="store_true")
parser.add_argument("--edge", action="store_true")
options = parser.parse_args()
rank = int(os.environ["RANK"])

torch.set_num_threads(1)
gpu = FakeGpu(options.library)
gpu.give_to_agent()
stats = gpu.cuda.stats
memory = gpu.cuda.memory
peak_bytes = 77 * GIB if options.edge else 61 * GIB
stats["reserved_bytes"]["all"].update(current=74 * GIB, peak=74 * GIB)
stats["allocated_bytes"]["all"].update(current=60 * GIB, peak=peak_bytes)


class Attention(nn.Linear):
    """A layer of the script."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what torch's layer does."""
        return super().forward(x)  # allocates


def make_frames() -> list[dict[str, Any]]:
    """Return the stack of an allocation in that line: torch's own frame first."""
    of_torch, own = nn.Linear.forward.__code__, Attention.forward.__code__
    return [
        {"filename": code.co_filename, "line": code.co_firstlineno + after, "name": code.co_name}
        for code, after in ((of_torch, 1), (own, 2))
    ]


def make_block(address: int, gib: int, state: str, frames: list[dict[str, Any]]) -> dict[str, Any]:
    return {"address": address * GIB, "size": gib * GIB, "requested_size": gib * GIB, "state": state, "frames": frames}


if options.edge:
    blocks = [
        make_block(1, 40, "active_allocated", make_frames()),
        make_block(41, 20, "active_allocated", []),
        make_block(61, 9, "inactive", []),
        make_block(70, 5, "inactive", []),
    ]
    memory.traces = [
        [
            {"action": "alloc", "addr": 1 * GIB, "size": 40 * GIB, "stream": 0, "time_us": 5, "frames": make_frames()},
            {
                "action": "oom",
                "addr": 0,
                "device_free": 2 * GIB,
                "size": 10 * GIB,
                "stream": 0,
                "time_us": 9,
                "frames": [],
            },
        ]
    ]
else:
    memory._C.records_history = True
    frames = [{"filename": "/me/model.py", "line": 24, "name": "forward"}]
    blocks = [make_block(1, 40, "active_allocated", frames)]
gpu.cuda.segments = [{"device": 0, "address": GIB, "total_size": 74 * GIB, "segment_type": "large", "blocks": blocks}]
assert rankscope.start()
dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(16, 16))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def allocate() -> None:
    """Fail, as torch does where no memory is left."""
    gpu.cuda.run_out((10 if options.edge else 8) * GIB, limit_bytes=80 * GIB, free_bytes=2 * GIB)
    raise torch.OutOfMemoryError("CUDA out of memory.")


def train(fails: bool, peak: int | None = None) -> None:
    """Train one step, and fail or reach a peak of memory between its forward and its backward."""
    optimizer.zero_grad()
    loss = model(torch.ones(4, 16)).square().mean()
    if fails and rank == FAILING_RANK:
        try:
            allocate()
        except torch.OutOfMemoryError:
            if options.dies:
                raise
    if peak is not None:
        stats["allocated_bytes"]["all"]["peak"] = peak
    loss.backward()
    optimizer.step()


def train_until(is_ready: Callable[[], bool], step: int) -> int:
    """Train from this step on until all ranks are ready; return the next step."""
    ready = torch.zeros(1)
    while ready.item() != dist.get_world_size() and step < STEPS_MAX:
        train(fails=False)
        step += 1
        ready.fill_(is_ready())
        dist.all_reduce(ready)
    return step


def knows_peak(of: int) -> bool:
    """Return whether the agent has read this peak, and a step has ended since."""
    assert launch.session is not None
    sample = launch.session._reporter._samples.allocator
    return sample is not None and sample.allocated_peak_bytes == of and sample.allocated_peak_by_step is not None


for _ in range(options.step):
    train(fails=False)
# The agent attaches its observer with a report.
step = train_until(
    lambda: bool(memory._C.observers) and knows_peak(peak_bytes) and memory._C.records_history, options.step
)
print(f"fails in step {step}", flush=True)
train(fails=True)
for _ in range(AFTERWARDS):
    train(fails=False)
step += 1 + AFTERWARDS
print(f"rank {rank} has its peak in step {step}", flush=True)
train(fails=False, peak=peak_bytes + GIB)
train_until(lambda: knows_peak(peak_bytes + GIB), step + 1)
print(f"rank {rank} was told to record {memory.recordings}", flush=True)
