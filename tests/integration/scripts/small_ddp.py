"""A small DistributedDataParallel job with everything that loops of users have: accumulation, evaluation, workers.

Prints each loss with all its digits, so that two runs can be compared bit by bit.
"""

import argparse
import contextlib
import itertools
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


class Readings(TensorDataset):
    """Defined in __main__: workers of `spawn` and `forkserver` have to find it again."""


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--workers", choices=("none", "fork", "spawn", "forkserver"), default="none")
    parser.add_argument("--evaluate-every", type=int, default=0)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--exit", default="")
    return parser.parse_args()


def profiler(wanted: bool) -> contextlib.AbstractContextManager[torch.profiler.profile | None]:
    if not wanted:
        return contextlib.nullcontext()
    schedule = torch.profiler.schedule(wait=8, warmup=2, active=4, repeat=1)
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], schedule=schedule)


def main() -> None:
    options = read_options()
    torch.manual_seed(7)
    dist.init_process_group("gloo")
    layers = [nn.Linear(64, 64), nn.Dropout(0.3), nn.ReLU(), nn.Linear(64, 64)]
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    random = torch.Generator().manual_seed(dist.get_rank())
    readings = Readings(torch.randn(4 * options.steps * options.accumulate, 64, generator=random))
    workers = {"num_workers": 2, "multiprocessing_context": options.workers} if options.workers != "none" else {}
    losses = []
    with profiler(options.profile) as profile:
        for number, (batch,) in enumerate(DataLoader(readings, batch_size=4, **workers), start=1):
            steps = number % options.accumulate == 0
            with contextlib.nullcontext() if steps else model.no_sync():
                loss = model(batch).square().mean() / options.accumulate
                loss.backward()
            losses.append(loss.item().hex())
            if not steps:
                continue
            optimizer.step()
            optimizer.zero_grad()
            if profile is not None:
                profile.step()
            if options.evaluate_every and (number // options.accumulate) % options.evaluate_every == 0:
                evaluate(model, readings)
    if dist.get_rank() == 0:
        print("losses", *losses)
    if profile is not None:
        names = [event.key for event in profile.events()]
        marks = sum(name.startswith("ProfilerStep") for name in names)
        print("profiled", dist.get_rank(), marks, names.count("aten::addmm"))
    dist.destroy_process_group()
    if options.exit:
        end(options.exit)


def evaluate(model: nn.Module, readings: Readings) -> None:
    model.eval()
    with torch.no_grad():
        for (batch,) in itertools.islice(DataLoader(readings, batch_size=8), 3):
            model.module(batch)
    model.train()


def end(how: str) -> None:
    if how == "raise":
        raise ValueError("the loss is not a number")
    if how == "interrupt":
        raise KeyboardInterrupt
    sys.exit(int(how))


if __name__ == "__main__":
    main()
