"""Two ranks or more, of which rank 1 takes 8 % longer in each step, until the file named by the argument is there."""

import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

PACE_S = 0.1
LONGER = 1.08


def main() -> None:
    end = Path(sys.argv[1])
    dist.init_process_group("gloo")
    pace_s = PACE_S * (LONGER if dist.get_rank() == 1 else 1.0)
    model: Any = DistributedDataParallel(nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    is_over = torch.zeros(1)
    while not is_over.item():
        time.sleep(pace_s)
        model(torch.ones(4, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        is_over.fill_(float(end.exists()))
        dist.broadcast(is_over, 0)
    del model, optimizer  # first: docs/torch.md
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
