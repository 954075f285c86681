"""What sampling source lines costs: python -m bench.line_sampler [--stacks] [--blocks 120] [--out FILE]

One process trains a model of many small layers on the CPU, in blocks of steps that are sampled and blocks that are not,
alternately. The ratio is that of a sampled block to the one beside it; the median of the pairs, with an interval that
holds it in 95 of 100 cases (by the order of the ratios). The sampler's own CPU time is on another thread. The samples
are those of a window of a GPU; with --stacks those that the collector orders of a rank that it suspects.
"""

import argparse
import math
import statistics
import threading
import time
from collections.abc import Callable, Sequence, Sized
from pathlib import Path
from typing import NamedTuple, Protocol

from bench.machine import RESULTS, describe_run
from bench.windows import Training
from rankscope.agent.captures.kernel_waits import KernelWaits
from rankscope.agent.captures.script_files import ScriptFiles
from rankscope.agent.captures.stack_samples import StackSamples
from rankscope.agent.captures.thread_sampler import ThreadSampler
from rankscope.agent.guard import Guard
from rankscope.agent.profiler.line_sampler import LineSampler
from rankscope.collector.runs.line_search import INTERVAL_NS
from rankscope.measure.line_samples import NOW
from rankscope.measure.messages import SampleOrder
from rankscope.measure.units import NS_PER_S

BLOCKS, STEPS = 120, 10
PAIRS_MIN = 8


class Block(NamedTuple):
    """What a block of steps took the training thread, and what the sampler did meanwhile."""

    wall_ns: int
    cpu_ns: int
    samples: int
    sampler_cpu_ns: int
    switch_ns: int


class Wanted(Protocol):
    """What a sampler has noted."""

    cpu_ns: int

    @property
    def places(self) -> Sized:
        """One for each sample."""
        ...


class Stacks:
    """Ordered samples, begun and ended as windows are."""

    def __init__(self, sampler: ThreadSampler) -> None:
        self._sampler = sampler
        self._current: StackSamples | None = None

    def begin(self) -> None:
        """Begin."""
        order = SampleOrder(id="s1", mode=NOW, interval_ns=INTERVAL_NS, lasts_ns=NS_PER_S, steps_max=1)
        waits = KernelWaits(threading.get_native_id())
        self._current = StackSamples(order, threading.get_ident(), ScriptFiles({}), waits=waits)
        self._sampler.begin(self._current)

    def end(self) -> Wanted | None:
        """End."""
        found = self._current
        if found is not None:
            found.is_wanted = False
        return found


def measure(training: Training, sampler: LineSampler | Stacks, *, is_sampled: bool) -> Block:
    """One block. `switch_ns` is the CPU time of `begin` and `end` on the training thread."""
    at_ns, begin_ns = time.perf_counter_ns(), time.thread_time_ns()
    if is_sampled:
        sampler.begin()
    begun_ns = time.thread_time_ns()
    for _ in range(STEPS):
        training.step()
    trained_ns = time.thread_time_ns()
    lines = sampler.end() if is_sampled else None
    end_ns = time.thread_time_ns()
    return Block(
        wall_ns=time.perf_counter_ns() - at_ns,
        cpu_ns=end_ns - begin_ns,
        samples=0 if lines is None else len(lines.places),
        sampler_cpu_ns=0 if lines is None else lines.cpu_ns,
        switch_ns=begun_ns - begin_ns + end_ns - trained_ns,
    )


def run(blocks: int, *, with_stacks: bool) -> list[tuple[Block, Block]]:
    """Pairs of a block without and one with the sampler; which comes first alternates."""
    training, thread = Training(), ThreadSampler(Guard(error_budget=1))
    sampler = Stacks(thread) if with_stacks else LineSampler(thread, ScriptFiles({}))
    thread.start()
    measure(training, sampler, is_sampled=True)
    pairs = []
    for number in range(blocks):
        order = (False, True) if number % 2 else (True, False)
        found = {is_sampled: measure(training, sampler, is_sampled=is_sampled) for is_sampled in order}
        pairs.append((found[False], found[True]))
    thread.close()
    thread.wait(1.0)
    return pairs


def find_median(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Return the median and its interval."""
    ordered = sorted(ratios)
    apart = math.ceil(0.98 * math.sqrt(len(ordered)))  # 1.96 standard deviations of the count below the median
    middle = len(ordered) // 2
    return statistics.median(ordered), ordered[max(0, middle - apart)], ordered[min(len(ordered) - 1, middle + apart)]


def render(head: str, pairs: Sequence[tuple[Block, Block]]) -> str:
    """The result file."""
    ways: dict[str, Callable[[Block], int]] = {
        "CPU time of the training thread": lambda block: block.cpu_ns,
        "time": lambda block: block.wall_ns,
    }
    lines = ["| | without, ms a step | ratio with | 95 % |", "|---|---|---|---|"]
    for name, read in ways.items():
        ratio, low, high = find_median([read(with_it) / read(without) for without, with_it in pairs])
        without_ms = statistics.median(read(without) for without, _ in pairs) / STEPS / 1e6
        lines.append(f"| {name} | {without_ms:.2f} | {ratio:.4f} | {low:.4f} to {high:.4f} |")
    sampled = [with_it for _, with_it in pairs if with_it.samples]
    a_sample_us = sum(one.sampler_cpu_ns for one in sampled) / sum(one.samples for one in sampled) / 1e3
    a_second = sum(one.samples for one in sampled) / sum(one.wall_ns for one in sampled) * 1e9
    switch_us = statistics.median(one.switch_ns for one in sampled) / 1e3
    own = (
        f"Of its own the sampler took {a_sample_us:.0f} us of CPU a sample, {a_second:.0f} samples a second. To begin "
        f"and end a window took the training thread {switch_us:.1f} us."
    )
    explanation = (__doc__ or "").partition("\n\n")[2].strip()
    return "\n\n".join(["# What sampling source lines costs", head, explanation, "\n".join(lines), own]) + "\n"


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description="What sampling source lines costs.")
    parser.add_argument("--stacks", action="store_true", help="those that the collector orders")
    parser.add_argument("--blocks", type=int, default=BLOCKS, help=f"pairs of blocks [{BLOCKS}]")
    parser.add_argument("--out", type=Path, help="the file to write")
    options = parser.parse_args()
    if options.blocks < PAIRS_MIN:
        parser.error(f"--blocks is {options.blocks}; an interval takes {PAIRS_MIN}")
    stacks = " --stacks" if options.stacks else ""
    head = describe_run(f"python -m bench.line_sampler{stacks} --blocks {options.blocks}")
    text = render(head, run(options.blocks, with_stacks=options.stacks))
    (options.out or RESULTS / f"{'stack_samples' if stacks else 'line_sampler'}.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
