"""Trains over gloo, which calls itself NCCL, in steps that take longer once torch is told to time collectives, until
the agent has compared them. Prints how often torch was told, from which step on, and the variable instead of that.
"""

import json
import os
import time
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from rankscope.agent import launch

STEP_S = 0.034
"""32 steps take a second."""
SLOWDOWN = 0.5
STEPS_MAX, STEPS_AFTERWARDS = 400, 30

told_at: list[int] = []
enable = dist.ProcessGroup._enable_collectives_timing  # type: ignore[attr-defined]
step = 0


def note_and_enable(group: Any) -> None:
    told_at.append(step)
    enable(group)


dist.ProcessGroup._enable_collectives_timing = note_and_enable  # type: ignore[attr-defined]
c10d.ProcessGroupNCCL = SimpleNamespace  # type: ignore[misc, assignment]
dist.init_process_group("gloo")
group = dist.distributed_c10d._get_default_group()
dist.distributed_c10d._world.pg_map[group] = "nccl", dist.distributed_c10d._world.pg_map[group][1]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
timing = launch.session._training.sessions.timing  # type: ignore[union-attr]
left = STEPS_AFTERWARDS
while left and step < STEPS_MAX:
    model(torch.randn(4, 8)).sum().backward()
    time.sleep(STEP_S * (1 + SLOWDOWN * bool(told_at)))
    optimizer.step()
    step += 1
    is_open = torch.tensor([float(timing.is_open or not told_at)])  # type: ignore[union-attr]
    dist.all_reduce(is_open, dist.ReduceOp.MAX)  # so that all ranks end at the same step
    left -= not is_open.item()
variable = os.environ.get("TORCH_NCCL_ENABLE_TIMING")
print(json.dumps({"calls": len(told_at), "from_step": max(told_at), "variable": variable}), flush=True)
del model, optimizer
dist.destroy_process_group()
