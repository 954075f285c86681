"""DDP over gloo with a bucket for each layer, more than a group has worker threads. A layer's backward lasts as long as
this rank's value in --work-s; in front of a step it waits for its value in --data-s. With --buffer rank 0 sends a
buffer to the others in each forward.

Each rank prints the median of its own time in a step: without what it waited behind its backward's own work.
"""

import argparse
import statistics
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

LAYERS = 6
WIDTH = 64
BUCKET_MIB = 0.001
"""Less than the 16 KiB of a layer."""


class Work(torch.autograd.Function):
    """Passes its input on; its backward takes some time, and notes when that is over."""

    last_s = 0.0

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, work_s: float) -> Tensor:
        ctx.work_s = work_s
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        time.sleep(ctx.work_s)
        Work.last_s = time.monotonic()
        return gradients[0].clone(), None


class Layers(nn.Module):
    def __init__(self, work_s: float, *, has_buffer: bool) -> None:
        super().__init__()
        if has_buffer:
            self.register_buffer("seen", torch.zeros(8))
        self.work_s = work_s
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, tensor: Tensor) -> Tensor:
        for layer in self.layers:
            tensor = Work.apply(layer(tensor), self.work_s)  # type: ignore[no-untyped-call]
        return tensor


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--work-s", type=float, nargs="+", required=True)
    parser.add_argument("--data-s", type=float, nargs="+")
    parser.add_argument("--buffer", action="store_true")
    parser.add_argument("--steps", type=int, default=150)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    layers = Layers(options.work_s[rank], has_buffer=options.buffer)
    model = DistributedDataParallel(layers, bucket_cap_mb=BUCKET_MIB)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    batch = torch.randn(4, WIDTH)
    own_s = []
    for _ in range(options.steps):
        begin_s = time.monotonic()
        time.sleep(options.data_s[rank] if options.data_s else 0.0)
        optimizer.zero_grad()
        model(batch).sum().backward()
        waited_s = time.monotonic() - Work.last_s
        optimizer.step()
        own_s.append(time.monotonic() - begin_s - waited_s)
    dist.barrier()
    sys.stdout.write(f"own {rank} {1e3 * statistics.median(own_s[options.steps // 3 :]):.3f} ms\n")
    del model, layers, optimizer  # first: docs/torch.md
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
