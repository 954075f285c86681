"""Prints whether torch is set to time collectives after the import of torch, and when the first group is there."""

import os

import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

NAME = "TORCH_NCCL_ENABLE_TIMING"

print(os.environ.get(NAME))
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
print(os.environ.get(NAME))
