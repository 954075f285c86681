"""Ranks of one NCCL run that share the first GPU (shared_gpu.py).

Prints `refused` and ends well when NCCL does not accept that; else how many NCCL kernels one step had and the sum that
the ranks have reduced.
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile

from tests.gpu.shared_gpu import join_group

STEPS = int(os.environ.get("STEPS", "40"))
PROFILED_STEP = 30


def main() -> None:
    if not join_group():
        return
    model = nn.parallel.DistributedDataParallel(nn.Linear(1024, 1024).cuda(), device_ids=[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        if step == PROFILED_STEP:
            with profile(activities=[ProfilerActivity.CUDA]) as profiler:
                train_one(model, optimizer)
                torch.cuda.synchronize()
            kernels = [event for event in profiler.events() or () if event.name.startswith("nccl")]
            print(f"kernels {len(kernels)}", flush=True)
        else:
            train_one(model, optimizer)
    total = torch.ones(1, device="cuda")
    dist.all_reduce(total)
    print(f"sum {int(total.item())}", flush=True)
    dist.destroy_process_group()


def train_one(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(64, 1024, device="cuda")).square().mean().backward()
    optimizer.step()


if __name__ == "__main__":
    main()
