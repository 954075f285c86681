"""A data-parallel job that declares the FLOPs of its steps after some of them, and times the steps from there itself.

Each rank writes how many steps it has timed, and for how long, to RANK.json in the folder, and ends once there is a
file `stop`.
"""

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rankscope
from rankscope.agent.shutdown.torch_threads import drain_gloo_threads

WIDTH, LAYERS, BATCH, MICRO_BATCHES = 256, 2, 64, 2
WARM_UP, STEPS = 5, 100
PAUSE_S, STOP_S_MAX = 0.02, 120.0


def main() -> None:
    """Train, say so, and wait for the end."""
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    begin_s = 0.0
    for step in range(WARM_UP + STEPS):
        if step == WARM_UP:
            begin_s = time.monotonic()
            # By hand: a product of BATCH x WIDTH and WIDTH x WIDTH a layer, 2 for a multiply-accumulate, and the
            # backward twice the forward.
            rankscope.model_flops(per_step=MICRO_BATCHES * LAYERS * 3 * 2 * BATCH * WIDTH * WIDTH)
        for _ in range(MICRO_BATCHES):
            model(torch.ones(BATCH, WIDTH)).sum().backward()
        time.sleep(PAUSE_S)
        optimizer.step()
        optimizer.zero_grad()
        rankscope.step()
    elapsed_s = time.monotonic() - begin_s
    partial = folder / f"{dist.get_rank()}.part"
    partial.write_text(json.dumps({"steps": STEPS, "elapsed_s": elapsed_s}))
    partial.rename(folder / f"{dist.get_rank()}.json")
    end_s = time.monotonic() + STOP_S_MAX
    while not (folder / "stop").exists() and time.monotonic() < end_s:
        time.sleep(PAUSE_S)
    dist.barrier()
    dist.destroy_process_group()
    drain_gloo_threads()


if __name__ == "__main__":
    main()
