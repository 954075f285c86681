"""What a small all-reduce costs its caller, for TORCH_NCCL_ENABLE_TIMING as it is in the environment.

Rank 0 prints `us N`, the median over blocks of calls; each rank prints `refused` where NCCL does not accept that they
share a GPU (shared_gpu.py).
"""

import os
import statistics
from time import perf_counter_ns

import torch
import torch.distributed as dist

from tests.gpu.shared_gpu import join_group

NUMBERS = 1024
BLOCKS = 12
CALLS = {1: 500, 2: 30}
"""Calls of a block, by ranks: two ranks that take turns on a GPU need some ten ms each."""


def main() -> None:
    if not join_group(shares_gpu=int(os.environ["WORLD_SIZE"]) > 1):
        return
    values = torch.ones(NUMBERS, device="cuda")
    calls = CALLS[dist.get_world_size()]
    taken_us = []
    for _ in range(1 + BLOCKS):  # the first is not like the others
        torch.cuda.synchronize()
        begin_ns = perf_counter_ns()
        for _ in range(calls):
            dist.all_reduce(values)
        torch.cuda.synchronize()
        taken_us.append((perf_counter_ns() - begin_ns) / calls / 1000)
    if dist.get_rank() == 0:
        print(f"us {statistics.median(taken_us[1:]):.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
