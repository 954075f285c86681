"""Gradients by torch.autograd.grad, assigned to the parameters, and no data loader: no backward is ever called."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
weights = list(model.parameters())
optimizer = torch.optim.SGD(weights, lr=0.01)

for _ in range(12):
    loss = model(torch.randn(4, 8)).square().mean()
    for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
        weight.grad = gradient
    optimizer.step()
