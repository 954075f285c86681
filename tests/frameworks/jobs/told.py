"""What the jobs here share: the work of a forward, in which the runner makes one rank slow, and what a rank says."""

import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

WORK_S = 0.004
"""How long each forward sleeps, on all ranks, in place of a device that computes: cores that others use too do not
make it longer, so the ranks of a run without a fault are equally fast.
"""
STEPS = int(os.environ.get("JOB_STEPS", "300"))
"""Optimizer steps of a job, unless it says otherwise."""


class Work(nn.Module):
    """Returns its input after a while, on the slow rank a longer one.

    JOB_SLOW is `RANK:MS:CALLS`: on that rank each forward takes so much longer after so many.
    """

    def __init__(self) -> None:
        super().__init__()
        rank, ms, calls = map(int, os.environ.get("JOB_SLOW", "-1:0:0").split(":"))
        self._slow_rank, self._slow_s, self._healthy_calls = rank, ms / 1e3, calls
        self._calls = 0

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return the same tensor."""
        self.pause()
        return features

    def pause(self, *_: object) -> None:
        """Do the work of a forward; also as a hook before that of a model which is not ours."""
        self._calls += 1
        is_slow = self._calls > self._healthy_calls and dist.get_rank() == self._slow_rank
        time.sleep(WORK_S + (self._slow_s if is_slow else 0.0))


def build_model(width: int = 32) -> nn.Sequential:
    """Return a small model with the same weights on each rank."""
    torch.manual_seed(7)
    return nn.Sequential(Work(), nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))


def draw_batch(step: int, width: int = 32, rows: int = 8) -> torch.Tensor:
    """Return the batch of this rank in that step."""
    seeded = torch.Generator().manual_seed(1_000 * step + dist.get_rank())
    return torch.randn(rows, width, generator=seeded)


def train_plainly(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = STEPS) -> list[float]:
    """Train on this rank's batches in the loop that is written most, and return the losses."""
    losses = []
    for step in range(steps):
        loss = model(draw_batch(step)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def tell(steps: int, losses: Sequence[float]) -> None:
    """Say how many steps the framework counts, and each loss to its last digit: one line, in one write."""
    told = " ".join(float(loss).hex() for loss in losses)
    sys.stdout.write(f"told rank={dist.get_rank()} steps={steps} losses={told}\n")
    sys.stdout.flush()


def tell_history(state: Any) -> None:
    """Say what the `state` of a trainer of transformers counts and has logged."""
    tell(state.global_step, [one["loss"] for one in state.log_history if "loss" in one])
