"""A small DistributedDataParallel job with what users' loops have: dropout, accumulation, epochs, evaluation, workers,
and ranges of their own around the epochs and the batches.

Rank 0 prints each loss with all its digits, so that two runs can be compared bit by bit.
"""

import argparse
import contextlib
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function
from torch.utils.data import DataLoader, Dataset

from rankscope.agent.shutdown.torch_threads import drain_gloo_threads

WIDTH = 64
BATCH = 4


class Readings(Dataset[torch.Tensor]):
    """Defined in __main__: the workers of `spawn` and `forkserver` have to find it again."""

    def __init__(self, batches: int, seed: int) -> None:
        self.rows = torch.randn(batches * BATCH, WIDTH, generator=torch.Generator().manual_seed(seed))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index]


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=10, help="optimizer steps of an epoch")
    parser.add_argument("--accumulate", type=int, default=1, help="backwards of a step")
    parser.add_argument("--pause-s", type=float, default=0.0, help="after each batch")
    parser.add_argument("--evaluate", action="store_true", help="after each epoch")
    parser.add_argument("--workers", nargs="*", default=[], help="how the loader of each epoch starts its worker")
    return parser.parse_args()


class Training:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.readings = Readings(options.steps * options.accumulate, seed=dist.get_rank())
        layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.3), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.model = DistributedDataParallel(layers)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.losses: list[str] = []

    def load(self, workers: str | None) -> "DataLoader[torch.Tensor]":
        if workers is None:
            return DataLoader(self.readings, batch_size=BATCH)
        return DataLoader(self.readings, batch_size=BATCH, num_workers=1, multiprocessing_context=workers)

    def train(self, workers: str | None) -> None:
        for number, batch in enumerate(self.load(workers), start=1):
            with record_function("a batch"):
                self.learn(batch, steps=number % self.options.accumulate == 0)
            time.sleep(self.options.pause_s)

    def learn(self, batch: torch.Tensor, *, steps: bool) -> None:
        with contextlib.nullcontext() if steps else self.model.no_sync():
            loss = self.model(batch).square().mean()
            loss.backward()
        self.losses.append(loss.item().hex())
        if steps:
            self.optimizer.step()
            self.optimizer.zero_grad()

    def evaluate(self) -> None:
        self.model.eval()
        with torch.no_grad():
            for batch in self.load(None):
                self.model(batch)
        self.model.train()


def main() -> None:
    options = read_options()
    torch.manual_seed(7)
    dist.init_process_group("gloo")
    training = Training(options)
    for workers in options.workers or [None] * options.epochs:
        with record_function("an epoch"):
            training.train(workers)
        if options.evaluate:
            training.evaluate()
    if dist.get_rank() == 0:
        print(f"losses {' '.join(training.losses)}\n", end="")
    dist.destroy_process_group()
    drain_gloo_threads()  # a job without the agent has to end well too


if __name__ == "__main__":
    main()
