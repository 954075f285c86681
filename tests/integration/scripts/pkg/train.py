"""Run with -m: says how it finds itself run, and trains three steps on one process."""

import sys

import torch

from .beside import ANSWER

model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(2)).sum().backward()
    optimizer.step()
print("module", __name__, __package__, ANSWER, sys.argv[1:], sys.modules["__main__"].__spec__.name)
