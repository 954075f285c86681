"""Crashes on rank 1 in its first life, after step 5, and trains 8 steps in its second."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

first_life = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(16, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step, (batch,) in enumerate(DataLoader(TensorDataset(torch.randn(16, 16)), batch_size=2)):
    model(batch).sum().backward()
    optimizer.step()
    if first_life and step == 5 and dist.get_rank() == 1:
        raise RuntimeError("the first life ends here")
dist.destroy_process_group()
