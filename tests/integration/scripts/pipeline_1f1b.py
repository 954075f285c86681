"""A 1F1B pipeline over gloo's isend and irecv, profiled: `pipeline_1f1b.py FOLDER NAME:STAGE:FACTOR...`.

Writes a trace of each rank for each case, in which STAGE works FACTOR times as long (-1: none).
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule

FORWARD_S, BACKWARD_S = 0.030, 0.060
"""Long beside what a busy machine adds to a pause."""
MICROBATCHES = 8
GRADIENT_TAG = 100


class Stage:
    """One stage; its work is a product and a pause."""

    def __init__(self, factor: float) -> None:
        self._rank, self._count = dist.get_rank(), dist.get_world_size()
        self._factor = factor
        self._sends: list[dist.Work] = []
        self._input = torch.randn(8, 8)

    def step(self) -> None:
        """Run one step of all microbatches."""
        warm_up = min(self._count - 1 - self._rank, MICROBATCHES)
        for place in range(warm_up):
            self._forward(place)
        for place in range(MICROBATCHES - warm_up):
            self._forward(warm_up + place)
            self._backward(place)
        for place in range(MICROBATCHES - warm_up, MICROBATCHES):
            self._backward(place)
        for one in self._sends:
            one.wait()
        self._sends.clear()
        dist.barrier()

    def _forward(self, place: int) -> None:
        self._receive(self._rank - 1, place)
        self._work(FORWARD_S)
        self._send(self._rank + 1, place)

    def _backward(self, place: int) -> None:
        self._receive(self._rank + 1, GRADIENT_TAG + place)
        self._work(BACKWARD_S)
        self._send(self._rank - 1, GRADIENT_TAG + place)

    def _work(self, seconds: float) -> None:
        torch.mm(self._input, self._input)
        time.sleep(seconds * self._factor)

    def _receive(self, peer: int, tag: int) -> None:
        if 0 <= peer < self._count:
            work = dist.irecv(torch.empty(1024), peer, tag=tag)
            assert work is not None
            work.wait()

    def _send(self, peer: int, tag: int) -> None:
        if 0 <= peer < self._count:
            work = dist.isend(torch.ones(1024), peer, tag=tag)
            assert work is not None
            self._sends.append(work)


def main() -> None:
    dist.init_process_group("gloo")
    folder = Path(sys.argv[1])
    for case in sys.argv[2:]:
        name, stage, factor = case.split(":")
        mine = Stage(float(factor) if int(stage) == dist.get_rank() else 1.0)
        cycle = schedule(wait=0, warmup=1, active=3, repeat=1)
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True, schedule=cycle) as profiler:
            for _ in range(4):
                mine.step()
                profiler.step()
        (folder / name).mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(folder / name / f"rank{dist.get_rank()}.json.gz"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
