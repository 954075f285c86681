"""Trains on the fake GPU under torch's profiler with stacks, and writes the trace and, as JSON, what its own hooks saw.

By module, the windows of host time of its forwards (hooks of the module) and of the backwards of the autograd nodes
made in it (hooks of the nodes): the device's own list of work then says what was launched in each.
"""

import argparse
import json
from pathlib import Path

import torch
from torch import nn
from torch._C import _autograd, _profiler

from tests.fake_gpu import FakeGpu
from tests.fake_gpu.module_windows import Block, Hooks, launch_all

parser = argparse.ArgumentParser()
parser.add_argument("library")
parser.add_argument("folder", type=Path)
options = parser.parse_args()

torch.set_num_threads(1)
gpu = FakeGpu(options.library)
launch_all(gpu)
model = nn.Sequential(Block(16), Block(16), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
hooks = Hooks(model)


def train() -> None:
    """Do one step."""
    optimizer.zero_grad()
    model(torch.ones(8, 16)).square().mean().backward()
    optimizer.step()


train()
hooks.windows.clear()
gpu.synchronize()
# torch.profiler.profile takes no CUDA where torch has none, so the profiler is called as it calls it.
activities = {_profiler.ProfilerActivity.CPU, _profiler.ProfilerActivity.CUDA}
config = _profiler.ProfilerConfig(
    _profiler.ProfilerState.KINETO, False, False, True, False, True, _profiler._ExperimentalConfig(), ""
)
_autograd._prepare_profiler(config, activities)
_autograd._enable_profiler(config, activities)
for _ in range(3):
    train()
gpu.synchronize()
_autograd._disable_profiler().save(str(options.folder / "trace.json"))
gpu.write_work(options.folder / "work")
print(json.dumps(hooks.windows))
