"""A small run on GPUs: plain, long (the same steps again for ten seconds), compiled, with a CUDA graph captured from
its steps, or with NCCL among ranks.

Every rank prints its losses; so that two runs can be compared nothing depends on time.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 256
BATCH = 64
STEPS = 60
LONG_S = 10.0
CAPTURE_AT = 20
"""During the windows of an early run."""


class Job:
    def __init__(self, *, nccl: bool, compiled: bool) -> None:
        rank = int(os.environ.get("LOCAL_RANK", "0"))
        torch.cuda.set_device(rank)
        torch.manual_seed(7)
        self.model: nn.Module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)).cuda()
        if nccl:
            dist.init_process_group("nccl")
            self.model = DistributedDataParallel(self.model, device_ids=[rank])
        if compiled:
            self.model.compile()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-2)
        rows = torch.randn(STEPS * BATCH, WIDTH, generator=torch.Generator().manual_seed(rank))
        self.batches = list(rows.split(BATCH))
        self.losses: list[float] = []

    def step(self, batch: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        loss: torch.Tensor = self.model(batch).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss

    def train(self, batches: list[torch.Tensor]) -> None:
        self.losses += [self.step(batch.cuda()).item() for batch in batches]

    def train_with_graph(self) -> None:
        self.train(self.batches[:CAPTURE_AT])
        given = torch.empty(BATCH, WIDTH, device="cuda")
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):  # what has never run must not be captured
            for batch in self.batches[CAPTURE_AT : CAPTURE_AT + 3]:
                given.copy_(batch)
                self.step(given)
        torch.cuda.current_stream().wait_stream(beside)
        self.optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = self.step(given)
        for batch in self.batches[CAPTURE_AT + 3 :]:
            given.copy_(batch)
            graph.replay()
            self.losses.append(loss.item())
        self.train(self.batches)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("how", choices=("plain", "long", "compiled", "graph", "nccl"))
    how = parser.parse_args().how
    job = Job(nccl=how == "nccl", compiled=how == "compiled")
    if how == "graph":
        job.train_with_graph()
    else:
        end_s = time.monotonic() + (LONG_S if how == "long" else 0.0)
        job.train(job.batches)
        while time.monotonic() < end_s:
            job.train(job.batches)
    print(f"losses {' '.join(f'{loss:.6e}' for loss in job.losses)}", flush=True)
    if how == "nccl":
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
