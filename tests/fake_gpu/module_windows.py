"""A model on the fake GPU, and hooks of it and of autograd that see when each module is at work.

The device's own list of work then says what was launched in each of these windows.
"""

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.fake_gpu import FakeGpu

OPERATORS = (
    "aten::addmm", "aten::mm", "aten::add", "aten::clamp_min", "aten::threshold_backward", "aten::sum", "aten::pow",
    "aten::mul", "aten::div", "aten::detach", "aten::_foreach_add_", "aten::add_",
)  # fmt: skip
"""Operators that launch a kernel. Those around them, and autograd's own ranges, launch none."""


def launch_all(gpu: FakeGpu) -> None:
    """Let each operator launch a kernel of a length of its own."""
    for operator in OPERATORS:
        gpu.launch(operator, length_ns(operator))


def length_ns(operator: str) -> int:
    """The length of the kernel that an operator launches."""
    return 10_000 + 1_000 * OPERATORS.index(operator)


class Block(nn.Module):
    """A residual block: modules inside, and an addition of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down, self.act = nn.Linear(width, 2 * width), nn.Linear(2 * width, width), nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x and what the block adds."""
        added: torch.Tensor = self.down(self.act(self.up(x)))
        return x + added


class Hooks:
    """Windows of time, by the host's clock, of each module: forwards, and backwards of the nodes made in them."""

    def __init__(self, model: nn.Module) -> None:
        self.windows: dict[str, dict[str, list[tuple[int, int]]]] = defaultdict(lambda: {"forward": [], "backward": []})
        self._started: list[int] = []
        self._known: set[Any] = set()
        for name, module in model.named_modules():
            module.register_forward_pre_hook(self._begin)
            module.register_forward_hook(self._make_end(name or "model"), always_call=True)

    def take(self) -> dict[str, dict[str, list[tuple[int, int]]]]:
        """Return the windows since the last call."""
        taken = dict(self.windows)
        self.windows.clear()
        self._known.clear()
        return taken

    def _begin(self, _module: nn.Module, _inputs: object) -> None:
        self._started.append(time.perf_counter_ns())

    def _make_end(self, name: str) -> Callable[..., None]:
        def end(_module: nn.Module, _inputs: object, output: torch.Tensor | None) -> None:
            self.windows[name]["forward"].append((self._started.pop(), time.perf_counter_ns()))
            if output is not None:  # else the forward has raised
                self._watch_nodes(name, output.grad_fn)

        return end

    def _watch_nodes(self, name: str, node: Any) -> None:
        """Watch the nodes that no module has had yet: those of inner modules are known, for they ended before."""
        if node is None or node in self._known or "AccumulateGrad" in node.name():
            return
        self._known.add(node)
        begun: list[int] = []
        node.register_prehook(lambda _grads: begun.append(time.perf_counter_ns()))
        node.register_hook(
            lambda _in, _out: self.windows[name]["backward"].append((begun.pop(), time.perf_counter_ns()))
        )
        for inner, _ in node.next_functions:
            self._watch_nodes(name, inner)
