"""Four ranks as two by two: shards of the parameters along one dimension, tensor parallel layers along the other."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
fully_shard(model, mesh=mesh["dp"])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
dataset = TensorDataset(torch.randn(40, 16))
replica = mesh["dp"].get_local_rank()
loader = DataLoader(dataset, batch_size=4, sampler=DistributedSampler(dataset, num_replicas=2, rank=replica))

for (features,) in loader:
    model(features).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()

dist.destroy_process_group()
