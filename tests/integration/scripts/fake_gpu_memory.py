"""Trains DDP on the fake GPU under torchrun, and rank 1 runs out of its memory: as torch does, observers are called
inside the allocation, and then the error is raised. It is caught, and training goes on; with `--dies` it is not.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rankscope.agent as rankscope
from tests.fake_gpu import FakeGpu

GIB = 2**30
FAILING_RANK = 1
AFTERWARDS = 300
"""Steps after the error: the agent reads what held the memory after it has reported the error."""

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


def train(fails: bool) -> None:
    """Train one step, and fail between its forward and its backward."""
    optimizer.zero_grad()
    loss = model(torch.ones(4, 16)).square().mean()
    if fails and rank == FAILING_RANK:
        try:
            allocate()
        except torch.OutOfMemoryError:
            if options.dies:
                raise
    loss.backward()
    optimizer.step()


step, ready = 0, torch.zeros(1)
while True:
    train(fails=False)
    step += 1
    ready.fill_(bool(gpu.cuda.memory._C.observers) and step >= options.step)  # the agent attaches with a report
    dist.all_reduce(ready)
    if ready.item() == dist.get_world_size():
        break
print(f"fails in step {step}", flush=True)
train(fails=True)
for _ in range(AFTERWARDS):
    train(fails=False)
