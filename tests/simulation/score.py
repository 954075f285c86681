"""Score detection: the runs of `matrix.py`, our findings and other tools' rules. `python -m tests.simulation.score`.

Writes tests/benchmarks/results/score.md. `--every N` runs only every Nth and prints instead of writing. The whole can
be run in parts, on one machine after the other or on several, and joined:

    python -m tests.simulation.score --part 1/3 --save one.json      and so on for 2/3, 3/3
    python -m tests.simulation.score --join one.json two.json three.json
"""

import argparse
import itertools
import multiprocessing
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from rankscope.collector.config import CollectorConfig
from tests.benchmarks.machine import RESULTS, describe_run
from tests.simulation import matrix
from tests.simulation.checkers import check_loss_identity
from tests.simulation.claims import find_begin_ranges, find_wrongs
from tests.simulation.cost_truth import TOLERANCE, compare_costs
from tests.simulation.matrix import SURELY_SEEN, Trial
from tests.simulation.rivals import RIVALS, judge_rivals
from tests.simulation.scenarios import BEGIN
from tests.simulation.scoring import Judged, Row, bound_count, judge, summarise
from tests.simulation.world import World
from tests.simulation.wrongs import KINDS, Wrong
from tests.validated_run import RunValidatedByPass

RANKS, STEP_S, DAY_S = 1024, 1, 86_400
PROGRESS_EVERY = 50
"""Runs between two lines of progress."""
NAMED_MAX = 100
"""Wrongs named with their run."""
HEADS = (
    "runs", "faults", "recall", "precision", "right rank", "right cause", "right pattern", "since, steps off",
    "delay, steps", "findings a fault", "false findings", "false per 1e6",
)  # fmt: skip


class Scored(NamedTuple):
    """Judgement of one run: ours, and other tools' rules by rule and input; what of ours was wrong beside names, and by
    how much each stated cost was off, as a share of the step.
    """

    trial: Trial
    ours: Judged
    rivals: Mapping[tuple[str, str], Judged]
    wrongs: tuple[Wrong, ...] = ()
    cost_errors: tuple[float, ...] = ()
    begin_ranges: tuple[int, ...] = ()


class Judgement(NamedTuple):
    """Judgement of one run in a file; `rivals` by rule and input."""

    seed: int
    ours: Judged
    rivals: list[tuple[str, str, Judged]]
    wrongs: tuple[Wrong, ...] = ()
    cost_errors: tuple[float, ...] = ()
    begin_ranges: tuple[int, ...] = ()


class Part(NamedTuple):
    """Judgements of a part of the matrix, and how long it took."""

    took_s: float
    judgements: list[Judgement]


def carry_out(trial: Trial) -> Scored:
    """Simulate and judge one run; AssertionError if a step was lost and not counted."""
    world = World(trial.scenario, CollectorConfig(), RunValidatedByPass)
    outcome = world.run()
    check_loss_identity(world)
    costs = compare_costs(outcome)
    errors = tuple(one.error for one in costs)
    wrongs, ranges = find_wrongs(outcome, costs), find_begin_ranges(outcome)
    return Scored(trial, judge(outcome), judge_rivals(outcome), wrongs, errors, ranges)


