"""Two ranks that train two to three steps a second. Rank 1 keeps 15 MB more in each, as the argument says: tensors in a
list that is a local variable, or rows of Python in an attribute of an object. Rank 0 fills a cache in its first
seconds, which then levels off. They train until they are ended.
"""

import sys
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 64
STEP_S = 0.4
KEPT_BYTES = 15_000_000
ROWS = 60_000
"""Rows that take 16 MB in CPython 3.11."""
CACHE_BYTES, CACHE_STEPS = 20_000_000, 20


class Trainer:
    def __init__(self, model: Any) -> None:
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        self.rows: list[dict[str, str]] = []
        self.cache: list[Any] = []

    def train(self) -> None:
        self.model(torch.randn(4, WIDTH)).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def keep_rows(self, step: int) -> None:
        self.rows.extend({"id": f"{step}-{number}"} for number in range(ROWS))  # keeps rows


def main() -> None:
    kind = sys.argv[1]
    dist.init_process_group("gloo")
    is_leaking = dist.get_rank() == 1
    trainer = Trainer(DistributedDataParallel(nn.Linear(WIDTH, WIDTH)))
    kept = []
    step = 0
    while True:
        begin_s = time.monotonic()
        trainer.train()
        if is_leaking and kind == "tensors":
            kept.append(torch.ones(KEPT_BYTES // 4))  # keeps tensors
        if is_leaking and kind == "rows":
            trainer.keep_rows(step)
        if not is_leaking and step < CACHE_STEPS:
            trainer.cache.append(np.ones(CACHE_BYTES // 8))
        step += 1
        time.sleep(max(0.0, begin_s + STEP_S - time.monotonic()))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
