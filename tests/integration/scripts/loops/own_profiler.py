"""Profiles itself on a schedule: two cycles of one step waiting, one warming up and two recorded."""

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, TensorDataset

model = nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(48, 16)), batch_size=4)
recorded: list[int] = []


def keep(profiler: profile) -> None:
    recorded.append(sum(event.key.startswith("ProfilerStep") for event in profiler.events() or ()))


cycles = schedule(wait=1, warmup=1, active=2, repeat=2)
with profile(activities=[ProfilerActivity.CPU], schedule=cycles, on_trace_ready=keep) as profiler:
    for (features,) in loader:
        optimizer.zero_grad()
        model(features).square().mean().backward()
        optimizer.step()
        profiler.step()

print("recorded", *recorded)
