"""Trains with a process group that does not communicate, and a worker server that has durations of its collectives, as
that of a rank with NCCL, until enough of them have been read. Prints each: its step, sequence and duration in ns.
"""

import json
import os
import time
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.testing._internal.distributed.fake_pg import FakeStore

import rankscope.agent
from rankscope.agent import launch
from tests.unit.agent.sidecar.fake_worker_server import FakeWorkerServer, dump, nccl_entry

RING = 600
DEADLINE_S = 90.0
STEPS_MIN = 40
READ_MIN = 60
PAUSE_S = 0.01

entries: list[dict[str, Any]] = []
steps: list[int] = []


class WorkerServer(FakeWorkerServer):
    """In place of torch's."""

    def __init__(self, path: str) -> None:
        super().__init__(path, {"dump_nccl_trace_json": lambda _parameters: dump(*entries[-RING:])})


c10d._WorkerServer = WorkerServer  # type: ignore[misc, assignment]
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
group = dist.distributed_c10d._get_default_group()
name, (_, store) = group.group_name, dist.distributed_c10d._world.pg_map[group]
dist.distributed_c10d._world.pg_map[group] = "nccl", store  # as the agent finds it described
print(rankscope.agent.start())
timed = launch.session._reporter._window_results.timed  # type: ignore[union-attr]
is_read = os.environ.get("RANKSCOPE_NCCL_TIMING") != "off"
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
until_s = time.monotonic() + DEADLINE_S
step = 0
while step < STEPS_MIN or (is_read and (timed._recorded or 0) < READ_MIN and time.monotonic() < until_s):
    model(torch.randn(4, 8)).sum().backward()
    for parameter in model.parameters():
        number = len(entries)
        duration_ms = 0.05 + 0.001 * (number % 7)
        entries.append(nccl_entry(number, time.time_ns(), duration_ms, process_group=[name, "default_pg"]))
        steps.append(step)
        dist.all_reduce(parameter.grad)
    optimizer.step()
    step += 1
    time.sleep(PAUSE_S)
told = zip(steps, entries, strict=True)
print(json.dumps([(at, entry["collective_seq_id"], round(entry["duration_ms"] * 1e6)) for at, entry in told]))
