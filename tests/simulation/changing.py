"""Worlds in which faults change: they move, grow, meet, last long, begin while reports are lost, or come now and then;
and in which something else than speed changes: batches grow on purpose, or a rank leaves out a collective.

`python -m tests.simulation.changing` writes bench/results/changing.md; `parts.py` says how to judge a
selection, or all runs in parts. Rules may be tuned on the runs with even seeds; those with odd seeds are held out. A
run's seed is its index.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from tests.simulation.curriculum import Curriculum
from tests.simulation.faults import Fault
from tests.simulation.matrix import Trial
from tests.simulation.noise import NOISES, Noise
from tests.simulation.parts import Scored, Suite, run_suite
from tests.simulation.ranks import Windows
from tests.simulation.scenarios import LAYOUTS, Layout, build_layout
from tests.simulation.tables import bound_false, name_missed, rival_table, write_table, wrong_tables
from tests.simulation.world import Scenario, Skip, Stall

FIRST_SEED = 10_000
"""Seeds of the matrix are below."""
SEEDS = 6
SMALL_STAGE = build_layout("pp", 8)
FEW = build_layout("dp", 4)


def trials() -> Iterator[Trial]:
    """Yield every run; the seeds of each row of a family alternate between even and odd."""
    families = (
        _sizes, _moving, _seconds, _together, _ramps, _drifts, _long, _noisy, _lost, _stalls, _stalls_of_all,
        _skips, _after_skips, _curricula, _growing_runs, _growing_ranks,
    )  # fmt: skip
    seed = itertools.count(FIRST_SEED)
    for family in families:
        for scenario in family():
            what, where, noise = _describe_faults(scenario), _describe_layout(scenario), _describe_noise(scenario)
            for _ in range(SEEDS):
                yield Trial(family.__name__.strip("_"), what, where, noise, replace(scenario, seed=next(seed)))


def _describe_faults(scenario: Scenario) -> str:
    """Return the faults of a run, and over how many steps, to tell its row from others.

    >>> _describe_faults(next(_drifts()))
    'rank 5 1.5 x since 60 over 200 steps, 280 steps'
    """
    everybody = scenario.topology.world_size
    parts = []
    for fault in scenario.faults:
        who = "all" if len(fault.ranks) == everybody else f"rank {fault.ranks[0]}"
        when = f"since {fault.begin}" if fault.end is None else f"from {fault.begin} to {fault.end}"
        how = f" in one of {fault.every} steps" if fault.every > 1 else ""
        how += f" over {fault.drift_steps} steps" if fault.drift_steps else ""
        parts.append(f"{who} {fault.ratio:g} x {when}{how}")
    lost = [f"no reports of {len(one.ranks)} from {one.begin} to {one.end}" for one in scenario.stalls]
    return ", ".join([*(parts or ["healthy"]), *lost, *_describe_work(scenario), f"{scenario.steps} steps"])


def _describe_work(scenario: Scenario) -> Iterator[str]:
    """Yield what changes in the work of a run beside faults: its batches, and a collective that is left out."""
    if (skip := scenario.skip) is not None:
        yield f"rank {skip.rank} skips a collective at {skip.step}"
    if (curriculum := scenario.curriculum) is not None:
        over = f" over {curriculum.grow_steps} steps" if curriculum.grow_steps else ""
        yield f"{curriculum.ratio:g} x the tokens since {curriculum.begin}{over}"


def _describe_layout(scenario: Scenario) -> str:
    rare = "" if scenario.windows == Windows() else ", rare windows"
    return f"{scenario.kind} {scenario.topology.world_size}{', on CPUs' if scenario.on_cpus else ''}{rare}"


def _describe_noise(scenario: Scenario) -> str:
    named = [name for name, noise in NOISES.items() if noise == scenario.noise]
    return named[0] if named else f"stalls in {100 * scenario.noise.burst_probability:g} % of the steps"


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


def _skips() -> Iterator[Scenario]:
    """Yield a rank that leaves out one collective: in a group of all ranks and of some, beside a rank that is slow
    already or in another group; and the same runs where none is left out.
    """
    stages, skip = LAYOUTS["unequal pp 4 x dp 4"], Skip(rank=3, step=60)
    for layout in (LAYOUTS["dp 8"], LAYOUTS["fsdp 16"], LAYOUTS["tp 4 x dp 4"], stages):
        yield _run(layout, steps=160, skip=skip)
    for layout in (LAYOUTS["dp 8"], stages):
        yield _run(layout, steps=160)
    yield _run(stages, _fault(9, 1.3, 80), steps=180, skip=skip)
    yield _run(LAYOUTS["dp 8"], _fault(5, 1.3, 50), steps=200, skip=Skip(rank=3, step=100))


def _after_skips() -> Iterator[Scenario]:
    """Yield a rank that becomes slow after one of its only group has left out a collective. Its calls still meet those
    of the same step, though their numbers differ.
    """
    for rank in (5, 3):
        yield _run(LAYOUTS["dp 8"], _fault(rank, 1.3, 120), skip=Skip(rank=3, step=60))


def _curricula() -> Iterator[Scenario]:
    """Yield batches that grow on purpose, at once and gradually: alone, and with ranks that are slow beside."""
    data, sharded, stages = LAYOUTS["dp 8"], LAYOUTS["fsdp 16"], LAYOUTS["pp 2 x dp 8"]
    jump, early = Curriculum(ratio=1.5, begin=100), Curriculum(ratio=1.5, begin=80)
    yield _run(data, curriculum=jump)
    yield _run(stages, curriculum=Curriculum(ratio=3.0, begin=100))
    yield _run(sharded, steps=300, curriculum=Curriculum(ratio=2.0, begin=60, grow_steps=200, stages=8))
    yield _run(data, steps=500, curriculum=Curriculum(ratio=2.0, begin=60, grow_steps=400, stages=400))
    yield _run(data, _fault(5, 1.3, 140), curriculum=jump)
    yield _run(data, _fault(5, 1.3, 60), curriculum=jump)
    yield _run(data, _all(data, 1.3, 160), steps=260, curriculum=early)
    yield _run(data, _all(data, 1.3, 100), curriculum=jump)
    yield _run(data, _all(data, 1.3, 140), curriculum=jump)
    yield _run(data, _all(data, 1.3, 100), curriculum=Curriculum(ratio=1.0, begin=0))


def _growing_runs() -> Iterator[Scenario]:
    """Yield runs that become slower slowly by less than twice, and those that only wander."""
    for where, (ratio, steps) in itertools.product(("dp 8", "fsdp 16"), ((1.3, 200), (1.5, 300))):
        ranks = tuple(range(LAYOUTS[where].topology.world_size))
        yield _run(LAYOUTS[where], replace(_fault(0, ratio, 60, drift_steps=steps), ranks=ranks), steps=80 + steps)
    for where, noise in (("dp 8", "usual"), ("fsdp 16", "usual"), ("dp 8", "rough"), ("fsdp 16", "shared_nodes")):
        yield _run(LAYOUTS[where], steps=380, noise=NOISES[noise])


def _growing_ranks() -> Iterator[Scenario]:
    """Yield a rank that becomes slower slowly, in several layouts, and the same runs without it."""
    layouts = (LAYOUTS["dp 8"], LAYOUTS["fsdp 16"], LAYOUTS["pp 2 x dp 8"])
    for layout, ratio, steps in itertools.product(layouts, (1.3, 2.0), (100, 300)):
        yield _run(layout, _fault(5, ratio, 60, drift_steps=steps), steps=80 + steps)
    for layout in layouts:
        yield _run(layout, steps=380)


def main(arguments: Sequence[str] | None = None) -> None:
    """Judge the runs, and write their tables."""
    suite = Suite(trials, "tests.simulation.changing", "changing.md", write_report)
    run_suite(suite, __doc__, arguments)


def write_report(scored: Sequence[Scored], head: str, took_s: float) -> str:
    """Return the whole result as Markdown."""
    healthy = [one for one in scored if not one.trial.scenario.faults]
    rank_steps = sum(one.ours.rank_steps for one in scored)
    intro = (
        f"{len(scored)} runs in {took_s:.0f} s, {len(healthy)} of them healthy; {rank_steps:,} steps of ranks without "
        "a fault. The columns are explained in tests/simulation/scoring.py, the runs in changing.py. Rules were tuned "
        "on even seeds at most; odd ones are held out."
    )
    halves = [
        write_table(name, some, lambda one: one.trial.about)
        for name, odd in (("even seeds", 0), ("odd seeds (held out)", 1))
        if (some := [one for one in scored if one.trial.scenario.seed % 2 == odd])
    ]
    rivals = "The same runs by the rules of other tools, by the same judge (bench/rivals.py)."
    faulty = [one for one in scored if one.trial.scenario.faults]
    parts = [
        "# How well changing slowness is found",
        head,
        intro,
        bound_false(scored),
        *halves,
        write_table("by row, all seeds", scored, _name_row),
        "## What was missed, and what was false",
        name_missed(scored),
        *wrong_tables(scored),
        "## Beside the rules of others",
        rivals,
        rival_table(faulty, healthy),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _name_row(one: Scored) -> str:
    trial = one.trial
    return f"{trial.about}; {trial.what}; {trial.where}; {trial.noise}"


if __name__ == "__main__":
    main()
