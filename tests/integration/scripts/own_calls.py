"""Uses the four calls, in a plain Python process, twice where once would do, and forks."""

import os
import sys

import torch

import rankscope.agent as rankscope

rankscope.step()  # before start: nothing happens
with rankscope.phase("before"):
    pass
print("started", rankscope.start(), rankscope.start())
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    with rankscope.phase("augment"):
        batch = torch.randn(64, 8)
    model(batch).sum().backward()
    optimizer.step()
    rankscope.step()
sys.stdout.flush()
child = os.fork()
if child == 0:
    rankscope.step()
    rankscope.stop()
    os._exit(0)
os.waitpid(child, 0)
rankscope.stop()
rankscope.stop()
print("done")
