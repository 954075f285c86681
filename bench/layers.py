"""What it costs to time the repeated blocks of a model: python -m bench.layers [--pairs N] [--out FILE]

A model of so many blocks (a norm and two linear layers of WIDTH numbers each) trains on one thread. Of each pair of
steps, in random order, one is timed block by block and the other is not; the difference of the thread's CPU time is
what timing has cost: hooks put on and taken off, called, and what torch has lost from its caches. Medians of all pairs,
with their 95 % interval by 2,000 resamples. *by its own meter* is what the agent counts for such a step, from which it
chooses how often it times one: at most 0.05 % of all time by default.

*a look* is the search for blocks, in a process that has imported torch: one, after the first steps. *medians* is what
the agent's thread does after each four timed steps. *a pass* is what the collector does in a detection pass, of ranks
with 32 blocks each.
"""

import argparse
import random
import statistics
import time
from pathlib import Path

from bench.machine import RESULTS, describe_run, render_result, run_apart

WIDTH, ROWS = 64, 64
BLOCKS = (8, 32)
PAIRS = 600
WARM_STEPS = 30
RESAMPLES = 2_000
ROUNDS = 7
RANKS = (8, 1_024, 16_384)


def measure_steps(blocks: int, pairs: int) -> tuple[float, float, tuple[float, float], float]:
    """Microseconds: CPU time of a step, by how much a timed one takes more, its interval, and the agent's own count."""
    import torch  # noqa: PLC0415 - in a process of its own
    from torch import nn  # noqa: PLC0415

    from rankscope.agent.guard import Guard  # noqa: PLC0415
    from rankscope.agent.steps.layer_timers import LayerTimers  # noqa: PLC0415
    from rankscope.agent.steps.module_containers import find_containers  # noqa: PLC0415
    from rankscope.agent.steps.repeated_blocks import choose_blocks  # noqa: PLC0415
    from rankscope.agent.steps.timing_plan import TimingPlan  # noqa: PLC0415

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.first, self.second = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = x + self.second(torch.relu(self.first(self.norm(x))))
            return y

    class Chosen(TimingPlan):
        """Times the steps that it is told."""

        is_next = False
        cost_ns = 0

        def is_due(self, step: int) -> bool:
            del step
            return self.is_next

        def learn_cost(self, cost_ns: int) -> None:
            self.cost_ns = cost_ns

    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Sequential(*(Block() for _ in range(blocks))))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    found = choose_blocks(find_containers())
    assert found is not None
    plan = Chosen(warmup_steps=0, overhead_ratio_max=1.0)
    timers = LayerTimers(found, plan, Guard(error_budget=1), is_in_backward=lambda: False)
    batch = torch.randn(ROWS, WIDTH)

    def step(number: int, *, is_timed: bool) -> int:
        plan.is_next = is_timed
        begin_ns = time.thread_time_ns()
        timers.on_boundary(number)
        model(batch).square().mean().backward()
        timers.before_optimizer()
        optimizer.step()
        optimizer.zero_grad()
        plan.is_next = False
        timers.on_boundary(number + 1)
        return time.thread_time_ns() - begin_ns

    for number in range(WARM_STEPS):
        step(number, is_timed=True)
    plain, differences, counted = [], [], []
    chance = random.Random(7)
    for pair in range(pairs):
        took = {}
        for is_timed in chance.sample((False, True), 2):
            took[is_timed] = step(pair, is_timed=is_timed)
        plain.append(took[False])
        differences.append(took[True] - took[False])
        counted.append(plan.cost_ns)
    assert timers.take() is not None
    medians = sorted(statistics.median(chance.choices(differences, k=pairs)) for _ in range(RESAMPLES))
    interval = medians[RESAMPLES // 40] / 1e3, medians[-RESAMPLES // 40] / 1e3
    return (
        statistics.median(plain) / 1e3,
        statistics.median(differences) / 1e3,
        interval,
        statistics.median(counted) / 1e3,
    )


def measure_look() -> tuple[int, float, float]:
    """Objects, ms of CPU time of a look for blocks, and of the medians of 16 steps of 32 blocks."""
    import gc  # noqa: PLC0415

    import torch  # noqa: F401, PLC0415 - for its objects

    from rankscope.agent.steps.layer_timers import _Sample, _Times, summarize  # noqa: PLC0415
    from rankscope.agent.steps.module_containers import find_containers  # noqa: PLC0415

    samples = [
        _Sample(step, 1, {place: _Times(1_000 + step, 2_000 + place, None) for place in range(32)})
        for step in range(16)
    ]
    looks, sums = [], []
    for _ in range(ROUNDS):
        begin_ns = time.thread_time_ns()
        find_containers()
        between_ns = time.thread_time_ns()
        summarize("Block", 0, 32, samples)
        sums.append(time.thread_time_ns() - between_ns)
        looks.append(between_ns - begin_ns)
    return len(gc.get_objects()), min(looks) / 1e6, min(sums) / 1e6


def measure_pass(ranks: int) -> float:
    """Ms of CPU time that a pass takes for the blocks of so many ranks."""
    import numpy as np  # noqa: PLC0415 - in a process of its own

    from rankscope.collector.steps.layer_times import find_layers, unpack_layers  # noqa: PLC0415
    from rankscope.collector.steps.peer_groups import find_peer_groups  # noqa: PLC0415
    from rankscope.measure.records import LayerTimes  # noqa: PLC0415

    chance = random.Random(7)
    columns = [tuple(chance.randrange(1_000_000, 1_100_000) for _ in range(32)) for _ in range(5)]
    one = LayerTimes(kind="Block", samples=16, last_step=900, calls=1, columns=tuple(columns))
    reported = {rank: unpack_layers(one) for rank in range(ranks)}
    peers = find_peer_groups(tuple(range(ranks)), {})
    steps_ns = np.full((16, ranks), 1e9)
    times = []
    for _ in range(ROUNDS):
        begin_ns = time.thread_time_ns()
        find_layers(reported, peers, steps_ns)
        times.append(time.thread_time_ns() - begin_ns)
    return min(times) / 1e6


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description="What it costs to time the repeated blocks of a model.")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="pairs of steps for each number of blocks")
    parser.add_argument("--out", type=Path, default=RESULTS / "layers.md", help="the file to write")
    options = parser.parse_args()
    head = describe_run(f"python -m bench.layers --pairs {options.pairs}")
    steps = [
        "| blocks | us a step | us more if timed | 95 % | us a block | by its own meter |",
        "|---|---|---|---|---|---|",
    ]
    for blocks in BLOCKS:
        plain, more, (low, high), counted = run_apart(measure_steps, blocks, options.pairs)
        steps.append(
            f"| {blocks} | {plain:.0f} | {more:.0f} | {low:.0f} to {high:.0f} | {more / blocks:.1f} | {counted:.0f} |"
        )
    objects, look, medians = run_apart(measure_look)
    others = ["| | ms |", "|---|---|", f"| a look, {objects:,} objects | {look:.1f} |"]
    others.append(f"| medians of 32 blocks | {medians:.1f} |")
    others += [f"| a pass, {ranks:,} ranks | {run_apart(measure_pass, ranks):.1f} |" for ranks in RANKS]
    title = "What it costs to time the repeated blocks of a model"
    text = render_result(title, head, __doc__, "\n".join(steps), "\n".join(others))
    options.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
