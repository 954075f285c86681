"""Two ranks that train; rank 1 also does what the file named by the first argument says, at each step: one of CAUSES.

Each cause takes some 60 ms at one line, which a comment marks. `stop` in the file ends the training.
"""

import contextlib
import ctypes
import gc
import io
import itertools
import json
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

COST_S = 0.06
WIDTH = 64


def sleep() -> None:
    time.sleep(COST_S)  # cost: sleep


LOCK = threading.Lock()


def lock() -> None:
    LOCK.acquire()
    threading.Timer(COST_S, LOCK.release).start()
    with LOCK:  # cost: lock
        pass


def read_pipe() -> None:
    end, begin = os.pipe()
    threading.Timer(COST_S, os.write, (begin, b"x")).start()
    with os.fdopen(end, "rb", 0) as file:
        file.read(1)  # cost: read_pipe
    os.close(begin)


def receive() -> None:
    """As a resolver that waits for its server."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.bind(("127.0.0.1", 0))
        threading.Timer(COST_S, own.sendto, (b"x", own.getsockname())).start()
        own.recv(1)  # cost: receive


class SlowResolver:
    """A name server that answers the first question about a name after COST_S, and that it knows none."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._asked: set[bytes] = set()
        self._names = itertools.count()
        threading.Thread(target=self._answer, daemon=True).start()
        libc = ctypes.CDLL(None)
        libc["__res_init"]()
        find_state = libc["__res_state"]
        find_state.restype = ctypes.c_void_p
        state = find_state()  # of this thread: two ints, a long, the number of servers, and their addresses
        ctypes.c_int.from_address(state + 16).value = 1
        port = self._socket.getsockname()[1].to_bytes(2, "big")
        ctypes.memmove(state + 20, socket.AF_INET.to_bytes(2, sys.byteorder) + port + bytes((127, 0, 0, 1)), 8)

    def ask(self) -> None:
        with contextlib.suppress(socket.gaierror):
            socket.getaddrinfo(f"host{next(self._names)}.invalid", 80)  # cost: look_up

    def _answer(self) -> None:
        while True:
            query, who = self._socket.recvfrom(512)
            name = query[12 : query.index(0, 12)]
            if name not in self._asked:
                self._asked.add(name)
                time.sleep(COST_S)
            self._socket.sendto(query[:2] + b"\x81\x83" + query[4:6] + bytes(6) + query[12:], who)


RESOLVERS: list[SlowResolver] = []


def look_up() -> None:
    if not RESOLVERS:
        RESOLVERS.append(SlowResolver())
    RESOLVERS[0].ask()


SLEEP = shutil.which("sleep") or ""


def subprocess_run() -> None:
    subprocess.run([SLEEP, str(COST_S)], check=True)  # cost: subprocess_run


def regex() -> None:
    re.match(r"(a+)+$", "a" * 20 + "b")  # cost: regex


WORDS = np.array([str(number * 7919 % 100_003) for number in range(60_000)], dtype=object)


def numpy_objects() -> None:
    np.sort(WORDS)  # cost: numpy_objects


HOLDING = ctypes.PyDLL(None)


def held_lock() -> None:
    """A function in C that keeps the interpreter's lock."""
    HOLDING.usleep(int(COST_S * 1e6))  # cost: held_lock


KEPT = [[number] for number in range(400_000)]


def collect() -> None:
    gc.collect()  # cost: collect


def collect_by_itself() -> None:
    gc.set_threshold(50_000, 1, 1)
    made: list[Any] = [[] for _ in range(200_000)]  # cost: collect_by_itself
    gc.set_threshold(700, 10, 10)
    del made


SHAPES = itertools.count(2)
COMPILED = torch.compile(lambda x: torch.relu(x + 1).sum(), backend="eager", dynamic=False)


def recompile() -> None:
    """Compile again for another shape, as often as torch allows it."""
    if next(SHAPES) % 8 == 0:
        torch._dynamo.reset()
    COMPILED(torch.randn(next(SHAPES), 8))  # cost: recompile


SLOW_OUT, SLOW_IN = os.pipe()
LOGGER = logging.getLogger("slow")


def drain_slowly() -> None:
    while os.read(SLOW_OUT, 4096):
        time.sleep(COST_S / 16)


def prepare_slow_output() -> io.TextIOWrapper:
    threading.Thread(target=drain_slowly, daemon=True).start()
    file = os.fdopen(SLOW_IN, "w", encoding="utf-8")
    LOGGER.addHandler(logging.StreamHandler(file))
    LOGGER.propagate = False
    LOGGER.setLevel(logging.INFO)
    return file


def log() -> None:
    LOGGER.info("x" * 65_536)  # cost: log


def print_out() -> None:
    print("x" * 65_536, file=OUTPUT, flush=True)  # cost: print_out


BIG = torch.randn(2_000_000)


def checkpoint() -> None:
    torch.save({"big": [BIG] * 1, "more": BIG.clone()}, CHECKPOINT)  # cost: checkpoint


