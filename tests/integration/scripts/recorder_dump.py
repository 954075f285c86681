"""Reads torch's flight recorder through the real worker server and sidecar, and prints what it had beside a dump that
this process makes itself. The agent does not read it here, since gloo has no durations.
"""

import json
import time

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from rankscope.agent import launch
from rankscope.agent.sidecar.recorder_reader import RecorderReader
from rankscope.agent.steps.graph_captures import GraphCaptures
from rankscope.measure.clock import SystemClock

DEADLINE_S = 60.0
COLLECTIVES = 25

dist.init_process_group("gloo")
for _ in range(COLLECTIVES):
    dist.all_reduce(torch.ones(8))
dist.barrier()

watchdog = launch.session._reporter._watchdog  # type: ignore[union-attr]
until_s = time.monotonic() + DEADLINE_S
while (watchdog.recorder_place is None or not watchdog.recorder_place.socket_path) and time.monotonic() < until_s:
    time.sleep(0.05)
reader = RecorderReader(GraphCaptures(), lambda: watchdog.recorder_place, lambda: None, SystemClock())
reader.request(0)
found = reader.collect()
was_there_at_once = found is not None
while found is None and time.monotonic() < until_s:
    time.sleep(0.05)
    found = reader.collect()

entries = json.loads(c10d._dump_fr_trace_json(includeCollectives=True))["entries"]  # type: ignore[attr-defined]
told = None if found is None else (found.recorded, found.ring_entries, found.ring_ns, found.cpu_ns > 0)
created_ns = [entry["time_created_ns"] for entry in entries]
here = (max(entry["record_id"] for entry in entries) + 1, len(entries), max(created_ns) - min(created_ns), True)
line = {"rank": dist.get_rank(), "outside": told, "here": here, "at_once": was_there_at_once, "skipped": reader.skipped}
print(f"{json.dumps(line)}\n", end="", flush=True)
dist.barrier()
