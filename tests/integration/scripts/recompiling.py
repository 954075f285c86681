"""Two ranks with a compiled layer, of which rank 1 has it compiled again in every EVERY-th step, for another number.

At the end each rank prints what it has seen by its own clock: how long the calls took that compiled.
"""

import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 64
EVERY = 6
AGAIN_MAX = 60
WISHES = ("", "stop")
torch._dynamo.config.recompile_limit = AGAIN_MAX + 8
torch._dynamo.config.accumulated_recompile_limit = AGAIN_MAX + 8


def scale(x: torch.Tensor, k: int) -> torch.Tensor:  # the compiled frame
    for _ in range(40):
        x = torch.sin(x) * k
    return x


def main() -> None:
    wish_file = Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model: Any = DistributedDataParallel(nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    compiled = torch.compile(scale, backend="eager", dynamic=False)
    step, number, spent_s, calls, first_s = 0, 1, 0.0, 0, time.perf_counter()
    while True:
        wish = torch.tensor([WISHES.index(wish_file.read_text(encoding="utf-8"))])
        dist.broadcast(wish, 0)
        if WISHES[int(wish)] == "stop":
            break
        is_new = step == 0 or (rank == 1 and step % EVERY == 0 and number < AGAIN_MAX)
        number += is_new
        begin_s = time.perf_counter()
        found = compiled(model(torch.randn(4, WIDTH)), number)
        if is_new:
            spent_s, calls = spent_s + time.perf_counter() - begin_s, calls + 1
        found.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.01)
        step += 1
    print(
        f"rank {rank}: {calls} compiling calls, {spent_s:.3f} s, {step} steps in {time.perf_counter() - first_s:.3f} s"
    )
    del model, optimizer  # first: docs/torch.md
    dist.destroy_process_group()


main()