class Slow(Dataset[torch.Tensor]):
    """A stage of a loader that takes long."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.transform(torch.zeros(1))

    def transform(self, row: torch.Tensor) -> torch.Tensor:
        time.sleep(COST_S)  # cost: loader_stage
        return row


LOADER = DataLoader(Slow())


def loader_stage() -> None:
    for _ in LOADER:
        pass


class SlowInWorker(Dataset[torch.Tensor]):
    """A loader's worker takes long."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(COST_S)  # in the worker
        return torch.tensor(index)


BATCHES: list[Any] = []


def worker() -> None:
    if not BATCHES:
        BATCHES.append(iter(DataLoader(SlowInWorker(), num_workers=1, multiprocessing_context="fork")))
    next(BATCHES[0])  # cost: worker


ROWS: list[Any] = []


def augment(rows: Any) -> Any:
    time.sleep(COST_S)  # cost: transform
    return rows


def transform() -> None:
    """A dataset of Hugging Face."""
    if not ROWS:
        import datasets  # noqa: PLC0415 - not on every Python

        ROWS.append(datasets.Dataset.from_dict({"x": [1.0]}).with_transform(augment))
    for _ in DataLoader(ROWS[0]):
        pass


NODES: dict[str, Any] = {}


def map_row(row: int) -> int:
    time.sleep(COST_S)  # cost: nodes
    return row


def nodes() -> None:
    """Nodes of torchdata that have no threads."""
    if "plain" not in NODES:
        from torchdata import nodes as made  # noqa: PLC0415 - as above

        source = made.IterableWrapper(range(1_000_000))
        NODES["plain"] = iter(made.Loader(made.Mapper(source, map_row)))
    next(NODES["plain"])


def map_in_thread(row: int) -> int:
    time.sleep(2 * COST_S)  # in the threads
    return row


def node_threads() -> None:
    """Nodes of torchdata that map rows on two threads."""
    if "threads" not in NODES:
        from torchdata import nodes as made  # noqa: PLC0415 - as above

        source = made.IterableWrapper(range(1_000_000))
        NODES["threads"] = iter(made.Loader(made.ParallelMapper(source, map_in_thread, num_workers=2, method="thread")))
    next(NODES["threads"])  # cost: node_threads


TEXT = json.dumps([{"name": str(number), "values": list(range(10))} for number in range(12_000)])


def parse_json() -> None:
    gc.disable()  # with so many objects as here, most of the time would be its collections'
    json.loads(TEXT)  # cost: parse_json
    gc.enable()


TOKENIZER = Tokenizer(models.WordLevel({"a": 0, "b": 1}, "b"))
TOKENIZER.pre_tokenizer = pre_tokenizers.Whitespace()
SENTENCES = " ".join(["a word"] * 40_000)


def tokenize() -> None:
    TOKENIZER.encode(SENTENCES)  # cost: tokenize


def make_image() -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (1200, 1200, 3), dtype=np.uint8)).save(file, "png")
    return file.getvalue()


IMAGE = make_image()


def decode_image() -> None:
    Image.open(io.BytesIO(IMAGE)).load()  # cost: decode_image


def convert() -> None:
    BIG.repeat(12).to(torch.float64)  # cost: convert


def python_loop() -> None:
    total = 0
    for number in range(700_000):
        total += number % 7  # cost: python_loop


CAUSES: dict[str, Callable[[], None]] = {
    "sleep": sleep, "lock": lock, "read_pipe": read_pipe, "receive": receive, "subprocess_run": subprocess_run,
    "regex": regex, "numpy_objects": numpy_objects, "held_lock": held_lock, "collect": collect,
    "collect_by_itself": collect_by_itself, "recompile": recompile, "log": log, "print_out": print_out,
    "checkpoint": checkpoint, "loader_stage": loader_stage, "parse_json": parse_json, "tokenize": tokenize,
    "decode_image": decode_image, "look_up": look_up, "transform": transform, "nodes": nodes,
    "node_threads": node_threads, "convert": convert,
    "python_loop": python_loop, "worker": worker,
}  # fmt: skip


def read_wish(path: Path, rank: int) -> str:
    """Return what rank 0 reads in the file, on both ranks."""
    known = ["", "stop", *CAUSES]
    wish = torch.tensor([known.index(path.read_text(encoding="utf-8")) if rank == 0 else 0])
    dist.broadcast(wish, 0)
    return known[int(wish)]


def main() -> None:
    path = Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model: Any = DistributedDataParallel(nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while (wish := read_wish(path, rank)) != "stop":
        if wish and rank == 1:
            CAUSES[wish]()
        model(torch.randn(4, WIDTH)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.005)
    del model, optimizer  # first: docs/torch.md
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    OUTPUT = prepare_slow_output()
    CHECKPOINT = f"{sys.argv[1]}.{os.environ['RANK']}.pt"
    main()
