"""DistributedDataParallel whose gradients travel in half precision, by a communication hook."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)))
model.register_comm_hook(dist.group.WORLD, default_hooks.fp16_compress_hook)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
dataset = TensorDataset(torch.randn(48, 16))
sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=4, sampler=sampler)

for epoch in range(2):
    sampler.set_epoch(epoch)
    for (features,) in loader:
        optimizer.zero_grad()
        model(features).square().mean().backward()
        optimizer.step()

del model, optimizer  # first: docs/torch.md
dist.destroy_process_group()
