"""Train a small model by DistributedDataParallel over gloo, for `rankscope selftest`: an ordinary script.

A step computes for COMPUTE_S and pauses for PAUSE_S, as a host does beside a GPU, so that two cores carry four ranks.
"""

import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

COMPUTE_S = 0.008
PAUSE_S = 0.025
WIDTH, BATCH = 32, 8
STEPS = 100_000
"""More than the test waits for: it ends the training."""


class Batches(Dataset[Tensor]):
    """STEPS batches of rows of ones."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return BATCH * STEPS

    def __getitem__(self, _: int) -> Tensor:
        """Return a row, shape (WIDTH,)."""
        return torch.ones(WIDTH)


class Model(nn.Module):
    """A layer that takes its time: CPU time, not a count, so that a step is as long on any machine."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, rows: Tensor) -> Tensor:
        """Return the layer's output, shape (BATCH, WIDTH)."""
        end_s = time.thread_time() + COMPUTE_S
        output: Tensor = self.layer(rows)
        while time.thread_time() < end_s:
            output = torch.tanh(output)
        time.sleep(PAUSE_S)
        return output


def main() -> None:
    """Train on every rank until the process is ended."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for rows in DataLoader(Batches(), batch_size=BATCH):
        optimizer.zero_grad()
        model(rows).mean().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
