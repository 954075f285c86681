"""Two ranks of which rank 0 works alone before a barrier, every 12 steps: before_barrier.py SECONDS."""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

EVERY = 12


def upload() -> None:
    time.sleep(0.6)  # rank 0 works


def main() -> None:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    ends, step = time.monotonic() + float(sys.argv[1]), 0
    is_over = torch.zeros(1)
    while not is_over:
        step += 1
        model(torch.randn(4, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.02)
        if step % EVERY == 0:
            if dist.get_rank() == 0:
                upload()
            dist.barrier()  # rank 1 waits
            is_over.fill_(float(time.monotonic() > ends))
            dist.all_reduce(is_over)
    del model, optimizer  # first: docs/torch.md
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
