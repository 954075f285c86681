"""Each parameter has its own optimizer, which a hook steps inside the backward as soon as its gradient is there."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
optimizers = {parameter: torch.optim.SGD([parameter], lr=1e-3) for parameter in model.parameters()}


def step(parameter: nn.Parameter) -> None:
    """Step the parameter's optimizer, and let go of the gradient."""
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for each in optimizers:
    each.register_post_accumulate_grad_hook(step)

for _ in range(2):
    for features, target in DataLoader(TensorDataset(torch.randn(24, 16), torch.randn(24, 1)), batch_size=4):
        nn.functional.mse_loss(model(features), target).backward()
