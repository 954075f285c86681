"""Forks in the middle of an epoch; the child looks at the model with a loader of its own, then it is gone."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(40, 16)), batch_size=4)

for number, (features,) in enumerate(loader):
    optimizer.zero_grad()
    model(features).square().mean().backward()
    if number == 4:
        child = os.fork()
        if child == 0:
            for (reading,) in loader:
                model(reading)
                optimizer.step()
            os._exit(0)
        os.waitpid(child, 0)
    optimizer.step()
