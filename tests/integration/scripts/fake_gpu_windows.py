"""Takes full windows of the fake GPU one after the other, with the agent's profiler and reduction alone.

Prints for each how many steps it had, whether these had all their kernels, and the resident MiB at that time.
"""

import argparse
import time

import psutil
import torch
from torch import nn

from rankscope.agent.profiler.reduction_process import ReductionProcesses
from rankscope.agent.profiler.torch_profiler import TorchProfiler
from rankscope.agent.profiler.window_reduction import GroupSource, WindowReduction
from rankscope.agent.profiler.window_scheduler import RawWindow
from rankscope.measure.clock import read_wall_minus_host_ns
from rankscope.measure.records import StepRecord
from rankscope.measure.units import NS_PER_S
from tests.fake_gpu import ALL_OPERATORS, FakeGpu

KERNEL_NS = 1_000
STEPS = 3

parser = argparse.ArgumentParser()
parser.add_argument("library")
parser.add_argument("--windows", type=int, required=True)
options = parser.parse_args()

torch.set_num_threads(1)
gpu = FakeGpu(options.library)
gpu.give_to_agent()
gpu.launch(ALL_OPERATORS, KERNEL_NS)
gpu.set_fault(forget=1)
profiler = TorchProfiler.find()
reduction = WindowReduction(GroupSource(dict, lambda: ([], {})), ReductionProcesses(), events_max=200_000)
model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batch = torch.ones(4, 16)


def train(step: int) -> StepRecord:
    """Train one step."""
    begin_ns = time.monotonic_ns()
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
    gpu.synchronize()
    return StepRecord(step=step, start_host_ns=begin_ns, duration_ns=time.monotonic_ns() - begin_ns, phases_ns={})


train(0)
for window in range(options.windows):
    profiler.start(full=True)
    steps = [train(STEPS * window + step) for step in range(STEPS)]
    assert profiler.wait_for_device(NS_PER_S)
    raw = RawWindow(True, steps, profiler.stop(), read_wall_minus_host_ns(), {}, {}, 0, on_device=True)
    reduction.reduce(raw)
    found = [one for reduced in reduction.finish() for one in reduced.breakdowns]
    whole = all(one.compute_ns == KERNEL_NS * (one.operator_count or 0) > 0 for one in found)
    print(len(found), whole, psutil.Process().memory_info().rss >> 20)
