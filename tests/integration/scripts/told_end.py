"""A DistributedDataParallel job that ends after the step whose number is in a file, which appears while it trains."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rankscope.agent.shutdown.torch_threads import drain_gloo_threads

PAUSE_S = 0.02


def main() -> None:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    end, steps = Path(sys.argv[1]), 0
    while not end.exists() or steps <= int(end.read_text()):
        model(torch.ones(4, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(PAUSE_S)
        steps += 1
    dist.destroy_process_group()
    drain_gloo_threads()


if __name__ == "__main__":
    main()
