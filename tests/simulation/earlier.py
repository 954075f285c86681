"""Simulate many runs of the same work, one after the other, and compare each with those before it.

python -m tests.simulation.earlier > bench/results/earlier_runs.md      200 healthy runs, 40 planted, minutes

Each run has other chance, and is faster or slower as a whole by START_SIGMA, as runs on other nodes of one kind are. In
planted runs all work on the devices takes longer from the first step on, so that a step is 1.1 times as long.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rankscope.collector.config import CollectorConfig
from rankscope.collector.detect.finding import Finding
from rankscope.collector.detect.run_rules.earlier_runs import SLOWER_THAN_EARLIER
from rankscope.collector.runs.events import EarlierRunsRead
from rankscope.collector.steps.run_start import EarlierRun, RunStart
from tests.simulation.faults import Fault
from tests.simulation.noise import NOISES
from tests.simulation.ranks import Windows
from tests.simulation.topology import Topology
from tests.simulation.world import Scenario, World

STEPS: Final = 200
"""30 more than the first steps need, in which a finding opens."""
RANKS: Final = 4
START_SIGMA: Final = 0.01
"""Standard deviation of the log of the speed of a whole run."""
BASE_RATIO: Final = 1.1
"""Work of every run over that of the simulator: a fault, as which it is made, only makes ranks slower."""
WINDOWS: Final = Windows(length=1, distance=16)
EARLIER: Final = 20
SLOWER: Final = 1.13
"""By how much planted work is longer: a step is 1.1 times as long, as some of it is communication."""


@dataclass(frozen=True)
class MadeRun:
    """A simulated run: its first steps, and the finding that it is slower than earlier ones, None without one."""

    start: RunStart
    found: Finding | None


def simulate_run(seed: int, earlier: Sequence[EarlierRun], noise: str = "usual", slower: float = 1.0) -> MadeRun:
    """Simulate a run whose work on the devices takes `slower` times as long, beside these earlier runs, the latest
    first.
    """
    speed = BASE_RATIO * slower * float(np.exp(np.random.default_rng(seed).normal(0.0, START_SIGMA)))
    everybody = tuple(range(RANKS))
    scenario = Scenario(
        topology=Topology.mesh(dp=RANKS), kind="fsdp", noise=NOISES[noise], steps=STEPS, seed=20_000 + seed,
        windows=WINDOWS, faults=(Fault(cause="gpu_compute", ranks=everybody, ratio=speed, begin=0),),
    )  # fmt: skip
    world = World(scenario, CollectorConfig())
    run = world.end.run
    while world.advance():
        if run.speed.start is not None and run.speed.earlier_runs is None:
            run.apply(EarlierRunsRead(run.speed.start.begun_wall_s, tuple(earlier)))
    assert run.speed.start is not None
    found = [one for one in run.open_findings if one.kind == SLOWER_THAN_EARLIER]
    return MadeRun(run.speed.start, found[0] if found else None)


def simulate_history(count: int, noise: str = "usual", first_seed: int = 0) -> list[MadeRun]:
    """Simulate healthy runs, each beside those before it."""
    made: list[MadeRun] = []
    for seed in range(first_seed, first_seed + count):
        made.append(simulate_run(seed, as_earlier(made), noise))
    return made


def as_earlier(made: Sequence[MadeRun]) -> list[EarlierRun]:
    """Return the last runs as what the store would give, the latest first."""
    return [EarlierRun(f"run@{place}", one.start) for place, one in list(enumerate(made))[: -EARLIER - 1 : -1]]


def main() -> None:
    """Print rows: noise, healthy runs that were found, planted runs that were, and the least and largest slowness."""
    for place, (noise, healthy, planted) in enumerate((("usual", 120, 20), ("jittery", 40, 10), ("rough", 40, 10))):
        made = simulate_history(healthy, noise, 1_000 * place)
        false = sum(one.found is not None for one in made)
        usual_ns = float(np.median([one.start.step_ns for one in made]))
        slow = [
            simulate_run(1_000 * place + 500 + number, as_earlier(made), noise, SLOWER) for number in range(planted)
        ]
        ratios = sorted(one.start.step_ns / usual_ns for one in slow)
        right = sum(one.found is not None for one in slow)
        print(
            f"| {noise} | {false} of {healthy} | {right} of {planted} | {ratios[0]:.3f} to {ratios[-1]:.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
