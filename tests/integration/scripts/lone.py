"""Trains so many steps in one process without a launcher or a process group; then once more in a forked child."""

import os
import sys

import torch


def train(steps: int) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(2)).sum().backward()
        optimizer.step()


train(int(sys.argv[1]))
child = os.fork()
if child == 0:
    train(int(sys.argv[1]))
    os._exit(0)
os.waitpid(child, 0)
print("done")
