"""FSDP2 by `fully_shard` over a named mesh: one dimension, or two of them, which is HSDP."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests.frameworks.jobs.told import STEPS, build_model, draw_batch, tell

replicas = int(sys.argv[1])
dist.init_process_group("gloo")
shards = dist.get_world_size() // replicas
if replicas > 1:
    mesh = init_device_mesh("cpu", (replicas, shards), mesh_dim_names=("dp_replicate", "dp_shard"))
else:
    mesh = init_device_mesh("cpu", (shards,), mesh_dim_names=("dp_shard",))
model = build_model()
for layer in model:
    if isinstance(layer, nn.Linear):
        fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []
for step in range(STEPS):
    loss = model(draw_batch(step)).square().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
tell(STEPS, losses)
dist.destroy_process_group()
