"""Gradients of four micro batches for each step; DistributedDataParallel reduces only with the last."""

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

ACCUMULATED = 4

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(24, 16)), batch_size=2)

for _ in range(2):
    for number, (features,) in enumerate(loader, start=1):
        is_last = number % ACCUMULATED == 0
        with contextlib.nullcontext() if is_last else model.no_sync():
            loss = model(features).square().mean() / ACCUMULATED
            loss.backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()

del model, optimizer  # first: docs/torch.md
dist.destroy_process_group()
