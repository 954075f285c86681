"""A pipeline of torch.distributed.pipelining over gloo, in the schedule that is asked for; a rank has a stage, or two.

The forward of a microbatch sleeps `--work-s` on each stage, its backward as long; on stage --slow --times as long. At
the end each rank prints what its own clock says, medians over the second half of the steps, in ns: how long
`schedule.step` lasted, how much of that its stages were at work, how much it waited for messages, and the whole step.
"""

import argparse
import sys
import time
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle, get_schedule_class

WIDTH, ROWS = 16, 4
V_SHAPED = ("ZBVZeroBubble", "DualPipeV")


class Clock:
    """For how long this rank has worked on microbatches, and waited for messages, in ns."""

    worked_ns = 0
    waited_ns = 0


class Stage(PipelineStage):
    """A stage that counts its time."""

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        """Run the forward of a microbatch."""
        return self._time(super().forward_one_chunk, *args, **kwargs)

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        """Run its backward, or that of the inputs alone."""
        return self._time(super().backward_one_chunk, *args, **kwargs)

    def backward_weight_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        """Run its backward of the weights."""
        return self._time(super().backward_weight_one_chunk, *args, **kwargs)

    def _time(self, work: Any, *args: Any, **kwargs: Any) -> Any:
        begin_ns = time.perf_counter_ns()
        done = work(*args, **kwargs)
        Clock.worked_ns += time.perf_counter_ns() - begin_ns
        return done


def count_waits() -> None:
    """Count the time in which torch's schedules wait for sends and receives."""
    wait: Any = schedules._wait_batch_p2p

    def wait_and_count(work: Any) -> None:
        begin_ns = time.perf_counter_ns()
        wait(work)
        Clock.waited_ns += time.perf_counter_ns() - begin_ns

    schedules._wait_batch_p2p = wait_and_count


class _Work(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: torch.Tensor, work_s: float) -> torch.Tensor:
        ctx.work_s = work_s
        time.sleep(work_s)
        return features.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(ctx.work_s)
        return gradients[0], None


class Work(nn.Module):
    """Returns its input after a while, in forward and in backward."""

    def __init__(self, work_s: float) -> None:
        super().__init__()
        self.work_s = work_s

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return the same features."""
        worked: torch.Tensor = _Work.apply(features, self.work_s)  # type: ignore[no-untyped-call]
        return worked


def find_places(name: str, rank: int, ranks: int) -> list[int]:
    """Return the numbers of this rank's stages."""
    if issubclass(get_schedule_class(name), PipelineScheduleSingle):
        return [rank]
    return [rank, 2 * ranks - 1 - rank if name in V_SHAPED else rank + ranks]


def build(options: argparse.Namespace, places: list[int], count: int) -> tuple[Any, torch.optim.Optimizer]:
    """Return the schedule of this rank, and the optimizer of its stages."""
    stages = []
    for place in places:
        work_s = options.work_s * (options.times if place % dist.get_world_size() == options.slow else 1.0)
        layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), Work(work_s), nn.Linear(WIDTH, WIDTH))
        stages.append(Stage(layers, place, count, torch.device("cpu")))
    optimizer = torch.optim.SGD([one for stage in stages for one in stage.submod.parameters()], lr=1e-3)
    kind: Any = get_schedule_class(options.schedule)
    given = stages if issubclass(kind, PipelineScheduleMulti) else stages[0]
    return kind(given, n_microbatches=options.microbatches, loss_fn=nn.functional.mse_loss), optimizer


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("schedule")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--work-s", type=float, default=0.01)
    parser.add_argument("--slow", type=int, default=-1)
    parser.add_argument("--times", type=float, default=1.5)
    options = parser.parse_args()
    count_waits()
    dist.init_process_group("gloo")
    places = find_places(options.schedule, dist.get_rank(), dist.get_world_size())
    count = dist.get_world_size() * len(places)
    schedule, optimizer = build(options, places, count)
    target = torch.zeros(ROWS * options.microbatches, WIDTH)
    seen = []
    for _ in range(options.steps):
        batch = torch.randn(ROWS * options.microbatches, WIDTH)
        worked_ns, waited_ns, begin_ns = Clock.worked_ns, Clock.waited_ns, time.perf_counter_ns()
        schedule.step(*([batch] if 0 in places else []), **({"target": target} if count - 1 in places else {}))
        end_ns = time.perf_counter_ns()
        optimizer.step()
        optimizer.zero_grad()
        step_ns = time.perf_counter_ns() - begin_ns
        seen.append((end_ns - begin_ns, Clock.worked_ns - worked_ns, Clock.waited_ns - waited_ns, step_ns))
    told = [str(int(median(column))) for column in zip(*seen[options.steps // 2 :], strict=True)]
    dist.barrier()
    sys.stdout.write(f"clock {dist.get_rank()} {' '.join(told)}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
