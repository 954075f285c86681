"""Write what the demo says: what it has planted, how far it is, and at the end what was found of it. Pure."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from rankscope.collector.detect.finding import STRAGGLER, Finding, order_findings
from rankscope.collector.reports.finding_text import list_facts
from rankscope.collector.reports.terminal_colors import BOLD, DIM, GREEN, PLAIN, RED, YELLOW, Colors
from rankscope.collector.reports.trace_cells import printable
from rankscope.collector.runs.goodput import GoodputSnapshot
from rankscope.collector.runs.snapshot import RankSnapshot, RunSnapshot
from rankscope.collector.steps.rank_medians import describe_median_steps
from rankscope.measure.units import NS_PER_MS, format_duration, format_share

WIDTH: Final = 100
LABEL: Final = 10
"""Columns before a text: two of margin, and its label."""
RANKS_SHOWN_MAX: Final = 6
OTHERS_SHOWN_MAX: Final = 3
LOSS_MIN: Final = 0.02
"""Share of the time from which a loss is named."""
SAME_STEP_RATIO: Final = 1.1
"""The step of the slowest rank over that of the fastest, up to which all are said to take the same time."""
SLOW_STEP_S: Final = 0.15
"""Delay of a slow step: FAULT_S of train.py, which cannot be imported without torch."""
FAULTS: Final = {
    "data": f"waits {1000 * SLOW_STEP_S:.0f} ms longer for each batch",
    "host": f"sleeps {1000 * SLOW_STEP_S:.0f} ms in each forward",
    "compute": f"multiplies matrices for {1000 * SLOW_STEP_S / 2:.0f} ms in each forward",
}
"""What train.py does, by its option --fault."""
COLUMNS: Final = ("data", "forward", "backward")


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoOptions:
    """The options of the command. Steps count from 0; `slow_from` is the first slow one."""

    ranks: int
    steps: int
    fault: str
    slow_rank: int
    slow_from: int

    @property
    def is_planted(self) -> bool:
        """Whether a rank becomes slow before the training ends."""
        return self.fault != "none" and self.slow_from < self.steps


def describe_planted(plan: DemoOptions) -> str:
    """Return what is planted.

    >>> describe_planted(DemoOptions(ranks=2, steps=160, fault="data", slow_rank=1, slow_from=60))
    'rank 1 waits 150 ms longer for each batch from step 60 on'
    """
    if not plan.is_planted:
        return "nothing: no rank is slow"
    return f"rank {plan.slow_rank} {FAULTS[plan.fault]} from step {plan.slow_from} on"


def find_planted(findings: Sequence[Finding], plan: DemoOptions) -> Finding | None:
    """Return the finding that names the slow rank and no other; None while there is none."""
    if not plan.is_planted:
        return None
    named = [one for one in findings if one.kind == STRAGGLER and one.ranks == (plan.slow_rank,)]
    return max(named, key=lambda one: one.lost_rank_seconds or 0.0, default=None)


def write_live(run: RunSnapshot, plan: DemoOptions, page: str, colors: Colors) -> str:
    """Return the screen of a terminal while the training runs."""
    found = find_planted(run.findings, plan)
    steps = max((rank.totals.steps for rank in run.ranks), default=0)
    lines = [
        f"{colors.paint('PLANTED', BOLD)}  {describe_planted(plan)}",
        f"{colors.paint('FOUND  ', BOLD)}  {_describe_state(run, found, colors)}",
        "",
        *write_ranks(run, found, colors),
        "",
        f"Step {steps} of {plan.steps}. Live page: {page}",
    ]
    return "\n".join(lines)


class ProgressLog:
    """What a reader of a pipe learns while the training runs, each thing once."""

    def __init__(self, plan: DemoOptions, page: str) -> None:
        self._plan = plan
        self._waiting = {
            "page": f"live page: {page}",
            "begin": "training",
            "slow": f"step {plan.slow_from} has come: {describe_planted(plan)}",
        }
        if not plan.is_planted:
            del self._waiting["slow"]
        self._was_named = False

    def describe_news(self, run: RunSnapshot) -> list[str]:
        """Return a line for each thing that has happened since the last call."""
        steps = max((rank.totals.steps for rank in run.ranks), default=0)
        has_come = {"page": True, "begin": steps > 0, "slow": steps > self._plan.slow_from}
        lines = [self._waiting.pop(name) for name in tuple(self._waiting) if has_come[name]]
        found = find_planted(run.open_findings, self._plan)
        if found is not None and not self._was_named:
            self._was_named = True
            lines.append(f"by step {steps}: {found.headline}")
        return lines


def _describe_state(run: RunSnapshot, found: Finding | None, colors: Colors) -> str:
    if found is not None:
        return colors.paint(found.headline, BOLD, YELLOW)
    if run.abstained is not None:
        return colors.paint("nothing yet: too few steps are known", DIM)
    return colors.paint("no rank is slower than the others", GREEN)


def write_end(run: RunSnapshot, plan: DemoOptions, named_by_step: int | None, colors: Colors = PLAIN) -> str:
    """Return the last screen: planted and found, the ranks, and what else was found. `named_by_step` is how far the
    training was when the finding was first seen; None: it came with the end.
    """
    found = find_planted(run.findings, plan)
    lines = [
        f"{colors.paint('PLANTED', BOLD)}  {describe_planted(plan):<56}  (--fault {plan.fault})",
        f"{colors.paint('FOUND  ', BOLD)}  {_describe_outcome(run, plan, found, named_by_step, colors)}",
        "",
    ]
    lines += _write_facts(found) if found is not None else []
    lines += [*write_ranks(run, found, colors), *_describe_step(run.ranks, found), ""]
    return "\n".join([*lines, *_describe_goodput(run.goodput), *_name_others(run, found)])


def _describe_outcome(
    run: RunSnapshot, plan: DemoOptions, found: Finding | None, named_by_step: int | None, colors: Colors
) -> str:
    if found is not None:
        when = "named at the end" if named_by_step is None else f"named by step {named_by_step}"
        return f"{colors.paint(found.headline, BOLD, GREEN)}, {when}"
    others = [one for one in run.findings if one.ranks]
    if others:
        return colors.paint("; ".join(one.headline for one in others), BOLD, RED)
    if run.abstained is not None:
        return colors.paint(f"nothing: {printable(run.abstained)}", BOLD, RED)
    color = RED if plan.is_planted else GREEN
    return colors.paint("no rank is slower than the others", BOLD, color)


def _write_facts(found: Finding) -> list[str]:
    """Return own time, cause, cost and what to do, each under its label."""
    facts = [(name.capitalize(), text) for name, text in list_facts(found) if name != "also"]
    return [line for label, text in facts for line in _wrap(label, text)] + [""]


def _wrap(label: str, text: str) -> list[str]:
    first, later = f"  {label:<{LABEL}}", " " * (LABEL + 2)
    return textwrap.wrap(printable(text), WIDTH, initial_indent=first, subsequent_indent=later)


def write_ranks(run: RunSnapshot, found: Finding | None, colors: Colors = PLAIN) -> list[str]:
    """Return the table of the ranks, the longest own time first, and which steps its medians are of."""
    head = f"  {'rank':>4} {'own ms':>8} {'step ms':>8} " + " ".join(f"{name:>8}" for name in COLUMNS)
    ordered = sorted(run.ranks, key=lambda rank: (-(rank.own_ns_median or 0.0), rank.identity.rank))
    lines = [colors.paint(head, BOLD)]
    for rank in ordered[:RANKS_SHOWN_MAX]:
        is_slow = found is not None and rank.identity.rank in found.ranks
        phases = " ".join(f"{_ms(rank.phases_ns_median.get(name)):>8}" for name in COLUMNS)
        times = f"{_ms(rank.own_ns_median):>8} {_ms(rank.step_ns_median):>8} {phases}"
        line = f"  {rank.identity.rank:>4} {times}{'  <- slow' if is_slow else ''}"
        lines.append(colors.paint(line, YELLOW) if is_slow else line)
    left = len(ordered) - RANKS_SHOWN_MAX
    lines += [f"  and {left} more ranks"] if left > 0 else []
    said = describe_median_steps(run.medians_of)
    return [*lines, colors.paint(f"  ({said})", DIM)] if said else lines


def _ms(value_ns: float | None) -> str:
    return "-" if value_ns is None else f"{value_ns / NS_PER_MS:.1f}"


def _describe_step(ranks: Sequence[RankSnapshot], found: Finding | None) -> list[str]:
    """Return why own times are compared, where a rank is slow and the steps of all ranks last equally long."""
    steps_ns = [rank.step_ns_median for rank in ranks if rank.step_ns_median is not None]
    if found is None or len(steps_ns) < len(ranks) or max(steps_ns) > SAME_STEP_RATIO * min(steps_ns):
        return []
    typical = format_duration(median(steps_ns))
    return [f"  A step takes about {typical} on every rank: step time cannot show who is slow, own time does."]


def _describe_goodput(goodput: GoodputSnapshot) -> list[str]:
    if goodput.goodput_ratio is None:
        return []
    losses = [("slow ranks", goodput.slow_ns), ("start-up", goodput.startup_ns), ("stalls", goodput.stalled_ns)]
    shares = sorted(((lost_ns / goodput.wall_ns, name) for name, lost_ns in losses), reverse=True)
    lost = ", ".join(f"{name} {format_share(share, 0)}" for share, name in shares if share >= LOSS_MIN)
    productive = f"{format_share(goodput.goodput_ratio, 0)} of {format_duration(goodput.wall_ns)}"
    return [f"  Goodput {productive}{f': {lost}' if lost else ''}"]


def _name_others(run: RunSnapshot, found: Finding | None) -> list[str]:
    """Return the headlines of the other findings: the page has the rest of them."""
    others = [one for one in order_findings(run.findings) if one is not found and (found is not None or not one.ranks)]
    lines = [line for one in others[:OTHERS_SHOWN_MAX] for line in _wrap("Also", one.headline)]
    left = len(others) - OTHERS_SHOWN_MAX
    return [*lines, *_wrap("", f"and {left} more: rankscope report")] if left > 0 else lines
