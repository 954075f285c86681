"""Trains with a process group that does not communicate, and a worker server that has durations of its collectives, as
that of a rank with NCCL, until enough of them have been read. Prints each: its step, sequence and duration in ns; if
torch is not to time them, the host clock's times before and after its enqueuing in place of the duration.
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
from rankscope.agent.profiler.nccl_timing import TIMING_VARIABLE
from tests.unit.agent.sidecar.fake_worker_server import FakeWorkerServer, dump, nccl_entry

RING = 600
DEADLINE_S = 90.0
STEPS_MIN = 40
READ_MIN = 60
PAUSE_S = 0.01

entries: list[dict[str, Any]] = []
steps: list[int] = []
enqueued_ns: list[tuple[int, int]] = []
"""The host clock before and after the recorder's wall clock was read: a thread may lose its core in between."""


class WorkerServer(FakeWorkerServer):
    """In place of torch's."""

    def __init__(self, path: str) -> None:
        super().__init__(path, {"dump_nccl_trace_json": lambda _parameters: dump(*entries[-RING:])})


c10d._WorkerServer = WorkerServer  # type: ignore[misc, assignment]
if not hasattr(c10d, "ProcessGroupNCCL"):
    c10d.ProcessGroupNCCL = object  # type: ignore[misc, assignment]  # as in a torch that has NCCL
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
group = dist.distributed_c10d._get_default_group()
name, (_, store) = group.group_name, dist.distributed_c10d._world.pg_map[group]
dist.distributed_c10d._world.pg_map[group] = "nccl", store  # as the agent finds it described
print(rankscope.agent.start())
results = launch.session._reporter._window_results  # type: ignore[union-attr]


def count_read() -> int:
    """Return how many collectives have been read so far."""
    return 0 if results.timed is None else results.timed._recorded or 0


is_read = os.environ.get("RANKSCOPE_NCCL_TIMING") != "off"
is_timed = os.environ.get(TIMING_VARIABLE) == "1"
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
until_s = time.monotonic() + DEADLINE_S
step = 0
while step < STEPS_MIN or (is_read and count_read() < READ_MIN and time.monotonic() < until_s):
    model(torch.randn(4, 8)).sum().backward()
    for parameter in model.parameters():
        number = len(entries)
        changes: dict[str, Any] = {"process_group": [name, "default_pg"]}
        if is_timed:
            changes |= {"duration_ms": 0.05 + 0.001 * (number % 7)}
        else:
            changes |= {"retired": True}
        before_ns, wall_ns, after_ns = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        entries.append(nccl_entry(number, wall_ns, changes.pop("duration_ms", None), **changes))
        enqueued_ns.append((before_ns, after_ns))
        steps.append(step)
        dist.all_reduce(parameter.grad)
    optimizer.step()
    step += 1
    time.sleep(PAUSE_S)
values = [round(one["duration_ms"] * 1e6) for one in entries] if is_timed else enqueued_ns
told = zip(steps, entries, values, strict=True)
print(json.dumps([(at, entry["collective_seq_id"], value) for at, entry, value in told]))
