"""What a small all-reduce costs its caller, for TORCH_NCCL_ENABLE_TIMING as it is in the environment.

Ranks that share a GPU claim a host id of their own, as in nccl_on_one_gpu.py. Rank 0 prints `us N`, the median over
blocks of calls; each prints `refused` where NCCL does not accept them.
"""

import os

if int(os.environ["WORLD_SIZE"]) > 1:
    os.environ |= {
        "NCCL_HOSTID": f"machine-of-rank-{os.environ['RANK']}",
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_NET": "Socket",
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1",
    }

import statistics
from time import perf_counter_ns

import torch
import torch.distributed as dist

NUMBERS = 1024
BLOCKS = 12
CALLS = {1: 500, 2: 30}
"""Calls of a block, by ranks: two ranks that take turns on a GPU need some ten ms each."""


def main() -> None:
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    values = torch.ones(NUMBERS, device="cuda")
    try:
        dist.all_reduce(values)
        torch.cuda.synchronize()
    except dist.DistBackendError as error:
        print(f"refused {' '.join(str(error).split())}", flush=True)
        return
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
