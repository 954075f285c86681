"""Write judged runs as tables in Markdown: by kind of run, what was wrong, and beside the rules of other tools."""

import statistics
from collections import Counter
from collections.abc import Callable, Sequence

from bench.rivals import RIVALS
from tests.simulation.cost_truth import TOLERANCE
from tests.simulation.ideal import DECIDED_Z
from tests.simulation.parts import Scored
from tests.simulation.scoring import Judged, Row, bound_count, summarize
from tests.simulation.wrongs import KINDS

RANKS, STEP_S, DAY_S = 1024, 1, 86_400
NAMED_MAX = 100
"""Wrongs named with their run."""
HEADS = (
    "runs", "faults", "recall", "precision", "right rank", "right cause", "right pattern", "since, steps off",
    "delay, steps", "findings a fault", "false findings", "false per 1e6",
)  # fmt: skip


def bound_false(scored: Sequence[Scored]) -> str:
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


def write_table(title: str, scored: Sequence[Scored], name_of: Callable[[Scored], str]) -> str:
    """Return a table with a row for each name, in the order of the runs' seeds."""
    rows: dict[str, list[Judged]] = {}
    for one in sorted(scored, key=lambda one: one.trial.scenario.seed):
        rows.setdefault(name_of(one), []).append(one.ours)
    lines = [f"| {title} | {' | '.join(HEADS)} |", "|---|" + "---:|" * len(HEADS)]
    lines += [_write_row(name, summarize(judged)) for name, judged in rows.items()]
    if len(rows) > 1:
        lines.append(_write_row("**all**", summarize([one.ours for one in scored])))
    return "\n".join(lines)


def decidable_table(title: str, scored: Sequence[Scored], name_of: Callable[[Scored], str]) -> str:
    """Return a table of how many faults the ideal test decides, and how many of those were not found; empty where it
    has judged none of the runs.
    """
    rows: dict[str, list[Scored]] = {}
    for one in sorted(scored, key=lambda one: one.trial.scenario.seed):
        if one.ideal_z is not None:
            rows.setdefault(name_of(one), []).append(one)
    heads = ("faults", "found", "decidable", "missed though decidable", "ideal z: least", "ideal z: median")
    lines = [f"| {title} | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    if len(rows) > 1:
        rows["**all**"] = [one for some in rows.values() for one in some]
    lines += [_write_decidable(name, some) for name, some in rows.items()]
    return "\n".join(lines) if rows else ""


def _write_decidable(name: str, scored: Sequence[Scored]) -> str:
    decided = [one for one in scored if (one.ideal_z or 0.0) >= DECIDED_Z]
    found, missed = (
        sum(one.ours.faults[0].found == is_found for one in some)
        for some, is_found in ((scored, True), (decided, False))
    )
    ideal = [one.ideal_z for one in scored if one.ideal_z is not None]
    cells = [name, *map(str, (len(scored), found, len(decided), missed))]
    return f"| {' | '.join([*cells, _number(min(ideal), 1), _number(statistics.median(ideal), 1)])} |"


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


def wrong_tables(scored: Sequence[Scored]) -> list[str]:
    """Count what was wrong beside names and misses, by kind of run, and name the runs."""
    explanation = (
        "What was wrong beside names and misses; tests/simulation/wrongs.py says what counts. *cost, off* is by how "
        "much the step without the slowness that a finding states differs from that of the same run simulated without "
        f"the fault, as a share of the step; more than {TOLERANCE:g} is wrong."
    )
    heads = ("runs", *KINDS, "costs stated", "cost, off: median", "cost, off: most")
    lines = [f"| wrong, by part | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    abouts = dict.fromkeys(one.trial.about for one in sorted(scored, key=lambda one: one.trial.scenario.seed))
    parts = [(about, [one for one in scored if one.trial.about == about]) for about in abouts]
    lines += [_count_wrongs(name, some) for name, some in [*parts, ("**all**", scored)]]
    named = [
        f"- run {one.trial.scenario.seed} ({one.trial.name}): {wrong.kind}: {wrong.text}"
        for one in sorted(scored, key=lambda one: one.trial.scenario.seed)
        for wrong in one.wrongs
    ]
    return ["## What else was wrong", explanation, _describe_ranges(scored), "\n".join(lines), _list_first(named)]


def name_missed(scored: Sequence[Scored]) -> str:
    """Return a line for each run with a fault that was not found, or with a false finding."""
    named = []
    for one in sorted(scored, key=lambda one: one.trial.scenario.seed):
        faults = zip(one.trial.scenario.faults, one.ours.faults, strict=True)
        missed = [f"{fault.cause} of rank {fault.ranks[0]} missed" for fault, judged in faults if not judged.found]
        false = [f"{one.ours.false_findings} false"] * bool(one.ours.false_findings)
        if missed or false:
            named.append(f"- run {one.trial.scenario.seed} ({one.trial.name}): {', '.join([*missed, *false])}")
    return _list_first(named)


def _list_first(named: Sequence[str]) -> str:
    more = [f"- {len(named) - NAMED_MAX} more"] if len(named) > NAMED_MAX else []
    return "\n".join([*named[:NAMED_MAX], *more])


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


def rival_table(asked: Sequence[Scored], healthy: Sequence[Scored]) -> str:
    """Return a table of ours and other tools' rules: on runs with faults that are to be found, and on healthy ones."""
    heads = ("recall", "precision", "false per 1e6", "healthy runs with a finding", "false per 1e6, healthy")
    lines = [f"| rule | shown | {' | '.join(heads)} |", "|---|---|" + "---:|" * len(heads)]
    lines.append(_compare("**rankscope**", "reports", [one.ours for one in asked], [one.ours for one in healthy]))
    for rule, seen in RIVALS:
        theirs = ([one.rivals[rule, seen] for one in some] for some in (asked, healthy))
        lines.append(_compare(rule, seen, *theirs))
    return "\n".join(lines)


def _compare(rule: str, seen: str, asked: Sequence[Judged], healthy: Sequence[Judged]) -> str:
    row, calm = summarize(asked), summarize(healthy)
    accused = sum(one.false_findings > 0 for one in healthy)
    cells = [rule, seen, _number(row.recall, 3), _number(row.precision, 3), f"{row.false_per_million:.1f}"]
    return f"| {' | '.join([*cells, f'{accused} of {len(healthy)}', f'{calm.false_per_million:.1f}'])} |"
