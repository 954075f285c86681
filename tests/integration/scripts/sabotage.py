"""Breaks, after some steps, what the agent calls in torch: what a newer torch or another tool might do.

A hook of the agent asks torch whether gradients are on; windows ask torch's profiler; reports ask for process groups.
"""

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch.utils.data import DataLoader

dist.init_process_group("gloo")
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


class Broken:
    """Raises whatever is asked of it."""

    def __getattr__(self, name: str) -> object:
        raise RuntimeError(f"no {name} here")

    def __bool__(self) -> bool:
        raise RuntimeError("neither true nor false")


for step, batch in enumerate(DataLoader(torch.randn(400, 16), batch_size=2)):
    if step == 20:
        c10d._world = Broken()
        torch._C._autograd._profiler_enabled = Broken()
        torch._C._autograd._disable_profiler = Broken()
    model(batch).sum().backward()
    optimizer.step()
print("trained to the end", flush=True)
