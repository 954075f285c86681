"""A job whose user profiles it in every way there is, and says what each trace held.

From the first step on; on a schedule of two cycles; from another thread while training goes on; then no more.
"""

import threading
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

from rankscope.agent.shutdown.torch_threads import drain_gloo_threads

FIRST_STEPS = 3
SCHEDULED_STEPS = 24
BESIDE_STEPS = 60
LAST_STEPS = 40


def count(profiler: profile, name: str) -> str:
    keys = [event.key for event in profiler.events() or ()]
    steps, all_reduces = (sum(key.startswith(mark) for key in keys) for mark in ("ProfilerStep", "gloo:all_reduce"))
    return f"{name}: {len(keys)} events, {steps} marks, {all_reduces} all-reduces, {keys.count('aten::addmm')} products"


def train() -> Iterator[int]:
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        model(torch.ones(4, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        yield 1


def profile_beside(found: list[str], ready: threading.Event) -> None:
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        torch.addmm(torch.ones(2), torch.ones(2, 2), torch.ones(2, 2))
    found.append(count(profiler, "beside"))
    ready.set()


def main() -> None:
    dist.init_process_group("gloo")
    found: list[str] = []
    steps = train()
    with profile(activities=[ProfilerActivity.CPU]) as first:
        for _ in range(FIRST_STEPS):
            next(steps)
    found.append(count(first, "first"))
    cycles = schedule(wait=6, warmup=2, active=4, repeat=2)
    keep = lambda profiler: found.append(count(profiler, "scheduled"))  # noqa: E731
    with profile(activities=[ProfilerActivity.CPU], schedule=cycles, on_trace_ready=keep) as scheduled:
        for _ in range(SCHEDULED_STEPS):
            next(steps)
            scheduled.step()
    ready = threading.Event()
    threading.Thread(target=profile_beside, args=(found, ready)).start()
    for _ in range(BESIDE_STEPS):
        next(steps)
    ready.wait()
    for _ in range(LAST_STEPS):
        next(steps)
    print("".join(f"rank {dist.get_rank()} {line}\n" for line in found), end="")
    dist.destroy_process_group()
    drain_gloo_threads()  # a job without the agent has to end well too


if __name__ == "__main__":
    main()
