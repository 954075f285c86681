"""Two ranks that save every few steps, as nobody has marked: `alone`, rank 0 by torch.save; `shared`, both by
torch.distributed.checkpoint, where rank 1 has slow storage. They end once the second argument exists.
"""

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save
from torch.nn.parallel import DistributedDataParallel

WIDTH = 256
EVERY = 20
SAVE_S = 0.4


class SlowStream:
    """A file on slow storage, which takes SAVE_S to close."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class SlowStorage(FileSystem):
    """A file system that takes its time."""

    @contextlib.contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        with super().create_stream(path, mode) as stream:
            yield stream
            if "metadata" not in str(path):
                time.sleep(SAVE_S)


class SlowFile:
    """A file on slow storage."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")

    def write(self, data: bytes) -> int:
        return self._file.write(data)

    def tell(self) -> int:
        return self._file.tell()

    def flush(self) -> None:
        time.sleep(SAVE_S)
        self._file.flush()


def save_alone(model: Any, folder: Path, rank: int) -> None:
    if rank == 0:
        torch.save(model.state_dict(), SlowFile(folder / "model.pt"))  # type: ignore[arg-type]  # alone


def save_shared(model: Any, folder: Path, rank: int) -> None:
    writer = FileSystemWriter(folder / "shared", overwrite=True)
    if rank == 1:
        writer.fs = SlowStorage()
    own = {f"{name} of {rank}": value for name, value in model.state_dict().items()}  # each rank has a part
    save(own, storage_writer=writer)  # shared


def main() -> None:
    what, end = sys.argv[1], Path(sys.argv[2])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model: Any = DistributedDataParallel(nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step, ends = 0, torch.zeros(1)
    while not ends.item():
        model(torch.randn(4, WIDTH)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.01)
        step += 1
        if step % EVERY == 0:
            (save_alone if what == "alone" else save_shared)(model, end.parent, rank)
            ends.fill_(end.exists())
            dist.all_reduce(ends)
    del model, optimizer  # first: docs/torch.md
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
