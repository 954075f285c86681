"""DTensor: a layer cut by columns and one by rows, over a mesh of data and tensor parallel ranks."""

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tests.frameworks.jobs.told import STEPS, build_model, draw_batch, tell

shards = int(sys.argv[1])
dist.init_process_group("gloo")
parts = dist.get_world_size() // shards
mesh = init_device_mesh("cpu", (shards, parts), mesh_dim_names=("dp", "tp"))
model = build_model()
parallelize_module(model, mesh["tp"], {"1": ColwiseParallel(), "3": RowwiseParallel()})
if shards > 1:
    fully_shard(model, mesh=mesh["dp"])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []
for step in range(STEPS):
    batch = draw_batch(step)
    dist.broadcast(batch, group=mesh.get_group("tp"), group_src=0)
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
tell(STEPS, losses)
dist.destroy_process_group()
