"""What one hooked moment costs the training thread: `python -m tests.benchmarks.moments [--rounds 40] [--out FILE]`.

A step has six moments: begin and end of the batch, of the backward and of the optimizer step. Two loops are timed, with
hooks and without, one right after the other in every round, as steps of 10 ms are seen (every 64th begins live,
`agent/probe/live_steps.py`) and as long ones are, which all do:

    bare   the hooks around functions that do nothing: the hook, the clock and the state machine, and nothing else
    torch  a training so small that a step takes a fraction of a millisecond: the same hooks as training meets them,
           with cold caches. Beside it stands what the agent's own meter takes a moment for (probe/moment_meter.py).

What is taken is the CPU time of the thread, which hardly depends on what else the machine does.
"""

import argparse
import random
import statistics
from collections.abc import Callable
from pathlib import Path
from time import thread_time_ns
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader, TensorDataset

from rankscope.agent.guard import Guard
from rankscope.agent.probe.live_steps import LiveSteps
from rankscope.agent.probe.moment_log import MomentLog
from rankscope.agent.probe.moment_meter import AFTERMATH_TIMES, UNSEEN_TIMES
from rankscope.agent.probe.steps import StepTimer
from rankscope.agent.probe.torch_hooks import TorchHooks
from tests.benchmarks.machine import RESULTS, describe_run

ROUNDS = 40
BARE_STEPS = 2000
TORCH_STEPS = 200
MOMENTS_PER_STEP = 6
RESAMPLES = 10_000


SHORT_STEP_NS = 10_000_000
LONG_STEP_NS = 1_000_000_000
"""Step times that the hooks are told, whatever the loop takes: they set how often it is caught up with."""


class Costs(NamedTuple):
    """ns a moment: the median over the rounds, the 95 % around it, the smallest and largest round; and what the agent's
    own meter held a moment for in the same rounds.
    """

    median: float
    low: float
    high: float
    smallest: float
    largest: float
    metered: float


def make_hooks(step_ns: int) -> TorchHooks:
    """Hooks that feed a real state machine, whose records go nowhere, as in a job with steps of that length."""
    live = LiveSteps()
    live.learn_step(step_ns)
    timer, guard = StepTimer(lambda _record: None), Guard(error_budget=1)
    return TorchHooks(timer, guard, lambda _begins: None, log=MomentLog(timer, guard, live.find_next))


# -- the two loops ----------------------------------------------------------------------------------------------------


def time_bare(hooks: TorchHooks | None) -> int:
    """ns of BARE_STEPS steps that do nothing, with hooks around them or not."""

    def nothing(_iterator: object = None) -> None:
        return None

    fetch: Callable[..., Any] = hooks._wrap_next(nothing) if hooks is not None else nothing
    backward: Callable[..., Any] = hooks._wrap_backward(nothing) if hooks is not None else nothing
    before = list(optimizers._global_optimizer_pre_hooks.values())
    after = list(optimizers._global_optimizer_post_hooks.values())
    begin_ns = thread_time_ns()
    for _ in range(BARE_STEPS):
        fetch(None)
        backward()
        for hook in before:
            hook(None, (), {})  # type: ignore[arg-type]
        for hook in after:
            hook(None, (), {})  # type: ignore[arg-type]
    return thread_time_ns() - begin_ns


class TinyTraining:
    """One layer, one sample a batch."""

    def __init__(self) -> None:
        self._model = nn.Linear(4, 1)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3)
        self._batches = DataLoader(TensorDataset(torch.ones(TORCH_STEPS, 4)), batch_size=1)

    def time(self, _hooks: TorchHooks | None) -> int:
        """ns of TORCH_STEPS steps. Hooks that are installed are met without being called here."""
        begin_ns = thread_time_ns()
        for (batch,) in self._batches:
            self._optimizer.zero_grad()
            self._model(batch).sum().backward()
            self._optimizer.step()
        return thread_time_ns() - begin_ns


def measure(loop: Callable[[TorchHooks | None], int], steps: int, rounds: int, step_ns: int) -> Costs:
    """A moment's cost over all rounds, with hooks less without; which of the two comes first takes turns."""
    costs, metered = [], []
    for number in range(rounds):
        hooks = make_hooks(step_ns)
        taken_ns = {with_: time_loop(loop, hooks if with_ else None) for with_ in (number % 2 == 0, number % 2 == 1)}
        costs.append((taken_ns[True] - taken_ns[False]) / (steps * MOMENTS_PER_STEP))
        metered.append(hooks.log.spent_ns / hooks.moments)
    return summarise(costs, metered)


def time_loop(loop: Callable[[TorchHooks | None], int], hooks: TorchHooks | None) -> int:
    """ns of one pass, the hooks, if any, installed only for its time."""
    if hooks is None:
        return loop(None)
    hooks.install()
    try:
        return loop(hooks)
    finally:
        hooks.remove()


# -- the result -------------------------------------------------------------------------------------------------------


def summarise(costs: list[float], metered: list[float]) -> Costs:
    """The medians over the rounds, and the middle 95 % of the medians of resampled rounds."""
    chance = random.Random(0)
    medians = sorted(statistics.median(chance.choices(costs, k=len(costs))) for _ in range(RESAMPLES))
    low, high = medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES)]
    return Costs(statistics.median(costs), low, high, min(costs), max(costs), statistics.median(metered))


def render(head: str, results: dict[str, Costs]) -> str:
    """The result file."""
    lines = [
        "| loop | ns a moment | 95 % | smallest round | largest round | by the agent's meter |",
        "|---|---|---|---|---|---|",
    ]
    for name, found in results.items():
        spread = (
            f"{found.low:.0f} to {found.high:.0f} | {found.smallest:.0f} | {found.largest:.0f} | {found.metered:.0f}"
        )
        lines.append(f"| {name} | {found.median:.0f} | {spread} |")
    explanation = (
        "Hook, clock and state machine: the thread's CPU time with hooks less that without, divided by the "
        f"{MOMENTS_PER_STEP} moments of a step. *bare*: around functions that do nothing, {BARE_STEPS} steps a pass. "
        f"*torch*: in a training of one layer, {TORCH_STEPS} steps a pass. The last column is what "
        f"`agent/probe/moment_meter.py` made of the moments that timed themselves, {UNSEEN_TIMES} times what they saw, "
        f"and of going through them, {AFTERMATH_TIMES} times what that took."
    )
    return "\n\n".join(["# What one hooked moment costs", head, explanation, "\n".join(lines)]) + "\n"


def main() -> None:
    """Measure both loops and write the result."""
    parser = argparse.ArgumentParser(description="What one hooked moment costs the training thread.")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"passes with and without hooks [{ROUNDS}]")
    parser.add_argument("--out", type=Path, default=RESULTS / "moments.md", help="the file to write")
    options = parser.parse_args()
    head = describe_run(f"python -m tests.benchmarks.moments --rounds {options.rounds}")
    torch.set_num_threads(1)
    training = TinyTraining()
    for loop in (time_bare, training.time):  # the first passes import and allocate
        time_loop(loop, make_hooks(LONG_STEP_NS))
    results = {
        f"{name}, {kind} steps": measure(loop, steps, options.rounds, step_ns)
        for name, loop, steps in (("bare", time_bare, BARE_STEPS), ("torch", training.time, TORCH_STEPS))
        for kind, step_ns in (("short", SHORT_STEP_NS), ("long", LONG_STEP_NS))
    }
    text = render(head, results)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
