"""A loop of nanoGPT's shape: batches are cut from one long text, rank 0 alone evaluates, saves and logs."""

import io
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, ACCUMULATED, EVALUATES_EVERY = 12, 2, 4
LENGTH, WORDS = 8, 32

dist.init_process_group("gloo")
is_first = int(os.environ["RANK"]) == 0
text = torch.randint(WORDS, (4_096,))
bare = nn.Sequential(nn.Embedding(WORDS, 16), nn.Linear(16, WORDS))
model = DistributedDataParallel(bare)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def cut_batch() -> tuple[torch.Tensor, torch.Tensor]:
    begins = torch.randint(len(text) - LENGTH - 1, (4,)).tolist()
    inputs = torch.stack([text[begin : begin + LENGTH] for begin in begins])
    targets = torch.stack([text[begin + 1 : begin + 1 + LENGTH] for begin in begins])
    return inputs, targets


def compute_loss(module: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(module(inputs).flatten(0, 1), targets.flatten())


@torch.no_grad()
def estimate_loss() -> float:
    bare.eval()
    losses = [compute_loss(bare, *cut_batch()).item() for _ in range(20)]
    bare.train()
    return sum(losses) / len(losses)


inputs, targets = cut_batch()
loss = torch.zeros(())
for step in range(STEPS):
    if step % EVALUATES_EVERY == 0 and is_first:
        sys.stdout.write(f"step {step}: held out {estimate_loss():.3f}\n")
        torch.save({"model": bare.state_dict(), "optimizer": optimizer.state_dict()}, io.BytesIO())
    for micro in range(ACCUMULATED):
        model.require_backward_grad_sync = micro == ACCUMULATED - 1
        loss = compute_loss(model, inputs, targets) / ACCUMULATED
        inputs, targets = cut_batch()
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if is_first:
        sys.stdout.write(f"loss {loss.item():.3f}\n")

del model, optimizer  # first: docs/torch.md
dist.destroy_process_group()
