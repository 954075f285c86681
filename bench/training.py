"""The job of the benchmarks: an ordinary DDP or FSDP2 script, which notes when each step ends and what memory it has.

It is the same in all arms and knows nothing of rankscope. A small transformer learns random tokens, so that a step has
what a real one has: a data loader, a few hundred to a few thousand operators, and collectives for every gradient.
"""

import argparse
import faulthandler
import itertools
import json
from array import array
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns, process_time_ns
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

PARALLEL = ("ddp", "fsdp")
TOKENS = 256
HEADS = 4


@dataclass(frozen=True, kw_only=True)
class Size:
    """A model and its batch. `step_ms`, about what a step takes on two cores, sets how many there are in a run."""

    step_ms: int
    width: int
    layers: int
    context: int
    batch: int

    def __str__(self) -> str:
        return f"width {self.width}, {self.layers} layers, batch {self.batch} x {self.context} tokens"


SIZES = {
    "short": Size(step_ms=10, width=48, layers=4, context=32, batch=4),
    "long": Size(step_ms=150, width=192, layers=4, context=80, batch=10),
}


class Transformer(nn.Module):
    """A causal transformer over tokens."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, size.width)
        layer = nn.TransformerEncoderLayer(
            size.width, HEADS, 4 * size.width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, size.layers, enable_nested_tensor=False)
        self.head = nn.Linear(size.width, TOKENS)
        self.mask: Tensor
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(size.context))

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next token, shape (batch, context, TOKENS)."""
        logits: Tensor = self.head(self.blocks(self.embed(tokens), mask=self.mask, is_causal=True))
        return logits


class Ended(NamedTuple):
    """When each step ended, and the CPU time that the process had got by then, all its threads together."""

    at_ns: list[int]
    cpu_ns: list[int]


def parallelise(model: Transformer, way: str) -> nn.Module:
    """The model as the ranks train it together: `ddp`, or `fsdp` for FSDP2 with each block sharded by itself."""
    if way == "ddp":
        return DistributedDataParallel(model)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def train(size: Size, steps: int, way: str) -> Ended:
    """Train, and read both clocks at the end of each step, in all arms at the same place."""
    torch.manual_seed(0)
    tokens = torch.randint(TOKENS, (steps * size.batch, size.context + 1))
    batches = DataLoader(TensorDataset(tokens), batch_size=size.batch)
    model = parallelise(Transformer(size), way)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    at_ns, cpu_ns = array("q", bytes(8 * steps)), array("q", bytes(8 * steps))
    for step, (rows,) in enumerate(batches):
        loss = nn.functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        at_ns[step], cpu_ns[step] = perf_counter_ns(), process_time_ns()
    return Ended(list(at_ns), list(cpu_ns))


def read_memory() -> dict[str, int]:
    """Bytes of this process: `rss` all that is resident, `pss` with shared pages divided among those who share them."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    return {name.lower(): 1024 * int(fields[name].split()[0]) for name in ("Rss", "Pss")}


def main() -> None:
    """Train on this rank; rank 0 writes what the steps after the warm-up took."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=sorted(SIZES), required=True)
    parser.add_argument("--parallel", choices=PARALLEL, default="ddp")
    parser.add_argument("--warmup", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--limit-s", type=float, required=True, help="the process ends itself after that time")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    faulthandler.dump_traceback_later(options.limit_s, exit=True)
    dist.init_process_group("gloo")
    ended = train(SIZES[options.size], options.warmup + options.steps, options.parallel)
    if dist.get_rank() == 0:
        at_ns, cpu_ns = (times[options.warmup - 1 :] for times in ended)
        steps_ns = [after - before for before, after in itertools.pairwise(at_ns)]
        measured = {"steps_ns": steps_ns, "cpu_ns": cpu_ns[-1] - cpu_ns[0], "memory_bytes": read_memory()}
        options.out.write_text(json.dumps(measured))
    dist.destroy_process_group()
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
