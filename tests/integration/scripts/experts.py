"""Experts on ranks over gloo: a router sends the tokens of each rank to the ranks that hold the experts, and back.

The plan `--shares` says which share of its tokens each rank sends to each, one after the other for each of `--groups`
groups of ranks with all experts; with `--turning` the plan turns by one rank
with every step, so that another one is hot in each. `--even` pads what is sent to a capacity, as some routers do. A
rank works `--token-us` on each token that comes to it. At the end each rank prints of each step how many tokens came to
the ranks of its group, and for how many ns it was not in a collective, by its own clock.
"""

import argparse
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

WIDTH = 16


class Exchange(torch.autograd.Function):
    """An all-to-all of rows, and of their gradients the other way."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, sent: list[int], came: list[int], group: Any) -> torch.Tensor:
        """Send `sent[r]` rows to rank r, and return the rows that came, `came[r]` of rank r."""
        ctx.sent, ctx.came, ctx.group = sent, came, group
        return exchange(rows, sent, came, group)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        """Send the gradients back."""
        return exchange(gradients[0], ctx.came, ctx.sent, ctx.group), None, None, None


class Clock:
    """For how long this rank has been in collectives, in ns."""

    waited_ns = 0


def count_waits(call: Any, *arguments: Any, **named: Any) -> None:
    """Call a collective, and count its time."""
    begin_ns = time.perf_counter_ns()
    call(*arguments, **named)
    Clock.waited_ns += time.perf_counter_ns() - begin_ns


def exchange(rows: torch.Tensor, sent: list[int], came: list[int], group: Any) -> torch.Tensor:
    """Exchange rows with all ranks of the group."""
    found = rows.new_empty(sum(came), rows.shape[1])
    count_waits(dist.all_to_all_single, found, rows.contiguous(), came, sent, group=group)
    return found


exchanged: Any = Exchange.apply


class Expert(nn.Module):
    """Works on each token that comes."""

    def __init__(self, token_s: float) -> None:
        """Make a layer that takes so long for a token."""
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.token_s = token_s

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return as many rows."""
        time.sleep(self.token_s * len(rows))
        found: torch.Tensor = self.layer(rows)
        return found


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--shares", type=float, nargs="+", required=True)
    parser.add_argument("--tokens", type=int, nargs="+", default=[100])
    parser.add_argument("--groups", type=int, default=1)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--token-us", type=float, default=50.0)
    parser.add_argument("--turning", action="store_true")
    parser.add_argument("--even", action="store_true")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    size = world // options.groups
    mesh = init_device_mesh("cpu", (options.groups, size), mesh_dim_names=("dp", "ep"))
    group, rank = mesh.get_group("ep"), mesh.get_local_rank("ep")
    shares = options.shares[mesh.get_local_rank("dp") * size :][:size]
    tokens = [options.tokens[one % len(options.tokens)] for one in range(size)]  # of each rank's batch
    first, expert, last = nn.Linear(WIDTH, WIDTH), Expert(options.token_us / 1e6), nn.Linear(WIDTH, 1)
    optimizer = torch.optim.SGD([*first.parameters(), *expert.parameters(), *last.parameters()], lr=1e-4)
    routed, own_ns = [], []
    for step in range(options.steps):
        shift = step % size if options.turning else 0
        plan = [shares[(to - shift) % size] for to in range(size)]
        if options.even:
            plan = [1.0 / size] * size
        counts = [[round(share * mine) for share in plan] for mine in tokens]  # [of][to]
        came = [counts[of][rank] for of in range(size)]
        begin_ns, Clock.waited_ns = time.perf_counter_ns(), 0
        optimizer.zero_grad()
        rows = first(torch.randn(sum(counts[rank]), WIDTH))
        at_expert = expert(exchanged(rows, counts[rank], came, group))
        back = exchanged(at_expert, came, counts[rank], group)
        last(back).square().mean().backward()
        for parameter in (*first.parameters(), *last.parameters()):
            count_waits(dist.all_reduce, parameter.grad)
        optimizer.step()
        own_ns.append(time.perf_counter_ns() - begin_ns - Clock.waited_ns)
        routed.append(tuple(sum(counts[of][to] for of in range(size)) for to in range(size)))
    sys.stdout.write("".join(f"routed {dist.get_rank()} {' '.join(map(str, one))}\n" for one in routed))
    sys.stdout.write(f"own {dist.get_rank()} {' '.join(map(str, own_ns))}\n")
    sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
