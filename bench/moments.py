"""What the hooks cost the training thread, and what the agent's own meter makes of it, side by side:

    python -m bench.moments [--pairs 600] [--out FILE]

Blocks of a few steps with hooks and without take turns within one training, drawn by lot which of the two comes first,
so that both meet the same machine. The hooks feed a real state machine, whose records go nowhere, as steps of 10 ms are
seen (the CPU time of every 64th is measured, `agent/steps/step_boundaries.py`) and as long ones are, of which all
are. What was written down is gone through between the blocks, as the agent thread does in a job, and is not counted
here.

    one layer      a step takes a quarter of a millisecond
    transformer    the short model of `training.py`: what a step runs through pushes our code out of the caches

A second table has what a full window costs the steps that it records, by blocks within a profiler session and without:
its begin, its end and its reading, which the agent times, are left out.

What is taken is the CPU time of the thread, which hardly depends on what else the machine does.
"""

import argparse
import random
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import get_ident
from time import thread_time_ns
from typing import Any, NamedTuple

import torch
import torch.utils.data.dataloader as loader
from torch import Tensor, nn
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader, TensorDataset

from bench.machine import RESULTS, describe_run
from bench.training import SIZES, TOKENS, Transformer
from rankscope.agent.guard import Guard
from rankscope.agent.profiler.torch_profiler import TorchProfiler
from rankscope.agent.profiler.window_results import RECORDED_EVENT_NS
from rankscope.agent.steps.event_buffer import PROCESSING_COST_FACTOR, WRITE_COST_FACTOR, HookEventBuffer
from rankscope.agent.steps.step_boundaries import StepBoundaries
from rankscope.agent.steps.step_timer import StepTimer
from rankscope.agent.steps.torch_hooks import TorchHooks

PAIRS = 600
QUICK_TIMES = 5
"""So many more pairs of blocks of the quick training."""
BLOCK_STEPS = 8
EPOCH_STEPS = 2000
SETTLE_STEPS = 16
TRIMMED = 0.1
"""Of the differences as much is left out at each end: blocks in which the machine did something else."""
RESAMPLES = 2000
SHORT_STEP_NS = 10_000_000
LONG_STEP_NS = 1_000_000_000
"""Step times that the hooks are told, whatever the loop takes: they set how often it is caught up with."""


class Costs(NamedTuple):
    """us a step: the trimmed mean of what blocks with hooks took more, the 95 % around it, and what the agent's own
    meter says; `step_us` is a step without hooks.
    """

    extra_us: float
    low_us: float
    high_us: float
    metered_us: float
    step_us: float


class Recording(NamedTuple):
    """Per step of a full window: the events it records, and what the steps take more, in us, with its 95 %."""

    events: float
    extra_us: float
    low_us: float
    high_us: float


class OneLayer:
    """One sample a batch."""

    def __init__(self) -> None:
        self._model = nn.Linear(4, 1)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3)
        self.data = DataLoader(TensorDataset(torch.ones(EPOCH_STEPS, 4)), batch_size=1)

    def step(self, rows: Tensor) -> None:
        """One step."""
        self._optimizer.zero_grad()
        self._model(rows).sum().backward()
        self._optimizer.step()


