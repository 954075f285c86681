"""What it costs to look at what a growing process holds: python -m bench.held_objects [--out FILE]

A process that has imported torch keeps so many objects more: dicts with a text and a list of one number, which the
garbage collector knows. A look is one of three that an order takes, `gc.collect()` a full collection of the same
objects, which Python makes by itself whenever they have grown by a quarter. Each is the least of ROUNDS, in CPU time of
its thread: both keep the interpreter's lock. *stack* is what torch takes for the Python stack of one allocation while
the history of a GPU's memory is recorded, at that depth, made into a Python object, which the recording is spared.
"""

import argparse
import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.machine import RESULTS, describe_run, render_result, run_apart

ROUNDS = 5
COUNTS = (0, 500_000, 1_500_000)
"""Dicts that are kept, with a list each."""
DEPTHS = (10, 20, 40, 80)
GATHERED = 5_000


def find_least_ms(work: Callable[[], Any]) -> float:
    """CPU time of this thread, the least of ROUNDS."""
    found = []
    for _ in range(ROUNDS):
        begin_ns = time.thread_time_ns()
        work()
        found.append(time.thread_time_ns() - begin_ns)
    return min(found) / 1e6


def measure_looks(count: int) -> tuple[int, float, float]:
    """Objects, ms of a look, and ms of a full collection."""
    import torch  # noqa: F401, PLC0415 - for its objects

    from rankscope.agent.captures.held_objects import HeldObjects  # noqa: PLC0415 - in a process of its own
    from rankscope.agent.captures.script_files import ScriptFiles  # noqa: PLC0415
    from rankscope.measure.line_samples import HELD  # noqa: PLC0415
    from rankscope.measure.messages import SampleOrder  # noqa: PLC0415

    kept = [{"name": str(number), "values": [number]} for number in range(count)]
    order = SampleOrder(id="bench", mode=HELD, interval_ns=0, lasts_ns=0, steps_max=0)
    held = HeldObjects(order, threading.get_ident(), ScriptFiles({}))
    look, collect = find_least_ms(held._look), find_least_ms(gc.collect)
    objects = len(gc.get_objects())
    assert len(kept) == count
    return objects, look, collect


def measure_stack(depth: int) -> float:
    """Microseconds of one stack of that depth, the least of ROUNDS."""
    from torch._C._profiler import gather_traceback  # noqa: PLC0415

    def gather(left: int) -> float:
        if left > 1:
            return gather(left - 1)
        times = []
        for _ in range(ROUNDS):
            begin_ns = time.thread_time_ns()
            for _ in range(GATHERED):
                gather_traceback(python=True, script=False, cpp=False)
            times.append(time.thread_time_ns() - begin_ns)
        return min(times) / GATHERED / 1e3

    return gather(depth)


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description="What it costs to look at what a growing process holds.")
    parser.add_argument("--out", type=Path, default=RESULTS / "held_objects.md", help="the file to write")
    options = parser.parse_args()
    head = describe_run("python -m bench.held_objects")
    looks = ["| objects | ms a look | ms a full collection |", "|---|---|---|"]
    for count in COUNTS:
        objects, look, collect = run_apart(measure_looks, count)
        looks.append(f"| {objects:,} | {look:.0f} | {collect:.0f} |")
    stacks = ["| frames | us a stack |", "|---|---|"]
    stacks += [f"| {depth} | {run_apart(measure_stack, depth):.2f} |" for depth in DEPTHS]
    title = "What it costs to look at what a growing process holds"
    text = render_result(title, head, __doc__, "\n".join(looks), "\n".join(stacks))
    options.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
