"""FSDP1: FullyShardedDataParallel, a unit for each linear layer, in the sharding that is asked for."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from tests.frameworks.jobs.told import STEPS, build_model, draw_batch, tell

dist.init_process_group("gloo")
model = FullyShardedDataParallel(
    build_model(),
    sharding_strategy=ShardingStrategy[sys.argv[1]],
    auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
    device_id=torch.device("cpu"),
    use_orig_params=True,
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []
for step in range(STEPS):
    loss = model(draw_batch(step)).square().mean()
    loss.backward()
    model.clip_grad_norm_(1.0)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
tell(STEPS, losses)
dist.destroy_process_group()
