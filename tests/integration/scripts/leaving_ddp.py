"""Rank 1 returns with status 0 after 20 steps, as on an error that it has caught; the others would go on."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(60):
    optimizer.zero_grad()
    model(torch.randn(8, 8)).square().mean().backward()
    optimizer.step()
    time.sleep(0.02)
    if step == 20 and dist.get_rank() == 1:
        break
