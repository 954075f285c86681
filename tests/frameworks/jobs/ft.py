"""torchft: each rank is a replica of its own, with a quorum in each step and gradients averaged by its manager."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from torchft.coordination import LighthouseServer

from tests.frameworks.jobs.told import STEPS, build_model, draw_batch, tell

dist.init_process_group("gloo")
rank = dist.get_rank()
lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=2) if rank == 0 else None
addresses: list[str | None] = [lighthouse.address() if lighthouse else None]
dist.broadcast_object_list(addresses)
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]  # torch leaves it out of __all__
model = build_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
manager = Manager(
    pg=ProcessGroupGloo(timeout=timedelta(seconds=60)),
    load_state_dict=model.load_state_dict,
    state_dict=model.state_dict,
    min_replica_size=2,
    rank=0,
    world_size=1,
    store_addr="127.0.0.1",
    store_port=store.port,
    lighthouse_addr=addresses[0],
    replica_id=f"replica{os.environ['RANK']}",
    hostname="127.0.0.1",
    init_sync=False,
)
averaged, wrapped = DistributedDataParallel(manager, model), Optimizer(manager, optimizer)
losses = []
while manager.current_step() < STEPS:
    wrapped.zero_grad()
    loss = averaged(draw_batch(manager.current_step())).square().mean()
    loss.backward()
    wrapped.step()
    losses.append(loss.item())
tell(manager.current_step(), losses)
dist.barrier()
manager.shutdown()
if lighthouse:
    lighthouse.shutdown()
dist.destroy_process_group()
