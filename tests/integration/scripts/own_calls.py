"""Uses every call, in a plain Python process, twice where once would do, and forks."""

import os
import sys

import torch

import rankscope

rankscope.step()  # before start: nothing happens
rankscope.batch(samples=1)
rankscope.model_flops(per_step=-1)  # told once the agent has started
rankscope.model_flops(per_token=1_000)
with rankscope.phase("before"), rankscope.evaluation():
    print("throughput", rankscope.throughput())
print("started", bool(rankscope.start()), bool(rankscope.start()))
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(5):
    rankscope.batch(samples=64)
    with rankscope.phase("augment"):
        batch = torch.randn(64, 8)
    model(batch).sum().backward()
    optimizer.step()
    rankscope.step(tokens=number)
    with rankscope.evaluation(), rankscope.evaluation(), torch.no_grad():
        rankscope.batch(samples=1_000)
        model(batch)
rankscope.batch(samples="many")  # type: ignore[arg-type]  # told once, and training goes on
rankscope.throughput(last_steps="all")  # type: ignore[arg-type]  # as above
found = rankscope.throughput(last_steps=2)
print("steps", found.steps if found is not None else None)
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
