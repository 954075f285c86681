"""Trains with a loader whose worker is killed amid the steps, as by the OOM killer: torch's handler of SIGCHLD raises
wherever the main thread is.
"""

import multiprocessing
import os
import signal
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

KILLED_AT = 30

torch.set_num_threads(1)
model = nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
rows = TensorDataset(torch.randn(6400, 64))
for step, (batch,) in enumerate(DataLoader(rows, batch_size=16, num_workers=1, multiprocessing_context="fork")):
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.01)
    if step == KILLED_AT:
        os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)
