"""Trains on two ranks that all-reduce their gradients on the host, with a worker server that has these as collectives
of NCCL that torch does not time. Rank 1 waits LATE_S longer for each batch. It ends when the file of its argument is
there.
"""

import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

import rankscope.agent
from tests.unit.agent.sidecar.fake_worker_server import FakeWorkerServer, dump, nccl_entry

RING = 400
LATE_S = 0.02
EVER = 1_000_000

entries: list[dict[str, Any]] = []


class WorkerServer(FakeWorkerServer):
    """In place of torch's."""

    def __init__(self, path: str) -> None:
        super().__init__(path, {"dump_nccl_trace_json": lambda _parameters: dump(*entries[-RING:])})


class Batches(torch.utils.data.Dataset[torch.Tensor]):
    """Batches that rank 1 waits for."""

    def __len__(self) -> int:
        return EVER

    def __getitem__(self, index: int) -> torch.Tensor:
        if rank == 1:
            time.sleep(LATE_S)
        return torch.ones(8)


c10d._WorkerServer = WorkerServer  # type: ignore[misc, assignment]
if not hasattr(c10d, "ProcessGroupNCCL"):
    c10d.ProcessGroupNCCL = object  # type: ignore[misc, assignment]  # as in a torch that has NCCL
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
group = dist.distributed_c10d._get_default_group()
_, store = dist.distributed_c10d._world.pg_map[group]
dist.distributed_c10d._world.pg_map[group] = "nccl", store  # as the agent finds it described
assert rankscope.agent.start()
model = torch.nn.Linear(8, 8)
is_over = torch.zeros(1)


def exchange(*tensors: torch.Tensor) -> None:
    """All-reduce tensors."""
    for tensor in tensors:
        place = [group.group_name, "default_pg"]
        entries.append(nccl_entry(len(entries), time.time_ns(), None, retired=True, process_group=place))
        dist.all_reduce(tensor)


for parameter in model.parameters():  # within backward, as DDP does
    parameter.register_post_accumulate_grad_hook(lambda one: exchange(one.grad, is_over))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in torch.utils.data.DataLoader(Batches(), batch_size=1):
    is_over += float(Path(sys.argv[1]).exists())
    model(batch).sum().backward()
    optimizer.step()
    if is_over.item():
        break
dist.destroy_process_group()
