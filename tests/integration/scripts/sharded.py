"""Trains with FSDP2, whose blocks are repeated in the backward. Each rank prints each of its losses with all digits."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from rankscope.agent.shutdown.torch_threads import drain_gloo_threads

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
options = parser.parse_args()

torch.manual_seed(7)
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
blocks = [checkpoint_wrapper(nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.2), nn.ReLU())) for _ in range(3)]
model = nn.Sequential(*blocks)
for block in model:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
losses = []
for _ in range(options.steps):
    loss = model(torch.randn(8, 16)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(float(loss.item()).hex())
print(f"losses {' '.join([str(dist.get_rank()), *losses])}\n", end="")
dist.destroy_process_group()
drain_gloo_threads()
