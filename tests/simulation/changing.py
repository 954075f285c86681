"""Worlds in which faults change: they move, grow, meet, last long, begin while reports are lost, or come now and then.

`python -m tests.simulation.changing` judges the runs with even seeds, which the rules may be tuned on;
`--held-out` those with odd seeds. A run's seed is its index, so any one can be repeated alone with `--only`.
"""

import argparse
import itertools
import multiprocessing
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from rankscope.collector.config import CollectorConfig
from tests.simulation.checkers import check_loss_identity
from tests.simulation.claims import find_wrongs
from tests.simulation.cost_truth import compare_costs
from tests.simulation.faults import Fault
from tests.simulation.noise import NOISES, Noise
from tests.simulation.ranks import Windows
from tests.simulation.scenarios import LAYOUTS, Layout, build_layout
from tests.simulation.scoring import Judged, judge, summarise
from tests.simulation.world import Scenario, Stall, World
from tests.simulation.wrongs import Wrong
from tests.validated_run import RunValidatedByPass

FIRST_SEED = 10_000
"""Seeds of the matrix are below."""
SEEDS = 6
SMALL_STAGE = build_layout("pp", 8)
FEW = build_layout("dp", 4)


class Changing(NamedTuple):
    """A run of a family."""

    family: str
    scenario: Scenario


class Result(NamedTuple):
    """A judged run, and what was wrong in it beside names and misses."""

    trial: Changing
    ours: Judged
    wrongs: tuple[Wrong, ...]


def trials() -> Iterator[Changing]:
    """Yield every run; the seeds of each row of a family alternate between even and odd."""
    families = (_sizes, _moving, _seconds, _together, _ramps, _drifts, _long, _noisy, _lost, _stalls, _stalls_of_all)
    seed = itertools.count(FIRST_SEED)
    for family in families:
        for scenario in family():
            for _ in range(SEEDS):
                yield Changing(family.__name__.strip("_"), replace(scenario, seed=next(seed)))


def _fault(rank: int, ratio: float, begin: int, end: int | None = None, **more: Any) -> Fault:
    return Fault(**{"cause": "gpu_compute", "ranks": (rank,), "ratio": ratio, "begin": begin, "end": end, **more})


def _all(layout: Layout, ratio: float, begin: int, drift_steps: int = 0) -> Fault:
    ranks = tuple(range(layout.topology.world_size))
    return Fault(cause="data_loading", ranks=ranks, ratio=ratio, begin=begin, drift_steps=drift_steps)


def _run(layout: Layout, *faults: Fault, steps: int = 220, **others: Any) -> Scenario:
    return replace(layout.scenario(*faults, steps=steps), **others)


def _sizes() -> Iterator[Scenario]:
    """Yield a rank whose slowness becomes larger, smaller, or has another cause."""
    fsdp = LAYOUTS["fsdp 16"]
    yield _run(fsdp, _fault(5, 1.15, 60), _fault(5, 1.05, 110), steps=168)
    yield _run(fsdp, _fault(5, 1.3, 60, 110), _fault(5, 1.15, 110))
    yield _run(build_layout("fsdp", 12), _fault(10, 1.2, 60, cause="data_loading"), _fault(10, 1.5, 110))
    yield _run(fsdp, _fault(5, 1.1, 60), _fault(5, 1.1, 110), _fault(5, 1.1, 160))


def _moving() -> Iterator[Scenario]:
    """Yield a fault that moves to another rank, and one that comes back."""
    for layout in (LAYOUTS["fsdp 16"], SMALL_STAGE):
        yield _run(layout, _fault(1, 1.3, 60, 120), _fault(2, 1.3, 120))
        yield _run(layout, _fault(1, 1.3, 60, 100), _fault(1, 1.3, 160))


def _seconds() -> Iterator[Scenario]:
    """Yield a second slow rank in a small group."""
    for layout in (SMALL_STAGE, FEW):
        yield _run(layout, _fault(1, 1.3, 60), _fault(2, 1.2, 110, cause="host_cpu"))
        yield _run(layout, _fault(1, 1.15, 60), _fault(2, 1.5, 110, cause="host_cpu"))


def _together() -> Iterator[Scenario]:
    """Yield a slow rank in a run that becomes slower as a whole."""
    for layout in (LAYOUTS["fsdp 16"], LAYOUTS["dp 8"]):
        yield _run(layout, _fault(5, 1.3, 60), _all(layout, 1.3, 120))
        yield _run(layout, _all(layout, 1.3, 60), _fault(5, 1.3, 120))


def _ramps() -> Iterator[Scenario]:
    """Yield runs that become slower slowly."""
    for where, drift_steps in itertools.product(("dp 8", "fsdp 16"), (200, 400)):
        yield _run(LAYOUTS[where], _all(LAYOUTS[where], 2.0, 60, drift_steps), steps=80 + drift_steps)


def _drifts() -> Iterator[Scenario]:
    """Yield a rank that becomes slower slowly."""
    for drift_steps in (200, 300):
        yield _run(LAYOUTS["dp 8"], _fault(5, 1.5, 60, drift_steps=drift_steps), steps=80 + drift_steps)


