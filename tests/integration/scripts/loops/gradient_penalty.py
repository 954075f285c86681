"""A penalty on gradients, whose graph is kept for the backward, and a validation that takes gradients, too."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loader = DataLoader(TensorDataset(torch.randn(24, 4)), batch_size=4)
held_out = DataLoader(TensorDataset(torch.randn(8, 4)), batch_size=4)


def find_slope(rows: torch.Tensor, *, is_training: bool) -> torch.Tensor:
    """Return how steep the model is at these rows."""
    rows.requires_grad_()
    (slope,) = torch.autograd.grad(model(rows).sum(), rows, create_graph=is_training)
    return slope.square().mean()


for _ in range(2):
    for (rows,) in loader:
        loss = model(rows).square().mean() + find_slope(rows, is_training=True)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for (rows,) in held_out:
        find_slope(rows, is_training=False)
