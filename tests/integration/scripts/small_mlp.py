"""Trains a small MLP on the CPU, on each rank alone or with DDP: `small_mlp.py STEPS [--raise-in STEP]`."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn

BATCH = 4


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("steps", type=int)
    parser.add_argument("--raise-in", type=int, default=-1)
    given = parser.parse_args()
    model: nn.Module = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10))
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    print("training", flush=True)
    for step in range(given.steps):
        optimizer.zero_grad()
        model(torch.randn(BATCH, 128)).sum().backward()
        if step == given.raise_in:
            raise ValueError(f"no step {step}")
        optimizer.step()
    print("trained", flush=True)


if __name__ == "__main__":
    main()
