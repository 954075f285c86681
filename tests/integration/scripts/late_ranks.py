"""A DDP job whose ranks no launcher has numbered: the script starts them, or each process says late which one it is.

A rank that is to fail does so when the others are gone: torch's launcher ends the rest by SIGTERM, in the middle of
their last reports.
"""

import argparse
import contextlib
import multiprocessing
import os
from collections.abc import MutableSequence

import psutil
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.multiprocessing.spawn import start_processes
from torch.nn.parallel import DistributedDataParallel

import rankscope
from rankscope.agent.shutdown.torch_threads import drain_gloo_threads

STEPS = 12


def join(rank: int, options: argparse.Namespace) -> None:
    """The three ways that scripts have."""
    if options.meet == "address":
        address = f"tcp://127.0.0.1:{options.port}"
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=options.ranks)
        return
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(options.port))
    if options.meet == "environment":
        dist.init_process_group("gloo", rank=rank, world_size=options.ranks)
    else:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(options.ranks))
        init_device_mesh("cpu", (options.ranks,))


def wait_for_others(rank: int, pids: MutableSequence[int]) -> None:
    """Until their processes have ended."""
    for other, pid in enumerate(pids):
        if other != rank:
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(pid).wait()


def train(rank: int, options: argparse.Namespace, pids: MutableSequence[int]) -> None:
    """A few steps; `pids` is where each rank puts its own."""
    pids[rank] = os.getpid()
    join(rank, options)
    if options.start_agent and not rankscope.start():
        raise SystemExit("it has not started")
    model = DistributedDataParallel(nn.Linear(64, 64))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        model(torch.randn(4, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    if rank == options.fails:
        wait_for_others(rank, pids)
        raise ValueError("the loss is not a number")
    dist.destroy_process_group()
    drain_gloo_threads()  # the model goes with this frame: its group is joined with the GIL held


def find_rank() -> int:
    """As srun and mpirun tell it."""
    return int(os.environ.get("SLURM_PROCID") or os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["NUMBER"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--start", choices=("spawn", "fork"), help="else this process is a rank")
    parser.add_argument("--meet", choices=("environment", "address", "mesh"), required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--fails", type=int, help="the rank that does")
    parser.add_argument("--start-agent", action="store_true")
    given = parser.parse_args()
    if given.start:
        shared = multiprocessing.get_context(given.start).Array("i", given.ranks)
        start_processes(train, (given, shared), nprocs=given.ranks, start_method=given.start)
    else:
        train(find_rank(), given, [0] * given.ranks)
    print("trained")
