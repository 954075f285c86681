"""Train a model of BLOCKS equal blocks, one of which may take longer on one rank, and print what the script's own clock
says of each: its forward and its backward, medians of a step.

Arguments: how it is parallel (ddp, fsdp2, or neither), the slow rank and block, how many times as long that takes and
from which step on, and whether blocks are checkpointed or compiled.
"""

import argparse
import sys
import time
from collections import defaultdict
from statistics import median
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

BLOCKS, WIDTH, ROWS = 8, 16, 4


class Clock:
    """How long the work of each block took in each step, in ns, by block and direction."""

    worked: ClassVar[defaultdict[tuple[int, str], list[int]]] = defaultdict(list)


class _Work(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: torch.Tensor, number: int, work_s: float) -> torch.Tensor:
        ctx.number, ctx.work_s = number, work_s
        _work(number, "forward", work_s)
        return features.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        _work(ctx.number, "backward", 2 * ctx.work_s)
        return gradients[0], None, None


def _work(number: int, direction: str, work_s: float) -> None:
    begin_ns = time.perf_counter_ns()
    if work_s:
        time.sleep(work_s)
    Clock.worked[number, direction].append(time.perf_counter_ns() - begin_ns)


class Block(nn.Module):
    """A block that works for `work_s`, and twice as long in its backward."""

    def __init__(self, number: int, work_s: float) -> None:
        super().__init__()
        self.number, self.work_s = number, work_s
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return the features and what two layers make of them."""
        if self.work_s:
            features = _Work.apply(features, self.number, self.work_s)  # type: ignore[no-untyped-call]
        changed: torch.Tensor = features + self.second(torch.relu(self.first(features)))
        return changed


class Model(nn.Module):
    """An embedding, the blocks, and a head."""

    def __init__(self, work_s: float, *, is_checkpointed: bool) -> None:
        super().__init__()
        self.is_checkpointed = is_checkpointed
        self.embed, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        self.layers = nn.ModuleList(Block(number, work_s) for number in range(BLOCKS))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return one number a row."""
        features = self.embed(features)
        for layer in self.layers:
            features = checkpoint(layer, features, use_reentrant=False) if self.is_checkpointed else layer(features)
        out: torch.Tensor = self.head(features)
        return out


def build(options: argparse.Namespace) -> nn.Module:
    """Return the model of this rank, parallel as asked."""
    torch.manual_seed(0)
    model = Model(options.work_s, is_checkpointed=options.checkpointed)
    if options.compiled:
        for place, layer in enumerate(model.layers):
            compiled: Any = torch.compile(layer, backend="aot_eager", fullgraph=True)
            model.layers[place] = compiled
    if options.parallel == "fsdp2":
        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
        return model
    return DistributedDataParallel(model) if options.parallel == "ddp" else model


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("parallel", choices=("ddp", "fsdp2", "alone"))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--work-s", type=float, default=0.002)
    parser.add_argument("--slow", type=int, default=-1)
    parser.add_argument("--block", type=int, default=5)
    parser.add_argument("--times", type=float, default=4.0)
    parser.add_argument("--from-step", type=int, default=0)
    parser.add_argument("--checkpointed", action="store_true")
    parser.add_argument("--compiled", action="store_true")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = build(options)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(rank)
    blocks = [one for one in model.modules() if isinstance(one, Block)]
    loss = torch.zeros(())
    for step in range(options.steps):
        if rank == options.slow and step == options.from_step:
            blocks[options.block].work_s *= options.times
        batch = torch.randn(ROWS, WIDTH, generator=generator)
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    for number in range(BLOCKS):
        told = [Clock.worked[number, direction] for direction in ("forward", "backward")]
        medians = [int(median(times[len(times) // 2 :])) if times else 0 for times in told]
        sys.stdout.write(f"clock {rank} {number} {medians[0]} {medians[1]}\n")
    sys.stdout.write(f"loss {rank} {float(loss.item()).hex()}\n")
    if options.compiled:
        counters = torch._dynamo.utils.counters
        broken = sum(counters["graph_break"].values())
        sys.stdout.write(f"graphs {rank} {counters['stats']['unique_graphs']} {broken}\n")
    del model, blocks, optimizer  # first: docs/torch.md
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
