"""Two DDP ranks of NCCL on the first GPU, of which rank 1 holds its stream for SLEEP_MS in each forward.

Prints `refused` and ends well where NCCL does not accept two ranks on a GPU (shared_gpu.py).
"""

import os

import torch
import torch.distributed as dist
from torch import nn

from tests.gpu.shared_gpu import join_group

STEPS = 40
SLEEP_MS = float(os.environ["SLEEP_MS"])
CALIBRATION_CYCLES = 20_000_000
WIDTH = 1448
"""A layer of 1,448 x 1,448 floats is a bucket of 8 MB."""


def find_cycles() -> int:
    """Return the cycles that keep a stream busy for SLEEP_MS."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(2):  # the first one wakes the clocks up
        begin.record()
        torch.cuda._sleep(CALIBRATION_CYCLES)
        end.record()
        torch.cuda.synchronize()
    return round(CALIBRATION_CYCLES * SLEEP_MS / float(begin.elapsed_time(end)))


def main() -> None:
    cycles = find_cycles()
    if not join_group():
        return
    layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))).cuda()
    model = nn.parallel.DistributedDataParallel(layers, device_ids=[0], bucket_cap_mb=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.ones(64, WIDTH, device="cuda")
    for _ in range(STEPS):
        if dist.get_rank() == 1:
            torch.cuda._sleep(cycles)
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
