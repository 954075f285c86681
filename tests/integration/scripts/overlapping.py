"""Train two ranks whose communication outlasts the step in which it begins, and count sessions that end amid it.

In four steps of five an all_reduce, a send and a receive begin, which the next step waits for. What torch's own
`Work.is_completed` says of them when a session of its profiler ends is printed in the end: `N sessions, M amid work`.
"""

import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C import _autograd

STEPS = 150
STEP_S = 0.01
BETWEEN = 5
"""Of so many steps one has nothing to wait for at its end."""


class Sessions:
    """Count the ends of sessions on this thread, and those amid work that the script has begun."""

    def __init__(self) -> None:
        self.works: list[dist.Work] = []
        self.recorded: list[dist.Work] = []
        self.is_recording = True
        self.ended = self.ended_amid_work = 0
        self._end = _autograd._disable_profiler
        self._switch = _autograd._enable_record_function
        _autograd._disable_profiler = self.end
        _autograd._enable_record_function = self.switch

    def end(self) -> Any:
        self.ended += 1
        self.ended_amid_work += any(not work.is_completed() for work in self.recorded)
        return self._end()

    def switch(self, enable: bool) -> None:
        self.is_recording = enable
        self._switch(enable)

    def begin(self, works: list[dist.Work]) -> None:
        """Note work that has begun. What begins while nothing is recorded is not written to any session."""
        self.works, self.recorded = works, works if self.is_recording else []


def begin_work(step: int) -> list[dist.Work]:
    """Begin what the next step waits for."""
    rank, peer = dist.get_rank(), 1 - dist.get_rank()
    if step % BETWEEN == 0:
        return []
    time.sleep(0.002 * rank)
    works = [
        dist.all_reduce(torch.ones(64), async_op=True),
        dist.isend(torch.ones(64), peer),
        dist.irecv(torch.ones(64), peer),
    ]
    assert all(work is not None for work in works)
    return works


def main() -> None:
    """Train."""
    dist.init_process_group("gloo")
    sessions, model = Sessions(), nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(torch.ones(8, 64)).sum().backward()
        time.sleep(STEP_S)
        for work in sessions.works:
            work.wait()
        sessions.begin(begin_work(step))
        optimizer.step()
    for work in sessions.works:
        work.wait()
    dist.barrier()
    sys.stdout.write(f"rank {dist.get_rank()}: {sessions.ended} sessions, {sessions.ended_amid_work} amid work\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
