"""Parameters in shards: each layer is gathered before its forward and its backward."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
for layer in (model[0], model[2]):
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
dataset = TensorDataset(torch.randn(32, 16))
loader = DataLoader(dataset, batch_size=4, sampler=DistributedSampler(dataset))

for _ in range(2):
    for (features,) in loader:
        model(features).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

dist.destroy_process_group()
