"""Judge a list of simulated runs by a command line: in several processes, a selection, or in parts that are joined.

    python -m tests.simulation.score --part 1/3 --save one.json      and so on for 2/3, 3/3
    python -m tests.simulation.score --join one.json two.json three.json

The parts may be made one after the other, or on several machines; with `--incomplete` some of them are reported, and
the report says so. `--every N` runs only every Nth, `--only` some of the
kinds of runs, `--half` those with even or with odd seeds: such a selection is printed, and no file is written. Rules
are tuned on even seeds only; odd ones are held out.
"""

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from bench.machine import RESULTS, describe_run
from bench.rivals import judge_rivals
from rankscope.collector.config import CollectorConfig
from tests.simulation.checkers import check_loss_identity
from tests.simulation.claims import find_begin_ranges, find_wrongs
from tests.simulation.cost_truth import compare_costs
from tests.simulation.ideal import find_ideal_z
from tests.simulation.matrix import Trial
from tests.simulation.scoring import Judged, judge
from tests.simulation.world import World
from tests.simulation.wrongs import Wrong
from tests.validated_run import RunValidatedByPass

PROGRESS_EVERY = 50
"""Runs between two lines of progress."""
HALVES = {"even": 0, "odd": 1}


class Scored(NamedTuple):
    """Judgement of one run: ours, and other tools' rules by rule and input; what of ours was wrong beside names, and by
    how much each stated cost was off, as a share of the step; and the z of the ideal test (`ideal.py`).
    """

    trial: Trial
    ours: Judged
    rivals: Mapping[tuple[str, str], Judged]
    wrongs: tuple[Wrong, ...] = ()
    cost_errors: tuple[float, ...] = ()
    begin_ranges: tuple[int, ...] = ()
    ideal_z: float | None = None


class Judgement(NamedTuple):
    """Judgement of one run in a file; `rivals` by rule and input."""

    seed: int
    ours: Judged
    rivals: list[tuple[str, str, Judged]]
    wrongs: tuple[Wrong, ...] = ()
    cost_errors: tuple[float, ...] = ()
    begin_ranges: tuple[int, ...] = ()
    ideal_z: float | None = None


class Part(NamedTuple):
    """Judgements of a part of a list of runs, and how long it took."""

    took_s: float
    judgements: list[Judgement]


class Suite(NamedTuple):
    """A list of runs, each with a seed of its own; the module whose command judges it, the name of the file of its
    results, and what writes them: from the judged runs, the head of the file and the seconds they took.
    """

    trials: Callable[[], Iterable[Trial]]
    module: str
    results: str
    write_report: Callable[[Sequence[Scored], str, float], str]


def carry_out(trial: Trial) -> Scored:
    """Simulate and judge one run; AssertionError if a step was lost and not counted."""
    world = World(trial.scenario, CollectorConfig(), RunValidatedByPass)
    outcome = world.run()
    check_loss_identity(world)
    costs = compare_costs(outcome)
    errors = tuple(one.error for one in costs)
    wrongs, ranges = find_wrongs(outcome, costs), find_begin_ranges(outcome)
    return Scored(trial, judge(outcome), judge_rivals(outcome), wrongs, errors, ranges, find_ideal_z(outcome))


def run_suite(suite: Suite, about: str | None, arguments: Sequence[str] | None = None) -> None:
    """Judge the runs that the arguments of a command ask for, and write or print the report; `about` is its help."""
    options = _parse(about, arguments)
    head = describe_run(f"python -m {suite.module}")
    if options.join:
        listed = list(suite.trials())
        scored, took_s = join(listed, options.join, is_incomplete=options.incomplete)
        if len(scored) < len(listed):
            head += f"\n| judged | {len(scored)} of {len(listed)} runs |"
    else:
        began_s = time.monotonic()
        chosen = select(suite.trials(), options.every, options.only, options.half)
        scored = carry_out_all(choose_part(chosen, options.part), options.workers)
        took_s = time.monotonic() - began_s
    if options.save is not None:
        options.save.write_bytes(msgspec.json.encode(Part(took_s, [save(one) for one in scored])))
        return
    text = suite.write_report(scored, head, took_s)
    if (options.every, options.only, options.half) == (1, None, None):
        (RESULTS / suite.results).write_text(text, encoding="utf-8")
    sys.stdout.write(text)


