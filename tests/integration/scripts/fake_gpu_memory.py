"""Trains DDP on the fake GPU under torchrun, and rank 1 runs out of its memory: as torch does, observers are called
inside the allocation, and then the error is raised. It is caught, and training goes on; with `--dies` it is not. Then
the peak of allocated memory rises within a step of both ranks, and training ends once the agent has its steps.
"""

import argparse
import os
from collections.abc import Callable

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
options = parser.parse_args()
rank = int(os.environ["RANK"])

torch.set_num_threads(1)
gpu = FakeGpu(options.library)
gpu.give_to_agent()
stats = gpu.cuda.stats
stats["reserved_bytes"]["all"].update(current=74 * GIB, peak=74 * GIB)
stats["allocated_bytes"]["all"].update(current=60 * GIB, peak=61 * GIB)
gpu.cuda.memory._C.records_history = True
gpu.cuda.segments = [
    {
        "device": 0,
        "blocks": [
            {
                "size": 40 * GIB,
                "state": "active_allocated",
                "frames": [{"filename": "/me/model.py", "line": 24, "name": "forward"}],
            }
        ],
    }
]
assert rankscope.start()
dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(16, 16))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def allocate() -> None:
    """Fail, as torch does where no memory is left."""
    gpu.cuda.run_out(8 * GIB, limit_bytes=80 * GIB, free_bytes=2 * GIB)
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 GiB.")


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
step = train_until(lambda: bool(gpu.cuda.memory._C.observers) and knows_peak(61 * GIB), options.step)
print(f"fails in step {step}", flush=True)
train(fails=True)
for _ in range(AFTERWARDS):
    train(fails=False)
step += 1 + AFTERWARDS
print(f"rank {rank} has its peak in step {step}", flush=True)
train(fails=False, peak=62 * GIB)
train_until(lambda: knows_peak(62 * GIB), step + 1)
