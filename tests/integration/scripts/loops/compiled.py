"""The model and the optimizer's step are both compiled."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

layers = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
model = torch.compile(layers, backend="aot_eager")
optimizer = torch.optim.Adam(layers.parameters(), lr=1e-3)
loader = DataLoader(TensorDataset(torch.randn(16, 16), torch.randn(16, 1)), batch_size=4)


@torch.compile(backend="aot_eager", fullgraph=False)
def step_optimizer() -> None:
    optimizer.step()


for _ in range(2):
    for features, target in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(features), target).backward()
        step_optimizer()
