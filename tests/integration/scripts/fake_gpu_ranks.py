"""Trains DDP on the fake GPU under torchrun: gradients go through the device's collectives, and nothing else keeps the
ranks together. The host waits for the device at `loss.item()`, in every step or every `--read-every` steps and the
last two, so that all records but the last are complete. With `--host-s` it works so long by itself in every step,
hidden by a kernel of the forward that lasts longer, but on the waiting rank, which reads its loss before.

Writes the work of this rank's device to `work.RANK` in the folder, and ends when there is a file `end`.
"""

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rankscope
from rankscope.measure.units import NS_PER_S
from tests.fake_gpu import ALL_OPERATORS, MEMCPY, FakeGpu

TRANSFER_NS = 300_000
COPY_NS = 200_000
HIDES = 1.2
"""The kernel that hides the work of the host lasts so much longer."""

parser = argparse.ArgumentParser()
parser.add_argument("library")
parser.add_argument("folder", type=Path)
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--kernel-ns", type=int, required=True)
parser.add_argument("--slow-rank", type=int)
parser.add_argument("--slow-ratio", type=float, default=1.0)
parser.add_argument("--slow-from", type=int, default=0)
parser.add_argument("--host-s", type=float, default=0.0)
parser.add_argument("--waiting-rank", type=int)
parser.add_argument("--read-every", type=int, default=1)
parser.add_argument("--in-traces", action="store_true", help="torch's own profiler records the device, too")
options = parser.parse_args()
rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

torch.set_num_threads(1)
gpu = FakeGpu(options.library)
gpu.meet(options.folder / "collectives", rank, world_size)
if options.in_traces:
    gpu.join_torchs_profiler()
gpu.give_to_agent()
assert rankscope.start()


def create(store: Any, rank: int, size: int, timeout: Any) -> Any:
    """Return the backend of the ranks' start; all communication of the training is the device's."""
    return dist.ProcessGroupGloo(store, rank, size, timeout)


dist.Backend.register_backend("fake_nccl", create, devices=["cpu"])
dist.init_process_group("fake_nccl")
model = DistributedDataParallel(nn.Sequential(*(nn.Linear(16, 16) for _ in range(4))), bucket_cap_mb=0.001)


def reduce_on_device(
    _state: object,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """Enqueue the bucket's all-reduce and return its future, over at once for the host. The training's stream waits for
    all of them at the end of backward, where DDP's own callback lets it.
    """
    gpu.all_reduce(bucket.buffer().numel(), TRANSFER_NS)
    if bucket.is_last():
        engine: Any = torch.autograd.Variable
        engine._execution_engine.queue_callback(gpu.join)
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


model.register_comm_hook(None, reduce_on_device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batch = torch.ones(4, 16)
gpu.launch(ALL_OPERATORS, options.kernel_ns)
gpu.launch("aten::mean", options.kernel_ns + round(HIDES * options.host_s * NS_PER_S))
gpu.launch(
    "aten::_local_scalar_dense", COPY_NS, kind=MEMCPY, name="Memcpy DtoH (Device -> Pageable)", call="cudaMemcpyAsync"
)
gpu.block("aten::_local_scalar_dense")
for step in range(options.steps):
    if step == options.slow_from and rank == options.slow_rank:
        gpu.set_fault(ratio=options.slow_ratio)
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    if rank == options.waiting_rank:
        loss.item()  # one rank waits here
    time.sleep(options.host_s)
    loss.backward()
    optimizer.step()
    if (step + 1) % options.read_every == 0 or step >= options.steps - 2:
        loss.item()
gpu.write_work(options.folder / f"work.{rank}")
while not (options.folder / "end").exists():
    time.sleep(0.05)
dist.destroy_process_group()
