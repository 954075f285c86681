"""The score of detection: a fixed matrix of simulated jobs. `python -m tests.simulation.score [--workers N]`.

Every job's seed is its place in the matrix, so a score can be had again job by job.
"""

import argparse
import itertools
import multiprocessing
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tests.simulation.faults import EFFECTS, Fault
from tests.simulation.noise import NOISES
from tests.simulation.scoring import Judged, Row, judge, summarise
from tests.simulation.topology import Topology
from tests.simulation.world import Scenario, run

BEGIN = 100
STEPS = 200
SLOW_RANK = 5

TOPOLOGIES: dict[str, tuple[str, Topology]] = {
    "dp 8": ("dp", Topology.mesh(dp=8)),
    "fsdp 16": ("fsdp", Topology.mesh(dp=16)),
    "tp 4 x dp 4": ("tp", Topology.mesh(tp=4, dp=4)),
    "pp 2 x dp 8": ("pp", Topology.mesh(pp=2, dp=8)),
    "ep 4, dp 32": ("ep", Topology.mesh(dp=32, ep=4)),
    "tp 2 x pp 2 x dp 8": ("pp", Topology.mesh(tp=2, pp=2, dp=8)),
}
RATIOS = (1.03, 1.1, 1.3, 3.0)
SURELY_SEEN = 1.1
"""From here on faults are to be found; below, what is possible is reported."""


class Trial(NamedTuple):
    """A job of the matrix and the rows of the table it belongs to."""

    where: str
    cause: str
    ratio: float | None
    noise: str
    scenario: Scenario
    about_noise: bool = False


def trials() -> Iterator[Trial]:
    """The whole matrix: every cause at every size in every topology, then noises, then healthy jobs."""
    seeds = itertools.count(1)
    for (where, (kind, topology)), cause, ratio in itertools.product(TOPOLOGIES.items(), EFFECTS, RATIOS):
        fault = Fault(cause=cause, ranks=(SLOW_RANK,), ratio=ratio, begin=BEGIN)
        scenario = Scenario(topology=topology, kind=kind, faults=(fault,), steps=STEPS, seed=next(seeds))
        yield Trial(where, cause, ratio, "usual", scenario)
    for (where, (kind, topology)), noise, ratio in itertools.product(TOPOLOGIES.items(), NOISES, (1.1, 1.3)):
        fault = Fault(cause="gpu_compute", ranks=(SLOW_RANK,), ratio=ratio, begin=BEGIN)
        scenario = Scenario(
            topology=topology, kind=kind, noise=NOISES[noise], faults=(fault,), steps=STEPS, seed=next(seeds)
        )
        yield Trial(where, "gpu_compute", ratio, noise, scenario, about_noise=True)
    for (where, (kind, topology)), noise, _ in itertools.product(TOPOLOGIES.items(), NOISES, range(3)):
        scenario = Scenario(topology=topology, kind=kind, noise=NOISES[noise], steps=STEPS, seed=next(seeds))
        yield Trial(where, "healthy", None, noise, scenario)


def carry_out(trial: Trial) -> tuple[Trial, Judged]:
    """Simulate and judge one job."""
    return trial, judge(run(trial.scenario))


def main() -> None:
    """Score the matrix and print its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--every", type=int, default=1, help="take only every Nth job of the matrix")
    options = parser.parse_args()
    began_s = time.monotonic()
    wanted = list(itertools.islice(trials(), 0, None, options.every))
    with multiprocessing.Pool(options.workers) as pool:
        done = pool.map(carry_out, wanted, chunksize=1)
    print(f"{len(done)} jobs in {time.monotonic() - began_s:.0f} s\n")
    usual = [(trial, judged) for trial, judged in done if trial.ratio is not None and not trial.about_noise]
    large = [(trial, judged) for trial, judged in usual if (trial.ratio or 0) >= SURELY_SEEN]
    _print_table("size of the fault", usual, lambda trial: f"{trial.ratio:g} x")
    _print_table(f"cause, {SURELY_SEEN:g} x and above", large, lambda trial: trial.cause)
    _print_table(f"topology, {SURELY_SEEN:g} x and above", large, lambda trial: trial.where)
    _print_table("noise, 1.1 x and 1.3 x", [row for row in done if row[0].about_noise], lambda trial: trial.noise)
    _print_table("healthy, noise", [row for row in done if row[0].ratio is None], lambda trial: trial.noise)


Done = list[tuple[Trial, Judged]]


def _print_table(title: str, done: Done, name_of: Callable[[Trial], str]) -> None:
    rows: dict[str, list[Judged]] = {}
    for trial, judged in done:
        rows.setdefault(name_of(trial), []).append(judged)
    print(f"| {title} | jobs | recall | precision | cause | since | delay | false per 1e6 |")
    print("|---|---|---|---|---|---|---|---|")
    for name, judged_jobs in rows.items():
        print(_format(name, summarise(judged_jobs)))
    print()


def _format(name: str, row: Row) -> str:
    cells = [name, str(row.jobs)]
    cells += [_number(value, 3) for value in (row.recall, row.precision, row.right_cause)]
    cells += [_number(value, 0) for value in (row.since_error_steps, row.delay_steps)]
    return f"| {' | '.join([*cells, f'{row.false_per_million:.1f}'])} |"


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


if __name__ == "__main__":
    main()