def _parse(about: str | None, arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--every", type=int, default=1, help="judge only every Nth run, and only print")
    parser.add_argument("--only", nargs="+", metavar="KIND", help="judge only these kinds of runs, and only print")
    parser.add_argument("--half", choices=HALVES, help="judge only runs with even or with odd seeds, and only print")
    parser.add_argument("--part", type=read_part, default=(1, 1), metavar="K/N", help="judge the Kth of N parts")
    parser.add_argument("--save", type=Path, help="write the judgements of a part to this file instead of a report")
    parser.add_argument("--join", type=Path, nargs="+", metavar="FILE", help="report the judgements in these files")
    parser.add_argument("--incomplete", action="store_true", help="with --join: other runs may be missing")
    options = parser.parse_args(arguments)
    if options.part != (1, 1) and options.save is None:
        parser.error("--part needs --save FILE: a report is of all parts")
    return options


def read_part(text: str) -> tuple[int, int]:
    """Return the number of a part and how many there are. Raises ValueError for anything but K/N with 1 <= K <= N."""
    number, count = (int(one) for one in text.split("/"))
    if not 1 <= number <= count:
        raise ValueError(f"part {number} of {count}")
    return number, count


def select(trials: Iterable[Trial], every: int, only: Sequence[str] | None, half: str | None) -> list[Trial]:
    """Return every Nth of the trials: of some kinds only, with even or odd seeds only. Raises SystemExit with the kinds
    there are for an unknown one.
    """
    listed = list(trials)
    kinds = list(dict.fromkeys(trial.about for trial in listed))
    if unknown := sorted(set(only or ()) - set(kinds)):
        raise SystemExit(f"--only has {', '.join(unknown)}; known are {', '.join(kinds)}")
    wanted = [trial for trial in listed if only is None or trial.about in only]
    return [trial for trial in wanted if half is None or trial.scenario.seed % 2 == HALVES[half]][::every]


def choose_part(trials: Sequence[Trial], part: tuple[int, int]) -> list[Trial]:
    """Return the trials of a part, the largest first: a large one at the end would leave other processes idle."""
    number, count = part
    mine = trials[number - 1 :: count]
    return sorted(mine, key=lambda trial: -trial.scenario.topology.world_size * trial.scenario.steps)


def carry_out_all(trials: Sequence[Trial], workers: int) -> list[Scored]:
    """Carry out trials in several processes."""
    scored = []
    with multiprocessing.Pool(workers) as pool:
        for one in pool.imap_unordered(carry_out, trials):
            scored.append(one)
            if len(scored) % PROGRESS_EVERY == 0:
                sys.stderr.write(f"{len(scored)} of {len(trials)}\n")
    return scored


def join(trials: Iterable[Trial], paths: Sequence[Path], *, is_incomplete: bool = False) -> tuple[list[Scored], float]:
    """Return the judgements of all parts, and how long they took together, in s. Raises ValueError where one of the
    trials is there twice, or is missing, unless `is_incomplete`.
    """
    parts = [msgspec.json.decode(path.read_bytes(), type=Part) for path in paths]
    by_seed = {trial.scenario.seed: trial for trial in trials}
    saved = [one for part in parts for one in part.judgements]
    seeds = {one.seed for one in saved}
    if len(seeds) < len(saved) or not seeds <= by_seed.keys() or (len(seeds) < len(by_seed) and not is_incomplete):
        raise ValueError(f"{len(saved)} runs in these files are not all {len(by_seed)} once each")
    scored = [
        Scored(
            by_seed[one.seed],
            one.ours,
            {(rule, seen): by for rule, seen, by in one.rivals},
            one.wrongs,
            one.cost_errors,
            one.begin_ranges,
            one.ideal_z,
        )
        for one in saved
    ]
    return scored, sum(part.took_s for part in parts)


def save(scored: Scored) -> Judgement:
    """Return what a file keeps of one run: its trial is found again by its seed."""
    return Judgement(
        scored.trial.scenario.seed,
        scored.ours,
        [(rule, seen, by) for (rule, seen), by in scored.rivals.items()],
        scored.wrongs,
        scored.cost_errors,
        scored.begin_ranges,
        scored.ideal_z,
    )