def main() -> None:
    """Score the matrix, and write its tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--every", type=int, default=1, help="judge only every Nth run of the matrix, and only print")
    parser.add_argument("--part", type=read_part, default=(1, 1), metavar="K/N", help="judge the Kth of N parts")
    parser.add_argument("--save", type=Path, help="write the judgements of a part to this file instead of a report")
    parser.add_argument("--join", type=Path, nargs="+", metavar="FILE", help="report the judgements in these files")
    options = parser.parse_args()
    if options.part != (1, 1) and options.save is None:
        parser.error("--part needs --save FILE: a report is of all parts")
    head = describe_run("python -m tests.simulation.score")
    if options.join:
        scored, took_s = join(options.join)
    else:
        began_s = time.monotonic()
        scored = carry_out_all(choose(options.every, options.part), options.workers)
        took_s = time.monotonic() - began_s
    if options.save is not None:
        options.save.write_bytes(msgspec.json.encode(Part(took_s, [save(one) for one in scored])))
        return
    text = write_report(scored, head, took_s)
    if options.every == 1:
        (RESULTS / "score.md").write_text(text, encoding="utf-8")
    print(text)


def read_part(text: str) -> tuple[int, int]:
    """Return the number of a part and how many there are. Raises ValueError for anything but K/N with 1 <= K <= N."""
    number, count = (int(one) for one in text.split("/"))
    if not 1 <= number <= count:
        raise ValueError(f"part {number} of {count}")
    return number, count


def choose(every: int, part: tuple[int, int]) -> list[Trial]:
    """Return the trials to carry out, the largest first: a large one at the end would leave other processes idle."""
    number, count = part
    trials = list(itertools.islice(matrix.trials(), 0, None, every))[number - 1 :: count]
    return sorted(trials, key=lambda trial: -trial.scenario.topology.world_size * trial.scenario.steps)


def carry_out_all(trials: Sequence[Trial], workers: int) -> list[Scored]:
    """Carry out trials in several processes."""
    scored = []
    with multiprocessing.Pool(workers) as pool:
        for one in pool.imap_unordered(carry_out, trials):
            scored.append(one)
            if len(scored) % PROGRESS_EVERY == 0:
                print(f"{len(scored)} of {len(trials)}", file=sys.stderr)
    return scored


def join(paths: Sequence[Path]) -> tuple[list[Scored], float]:
    """Return the judgements of all parts, and how long they took together, in s. Raises ValueError where a run of the
    matrix is missing or there twice.
    """
    parts = [msgspec.json.decode(path.read_bytes(), type=Part) for path in paths]
    trials = {trial.scenario.seed: trial for trial in matrix.trials()}
    saved = [one for part in parts for one in part.judgements]
    if sorted(one.seed for one in saved) != sorted(trials):
        raise ValueError(f"{len(saved)} runs in these files are not the matrix")
    scored = [
        Scored(
            trials[one.seed],
            one.ours,
            {(rule, seen): by for rule, seen, by in one.rivals},
            one.wrongs,
            one.cost_errors,
            one.begin_ranges,
        )
        for one in saved
    ]
    return scored, sum(part.took_s for part in parts)


def save(scored: Scored) -> "Judgement":
    """Return what a file keeps of one run: its trial is found again by its seed."""
    return Judgement(
        scored.trial.scenario.seed,
        scored.ours,
        [(rule, seen, by) for (rule, seen), by in scored.rivals.items()],
        scored.wrongs,
        scored.cost_errors,
        scored.begin_ranges,
    )


def write_report(scored: Sequence[Scored], head: str, took_s: float) -> str:
    """Return the whole result as Markdown."""
    healthy = [one for one in scored if not one.trial.scenario.faults]
    sizes = sorted({one.trial.scenario.topology.world_size for one in scored})
    rank_steps = sum(one.ours.rank_steps for one in scored)
    intro = (
        f"{len(scored)} runs of {sizes[0]} to {sizes[-1]:,} ranks in {took_s:.0f} s, {len(healthy)} of them healthy; "
        f"{rank_steps:,} steps of healthy ranks. The columns are explained in tests/simulation/scoring.py, the runs "
        f"in matrix.py. *right* columns are shares of the faults found, *since* and *delay* medians over them. Faults "
        f"begin at step {BEGIN}; a detection pass runs every 8 steps. A rank 1.03 times as slow is below the "
        "threshold (1.05), and must not be reported."
    )
    parts = [
        "# How well slowness is found",
        head,
        intro,
        _bound_false(scored),
        *_tables(scored),
        *_wrong_tables(scored),
        *_rival_tables(scored),
    ]
    return "\n\n".join(parts) + "\n"


def _bound_false(scored: Sequence[Scored]) -> str:
    """Return the false findings of ranks without a fault, with the bound that so few of them prove."""
    healthy = [one.ours for one in scored if not one.trial.scenario.faults]
    parts = []
    for what, judged in (("all runs", [one.ours for one in scored]), ("healthy runs", healthy)):
        rank_steps = sum(one.rank_steps for one in judged)
        count = sum(one.false_findings for one in judged)
        if rank_steps:
            most = bound_count(count) / rank_steps
            a_day = f"{most * RANKS * DAY_S / STEP_S:.0f} a day at {RANKS:,} ranks with steps of {STEP_S} s"
            parts.append(
                f"{what}: {count} in {rank_steps:,} steps of ranks without a fault, so at most {1e6 * most:.2f} per "
                f"1e6 of them, which is {a_day}"
            )
    return f"False findings, with the upper 95 % bound of their rate (Poisson). {'; '.join(parts)}."


def _tables(scored: Sequence[Scored]) -> list[str]:
    one_rank = _about(scored, matrix.ONE_RANK)
    surely = _seen(one_rank)
    healthy = _about(scored, matrix.HEALTHY)

    def by_size(one: Scored) -> str:
        return f"{one.trial.what}, {one.trial.ratio:g} x"

    tables: list[tuple[str, Sequence[Scored], Callable[[Scored], str]]] = [
        (f"in short, {SURELY_SEEN:g} x and above", _seen(scored), lambda one: one.trial.about),
        ("one slow rank, by size of the fault", one_rank, lambda one: f"{one.trial.ratio:g} x"),
        ("one slow rank, by cause and size", one_rank, by_size),
        (f"one slow rank, {SURELY_SEEN:g} x and above, by layout", surely, lambda one: one.trial.where),
        ("unsteady, by pattern and size", _about(scored, matrix.PATTERN), by_size),
        ("a whole node, stage or run, by size", _about(scored, matrix.PLACE), by_size),
        ("two slow ranks at once", _about(scored, matrix.TWO), by_size),
        ("a rank that recovers after 40 steps", _about(scored, matrix.RECOVERY), lambda one: one.trial.what),
        ("network, clocks, death", _about(scored, matrix.WORLD), lambda one: one.trial.what),
        ("one slow rank in noise", _about(scored, matrix.NOISE), by_size),
        ("ranks that are not equal, even seeds", _of_seeds(scored, matrix.UNEQUAL, 0), lambda one: one.trial.what),
        (
            "ranks that are not equal, odd seeds (held out)",
            _of_seeds(scored, matrix.UNEQUAL, 1),
            lambda one: one.trial.what,
        ),
        ("busy machines, even seeds", _of_seeds(scored, matrix.BUSY, 0), lambda one: one.trial.what),
        ("busy machines, odd seeds (held out)", _of_seeds(scored, matrix.BUSY, 1), lambda one: one.trial.what),
        ("schedules of pipelines, even seeds", _of_seeds(scored, matrix.SCHEDULE, 0), lambda one: one.trial.what),
        (
            "schedules of pipelines, odd seeds (held out)",
            _of_seeds(scored, matrix.SCHEDULE, 1),
            lambda one: one.trial.what,
        ),
        ("healthy, by noise", healthy, lambda one: one.trial.noise),
        ("healthy, by layout", healthy, lambda one: one.trial.where),
    ]
    return [_write_table(title, rows, name_of) for title, rows, name_of in tables if rows]


def _about(scored: Sequence[Scored], about: str) -> list[Scored]:
    return [one for one in scored if one.trial.about == about]


def _of_seeds(scored: Sequence[Scored], about: str, odd: int) -> list[Scored]:
    """Return the runs of one part with even seeds, or with odd ones."""
    return [one for one in _about(scored, about) if one.trial.scenario.seed % 2 == odd]


def _seen(scored: Sequence[Scored]) -> list[Scored]:
    """Return the runs with faults that should be found, and those without any."""
    return [one for one in scored if one.trial.ratio is None or one.trial.ratio >= SURELY_SEEN]


def _write_table(title: str, scored: Sequence[Scored], name_of: Callable[[Scored], str]) -> str:
    rows: dict[str, list[Judged]] = {}
    for one in sorted(scored, key=lambda one: one.trial.scenario.seed):
        rows.setdefault(name_of(one), []).append(one.ours)
    lines = [f"| {title} | {' | '.join(HEADS)} |", "|---|" + "---:|" * len(HEADS)]
    lines += [_write_row(name, summarise(judged)) for name, judged in rows.items()]
    if len(rows) > 1:
        lines.append(_write_row("**all**", summarise([one.ours for one in scored])))
    return "\n".join(lines)


def _write_row(name: str, row: Row) -> str:
    cells = [name, str(row.runs), str(row.faults)]
    cells += [
        _number(value, 3) for value in (row.recall, row.precision, row.right_rank, row.right_cause, row.right_pattern)
    ]
    cells += [_number(row.since_error_steps, 0), _number(row.delay_steps, 0), _number(row.findings_per_fault, 2)]
    cells += [str(row.false_findings), f"{row.false_per_million:.1f}"]
    return f"| {' | '.join(cells)} |"


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _wrong_tables(scored: Sequence[Scored]) -> list[str]:
    """Count what was wrong beside names and misses, by part of the matrix, and name the runs."""
    explanation = (
        "What was wrong beside names and misses; tests/simulation/wrongs.py says what counts. *cost, off* is by how "
        "much the step without the slowness that a finding states differs from that of the same run simulated without "
        f"the fault, as a share of the step; more than {TOLERANCE:g} is wrong."
    )
    heads = ("runs", *KINDS, "costs stated", "cost, off: median", "cost, off: most")
    lines = [f"| wrong, by part | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    parts = [(about, _about(scored, about)) for about in dict.fromkeys(one.trial.about for one in scored)]
    lines += [_count_wrongs(name, some) for name, some in [*parts, ("**all**", scored)]]
    named = [
        f"- run {one.trial.scenario.seed} ({one.trial.name}): {wrong.kind}: {wrong.text}"
        for one in sorted(scored, key=lambda one: one.trial.scenario.seed)
        for wrong in one.wrongs
    ]
    more = [f"- {len(named) - NAMED_MAX} more"] if len(named) > NAMED_MAX else []
    named = [*named[:NAMED_MAX], *more]
    return ["## What else was wrong", explanation, _describe_ranges(scored), "\n".join(lines), "\n".join(named)]


def _describe_ranges(scored: Sequence[Scored]) -> str:
    """Return how many begins are stated with a range, and how wide those are."""
    ranges = [steps for one in scored for steps in one.begin_ranges]
    wide = f", {statistics.median(ranges):.0f} steps wide at the median and {max(ranges)} at most" if ranges else ""
    return f"Begins that are stated with a range, within which the true one must be: {len(ranges)}{wide}."


def _count_wrongs(name: str, scored: Sequence[Scored]) -> str:
    counts = Counter(wrong.kind for one in scored for wrong in one.wrongs)
    off = [abs(error) for one in scored for error in one.cost_errors]
    median, most = (statistics.median(off), max(off)) if off else (None, None)
    cells = [name, str(len(scored)), *(str(counts[kind]) for kind in KINDS), str(len(off))]
    return f"| {' | '.join([*cells, _number(median, 3), _number(most, 3)])} |"


def _rival_tables(scored: Sequence[Scored]) -> list[str]:
    """Ours and theirs: on faults of one rank that are to be found, and on everything."""
    asked = _seen(_about(scored, matrix.ONE_RANK) + _about(scored, matrix.NOISE))
    healthy = _about(scored, matrix.HEALTHY)
    explanation = (
        "The same runs by the rules of other tools, at the same passes, by the same judge; rules and inputs are in "
        "tests/simulation/rivals.py. Recall and precision are over every run with one slow rank, "
        f"{SURELY_SEEN:g} x and above, in all layouts and noises; healthy runs are counted apart."
    )
    heads = ("recall", "precision", "false per 1e6", "healthy runs with a finding", "false per 1e6, healthy")
    lines = [f"| rule | shown | {' | '.join(heads)} |", "|---|---|" + "---:|" * len(heads)]
    lines.append(_compare("**rankscope**", "reports", [one.ours for one in asked], [one.ours for one in healthy]))
    for rule, seen in RIVALS:
        theirs = ([one.rivals[rule, seen] for one in some] for some in (asked, healthy))
        lines.append(_compare(rule, seen, *theirs))
    return ["## Beside the rules of others", explanation, "\n".join(lines)]


def _compare(rule: str, seen: str, asked: Sequence[Judged], healthy: Sequence[Judged]) -> str:
    row, calm = summarise(asked), summarise(healthy)
    accused = sum(one.false_findings > 0 for one in healthy)
    cells = [rule, seen, _number(row.recall, 3), _number(row.precision, 3), f"{row.false_per_million:.1f}"]
    return f"| {' | '.join([*cells, f'{accused} of {len(healthy)}', f'{calm.false_per_million:.1f}'])} |"


if __name__ == "__main__":
    main()
