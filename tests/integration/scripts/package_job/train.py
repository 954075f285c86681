"""Run with -m: says how it finds itself run, and trains three steps."""

import sys

import torch

from .beside import ANSWER

model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(2)).sum().backward()
    optimizer.step()
print(__name__, __package__, __spec__.name, sys.modules["__main__"].__file__ == __file__, ANSWER)
print(sys.argv, sys.path)
