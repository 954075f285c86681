"""Ranks of one NCCL run that share the first GPU: each claims its own host id, and they communicate through sockets.

NCCL refuses two ranks on one GPU of one machine ("Duplicate GPU detected"). Prints `refused` and ends well when it does
so all the same; else how many NCCL kernels one step had and the sum that the ranks have reduced.
"""

import os

os.environ |= {
    "NCCL_HOSTID": f"machine-of-rank-{os.environ['RANK']}",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_NET": "Socket",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
}

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile

STEPS = int(os.environ.get("STEPS", "40"))
PROFILED_STEP = 30


def main() -> None:
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    try:
        dist.all_reduce(torch.ones(1, device="cuda"))
        torch.cuda.synchronize()
    except dist.DistBackendError as error:
        print(f"refused {' '.join(str(error).split())}", flush=True)
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
