"""Trains on the fake GPU under the agent until there is a file `end`, with the first and last step of a capture in it.

It then writes, as JSON, what its own hooks saw in these steps, and the work of its device. `--way`: how the second
block runs, or the whole model.
"""

import argparse
import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import rankscope
from tests.fake_gpu import FakeGpu
from tests.fake_gpu.module_windows import Block, Hooks, launch_all

STEPS_KEPT = 1000
WAYS = ("eager", "checkpoint", "reentrant", "ddp")


class Repeated(nn.Module):
    """A block whose forward is repeated in the backward, in place of keeping what it has computed."""

    def __init__(self, block: Block, *, reentrant: bool) -> None:
        super().__init__()
        self.block = block
        self._reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        out: torch.Tensor = checkpoint(self.block, x, use_reentrant=self._reentrant)
        return out


parser = argparse.ArgumentParser()
parser.add_argument("library")
parser.add_argument("folder", type=Path)
parser.add_argument("--way", choices=WAYS, required=True)
options = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(7)
gpu = FakeGpu(options.library)
launch_all(gpu)
gpu.set_fault(at_end=1)
gpu.join_torchs_profiler()
gpu.give_to_agent()
assert rankscope.start()
first, second = Block(16), Block(16)
repeats = options.way in ("checkpoint", "reentrant")
repeated = Repeated(second, reentrant=options.way == "reentrant") if repeats else second
layers = nn.Sequential(first, repeated, nn.Linear(16, 4))
hooks = Hooks(layers)
model: nn.Module = layers
if options.way == "ddp":
    dist.init_process_group("gloo", init_method=f"file://{options.folder / 'store'}", rank=0, world_size=1)
    model = DistributedDataParallel(layers)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
windows = {}
step = 0
while not (options.folder / "end").exists():
    optimizer.zero_grad()
    model(torch.ones(8, 16)).square().mean().backward()
    optimizer.step()
    gpu.synchronize()
    time.sleep(0.005)
    rankscope.step()
    windows[step] = hooks.take()
    windows.pop(step - STEPS_KEPT, None)
    step += 1
first_step, last_step = map(int, (options.folder / "end").read_text().split())
(options.folder / "windows.json").write_text(json.dumps([windows[one] for one in range(first_step, last_step + 1)]))
gpu.write_work(options.folder / "work")
