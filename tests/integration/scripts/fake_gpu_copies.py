"""Trains on the fake GPU, and copies its batch to it in every step from pageable or pinned memory, and a mask from the
other kind. The operators that fill their results stand for the copies: no tensor is copied on the CPU.

Writes the work of the device to a file.
"""

import argparse
from pathlib import Path

import torch
from torch import nn

import rankscope
from tests.fake_gpu import ALL_OPERATORS, MEMCPY, FakeGpu

KERNEL_NS, BATCH_NS, MASK_NS = 200_000, 3_000_000, 400_000
BATCH_BYTES, MASK_BYTES = 30_000_000, 4_000_000
BATCH_STREAM, MASK_STREAM = 7, 13

parser = argparse.ArgumentParser()
parser.add_argument("library")
parser.add_argument("work", type=Path)
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--memory", choices=("Pageable", "Pinned"), required=True)
options = parser.parse_args()
other = "Pinned" if options.memory == "Pageable" else "Pageable"

torch.set_num_threads(1)
gpu = FakeGpu(options.library)
gpu.launch(ALL_OPERATORS, KERNEL_NS)
gpu.launch(
    "aten::hann_window", BATCH_NS, kind=MEMCPY, name=f"Memcpy HtoD ({options.memory} -> Device)",
    call="cudaMemcpyAsync", stream=BATCH_STREAM, size=BATCH_BYTES,
)  # fmt: skip
gpu.launch(
    "aten::bartlett_window", MASK_NS, kind=MEMCPY, name=f"Memcpy HtoD ({other} -> Device)", call="cudaMemcpyAsync",
    stream=MASK_STREAM, size=MASK_BYTES,
)  # fmt: skip
gpu.give_to_agent()
assert rankscope.start()
model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batch = torch.ones(4, 16)

for _ in range(options.steps):
    torch.hann_window(16)  # the batch, on the stream that computes: exposed
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    torch.bartlett_window(16)  # the mask, on a stream of its own: mostly hidden
    loss.backward()
    optimizer.step()
gpu.synchronize()
gpu.write_work(options.work)
