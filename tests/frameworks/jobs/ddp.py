"""DistributedDataParallel as it is asked for: a hook for its gradients, a static graph, a sharded optimizer, Join."""

import contextlib
import sys

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from tests.frameworks.jobs.told import STEPS, build_model, tell, train_plainly

how = sys.argv[1]
dist.init_process_group("gloo")
# Else the last callback of powerSGD may be the last to hold it, and it would wait there for its own thread's end.
world = dist.group.WORLD
model = DistributedDataParallel(build_model(), static_graph=how == "static_graph")
if how == "fp16_hook":
    model.register_comm_hook(dist.group.WORLD, default_hooks.fp16_compress_hook)
if how == "power_sgd":
    state = powerSGD_hook.PowerSGDState(dist.group.WORLD, matrix_approximation_rank=1, start_powerSGD_iter=10)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
optimizer: torch.optim.Optimizer
if how == "sharded_optimizer":
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
else:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
# Under Join the ranks have unequally many batches; those of the others shadow the ones that are over.
steps = STEPS - 10 * dist.get_rank() if how == "join" else STEPS
with Join([model]) if how == "join" else contextlib.nullcontext():
    losses = train_plainly(model, optimizer, steps)
tell(steps, losses)
dist.destroy_process_group()
