"""torch.distributed.pipelining in the schedule that is asked for, with two stages a rank where it wants that."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle, get_schedule_class

from tests.frameworks.jobs.told import STEPS, Work, tell

MICRO_BATCHES, WIDTH = 4, 32
V_SHAPED = ("ZBVZeroBubble", "DualPipeV")

name = sys.argv[1]
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("pp",))
rank, ranks = dist.get_rank(), dist.get_world_size()
kind = get_schedule_class(name)
if issubclass(kind, PipelineScheduleSingle):
    places = [rank]
elif name in V_SHAPED:
    places = [rank, 2 * ranks - 1 - rank]
else:
    places = [rank, rank + ranks]
count = ranks * len(places)
stages = []
for place in places:
    torch.manual_seed(place)
    layers = nn.Sequential(Work(), nn.Linear(WIDTH, WIDTH), nn.ReLU())
    stages.append(PipelineStage(layers, place, count, torch.device("cpu"), group=mesh.get_group("pp")))
modules = nn.ModuleList([stage.submod for stage in stages])
optimizer = torch.optim.AdamW(modules.parameters(), lr=1e-3)


def find_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the loss of a micro batch."""
    return nn.functional.mse_loss(output, target)


schedule: PipelineScheduleSingle | PipelineScheduleMulti
if issubclass(kind, PipelineScheduleSingle):
    schedule = kind(stages[0], n_microbatches=MICRO_BATCHES, loss_fn=find_loss)
elif issubclass(kind, PipelineScheduleMulti):
    schedule = kind(list(stages), n_microbatches=MICRO_BATCHES, loss_fn=find_loss)
else:
    raise SystemExit(f"{name} is neither of one stage nor of several; torch has {pipelining.__all__}")
has_first, has_last = 0 in places, count - 1 in places
told = []
for step in range(STEPS):
    seeded = torch.Generator().manual_seed(step)
    batch, target = torch.randn(2, 4 * MICRO_BATCHES, WIDTH, generator=seeded)
    losses: list[torch.Tensor] = []
    given = {"target": target, "losses": losses} if has_last else {}
    schedule.step(*([batch] if has_first else []), **given)
    optimizer.step()
    optimizer.zero_grad()
    told.append(torch.stack(losses).mean().item() if losses else 0.0)
if not has_last:
    told = [sum(float(one.double().sum()) for one in modules.parameters())]
tell(STEPS, told)
dist.destroy_process_group()
