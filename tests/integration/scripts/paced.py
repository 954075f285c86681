"""A small job on every rank that waits most of its time, as a rank with a GPU does, so that two cores carry several.

It trains until the file of --stop is there (every rank ends after the same step) or --steps are done. One rank may
become slow, in all steps or in each so many, and one may end in its own way.
"""

import argparse
import ctypes
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from rankscope.agent.shutdown.torch_threads import drain_gloo_threads

PAUSE_S = 0.02


def end_by_exception() -> None:
    """An error that nobody catches."""
    raise ValueError("the loss is not a number")


def end_by_fault() -> None:
    """A segmentation fault."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.string_at(0)


ENDS: dict[str, Callable[[], None]] = {
    "raise": end_by_exception,
    "exit": lambda: os._exit(7),
    "fault": end_by_fault,
    "abort": os.abort,
}


def read_options() -> argparse.Namespace:
    """What the test wants."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--stop", type=Path, default=Path("no-such-file"))
    parser.add_argument("--slow-rank", type=int, default=-1)
    parser.add_argument("--slow-from", type=int, default=0)
    parser.add_argument("--slow-s", type=float, default=0.1)
    parser.add_argument("--slow-every", type=int, default=1, help="slow in the first of each so many steps")
    parser.add_argument("--after-s", type=float, default=0.0, help="how long each rank does something else at the end")
    parser.add_argument("--end", choices=(*ENDS, "none"), default="none", help="how rank --end-rank ends")
    parser.add_argument("--end-rank", type=int, default=1)
    parser.add_argument("--end-at", type=int, default=20)
    parser.add_argument("--end-restart", type=int, default=0, help="in which life it does so")
    return parser.parse_args()


class Paced(nn.Module):
    """A layer whose forward takes PAUSE_S, and `slow_s` longer from call `slow_from` on in each `slow_every`th."""

    def __init__(self, slow_from: int, slow_s: float, slow_every: int) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32)
        self._slow_from = slow_from
        self._slow_s = slow_s
        self._slow_every = slow_every
        self._calls = 0

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """The layer, after a while."""
        is_slow = self._calls >= self._slow_from and (self._calls - self._slow_from) % self._slow_every == 0
        time.sleep(PAUSE_S + (self._slow_s if is_slow else 0.0))
        self._calls += 1
        output: torch.Tensor = self.layer(batch)
        return output


def main() -> None:
    """Train."""
    options = read_options()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    restart = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    slow_s = options.slow_s if rank == options.slow_rank else 0.0
    model = DistributedDataParallel(Paced(options.slow_from, slow_s, options.slow_every))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step, stop = 0, torch.zeros(1)
    while step < options.steps and not stop.item():
        for (batch,) in DataLoader(TensorDataset(torch.ones(64, 32)), batch_size=8):
            model(batch).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if (step, rank, restart) == (options.end_at, options.end_rank, options.end_restart):
                ENDS.get(options.end, lambda: None)()
            stop[0] = float(options.stop.exists())
            dist.all_reduce(stop)
            if step == options.steps or stop.item():
                break
    time.sleep(options.after_s)
    sys.stdout.write(f"rank {rank} has trained {step} steps\n")  # at once, or the ranks' lines would mix
    dist.destroy_process_group()
    drain_gloo_threads()  # the model goes with this frame: its group is joined with the GIL held


if __name__ == "__main__":
    main()
