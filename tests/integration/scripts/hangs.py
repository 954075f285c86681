"""A small job on every rank in which one rank, after some steps, stops to take part: it hangs, or it ends.

Every step ends with an all_reduce of 777 numbers. Rank --rank does --what in front of that of step --at. With --outlive
the others go on waiting once it is gone, as they do where the backend does not notice, and nobody can ask them to end.
"""

import argparse
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

PAUSE_S = 0.01
FOR_EVER_S = 600


def sleep_for_ever() -> None:
    """The interpreter is free; only this thread does nothing."""
    time.sleep(FOR_EVER_S)


def hold_the_interpreter() -> None:
    """A call into C that keeps the interpreter's lock: no other Python thread of the process runs."""
    ctypes.PyDLL(None).sleep(FOR_EVER_S)


def stop_itself() -> None:
    """As a debugger or a shell does."""
    os.kill(os.getpid(), signal.SIGSTOP)


def read_nowhere() -> None:
    """A segmentation fault."""
    ctypes.string_at(0)


WHAT: dict[str, Callable[[], None]] = {
    "sleep": sleep_for_ever,
    "hold": hold_the_interpreter,
    "stop": stop_itself,
    "segv": read_nowhere,
    "abort": os.abort,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: os._exit(3),
    "none": lambda: None,
}


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--what", choices=tuple(WHAT), default="none")
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--at", type=int, default=10)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--pause-s", type=float, default=PAUSE_S, help="of each step")
    parser.add_argument("--outlive", action="store_true")
    options = parser.parse_args()
    if options.outlive:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    numbers = torch.ones(777)
    for step in range(options.steps):
        model(torch.ones(4, 8)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(options.pause_s)
        if (step, rank) == (options.at, options.rank):
            WHAT[options.what]()
        try:
            dist.all_reduce(numbers)
        except RuntimeError:
            if not options.outlive:
                raise
            sleep_for_ever()
    sys.stdout.write(f"rank {rank} has trained\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
