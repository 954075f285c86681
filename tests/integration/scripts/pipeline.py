"""A pipeline over gloo: every rank is a stage, which gets its input from the one before and sends its output on.

A step is MICRO_BATCHES forwards and as many backwards, begun by irecv and isend and waited for, and an optimizer step.
A forward and a backward last --work-s each, on stage --slow --times as long from step --from on. At step --silent-at
stage 1 does not send its first output.
"""

import argparse
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

MICRO_BATCHES = 2
SHAPE = (64, 64)
FOR_EVER_S = 600


class Stage:
    """The stage of this rank."""

    def __init__(self, work_s: float) -> None:
        self.rank, self.last = dist.get_rank(), dist.get_world_size() - 1
        self.work_s = work_s
        self.model = nn.Linear(64, 64)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def receive(self, source: int) -> torch.Tensor:
        """Return what another stage sends; at an end of the pipeline there is none, and it is made here."""
        received = torch.ones(SHAPE)
        if 0 <= source <= self.last:
            (work,) = dist.batch_isend_irecv([dist.P2POp(dist.irecv, received, source)])
            work.wait()
        return received

    def send(self, tensor: torch.Tensor, target: int) -> None:
        """Send it to another stage, and wait until it may be changed."""
        if 0 <= target <= self.last:
            work = dist.isend(tensor, target)
            assert work is not None
            work.wait()

    def forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the input and the output of one micro batch."""
        received = self.receive(self.rank - 1).requires_grad_()
        time.sleep(self.work_s)
        return received, self.model(received)

    def backward(self, received: torch.Tensor, output: torch.Tensor) -> None:
        """Run the backward of one micro batch."""
        gradient = self.receive(self.rank + 1)
        time.sleep(self.work_s)
        output.backward(gradient)
        assert received.grad is not None
        self.send(received.grad, self.rank - 1)

    def step(self, *, is_silent: bool) -> None:
        """Train one step."""
        batches = []
        for _ in range(MICRO_BATCHES):
            batches.append(self.forward())
            if is_silent:
                time.sleep(FOR_EVER_S)  # in front of the send
            self.send(batches[-1][1].detach(), self.rank + 1)
        for received, output in reversed(batches):
            self.backward(received, output)
        self.optimizer.step()
        self.optimizer.zero_grad()


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--work-s", type=float, default=0.01)
    parser.add_argument("--slow", type=int, default=-1)
    parser.add_argument("--times", type=float, default=2.0)
    parser.add_argument("--from", dest="from_step", type=int, default=0)
    parser.add_argument("--silent-at", type=int, default=-1)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    stage = Stage(options.work_s)
    for step in range(options.steps):
        if (stage.rank, step) == (options.slow, options.from_step):
            stage.work_s *= options.times
        stage.step(is_silent=(stage.rank, step) == (1, options.silent_at))
    dist.barrier()
    sys.stdout.write(f"stage {stage.rank} has trained\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
