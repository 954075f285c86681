"""Rank 1 crashes in its first life, after step 5; in their second life both ranks train 8 steps.

Without a process group: setting one up again after a restart was seen to hang in torch 2.13, without an agent too.
"""

import os

import torch
from torch.utils.data import DataLoader, TensorDataset

first_life = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step, (batch,) in enumerate(DataLoader(TensorDataset(torch.randn(16, 16)), batch_size=2)):
    model(batch).sum().backward()
    optimizer.step()
    if first_life and step == 5 and os.environ["RANK"] == "1":
        raise RuntimeError("the first life ends here")