class ShortTransformer:
    """The short model of the other benchmarks, without other ranks."""

    def __init__(self) -> None:
        size = SIZES["short"]
        self._model = Transformer(size)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-3)
        tokens = torch.randint(TOKENS, (EPOCH_STEPS * size.batch, size.context + 1))
        self.data = DataLoader(TensorDataset(tokens), batch_size=size.batch)

    def step(self, rows: Tensor) -> None:
        """One step."""
        self._optimizer.zero_grad()
        logits = self._model(rows[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).backward()
        self._optimizer.step()


Training = OneLayer | ShortTransformer


class HookSwitch:
    """Puts hooks that are installed out of torch, and into it and out of it again."""

    def __init__(self, hooks: TorchHooks) -> None:
        self._hooked = self._read()
        hooks.remove()
        self._plain = self._read()
        hooks.buffer.thread, hooks.buffer.thread_is_confirmed = get_ident(), True

    @staticmethod
    def _read() -> tuple[Any, Any, dict[int, Any], dict[int, Any]]:
        before, after = optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks
        return loader._BaseDataLoaderIter.__next__, torch.autograd.Variable._execution_engine, dict(before), dict(after)

    def put(self, *, hooked: bool) -> None:
        """From here on with hooks, or without."""
        fetch, engine, before, after = self._hooked if hooked else self._plain
        loader._BaseDataLoaderIter.__next__ = fetch  # type: ignore[method-assign]
        torch.autograd.Variable._execution_engine = engine
        for registered, wanted in (
            (optimizers._global_optimizer_pre_hooks, before),
            (optimizers._global_optimizer_post_hooks, after),
        ):
            registered.clear()
            registered.update(wanted)


def make_hooks(step_ns: int) -> TorchHooks:
    """Hooks that feed a real state machine, whose records go nowhere, as in a job with steps of that length."""
    boundaries = StepBoundaries()
    boundaries.learn_step(step_ns)
    timer, guard = StepTimer(lambda _record: None), Guard(error_budget=1)
    buffer = HookEventBuffer(timer, guard, boundaries.next_boundary)
    return TorchHooks(timer, guard, lambda _begins: None, buffer=buffer)


def time_blocks(
    training: Training, pairs: int, begin: Callable[[], object], end: Callable[[], object]
) -> dict[bool, list[int]]:
    """CPU time of blocks of steps in ns: True: those between `begin` and `end`, which are not timed."""
    chance, left = random.Random(0), 0
    batches: Iterator[Any] = iter(())
    took_ns: dict[bool, list[int]] = {True: [], False: []}
    for _ in range(pairs):
        if left < 2 * BLOCK_STEPS:  # an epoch's end would fall into one of the two
            batches, left = iter(training.data), EPOCH_STEPS - SETTLE_STEPS
            for _ in range(SETTLE_STEPS):
                training.step(next(batches)[0])
        left -= 2 * BLOCK_STEPS
        for between in chance.sample((True, False), 2):
            if between:
                begin()
            begin_ns = thread_time_ns()
            for _ in range(BLOCK_STEPS):
                training.step(next(batches)[0])
            took_ns[between].append(thread_time_ns() - begin_ns)
            if between:
                end()
    return took_ns


def measure(training: Training, pairs: int, step_ns: int) -> Costs:
    """The cost of a step over so many pairs of blocks."""
    hooks = make_hooks(step_ns)
    hooks.install()
    switch = HookSwitch(hooks)

    def end() -> None:
        switch.put(hooked=False)
        hooks.buffer.flush_deferred()

    took_ns = time_blocks(training, pairs, lambda: switch.put(hooked=True), end)
    return summarize(took_ns, hooks.buffer.spent_ns / (pairs * BLOCK_STEPS))


def measure_recording(training: Training, pairs: int) -> Recording:
    """What it costs a step to be recorded by a full window."""
    profiler = TorchProfiler.find()
    events: list[int] = []
    took_ns = time_blocks(
        training,
        pairs,
        lambda: profiler.start(full=True),
        lambda: events.append(len(profiler.stop().trace_activities())),
    )
    costs = summarize(took_ns, 0.0)
    return Recording(sum(events) / (pairs * BLOCK_STEPS), costs.extra_us, costs.low_us, costs.high_us)


def summarize(took_ns: dict[bool, list[int]], metered_ns: float) -> Costs:
    """Per step, with the middle 95 % of the trimmed means of resampled pairs."""
    more = [(hooked - plain) / BLOCK_STEPS for hooked, plain in zip(took_ns[True], took_ns[False], strict=True)]
    chance = random.Random(0)
    means = sorted(find_trimmed_mean(chance.choices(more, k=len(more))) for _ in range(RESAMPLES))
    low_ns, high_ns = means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES)]
    step_ns = statistics.median(took_ns[False]) / BLOCK_STEPS
    return Costs(*(ns / 1000 for ns in (find_trimmed_mean(more), low_ns, high_ns, metered_ns, step_ns)))


def find_trimmed_mean(values: list[float]) -> float:
    """The mean without the smallest and largest TRIMMED of the values.

    >>> find_trimmed_mean([0.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 900.0])
    2.0
    """
    out = int(TRIMMED * len(values))
    return statistics.fmean(sorted(values)[out : len(values) - out])


def render(head: str, results: dict[str, Costs], recordings: dict[str, Recording]) -> str:
    """The result file."""
    lines = [
        "| training, seen as | step without hooks, us | us more with hooks | 95 % | by the agent's meter, us |",
        "|---|---|---|---|---|",
    ]
    for name, found in results.items():
        spread = f"{found.extra_us:.1f} | {found.low_us:.1f} to {found.high_us:.1f} | {found.metered_us:.1f}"
        lines.append(f"| {name} | {found.step_us:.0f} | {spread} |")
    windows = [
        "| training | events a step | us more when recorded | 95 % | ns an event | counted by the agent, ns an event |",
        "|---|---|---|---|---|---|",
    ]
    for name, one in recordings.items():
        windows.append(
            f"| {name} | {one.events:.0f} | {one.extra_us:.0f} | {one.low_us:.0f} to {one.high_us:.0f} | "
            f"{1000 * one.extra_us / one.events:.0f} | {RECORDED_EVENT_NS} |"
        )
    explanation = (__doc__ or "").partition("\n\n")[2].partition("\n\n")[2].strip()
    meter = (
        "The last column is what `agent/steps/event_buffer.py` made of the moments that timed themselves, "
        f"{WRITE_COST_FACTOR} times what they saw, and of going through them, {PROCESSING_COST_FACTOR} times what "
        "that took."
    )
    tables = ["\n".join(lines), "\n".join(windows)]
    return "\n\n".join(["# What the hooks cost a step", head, explanation, meter, *tables]) + "\n"


def main() -> None:
    """Measure both trainings and write the result."""
    parser = argparse.ArgumentParser(description="What the hooks cost the training thread.")
    parser.add_argument(
        "--pairs", type=int, default=PAIRS, help=f"blocks of the transformer with and without [{PAIRS}]"
    )
    parser.add_argument("--out", type=Path, default=RESULTS / "moments.md", help="the file to write")
    options = parser.parse_args()
    head = describe_run(f"python -m bench.moments --pairs {options.pairs}")
    torch.set_num_threads(1)
    trainings: list[tuple[str, Training, int]] = [
        ("one layer", OneLayer(), QUICK_TIMES * options.pairs),
        ("transformer", ShortTransformer(), options.pairs),
    ]
    results = {
        f"{name}, {kind} steps": measure(training, pairs, step_ns)
        for name, training, pairs in trainings
        for kind, step_ns in (("short", SHORT_STEP_NS), ("long", LONG_STEP_NS))
    }
    recordings = {name: measure_recording(training, options.pairs // 4) for name, training, _ in trainings}
    text = render(head, results, recordings)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
