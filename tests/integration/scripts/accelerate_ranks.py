"""Accelerate starts two ranks itself, as forks of this process, and each trains six steps."""

import torch
from accelerate import Accelerator, debug_launcher
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train() -> None:
    """Train as one rank."""
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(torch.randn(48, 16)), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for (batch,) in loader:
        accelerator.backward(model(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    accelerator.end_training()


if __name__ == "__main__":
    debug_launcher(train, num_processes=2)
