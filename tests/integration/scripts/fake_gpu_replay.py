"""Replays the GPU work of a recorded trace on the fake GPU, once in each step."""

import argparse
from pathlib import Path

import torch
from torch import nn

import rankscope
from tests.fake_gpu import FakeGpu
from tests.fake_gpu.recorded import read_work

parser = argparse.ArgumentParser()
parser.add_argument("library")
parser.add_argument("trace", type=Path)
parser.add_argument("--steps", type=int, required=True)
options = parser.parse_args()

torch.set_num_threads(1)
gpu = FakeGpu(options.library)
gpu.load(read_work(options.trace))
gpu.give_to_agent()
assert rankscope.start()
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batch = torch.ones(2, 4)
for _ in range(options.steps):
    optimizer.zero_grad()
    model(batch).sum().backward()
    gpu.replay()
    gpu.synchronize()
    optimizer.step()
