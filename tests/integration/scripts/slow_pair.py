"""Data-parallel steps over gloo, profiled: `slow_pair.py FOLDER NAME:RANKS:FACTOR:KIND...`.

Writes a trace of each rank for each case, in which RANKS (`1+3`, `-` for none) take FACTOR times as long for their part
of a step: `sleep` on the host, or `work` as many more operators, which take no core: ranks that share cores would take
time from each other.
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule

STEPS = 12
PAUSE_S = 0.2
OPERATORS = 5


@torch.library.custom_op("slow_pair::rest", mutates_args=())
def rest(weights: torch.Tensor) -> torch.Tensor:
    """An operator that takes its time elsewhere."""
    time.sleep(PAUSE_S / OPERATORS)
    return weights.clone()


def step(factor: float, kind: str, weights: torch.Tensor) -> None:
    """Run one step: operators or a pause, and the reduction of the gradients."""
    if kind == "work":
        for _ in range(round(OPERATORS * factor)):
            rest(weights)
    else:
        time.sleep(PAUSE_S * factor)
    dist.all_reduce(weights.clone())


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, folder, weights = dist.get_rank(), Path(sys.argv[1]), torch.randn(384, 384)
    for case in sys.argv[2:]:
        name, ranks, factor, kind = case.split(":")
        is_slow = str(rank) in ranks.split("+")
        cycle = schedule(wait=0, warmup=1, active=STEPS, repeat=1)
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True, schedule=cycle) as profiler:
            for _ in range(STEPS + 1):
                step(float(factor) if is_slow else 1.0, kind, weights)
                profiler.step()
        (folder / name).mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(folder / name / f"rank{rank}.json.gz"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
