"""Trains on the fake GPU and reads its loss in every step, where the host waits; or, with `--never`, never does.

The kernels of one operator of the forward last as long as the host is to wait at least, and after the wait the host
works as long without the GPU. Writes the device's work to a file.
"""

import argparse
import time
from pathlib import Path

import torch
from torch import nn

import rankscope
from tests.fake_gpu import ALL_OPERATORS, FakeGpu

parser = argparse.ArgumentParser()
parser.add_argument("library")
parser.add_argument("work", type=Path)
parser.add_argument("--wait-ns", type=int, required=True)
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--never", action="store_true")
options = parser.parse_args()

torch.set_num_threads(1)
gpu = FakeGpu(options.library)
gpu.launch(ALL_OPERATORS, 20_000)
gpu.launch("aten::mean", 20_000 if options.never else options.wait_ns)
gpu.block("aten::_local_scalar_dense", "cudaStreamSynchronize")
gpu.give_to_agent()
assert rankscope.start()
model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batch = torch.ones(4, 16)


def train() -> None:
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    if not options.never:
        print(loss.item())  # the host waits here
        time.sleep(options.wait_ns / 1e9)


for _ in range(options.steps):
    train()
gpu.synchronize()
gpu.write_work(options.work)
