"""A training whose agent may spend next to nothing, and gives way at once instead of one part every 30 s."""

import time

import torch

from rankscope.agent import governor

STEPS, STEP_S = 150, 0.02

governor.DROP_PAUSE_NS = 0

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(STEPS):
    time.sleep(STEP_S)
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
