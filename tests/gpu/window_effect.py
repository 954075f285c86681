"""How fast training is before the first window, between windows and after CUPTI was detached:

    python -m tests.gpu.window_effect [--how eager busy compiled graph window_first empty_first]

Each kind of training runs in a process of its own, which prints a line of JSON for each stretch of steps and for each
window, so that one that is ended by a crash leaves what it has seen.

    eager          24 small layers under AdamW: the host launches kernels as fast as it can
    busy           four wide layers: the GPU is busy all the time
    compiled       as eager, through torch.compile
    graph          as eager, captured as a CUDA graph before the first window
    window_first   as graph, captured after a window
    empty_first    as graph, captured after a window without a kernel
"""

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter_ns
from typing import Any, NamedTuple

import torch
from torch import nn

from bench.machine import ROOT
from rankscope.agent.profiler.kineto_events import read_saved
from rankscope.agent.profiler.torch_profiler import TorchProfiler
from rankscope.measure.kineto import Category
from rankscope.measure.kineto_columns import read_trace
from tests.integration.torchrun import started

HOWS = ("eager", "busy", "compiled", "graph", "window_first", "empty_first")
BLOCKS = 30
BLOCK_NS = 60_000_000
WARM_UP_NS = 1_500_000_000
WINDOW_STEPS = 2
PROCESS_S_MAX = 100.0


def make_step(*, wide: bool, compiled: bool, device: str = "cuda") -> Callable[[], None]:
    """A training step on the device, always of the same batch."""
    torch.manual_seed(0)
    width, layers, rows = (4096, 4, 4096) if wide else (512, 24, 256)
    if device == "cpu":
        width, layers, rows = 64, 4, 32  # to try the scripts without a GPU
    blocks = [nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width)) for _ in range(layers)]
    model = nn.Sequential(*blocks).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, capturable=device == "cuda")
    batch = torch.ones(rows, width, device=device)
    forward = torch.compile(model) if compiled else model

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        forward(batch).square().mean().backward()
        optimizer.step()

    return step


def capture(step: Callable[[], None]) -> Callable[[], None]:
    """The step as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


class Watched:
    """A training, its stretches and its windows."""

    def __init__(self, step: Callable[[], None]) -> None:
        self.step = step
        self._profiler = TorchProfiler.find()
        self._block_steps = 1

    def _time_block(self, steps: int) -> int:
        torch.cuda.synchronize()
        begin_ns = perf_counter_ns()
        for _ in range(steps):
            self.step()
        torch.cuda.synchronize()
        return perf_counter_ns() - begin_ns

    def warm_up(self) -> None:
        """Train until steps take as long as they will, and find how many make a block."""
        begin_ns = perf_counter_ns()
        while perf_counter_ns() - begin_ns < WARM_UP_NS:
            self._time_block(10)
        self._block_steps = max(1, round(BLOCK_NS / (self._time_block(20) / 20)))

    def measure(self, name: str) -> None:
        """Print the us a step of each block of a stretch."""
        us = sorted(self._time_block(self._block_steps) / self._block_steps / 1000 for _ in range(BLOCKS))
        say(
            stretch=name, block_steps=self._block_steps, median_us=us[len(us) // 2], low_us=us[len(us) // 10],
            high_us=us[-1 - len(us) // 10],
        )  # fmt: skip

    def window(self, name: str, *, steps: int = WINDOW_STEPS) -> None:
        """Record steps as the agent does; print how long that took, and how many kernels it has seen."""
        torch.cuda.synchronize()
        times_ns = [perf_counter_ns()]
        self._profiler.start(full=True)
        times_ns.append(perf_counter_ns())
        for _ in range(steps):
            self.step()
        torch.cuda.synchronize()
        times_ns.append(perf_counter_ns())
        result = self._profiler.stop()
        times_ns.append(perf_counter_ns())
        trace = read_trace([read_saved(result)])
        begun, ran, ended = ((after - before) / 1e6 for before, after in itertools.pairwise(times_ns))
        say(
            window=name,
            steps=steps,
            kernels=len(trace.rows(Category.KERNEL)),
            start_ms=begun,
            steps_ms=ran,
            stop_ms=ended,
        )

    def detach(self) -> None:
        """Let Kineto detach CUPTI, as the agent does."""
        begin_ns = perf_counter_ns()
        self._profiler.detach()
        say(window="detached", steps=0, kernels=0, start_ms=(perf_counter_ns() - begin_ns) / 1e6)


def say(**found: Any) -> None:
    print(
        json.dumps({name: round(one, 3) if isinstance(one, float) else one for name, one in found.items()}), flush=True
    )


def train(how: str) -> None:
    """One kind of training, with everything that is to be seen of it."""
    step = make_step(wide=how == "busy", compiled=how == "compiled")
    watched = Watched(step)
    watched.warm_up()
    if how in {"window_first", "empty_first"}:
        watched.measure("eager, before")
        watched.window("before the capture", steps=WINDOW_STEPS if how == "window_first" else 0)
    if how in {"graph", "window_first", "empty_first"}:
        watched.step = capture(step)
        watched.warm_up()
    watched.measure("before")
    watched.measure("before again")
    watched.window("first")
    watched.measure("between windows")
    watched.window("second")
    watched.measure("between windows again")
    if watched.step is not step:
        return  # to detach CUPTI where there is a CUDA graph crashes the process: seen with CUDA 13.0
    watched.detach()
    watched.measure("detached")
    watched.window("third, which attaches again")
    watched.measure("attached again")
    watched.detach()
    watched.measure("detached again")


class Seen(NamedTuple):
    """What the process of one kind of training has printed, and how it ended."""

    how: str
    lines: list[dict[str, Any]]
    ended: str

    def describe(self) -> str:
        """The median us of a step in each stretch, with the tenth and the nine tenths; the kernels of each window."""
        parts = []
        for line in self.lines:
            if "stretch" in line:
                parts.append(
                    f"{line['stretch']} {line['median_us']:.0f} ({line['low_us']:.0f} to {line['high_us']:.0f})"
                )
            else:
                parts.append(f"[{line['window']}: {line['kernels']} kernels, begun in {line['start_ms']:.1f} ms]")
        return "; ".join([*parts, *([self.ended] if self.ended else [])])


def run_all(hows: Sequence[str] = HOWS, find_left_s: Callable[[], float] = lambda: PROCESS_S_MAX) -> Iterator[Seen]:
    """Each kind of training in a process of its own, which is killed when no time is left."""
    for how in hows:
        command = [sys.executable, "-m", "tests.gpu.window_effect", "--in-process", "--how", how]
        limit_s = min(PROCESS_S_MAX, find_left_s())
        with started(command, folder=ROOT) as job:
            try:
                done = job.wait(limit_s)
                ended = f"ended with {done.exit_code}: {done.stderr[-200:].strip()}" if done.exit_code else ""
            except AssertionError:
                ended = f"not over after {limit_s:.0f} s"
            said = job.printed
        yield Seen(how, [json.loads(line) for line in said.splitlines() if line.startswith("{")], ended)


def main() -> None:
    """Print what each kind of training shows; or be the process of one."""
    parser = argparse.ArgumentParser(description="How fast training is before, between and after windows.")
    parser.add_argument("--how", choices=HOWS, nargs="+", default=list(HOWS))
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.in_process:
        train(options.how[0])
        return
    for seen in run_all(options.how):
        print(f"{seen.how}: {seen.describe()}", flush=True)


if __name__ == "__main__":
    main()
