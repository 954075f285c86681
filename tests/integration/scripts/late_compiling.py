"""Three ranks that train for some seconds; in step LATE ranks 1 and 2 each compile a frame for BACKEND_S, once.

At the end rank 0 prints how long that step took it.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH, LATE, BACKEND_S = 64, 60, 2.5
WISHES = ("", "stop")


def compile_slowly(graph: Any, _inputs: Any) -> Callable[..., Any]:
    time.sleep(BACKEND_S)
    return graph.forward  # type: ignore[no-any-return]


def scale(x: torch.Tensor) -> torch.Tensor:  # the compiled frame
    return torch.sin(x) * 2


def main() -> None:
    wish_file = Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model: Any = DistributedDataParallel(nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    compiled = torch.compile(scale, backend=compile_slowly)
    torch.compile(torch.cos, backend="eager")(torch.ones(2))  # torch imports its compiler in the first call
    step = 0
    while True:
        begin_s = time.perf_counter()
        found = model(torch.randn(4, WIDTH))
        found = compiled(found) if rank and step >= LATE else found
        found.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == LATE and rank == 0:
            print(f"step {step} took {time.perf_counter() - begin_s:.3f} s", flush=True)
        time.sleep(0.01)
        step += 1
        if step % 10 == 0:
            wish = torch.tensor([WISHES.index(wish_file.read_text(encoding="utf-8"))])
            dist.broadcast(wish, 0)
            if WISHES[int(wish)] == "stop":
                break
    del model, optimizer  # first: docs/torch.md
    dist.destroy_process_group()


main()
