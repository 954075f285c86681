"""A loop that updates its parameters itself, without torch.optim; with --say-steps it says where its steps end."""

import sys

import torch
import torch.distributed as dist
from torch import nn

import rankscope

STEPS = 30

dist.init_process_group("gloo")
model = nn.Linear(16, 1)

for _ in range(STEPS):
    model(torch.randn(4, 16)).square().mean().backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.data.add_(parameter.grad, alpha=-1e-3)
            parameter.grad = None
    if "--say-steps" in sys.argv:
        rankscope.step()

dist.destroy_process_group()
