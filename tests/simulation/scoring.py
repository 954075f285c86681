"""How well the collector's findings fit the truth, over many simulated jobs."""

import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tests.simulation.faults import TRANSFER, Fault
from tests.simulation.world import Opened, Outcome


class Judged(NamedTuple):
    """One job. `found` is None without a fault; what it was found as is None when it was not.

    `false_findings` counts those about ranks that no fault is in; `rank_steps` the steps of ranks without a fault.
    """

    found: bool | None
    right_cause: bool | None
    since_error_steps: int | None
    delay_steps: int | None
    false_findings: int
    rank_steps: int


def judge(outcome: Outcome) -> Judged:
    """Hold a job's findings to its truth."""
    faults = outcome.scenario.faults
    false_findings = sum(not any(_is_about(opened, fault) for fault in faults) for opened in outcome.opened)
    steps = outcome.scenario.steps
    faulty = {rank for fault in faults for rank in fault.ranks}
    rank_steps = steps * (outcome.scenario.topology.world_size - len(faulty))
    if not faults:
        return Judged(None, None, None, None, false_findings, rank_steps)
    fault = faults[0]
    mine = [opened for opened in outcome.opened if _is_about(opened, fault)]
    if not mine:
        return Judged(False, None, None, None, false_findings, rank_steps)
    first = min(mine, key=lambda opened: opened.opened_step)
    return Judged(
        found=True,
        right_cause=first.finding.cause == fault.cause,
        since_error_steps=abs((first.finding.since_step or 0) - fault.begin),
        delay_steps=first.opened_step - fault.begin,
        false_findings=false_findings,
        rank_steps=rank_steps,
    )


def _is_about(opened: Opened, fault: Fault) -> bool:
    """A slow link belongs to a group: every finding of that cause that holds one of its ranks is about it."""
    if fault.effect.kind == TRANSFER:
        return opened.finding.cause == fault.cause
    return opened.finding.rank in fault.ranks


class Row(NamedTuple):
    """Some jobs together. Ratios are None where there is nothing to divide by."""

    jobs: int
    recall: float | None
    precision: float | None
    right_cause: float | None
    since_error_steps: float | None
    delay_steps: float | None
    false_per_million: float


def summarise(judged: Sequence[Judged]) -> Row:
    """Recall, precision and the rest of some jobs."""
    found = [one for one in judged if one.found]
    asked = [one for one in judged if one.found is not None]
    false_findings = sum(one.false_findings for one in judged)
    said = len(found) + false_findings
    return Row(
        jobs=len(judged),
        recall=_mean(bool(one.found) for one in asked),
        precision=len(found) / said if said else None,
        right_cause=_mean(bool(one.right_cause) for one in found),
        since_error_steps=statistics.median(one.since_error_steps or 0 for one in found) if found else None,
        delay_steps=statistics.median(one.delay_steps or 0 for one in found) if found else None,
        false_per_million=1e6 * false_findings / max(1, sum(one.rank_steps for one in judged)),
    )


def _mean(values: Iterable[bool]) -> float | None:
    listed = list(values)
    return sum(listed) / len(listed) if listed else None
