"""Joins the control group whose file is the first argument, then computes all the time, step after step."""

import os
import sys
import time
from pathlib import Path

import torch
from torch import nn

import rankscope.agent as rankscope

LASTS_S = 9.0

torch.set_num_threads(1)
Path(sys.argv[1]).write_text(str(os.getpid()))
assert rankscope.start()
model = nn.Linear(256, 256)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
print("in the group", flush=True)
end_s = time.monotonic() + LASTS_S
while time.monotonic() < end_s:
    model(torch.ones(256, 256)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
