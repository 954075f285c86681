"""What a full window costs by how torch tells of it: python -m bench.windows [--rounds 15] [--out FILE]

Two steps of a model of many small layers on the CPU are recorded by the agent's own profiler, in turns as

- activities: torch lists them, from 2.13 on;
- events: those of torch itself, before 2.13. Newer ones have them too, so that both can be measured side by side;
- a file: the events are listed, to be counted, and torch writes the trace file: a window of a device before 2.13.

CPU time of the thread by its own clock, ns for each thing recorded, medians of the rounds. Only reading lets go of
Python's lock, after every 250.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from bench.machine import RESULTS, describe_run, render_result
from rankscope.agent.profiler.kineto_events import SessionEvents, read_saved
from rankscope.agent.profiler.torch_profiler import TorchProfiler
from rankscope.agent.profiler.window_reading import read_window
from rankscope.agent.profiler.window_scheduler import RawWindow
from tests.unit.agent.profiler.older_torch import find_older_profiler

ROUNDS = 15
LAYERS, WIDTH, STEPS = 150, 16, 2
PARTS = ("end the session", "list", "read", "write and read the file", "let go", "together")


class Cost(NamedTuple):
    """CPU ns of each part of one window by its name, and how much was recorded."""

    parts_ns: dict[str, int]
    events: int


class Training:
    """Many small operators."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self._model = nn.Sequential(*(layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())))
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3, foreach=False)
        self._batch = torch.randn(4, WIDTH)

    def step(self) -> None:
        """One step."""
        self._optimizer.zero_grad()
        self._model(self._batch).square().mean().backward()
        self._optimizer.step()


def measure(training: Training, profiler: TorchProfiler, *, in_file: bool) -> Cost:
    """One window."""
    profiler.start(full=True)
    for _ in range(STEPS):
        training.step()
    parts_ns = dict.fromkeys(PARTS, 0)

    def timed(part: str, action: Callable[[], Any]) -> Any:
        begin_ns = time.thread_time_ns()
        result = action()
        parts_ns[part] = time.thread_time_ns() - begin_ns
        return result

    result = timed("end the session", profiler.stop)
    found = timed("list", result.trace_activities)
    events = len(found)
    if in_file:
        timed("write and read the file", partial(read_saved, result))
    else:
        timed("read", partial(read_window, RawWindow(True, (), result, 0, {}, {}, 0), found, lambda: None))
    held = [result, found]
    del result, found
    timed("let go", held.clear)
    parts_ns["together"] = sum(parts_ns.values())
    return Cost(parts_ns, events)


def run(rounds: int) -> dict[str, list[Cost]]:
    """The windows of each way, the first round left out."""
    training, newer, older = Training(), TorchProfiler.find(), find_older_profiler()
    ways = {"events": (older, False), "a file": (older, True)}
    if not isinstance(_record_nothing(newer), SessionEvents):
        ways = {"activities": (newer, False), **ways}
    costs: dict[str, list[Cost]] = {way: [] for way in ways}
    for number in range(1 + rounds):
        for way, (profiler, in_file) in ways.items():
            cost = measure(training, profiler, in_file=in_file)
            if number:
                costs[way].append(cost)
    return costs


def _record_nothing(profiler: TorchProfiler) -> Any:
    profiler.start(full=False)
    return profiler.stop()


def render(head: str, costs: dict[str, list[Cost]]) -> str:
    """The result file."""
    lines = [f"| | recorded | {' | '.join(PARTS)} |", "|---|---|" + "---|" * len(PARTS)]
    for way, windows in costs.items():
        each_ns = [statistics.median(window.parts_ns[part] / window.events for window in windows) for part in PARTS]
        events = statistics.median(window.events for window in windows)
        lines.append(f"| {way} | {events:,.0f} | {' | '.join(f'{ns:,.0f}' if ns else '' for ns in each_ns)} |")
    return render_result("What a full window costs by how torch tells of it", head, __doc__, "\n".join(lines))


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description="What a full window costs by how torch tells of it.")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"windows of each way [{ROUNDS}]")
    parser.add_argument("--out", type=Path, default=RESULTS / "windows.md", help="the file to write")
    options = parser.parse_args()
    head = describe_run(f"python -m bench.windows --rounds {options.rounds}")
    text = render(head, run(options.rounds))
    options.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
