"""Two DDP ranks of NCCL on the first GPU, of which rank 1 holds its stream for SLEEP_MS in each forward.

Each rank claims its own host id, as in nccl_on_one_gpu.py; prints `refused` and ends well where NCCL does not accept
that.
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
    torch.cuda.set_device(0)
    cycles = find_cycles()
    dist.init_process_group("nccl")
    try:
        dist.all_reduce(torch.ones(1, device="cuda"))
        torch.cuda.synchronize()
    except dist.DistBackendError as error:
        print(f"refused {' '.join(str(error).split())}", flush=True)
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
