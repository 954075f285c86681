"""Trains on the fake GPU; prints, as JSON, what the device has seen, and writes its work to a file.

How the host and the device go together: `waits` for the device at the end of each step, as `loss.item()` does;
`ahead` never does.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from torch import nn

import rankscope
from rankscope.agent import launch
from rankscope.agent.profiler.torch_profiler import TorchProfiler
from tests.fake_gpu import ALL_OPERATORS, FakeGpu

STEPS_MAX = 2_000
"""Until CUPTI is detached: as many as a machine may need that others keep busy."""

parser = argparse.ArgumentParser()
parser.add_argument("library")
parser.add_argument("work", type=Path)
parser.add_argument("--kernel-ns", type=int, required=True)
parser.add_argument("--attached-s", type=float, default=0.0, help="what each step takes longer while CUPTI is attached")
parser.add_argument("--host-s", type=float, default=0.0, help="what each step takes the host beside its launches")
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--after-detached", type=int, help="go on until CUPTI is detached, and so many steps")
parser.add_argument("--how", choices=("waits", "ahead"), required=True)
parser.add_argument("--impatient", action="store_true", help="the agent's windows do not wait for the device")
parser.add_argument("--has-graph", action="store_true", help="CUPTI may not be detached")
parser.add_argument(
    "--graph-at", type=int, help="the step that captures a CUDA graph; says how many sessions were before"
)
parser.add_argument("--faults", type=json.loads, default={}, help="for FakeGpu.set_fault, as JSON")
parser.add_argument("--kernels-a-launch", type=int, default=1)
parser.add_argument("--all-reduce", action="store_true", help="each step has one, of this rank alone")
parser.add_argument("--is-seen-by-torch", action="store_true", help="sessions of torch.profiler record the device")
parser.add_argument("--stop-amid-session", action="store_true", help="say so, and wait, in the second session")
parser.add_argument("--call", default="cudaLaunchKernel", help="the name of each launch")
parser.add_argument("--operators", nargs="+", default=[ALL_OPERATORS], help="those that launch a kernel")
options = parser.parse_args()

torch.set_num_threads(1)
gpu = FakeGpu(options.library)
for operator in options.operators:
    gpu.launch(operator, options.kernel_ns, call=options.call, count=options.kernels_a_launch)
gpu.meet(options.work.with_suffix(".meeting"), rank=0, world_size=1)
gpu.set_fault(**options.faults)
if options.is_seen_by_torch:
    gpu.join_torchs_profiler()
gpu.give_to_agent(can_detach=not options.has_graph)
if options.impatient:
    setattr(TorchProfiler, "wait_for_device", lambda _self, _limit_ns, _gives_up: True)  # noqa: B010 - mypy knows its type
assert rankscope.start()


def capture_graph() -> None:
    """Begin and end a capture, as the agent learns of one from torch.cuda.CUDAGraph: here that class has no methods."""
    assert launch.session is not None
    captures = launch.session._training.captures
    captures.wrap_begin(lambda: None)()
    captures.wrap_end(lambda: None)()


model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batch = torch.ones(4, 16)
after_detached = 0
for step in range(options.steps if options.after_detached is None else STEPS_MAX):
    after_detached += gpu.counts.detached
    if options.after_detached is not None and after_detached > options.after_detached:
        break
    if step == options.graph_at:
        print(json.dumps(gpu.counts), flush=True)
        capture_graph()
    time.sleep(options.host_s + (options.attached_s if gpu.counts.is_attached else 0.0))
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    if options.stop_amid_session and gpu.is_recording and gpu.counts.sessions > 1:
        print("amid a session", flush=True)
        time.sleep(3600)
    if options.all_reduce:
        gpu.all_reduce(1_000, transfer_ns=100_000)
        gpu.join()
    optimizer.step()
    if options.how == "waits":
        gpu.synchronize()
print(json.dumps(gpu.counts), flush=True)
gpu.write_work(options.work)
