"""Trains in a program of the shape that is named: program_shapes.py SHAPE. Prints each loss with all its digits.

With SHAPE_NOTES, the name of a file, the training goes on after its last printed loss until a profiler session is open
(at most LINGER_STEPS steps), and what was open at its end is written there.
"""

import asyncio
import concurrent.futures
import contextlib
import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any


def patch(library: str) -> None:
    if library == "gevent":
        importlib.import_module("gevent.monkey").patch_all()
    elif library == "eventlet":
        importlib.import_module("eventlet").monkey_patch()


if __name__ == "__main__":
    patch(sys.argv[1])

import torch  # noqa: E402 - after the patch
from torch import distributed as dist  # noqa: E402 - as above
from torch._C._distributed_c10d import HashStore  # noqa: E402 - as above
from torch.nn.parallel import DistributedDataParallel  # noqa: E402 - as above

STEPS = 24
LINGER_STEPS = 100
PAUSE_S = 0.005


class Training:
    """A small training whose steps can be made one by one, on any thread."""

    def __init__(self) -> None:
        torch.manual_seed(7)
        self.model = DistributedDataParallel(torch.nn.Linear(64, 64))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.loss = torch.zeros(())

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.loss = self.model(torch.randn(8, 64)).square().mean()
        self.loss.backward()
        self.optimizer.step()
        time.sleep(PAUSE_S)

    def train(self, run: Callable[[Callable[[], None]], object] = lambda step: step()) -> None:
        for _ in range(STEPS):
            run(self.step)
        print(f"loss {float(self.loss.detach()).hex()}", flush=True)
        if "SHAPE_NOTES" in os.environ:
            self.linger(run)

    def linger(self, run: Callable[[Callable[[], None]], object]) -> None:
        opened: list[bool] = []

        def look() -> None:
            opened[:] = [torch._C._autograd._profiler_enabled()]
            if not opened[0]:
                self.step()

        for _ in range(LINGER_STEPS):
            run(look)
            if opened == [True]:
                break
        with Path(os.environ["SHAPE_NOTES"]).open("a", encoding="utf-8") as notes:
            notes.write(f"{'open' if opened == [True] else 'closed'}\n")


@contextlib.contextmanager
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def main() -> None:
    with group():
        Training().train()


def patched_late(library: str) -> None:
    with group():
        Training().train()
        patch(library)
        time.sleep(2)  # a report is due every 0.1 s
        training = Training()
        for _ in range(STEPS):
            training.step()
        print(f"loss {float(training.loss.detach()).hex()}", flush=True)


def on_a_thread() -> None:
    with group():
        thread = threading.Thread(target=Training().train)
        thread.start()
        thread.join()


def on_a_worker() -> None:
    with group(), concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(Training().train).result()


def on_a_pool() -> None:
    with group(), contextlib.ExitStack() as stack:
        pools = [stack.enter_context(concurrent.futures.ThreadPoolExecutor(1)) for _ in range(3)]

        def run(step: Callable[[], None]) -> None:
            pools.append(pools.pop(0))
            pools[0].submit(step).result()

        Training().train(run)


def in_asyncio() -> None:
    async def train() -> None:
        await asyncio.to_thread(Training().train)

    with group():
        asyncio.run(train())


def in_a_child(method: str) -> None:
    child = multiprocessing.get_context(method).Process(target=main)  # type: ignore[attr-defined]
    child.start()
    child.join()
    print("child", child.exitcode)


def in_a_process_pool() -> None:
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        pool.submit(main).result()


def with_a_fork() -> None:
    with group():
        training = Training()
        training.train()
        child = os.fork()
        if child == 0:
            print("in the child", torch.ones(2).sum().item(), flush=True)
            os._exit(5)
        print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def with_a_child_of(method: str) -> None:
    with group():
        Training().train()
        child = multiprocessing.get_context(method).Process(target=time.sleep, args=(0,))  # type: ignore[attr-defined]
        child.start()
        child.join()
        print("child", child.exitcode)


def with_a_subprocess() -> None:
    with group():
        Training().train()
        print(subprocess.run([sys.executable, "-c", "import torch; print(1)"], check=True, capture_output=True).stdout)


def by_os_exit() -> None:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    Training().train()
    os._exit(3)


def by_a_handler() -> None:
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(4))
    with group():
        Training().train()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)


def by_an_error() -> None:
    with group():
        Training().train()
        raise ValueError("the loss is not a number")


def by_an_error_shown_otherwise() -> None:
    sys.excepthook = lambda kind, error, _: print("shown:", kind.__name__, error)
    by_an_error()


def in_a_daemon() -> None:
    read_end, write_end = os.pipe()
    child = os.fork()
    if child:
        os.close(write_end)
        print(os.read(read_end, 100), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        return
    os.setsid()
    os.dup2(write_end, 200)
    os.closerange(3, 200)
    os.closerange(201, 256)
    main()
    os.write(200, b"trained")


def traced() -> None:
    lines = 0

    def trace(frame: FrameType, event: str, _argument: object) -> Callable[..., Any] | None:
        nonlocal lines
        if frame.f_code is not Training.step.__code__:
            return None
        lines += event == "line"
        return trace

    sys.settrace(trace)
    with group():
        training = Training()
        for _ in range(STEPS):
            training.step()
        print("lines", lines, sys.gettrace() is trace)
        training.train()


def with_warnings_as_errors() -> None:
    warnings.simplefilter("error")
    main()


def in_trio() -> None:
    trio = importlib.import_module("trio")

    async def train() -> None:
        training = Training()
        for _ in range(STEPS):
            training.step()
            await trio.sleep(0)
        await trio.to_thread.run_sync(Training().train)

    with group():
        trio.run(train)


def by_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with group():
        Training().train()
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)


def twice() -> None:
    main()
    main()


def under_a_profiler() -> None:
    with tempfile.TemporaryDirectory() as folder, torch.profiler.profile(with_stack=True) as profile:
        main()
    profile.export_chrome_trace(f"{folder}.json")
    print(Path(f"{folder}.json").stat().st_size > 0)
    Path(f"{folder}.json").unlink()


def in_ray() -> None:
    train, of_torch = importlib.import_module("ray.train"), importlib.import_module("ray.train.torch")
    of_torch.TorchTrainer(main, scaling_config=train.ScalingConfig(num_workers=0)).fit()


def restarted() -> None:
    dist.init_process_group("gloo")
    Training().train()
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        sys.exit(9)
    dist.destroy_process_group()


SHAPES: dict[str, Callable[[], None]] = {
    "main": main,
    "gevent": main,
    "eventlet": main,
    "gevent-late": lambda: patched_late("gevent"),
    "eventlet-late": lambda: patched_late("eventlet"),
    "thread": on_a_thread,
    "worker": on_a_worker,
    "pool": on_a_pool,
    "asyncio": in_asyncio,
    "spawn": lambda: in_a_child("spawn"),
    "fork-server": lambda: in_a_child("forkserver"),
    "process-pool": in_a_process_pool,
    "fork": with_a_fork,
    "spawned-child": lambda: with_a_child_of("spawn"),
    "subprocess": with_a_subprocess,
    "os-exit": by_os_exit,
    "handler": by_a_handler,
    "error": by_an_error,
    "own-hook": by_an_error_shown_otherwise,
    "daemon": in_a_daemon,
    "traced": traced,
    "trio": in_trio,
    "warnings": with_warnings_as_errors,
    "ctrl-c": by_ctrl_c,
    "twice": twice,
    "profiler": under_a_profiler,
    "ray": in_ray,
    "restart": restarted,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    SHAPES[sys.argv[1]]()
