"""A small job over gloo in which something of a real training goes wrong, or only takes long, in front of a collective.

A step is a backward, an optimizer step, an all_reduce of 777 numbers over all ranks and a broadcast of 5 numbers. At
step --at, the first --what happens in front of the all_reduce, the second APART steps later, and so on. Ranks 0 and 1
also share two groups of their own.
"""

import argparse
import os
import queue
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

FOR_EVER_S = 600
LONG_S = 5.0
"""How long healthy work takes that the other ranks wait for."""
GO_ON = "SITUATION_GOES_ON"
"""Variable with the path of a file that ends an evaluation once it exists."""
APART = 4
STEPS_AFTER = 20
"""Steps from the first of these on."""


class Pair(NamedTuple):
    """The rank, and the two groups of ranks 0 and 1."""

    rank: int
    first: dist.ProcessGroup
    second: dist.ProcessGroup


def loop_for_ever(_: Pair) -> None:
    """Compute and never end."""
    number = 0
    while number >= 0:
        number += 1


def evaluate(pair: Pair) -> None:
    """Evaluate on rank 0 alone, as nanoGPT does, until the test has seen it: the others wait in the next collective."""
    if pair.rank != 0:
        return
    model = nn.Linear(64, 64)
    while not Path(os.environ[GO_ON]).exists():
        with torch.no_grad():
            model(torch.ones(64, 64)).mean().item()


def evaluate_in_pieces(pair: Pair) -> None:
    """Evaluate on rank 0 alone, most of the time asleep, as who waits for a slow tokenizer of another process does."""
    while pair.rank == 0 and not Path(os.environ[GO_ON]).exists():
        time.sleep(0.01)  # a small piece


def prepare_data() -> None:
    """Do what the other ranks wait for."""
    time.sleep(FOR_EVER_S)  # prepares data


def wait_in_store(pair: Pair) -> None:
    """Wait in torch's store for what rank 1 prepares."""
    store = dist.distributed_c10d._get_default_store()
    if pair.rank == 1:
        prepare_data()
    else:
        store.wait(["prepared"], timedelta(seconds=FOR_EVER_S))


def wait_in_monitored_barrier(pair: Pair) -> None:
    """Wait in a barrier that the flight recorder does not know for what rank 1 prepares."""
    if pair.rank == 1:
        prepare_data()
    dist.monitored_barrier(timeout=timedelta(seconds=FOR_EVER_S))


def wait_in_queue(pair: Pair) -> None:
    """Wait on rank 1 for an item that nobody puts."""
    if pair.rank == 1:
        queue.Queue[int]().get()


def wait_for_future(pair: Pair) -> None:
    """Wait on rank 1 for a result that nobody sets."""
    if pair.rank == 1:
        torch.futures.Future[int]().wait()


class Sleeping(Dataset[torch.Tensor]):
    """A data set whose storage does not answer."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, _: int) -> torch.Tensor:
        time.sleep(FOR_EVER_S)  # the storage
        return torch.ones(8)


def load_for_ever(pair: Pair) -> None:
    """Wait for a batch that never comes."""
    if pair.rank == 1:
        next(iter(DataLoader(Sleeping())))


class SlowFile:
    """A file on storage that takes LONG_S for the first write."""

    def __init__(self) -> None:
        self._is_first = True

    def write(self, block: bytes) -> int:
        if self._is_first:
            self._is_first = False
            time.sleep(LONG_S)
        return len(block)

    def flush(self) -> None:
        pass


def save(pair: Pair) -> None:
    """Write a checkpoint to slow storage on rank 0 alone."""
    if pair.rank == 0:
        torch.save({"weight": torch.ones(8)}, SlowFile())  # type: ignore[arg-type]


def compile_for_long(pair: Pair) -> None:
    """Compile on rank 0 alone."""

    def backend(graph: Any, _: Any) -> Any:
        time.sleep(LONG_S)
        return graph

    if pair.rank == 0:
        torch.compile(nn.Linear(8, 8), backend=backend)(torch.ones(8, 8))


def stop_itself(pair: Pair) -> None:
    """Stop, as a debugger or a shell does."""
    if pair.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)


def miss_sub_group(pair: Pair) -> None:
    """Sleep on rank 1 in front of a collective of ranks 0 and 1; rank 2 waits in one of all."""
    if pair.rank == 1:
        time.sleep(FOR_EVER_S)  # in front of the sub-group
    if pair.rank == 0:
        dist.all_reduce(torch.ones(3), group=pair.first)


def cross_orders(pair: Pair) -> None:
    """Enter two groups in different orders."""
    groups = (pair.first, pair.second) if pair.rank == 0 else (pair.second, pair.first)
    if pair.rank < 2:
        for group in groups:
            dist.all_reduce(torch.ones(3), group=group)


def mismatch_operation(pair: Pair) -> None:
    """Call another operation on rank 1."""
    if pair.rank == 1:
        dist.all_gather([torch.ones(777) for _ in range(dist.get_world_size())], torch.ones(777))


def mismatch_size(pair: Pair) -> None:
    """Reduce fewer numbers on rank 1."""
    if pair.rank == 1:
        dist.all_reduce(torch.ones(3))


def miss_send(pair: Pair) -> None:
    """Receive on rank 1 what rank 0 does not send."""
    if pair.rank == 1:
        dist.recv(torch.ones(3), src=0)


def shift(_: Pair) -> None:
    """Leave out one of several equal collectives on rank 1, so that the job goes on: see main."""


def skip(pair: Pair) -> None:
    """Leave out one collective on rank 1: see main."""


WHAT: dict[str, Callable[[Pair], None]] = {
    "loop": lambda pair: loop_for_ever(pair) if pair.rank == 1 else None,
    "evaluate": evaluate,
    "pieces": evaluate_in_pieces,
    "store": wait_in_store,
    "monitored": wait_in_monitored_barrier,
    "queue": wait_in_queue,
    "future": wait_for_future,
    "load": load_for_ever,
    "save": save,
    "compile": compile_for_long,
    "stop": stop_itself,
    "sub_group": miss_sub_group,
    "cross": cross_orders,
    "operation": mismatch_operation,
    "size": mismatch_size,
    "send": miss_send,
    "skip": skip,
    "shift": shift,
}


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--what", choices=tuple(WHAT), nargs="+", default=())
    parser.add_argument("--at", type=int, default=10)
    parser.add_argument("--pause-s", type=float, default=0.01)
    parser.add_argument("--equal", type=int, default=0, help="all_reduces more in each step, equal to the first")
    parser.add_argument("--steps-after", type=int, default=STEPS_AFTER)
    options = parser.parse_args()
    happens = {options.at + APART * number: what for number, what in enumerate(options.what)}
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pair = Pair(rank, dist.new_group([0, 1]), dist.new_group([0, 1]))
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(options.at + options.steps_after):
        model(torch.ones(4, 8)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(options.pause_s)
        if step in happens:
            WHAT[happens[step]](pair)
        left_out = int(rank == 1 and happens.get(step) in {"skip", "shift"})
        for _ in range(1 + options.equal - left_out):
            dist.all_reduce(torch.ones(777))
        if not options.equal:
            dist.broadcast(torch.ones(5), src=0)
    sys.stdout.write(f"rank {rank} has trained\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
