"""Breaks, after some steps, what the agent asks of torch: what a newer torch or another tool might do to it.

Again and again the agent looks which GPU there is, as long as torch may have one, windows ask the profiler, and reports
ask for the process groups.
"""

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch.utils.data import DataLoader, TensorDataset

torch_as_it_was: Any = torch
c10d_as_it_was: Any = c10d


class Broken:
    """Raises whatever is asked of it."""

    def __getattr__(self, name: str) -> object:
        raise RuntimeError(f"no {name} here")

    def __call__(self, *_: object, **__: object) -> object:
        raise RuntimeError("not today")


torch_as_it_was.version.cuda = "13.0"
dist.init_process_group("gloo")
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(400, 16)), batch_size=2)
for step, (batch,) in enumerate(loader):
    if step == 20:
        torch_as_it_was.cuda.is_initialized = Broken()
        torch_as_it_was._C._autograd._profiler_enabled = Broken()
        c10d_as_it_was._world = Broken()
    model(batch).sum().backward()
    optimizer.step()
print("trained to the end")
