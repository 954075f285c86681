"""Trains with scopes in every step: nested, decorated, left by an exception, in compiled code and on another thread.

It prints each loss with all its digits.
"""

import argparse
import contextlib
import threading

import torch
from torch import nn

import rankscope

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--compile", action="store_true")
options = parser.parse_args()


@rankscope.scope("activate")
def activate(x: torch.Tensor) -> torch.Tensor:
    return x.relu()


def mix(x: torch.Tensor) -> torch.Tensor:
    with rankscope.scope("inside of compiled code"):
        return x * 2 + 1


def fail() -> None:
    with rankscope.scope("fails"):
        raise LookupError


torch.manual_seed(7)
if options.compile:
    mix = torch.compile(mix, backend="aot_eager", fullgraph=True)
layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
optimizer = torch.optim.SGD(layers.parameters(), lr=0.01)
losses = []
for _ in range(options.steps):
    x = torch.randn(4, 16)
    with rankscope.scope("forward"):
        for layer in layers:
            with rankscope.scope("layer"):
                x = activate(layer(x))
    with rankscope.scope("around"):
        loss = mix(x).square().mean()
    with contextlib.suppress(LookupError):
        fail()
    other = threading.Thread(target=lambda: activate(torch.ones(1)))
    other.start()
    other.join()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(float(loss.item()).hex())
print(f"losses {' '.join(losses)}")
