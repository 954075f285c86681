"""Trains under the agent until the FLOPs of a step have been measured, and again with twice the batch.

Each step has MICRO_BATCHES backwards. Prints, as JSON, what was measured for each batch and the reasons why nothing was
before. It gives up after MICRO_BATCHES_MAX.
"""

import json
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

import rankscope.agent as rankscope
from rankscope.agent import launch

BATCH = 4
MICRO_BATCHES = 2
MICRO_BATCHES_MAX = 40_000

assert rankscope.start()
torch.set_num_threads(1)
assert launch.session is not None
flops = launch.session.calls._flops
model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train(batch: int, before: object) -> dict[str, object]:
    """Train until FLOPs are measured that are others than before, and return them."""
    loader: Any = DataLoader(torch.ones(1, 128).expand(400_000, 128), batch_size=batch)  # type: ignore[arg-type]
    reasons: set[str] = set()
    for step, x in enumerate(loader):
        model(x).sum().backward()
        if step % MICRO_BATCHES == MICRO_BATCHES - 1:
            optimizer.step()
            optimizer.zero_grad()
        measured = flops._measured
        if measured is not None and measured != before:
            known = {"model": measured.model, "executed": measured.executed, "types": dict(flops.number_types)}
            return {**known, "reasons": sorted(reasons)}
        reasons.add(flops.absent.get("executed", ""))
        time.sleep(0.001)
        if step == MICRO_BATCHES_MAX:
            break
    raise TimeoutError(f"no FLOPs after {MICRO_BATCHES_MAX} backwards, since {reasons}")


first = train(BATCH, None)
second = train(2 * BATCH, flops._measured)
print(json.dumps([first, second]), flush=True)
