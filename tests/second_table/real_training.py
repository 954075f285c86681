"""A real training with gloo that does something to itself, and writes down when, by its own clock.

torchrun --nproc-per-node 2 real_training.py turns 25 OUT    see CASES in real_jobs.py

OUT/RANK.json has the begin and the end of each step of this rank, and of everything that it did on purpose.
"""

import gc
import io
import json
import random
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

CASE, AMOUNT, OUT = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
STEPS = int(sys.argv[4])
BEGIN = 60
BATCH = 8


class Samples(Dataset[torch.Tensor]):
    """Reads as slowly as its rank is to be in a step."""

    def __init__(self, rank: int, world: int) -> None:
        dice = random.Random(5)
        self._rank = rank
        self._slow = [step // AMOUNT % world if AMOUNT else dice.randrange(world) for step in range(STEPS)]

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, place: int) -> torch.Tensor:
        step, first = divmod(place, BATCH)
        if not first:
            began = time.monotonic()
            self._wait(step)
            note(step, began)
        return torch.full((384,), float(place % 7))

    def _wait(self, step: int) -> None:
        if CASE == "loader":
            time.sleep(0.012)
        elif CASE == "turns" and step > BEGIN and self._slow[step] == self._rank:
            time.sleep(0.06)
        elif CASE == "read" and step > BEGIN and self._rank == 1:
            time.sleep(AMOUNT / 1000)


class SlowFile(io.BytesIO):
    """A file on storage that takes a second and a half for what is written."""

    def write(self, data: object) -> int:
        time.sleep(1.5 / 40)
        return super().write(data)  # type: ignore[arg-type]


done: list[tuple[int, float, float]] = []


def note(step: int, began: float) -> None:
    if time.monotonic() - began > 0.002:
        done.append((step, began, time.monotonic()))


def disturb(step: int, rank: int, model: torch.nn.Module) -> None:
    """Do what the case asks for in the step, after its optimizer step."""
    began = time.monotonic()
    if step <= BEGIN:
        return
    if CASE == "stall" and rank == 1 and step % AMOUNT == 0:
        time.sleep(0.4)
    elif CASE == "save" and rank == 0 and step % AMOUNT == 0:
        file = SlowFile()
        torch.save({str(number): torch.zeros(400) for number in range(12)} | model.state_dict(), file)
    elif CASE == "barrier" and step % AMOUNT == 0:
        if rank == 0:
            time.sleep(0.4)
            note(step, began)
        dist.barrier()
        return
    elif CASE == "log" and rank == 1:
        time.sleep(AMOUNT / 1000)
    elif CASE == "gc" and (step + 7 * rank) % AMOUNT == 0:
        gc.collect()
    note(step, began)


def sleep_in_backward(step: int, output: torch.Tensor) -> None:
    """Have the step's backward begin with a sleep, for which all other ranks wait in their own."""

    def sleep(_: torch.Tensor) -> None:
        began = time.monotonic()
        time.sleep(AMOUNT / 1000)
        note(step, began)

    output.register_hook(sleep)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    kept = [[number] for number in range(1_500_000)] if CASE == "gc" else []
    gc.disable()
    layers: list[torch.nn.Module] = [torch.nn.Linear(384, 384)]
    if CASE in ("read", "log"):  # ranks wait for its buffers in forward
        layers.append(torch.nn.BatchNorm1d(384))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    pause = 0.002 if CASE == "loader" else 0.02
    begins: list[float] = []
    for step, batch in enumerate(DataLoader(Samples(rank, world), batch_size=BATCH)):
        begins.append(time.monotonic())
        optimizer.zero_grad()
        output = model(batch)
        if CASE == "backward" and rank == 1 and step > BEGIN:
            sleep_in_backward(step, output)
        output.pow(2).mean().backward()
        optimizer.step()
        time.sleep(pause)
        disturb(step, rank, model)
    OUT.joinpath(f"{rank}.json").write_text(json.dumps({"begins": begins, "end": time.monotonic(), "done": done}))
    del kept, model, optimizer  # first: docs/torch.md
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
