"""Trains under the agent until the FLOPs of a step have been measured, then TIMED_STEPS more, which it times itself;
and again with twice the batch until they have been measured anew.

Each step has MICRO_BATCHES backwards. Prints, as JSON, what was measured for each batch with the reasons why nothing
was before, and the times (ns) at the ends of the steps that the agent has counted with these FLOPs, from the end before
the first of them on. It gives up after STEPS_MAX.
"""

import json
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

import rankscope
from rankscope.agent import launch

BATCH = 4
MICRO_BATCHES = 2
STEPS_MAX = 20_000
TIMED_STEPS = 200

assert rankscope.start()
torch.set_num_threads(1)
assert launch.session is not None
flops = launch.session.calls._flops
model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train(batch: int) -> Iterator[int]:
    """Train; yield the time at the end of each step, which the agent knows to have ended when the next one begins."""
    loader: Any = DataLoader(torch.ones(1, 128).expand(400_000, 128), batch_size=batch)  # type: ignore[arg-type]
    for number, x in enumerate(loader):
        model(x).sum().backward()
        if number % MICRO_BATCHES == MICRO_BATCHES - 1:
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(0.002)
            yield time.monotonic_ns()


def measure(steps: Iterator[int], before: object) -> tuple[dict[str, object], list[int]]:
    """Train until FLOPs are measured that are others than before; return them, and the ends of the steps."""
    reasons: set[str] = set()
    ends_ns = []
    for _ in range(STEPS_MAX):
        ends_ns.append(next(steps))
        measured = flops._measured
        if measured is not None and measured != before:
            known = {"model": measured.model, "executed": measured.executed, "types": dict(flops.number_types)}
            return {**known, "reasons": sorted(reasons)}, ends_ns
        reasons.add(flops.absent.get("executed", ""))
    raise TimeoutError(f"no FLOPs after {STEPS_MAX} steps, since {reasons}")


steps = train(BATCH)
first, ends_ns = measure(steps, None)
rankscope.throughput()  # has the agent count all steps that have ended: all but the last one
begin = len(ends_ns) - 1 - flops.totals.model.steps
assert begin > 0, "nothing is known in the first step"
ends_ns += [next(steps) for _ in range(TIMED_STEPS)]
second, _ = measure(train(2 * BATCH), flops._measured)
print(json.dumps({"measured": [first, second], "ends_ns": ends_ns[begin - 1 :]}), flush=True)
