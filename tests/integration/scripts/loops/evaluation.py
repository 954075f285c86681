"""Evaluations before training and after each epoch: under no_grad, under inference_mode, only the model under it."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.2), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
training = DataLoader(TensorDataset(torch.randn(20, 16)), batch_size=4)
held_out = DataLoader(TensorDataset(torch.randn(24, 16)), batch_size=8)


@torch.no_grad()
def evaluate() -> float:
    model.eval()
    losses: list[float] = [model(features).square().mean().item() for (features,) in held_out]
    model.train()
    return sum(losses) / len(losses)


evaluate()
for _ in range(3):
    for (features,) in training:
        optimizer.zero_grad()
        model(features).square().mean().backward()
        optimizer.step()
    evaluate()
    with torch.inference_mode():
        for (features,) in held_out:
            model(features)
    for (features,) in held_out:
        with torch.no_grad():
            model(features)