def _long() -> Iterator[Scenario]:
    """Yield faults that last longer than the table of steps."""
    yield _run(FEW, _fault(1, 1.3, 60), steps=700)
    yield _run(FEW, _fault(1, 1.2, 60), _fault(1, 1.2, 400), steps=700)


def _noisy() -> Iterator[Scenario]:
    """Yield constant faults near what noise hides."""
    for noise, ratio in (("jittery", 1.3), ("usual", 1.06), ("rough", 1.15), ("shared_nodes", 1.2)):
        yield _run(LAYOUTS["dp 8"], _fault(5, ratio, 60), steps=400, noise=NOISES[noise])


def _lost() -> Iterator[Scenario]:
    """Yield reports that are lost around the begin of a fault, and while it lasts."""
    fsdp = LAYOUTS["fsdp 16"]
    gaps: Sequence[tuple[int, int]] = ((48, 96), (96, 160))
    for (begin, end), ranks in itertools.product(gaps, ((2,), tuple(range(16)))):
        stalls = (Stall(ranks=ranks, begin=begin, end=end),)
        yield _run(fsdp, _fault(5, 1.3, 70), stalls=stalls, ring_steps=8)


DUTY_CYCLES = ((2, 1.5), (3, 3.7), (5, 1.5), (10, 7.8), (20, 3.0))
"""Every so many steps one takes so many times as long: 120 ms of 44 in each third is 3.7, 300 ms in each tenth 7.8."""
WINDOWS = (Windows(), Windows(length=4, distance=32))


def _stalls() -> Iterator[Scenario]:
    """Yield a rank that stalls every so many steps, of few ranks and of many; where windows are rare, for longer."""
    for ranks, (every, ratio) in itertools.product((3, 4, 8, 64), DUTY_CYCLES):
        if (ranks, every) != (3, 20):  # in 256 steps that are fewer stalls than prove it
            fault = _fault(1, ratio, 60, every=every, cause="unseen_wait")
            yield _run(build_layout("dp", ranks), fault, steps=320)
    for ranks, (every, ratio) in itertools.product((3, 4, 8), DUTY_CYCLES[:3]):
        fault = _fault(1, ratio, 60, every=every, cause="unseen_wait")
        yield _run(build_layout("dp", ranks), fault, steps=800, windows=WINDOWS[1], on_cpus=True)


def _stalls_of_all() -> Iterator[Scenario]:
    """Yield healthy runs in which every rank stalls now and then, for longer or shorter."""
    for ranks, probability, windows in itertools.product((2, 3, 4, 8, 64), (0.02, 0.1), WINDOWS):
        noise = Noise(burst_probability=probability)
        steps = 320 if windows == WINDOWS[0] else 800
        yield _run(build_layout("dp", ranks), steps=steps, windows=windows, on_cpus=True, noise=noise)


def carry_out(trial: Changing) -> Result:
    """Simulate and judge one run; AssertionError if a step was lost and not counted."""
    world = World(trial.scenario, CollectorConfig(), RunValidatedByPass)
    outcome = world.run()
    check_loss_identity(world)
    return Result(trial, judge(outcome), find_wrongs(outcome, compare_costs(outcome)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Judge one half of the runs and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--held-out", action="store_true", help="the runs with odd seeds, which no rule is tuned on")
    parser.add_argument("--only", nargs="+", metavar="FAMILY", help="only these families")
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args(arguments)
    wanted = [
        trial
        for trial in trials()
        if trial.scenario.seed % 2 == options.held_out and (not options.only or trial.family in options.only)
    ]
    with multiprocessing.Pool(options.workers) as pool:
        results = pool.map(carry_out, wanted, chunksize=1)
    sys.stdout.write("\n".join(describe(results)) + "\n")


def describe(results: Sequence[Result]) -> list[str]:
    """Return a table by family, and every run that was not right."""
    lines = ["| family | runs | faults | recall | precision | right rank | cause | pattern | since | wrong |"]
    lines.append("|---|" + "---:|" * 9)
    families: Mapping[str, list[Result]] = {one.trial.family: [] for one in results}
    for one in results:
        families[one.trial.family].append(one)
    for family, there in families.items():
        row = summarise([one.ours for one in there])
        shares = (row.recall, row.precision, row.right_rank, row.right_cause, row.right_pattern, row.since_error_steps)
        cells = ["" if share is None else f"{share:.2f}" for share in shares]
        wrongs = sum(len(one.wrongs) for one in there)
        lines.append(f"| {family} | {row.runs} | {row.faults} | {' | '.join(cells)} | {wrongs} |")
    for one in results:
        missed = [
            str(fault.ranks[:3])
            for fault, verdict in zip(one.trial.scenario.faults, one.ours.faults, strict=True)
            if not verdict.found
        ]
        notes = [*(f"missed {ranks}" for ranks in missed), *(f"{wrong.kind}: {wrong.text}" for wrong in one.wrongs)]
        notes += [f"{one.ours.false_findings} false"] * bool(one.ours.false_findings)
        lines += [f"{one.trial.family} {one.trial.scenario.seed}: {note}" for note in notes]
    return lines


if __name__ == "__main__":
    main()
