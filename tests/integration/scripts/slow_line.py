"""Two ranks, of which rank 1 sleeps in each step. Once the file named by the argument says `loop` it loops for ever in
one, and rank 0 waits for it; `stop` ends the training.
"""

import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 64
WISHES = ("", "loop", "stop")


def augment() -> None:
    time.sleep(0.08)  # the slow line


def search() -> None:
    number = 0
    while number >= 0:
        number += 1  # the loop
        number %= 1_000


def main() -> None:
    wish_file = Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model: Any = DistributedDataParallel(nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        wish = torch.tensor([WISHES.index(wish_file.read_text(encoding="utf-8"))])
        dist.broadcast(wish, 0)
        if WISHES[int(wish)] == "stop":
            break
        if rank == 1:
            augment()
            if WISHES[int(wish)] == "loop":
                search()
        model(torch.randn(4, WIDTH)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.005)
    del model, optimizer  # first: docs/torch.md
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
