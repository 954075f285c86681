"""Trains a compiled model with a compiled optimizer step, slowly enough for a capture to be ordered meanwhile.

It prints each loss with all its digits, and how many graphs TorchDynamo has compiled.
"""

import argparse
import time

import torch
from torch import nn
from torch._dynamo.utils import counters

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--pause-s", type=float, default=0.0, help="after each step")
parser.add_argument("--whole", action="store_true", help="compile the whole step as well")
options = parser.parse_args()

torch.manual_seed(7)
layers = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.2), nn.ReLU(), nn.Linear(32, 1))
model = torch.compile(layers, backend="aot_eager")
optimizer = torch.optim.SGD(layers.parameters(), lr=0.01, momentum=0.9)
update = torch.compile(optimizer.step, backend="aot_eager")
losses = []


def train(batch: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(batch).square().mean()
    loss.backward()
    update()
    optimizer.zero_grad()
    return loss.detach()


step = torch.compile(train, backend="aot_eager") if options.whole else train
for _ in range(options.steps):
    loss = step(torch.randn(8, 16))
    losses.append(float(loss.item()).hex())
    time.sleep(options.pause_s)
print(f"graphs {counters['stats']['unique_graphs']}")
print(f"losses {' '.join(losses)}")
