"""A language model of a few blocks in bf16 that trains under the agent until the FLOPs of its steps have been measured,
and then for some seconds that it times itself.

Prints, as JSON, the FLOPs of a step by hand, the mean duration of a step by its own clock, the mean time of the device,
and after how many seconds FLOPs were known. It gives up after `--wait-s`.
"""

import argparse
import json
import time

import torch
from torch import nn
from torch.nn import functional

import rankscope
from rankscope.agent import launch

BATCH, LENGTH, WIDTH, HEADS, BLOCKS, VOCABULARY = 8, 1024, 1024, 16, 6, 8192
TOKENS = BATCH * LENGTH
WEIGHTS = BLOCKS * 12 * WIDTH * WIDTH + WIDTH * VOCABULARY
"""Of the products: queries, keys and values, their output, two layers four times as wide; and the head."""
ATTENTION = BLOCKS * 2 * 2 * BATCH * LENGTH * LENGTH * WIDTH
"""Two products of LENGTH x LENGTH in each head, 2 FLOPs for a multiply-accumulate."""
FORWARD = 2 * TOKENS * WEIGHTS + ATTENTION
MODEL = 3 * FORWARD
EXECUTED = 3 * 2 * TOKENS * WEIGHTS + 7 * ATTENTION // 2
"""The backward of fused attention has five products: it makes the first one of the forward again."""


class Block(nn.Module):
    """Attention and two linear layers, each around a norm and added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.all_of_it, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (BATCH, LENGTH, WIDTH) of the same."""
        parts = self.all_of_it(self.first(x)).view(BATCH, LENGTH, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2])
        x = x + self.out(mixed.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))
        y: torch.Tensor = x + self.narrow(functional.gelu(self.wide(self.second(x))))
        return y


def main() -> None:
    """Train, and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--wait-s", type=float, default=75.0)
    parser.add_argument("--timed-s", type=float, default=4.0)
    options = parser.parse_args()
    assert rankscope.start()
    torch.manual_seed(0)
    layers = [nn.Embedding(VOCABULARY, WIDTH), *(Block() for _ in range(BLOCKS)), nn.Linear(WIDTH, VOCABULARY)]
    model = nn.Sequential(*layers).cuda().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH), device="cuda")
    assert launch.session is not None
    flops = launch.session.calls._flops

    def train_one() -> None:
        loss = functional.cross_entropy(model(tokens).view(-1, VOCABULARY), tokens.view(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        float(loss.detach())  # waits for the device: the host's clock has the whole step
        rankscope.step()

    begin_s = time.monotonic()
    while flops._measured is None and time.monotonic() - begin_s < options.wait_s:
        train_one()
    known_s, steps = time.monotonic() - begin_s, 0
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    timed_s = time.monotonic()
    while time.monotonic() - timed_s < options.timed_s:
        train_one()
        steps += 1
    end.record()
    end.synchronize()
    step_s = (time.monotonic() - timed_s) / steps
    said = {"model": MODEL, "executed": EXECUTED, "step_s": step_s, "device_s": begin.elapsed_time(end) / 1000 / steps}
    reason = "" if flops._measured is not None else flops.absent.get("executed", "")
    print(json.dumps({**said, "known_s": known_s, "absent": reason}), flush=True)


if __name__ == "__main__":
    main()
