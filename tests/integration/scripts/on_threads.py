"""Train on a thread that is not the main one, and end as SHAPE says, with a session of the profiler on at that moment:
`on_threads.py SHAPE`. Prints how many sessions were on where each training ended, and that the end was reached.
"""

import _thread
import asyncio
import queue
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C import _autograd

STEPS = 20
STEP_S = 0.01
on: set[int] = set()
"""The threads that have a session of the profiler."""


def count_sessions() -> None:
    """Note the begin and the end of each session."""
    begin, end = _autograd._enable_profiler, _autograd._disable_profiler

    def noted_begin(*arguments: Any) -> None:
        begin(*arguments)
        on.add(threading.get_ident())

    def noted_end() -> Any:
        on.remove(threading.get_ident())  # KeyError: another thread ends it
        return end()

    _autograd._enable_profiler = noted_begin  # type: ignore[assignment]
    _autograd._disable_profiler = noted_end


def train() -> None:
    """Train until a session is on, if there is an agent that begins one."""
    train_steps(STEPS)
    while is_watched() and threading.get_ident() not in on:
        train_steps(1)
    sys.stdout.write(f"{len(on)} on\n")


def is_watched() -> bool:
    """Return whether the agent runs in this process."""
    launch = sys.modules.get("rankscope.agent.launch")
    return getattr(launch, "session", None) is not None


def train_steps(steps: int) -> None:
    """Train some steps."""
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        time.sleep(STEP_S)


def run_thread(train: Callable[[], object] = train) -> None:
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()


def run_daemon(done: threading.Event, then: Callable[[], object]) -> None:
    def run() -> None:
        train()
        done.set()
        then()

    threading.Thread(target=run, daemon=True).start()
    done.wait()


def run_raw() -> None:
    ended: queue.SimpleQueue[None] = queue.SimpleQueue()

    def run() -> None:
        train()
        ended.put(None)

    _thread.start_new_thread(run, ())
    ended.get()
    while on:  # it has no join()
        time.sleep(STEP_S)


def run_twice() -> None:
    run_thread()
    for _ in range(2):
        run_thread(lambda: train_steps(STEPS))


def run_pool() -> None:
    pool = ThreadPoolExecutor(1)
    pool.submit(train).result()  # which idles on until the interpreter ends it


def run_changing() -> None:
    pools = [ThreadPoolExecutor(1) for _ in range(2)]
    pools[0].submit(train).result()
    for step in range(2 * STEPS):
        pools[step % 2].submit(train_steps, 1).result()


def run_stopped() -> None:
    """Stop the agent on the main thread; training goes on elsewhere, and ends the session there."""
    import rankscope.agent  # noqa: PLC0415

    done, goes_on = threading.Event(), threading.Event()

    def go_on() -> None:
        goes_on.wait()
        train_steps(1)
        sys.stdout.write(f"{len(on)} on\n")
        done.set()

    run_daemon(done, go_on)
    done.clear()
    rankscope.agent.stop()
    goes_on.set()
    done.wait()


def run_gloo() -> None:
    """Train on the main thread, in a group of two, with a collective in each step and sessions of collectives alone."""
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(2 * STEPS):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        works = [dist.all_reduce(torch.ones(8), async_op=True)]
        works += dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, torch.ones(8), 1 - dist.get_rank()),
                dist.P2POp(dist.irecv, torch.ones(8), 1 - dist.get_rank()),
            ]
        )
        for work in works:
            work.wait()
    sys.stdout.write(f"{len(on)} on\n")
    del model, optimizer  # first: docs/torch.md
    dist.destroy_process_group()


def run_joining() -> None:
    """Wait at the end for every thread there is, as scripts do that have started some."""
    run_thread()
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join()


SHAPES: dict[str, Callable[[], object]] = {
    "thread": run_thread,
    "raw": run_raw,
    "joining": run_joining,
    "twice": run_twice,
    "pool": run_pool,
    "asyncio": lambda: asyncio.run(asyncio.to_thread(train)),
    "changing": run_changing,
    "idle": lambda: run_daemon(threading.Event(), threading.Event().wait),
    "stopped": run_stopped,
    "gloo": run_gloo,
}

if __name__ == "__main__":
    count_sessions()
    SHAPES[sys.argv[1]]()
    sys.stdout.write("end\n")
