"""DDP by a launcher that knows nothing of torch: the words are its variables for a process's number and their count."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.frameworks.jobs.told import STEPS, build_model, tell, train_plainly

rank, count = (int(os.environ[name]) for name in sys.argv[1:])
dist.init_process_group("gloo", f"file://{Path.cwd() / 'met'}", rank=rank, world_size=count)
model = DistributedDataParallel(build_model())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tell(STEPS, train_plainly(model, optimizer))
dist.barrier()
dist.destroy_process_group()
