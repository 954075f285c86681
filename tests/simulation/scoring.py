"""Judge how well the collector's findings fit the truth, over many simulated runs.

A finding *names* its ranks and every rank of its nodes, or, without any, its group or the whole run.

- It is *about* a fault if it was opened after the fault began and names at least one of the fault's ranks. A link
  belongs to a group: a `slow_link` finding is about it also by the name of a group that holds one of the ranks. A fault
  of every rank is one of the run: only a finding about the run, or one that names all ranks, is about it.
- It is *false* if it blames a rank wrongly: it names a rank without a fault (a victim, named together with the
  culprit, makes the finding false too); or it reports slowness (`ACCUSING`) and is about no fault. That the
  run has slowed down is true while a fault lasts, and neither right nor false.
- That ranks have more work than others by the layout of a run (`imbalance`) is true of stages with a share above
  the mean, false of any other rank, and never right: it finds no fault.
- That a rank does work of its own (`periodic_work`) is true of a rank with a duty, false of any other, and never right.
- That machines are busy (the rule `cpu_pressure`) is true of a run on such machines, and never right. So is that a rank
  waits longer for a core than others (a straggler with that cause), where machines hold some up longer for a while.
- Any other finding that names no rank (uneven work, a rule of good practice) is information, and is not counted.

A fault is *found* if a finding is about it. Its *rank is right* if its findings together name exactly its ranks: one
rank, a node by its name or by all its ranks, a stage by all its ranks or by the kind of finding that is about stages; a
link if one of its groups is named. *Cause* and *pattern* are those of the first finding as it was last known, so are
*since* (how many steps `since_step` is off the fault's begin) and *delay* (steps from the fault's begin to the
detection pass at which the finding was opened).

A fault of ranks that another fault makes slow already is a change of that slowness. It is found also by a finding about
that one which is open when it begins; the cause of either is right then, and it has no *since*, and no *delay* unless
its finding was opened later.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rankscope.collector.detect.finding import STRAGGLER, UNMATCHED, Finding
from tests.simulation.collector_end import Opened
from tests.simulation.faults import TRANSFER, Fault
from tests.simulation.topology import Topology
from tests.simulation.world import Outcome, Scenario

SLOW_LINK, STAGE, RUN, HANG = "slow_link", "stage_slowdown", "run_slowdown", "hang"
IMBALANCE, OWN_WORK, BUSY = "imbalance", "periodic_work", "cpu_pressure"
ACCUSING = frozenset({STRAGGLER, SLOW_LINK, STAGE, RUN, HANG})
"""Kinds of finding that report something wrong even if they name no rank."""


class FaultJudged(NamedTuple):
    """One fault. What it was found as is None when it was not found; `findings` counts those about it."""

    found: bool
    right_rank: bool | None = None
    right_cause: bool | None = None
    right_pattern: bool | None = None
    since_error_steps: int | None = None
    delay_steps: int | None = None
    findings: int = 0


class Judged(NamedTuple):
    """Judgement of one run. `right_findings` are about a fault and blame no healthy rank; `rank_steps` are the steps of
    ranks without a fault.
    """

    faults: tuple[FaultJudged, ...]
    right_findings: int
    false_findings: int
    rank_steps: int


def judge(outcome: Outcome) -> Judged:
    """Compare a run's findings with its truth."""
    scenario = outcome.scenario
    topology, faults = scenario.topology, scenario.faults
    faulty = {rank for fault in faults for rank in fault.ranks}
    is_false = [_is_false(opened, scenario, faulty) for opened in outcome.opened]
    is_right = [
        not false and any(is_about(opened, fault, topology) for fault in faults)
        for opened, false in zip(outcome.opened, is_false, strict=True)
    ]
    return Judged(
        faults=tuple(_judge_fault(fault, outcome.opened, scenario) for fault in faults),
        right_findings=sum(is_right),
        false_findings=sum(is_false),
        rank_steps=scenario.steps * (topology.world_size - len(faulty)),
    )


def _judge_fault(fault: Fault, opened: Sequence[Opened], scenario: Scenario) -> FaultJudged:
    topology = scenario.topology
    mine = [one for one in opened if is_about(one, fault, topology)]
    earlier = find_changed(fault, scenario.faults)
    if earlier is not None:
        mine = mine or [one for one in opened if _is_open_at(one, fault.begin) and is_about(one, earlier, topology)]
    if not mine:
        return FaultJudged(found=False)
    first = min(mine, key=lambda one: one.opened_step)
    since_step, causes = first.finding.since_step, {one.expected_cause for one in (fault, earlier or fault)}
    delay_steps = first.opened_step - fault.begin
    return FaultJudged(
        found=True,
        right_rank=_names_all(fault, mine, topology),
        right_cause=any(one.finding.cause in causes for one in mine if one.opened_step == first.opened_step),
        right_pattern=first.finding.pattern == fault.pattern,
        since_error_steps=None if since_step is None or earlier is not None else abs(since_step - fault.begin),
        delay_steps=None if delay_steps <= 0 else delay_steps,
        findings=len(mine),
    )


def find_changed(fault: Fault, faults: Iterable[Fault]) -> Fault | None:
    """Return the first fault of the same ranks that makes them slow already when a fault begins; None without one."""
    lasting = [one for one in faults if one.ranks == fault.ranks and one.begin < fault.begin]
    lasting = [one for one in lasting if one.end is None or one.end >= fault.begin]
    return min(lasting, key=lambda one: one.begin, default=None)


def _is_open_at(opened: Opened, step: int) -> bool:
    return opened.opened_step <= step and (opened.closed_step is None or opened.closed_step > step)


def named_ranks(finding: Finding, topology: Topology) -> frozenset[int]:
    """Return the ranks that a finding blames; none for one about a group or the run."""
    on_nodes = (rank for node in finding.nodes for rank in topology.ranks_on_node(topology.node_names.index(node)))
    return frozenset((*finding.ranks, *on_nodes))


def is_about(opened: Opened, fault: Fault, topology: Topology) -> bool:
    finding = opened.finding
    if opened.opened_step <= fault.begin or finding.kind in (IMBALANCE, OWN_WORK, BUSY, UNMATCHED):
        return False
    named = named_ranks(finding, topology)
    if len(fault.ranks) == topology.world_size:
        return finding.kind == RUN or len(named) == topology.world_size
    if finding.kind == SLOW_LINK:  # it names all ranks of a group, also one that is slow by itself
        return _is_of_its_link(finding, fault, topology)
    return not named.isdisjoint(fault.ranks)


def _is_of_its_link(finding: Finding, fault: Fault, topology: Topology) -> bool:
    """Return whether the fault is a slow link, and the finding names a group that holds one of the fault's ranks. If it
    suspects ranks, one of those must be among them.
    """
    if fault.effect.kind != TRANSFER or finding.kind != SLOW_LINK:
        return False
    if finding.ranks and set(finding.ranks).isdisjoint(fault.ranks):
        return False
    groups = topology.describe_groups()
    return any(group.label in finding.groups for rank in fault.ranks for group in groups[rank])


def _is_false(opened: Opened, scenario: Scenario, faulty: set[int]) -> bool:
    topology, faults = scenario.topology, scenario.faults
    named = named_ranks(opened.finding, topology)
    if _is_true_of_healthy(opened.finding, scenario, named):
        return False
    if opened.finding.kind in (OWN_WORK, BUSY):
        return True
    if scenario.death is not None and opened.finding.kind == HANG:
        return not named <= {scenario.death.rank}
    about = [fault for fault in faults if is_about(opened, fault, topology)]
    if about:
        return not named <= faulty and not any(_is_of_its_link(opened.finding, fault, topology) for fault in about)
    if opened.finding.kind == RUN and any(fault.begin < opened.opened_step for fault in faults):
        return False
    return bool(named) or opened.finding.kind in ACCUSING


def _is_true_of_healthy(finding: Finding, scenario: Scenario, named: frozenset[int]) -> bool:
    """Return whether a finding says what is so by the layout of the run, the duties of a rank, or busy machines."""
    if finding.kind == BUSY:
        return scenario.busy is not None or any(fault.effect.waits_for_core for fault in scenario.faults)
    if finding.kind == STRAGGLER and finding.cause == BUSY:
        return scenario.busy is not None and scenario.busy.rank_correlation > 0
    if finding.kind == OWN_WORK:
        return named <= {duty.rank for duty in scenario.duties}
    if finding.kind == UNMATCHED:
        return scenario.skip is not None and named == {scenario.skip.rank}
    return finding.kind == IMBALANCE and named <= _heavy_ranks(scenario)


def _heavy_ranks(scenario: Scenario) -> set[int]:
    """Return the ranks of pipeline stages that have more work than the mean."""
    shares = scenario.stage_shares or ()
    heavy = [stage for stage, share in enumerate(shares) if share > 1]
    return {rank for stage in heavy for rank in scenario.topology.ranks_in_stage(stage)}


def _names_all(fault: Fault, mine: Sequence[Opened], topology: Topology) -> bool:
    findings = [one.finding for one in mine]
    if any(_is_of_its_link(finding, fault, topology) for finding in findings):
        return True
    if len(fault.ranks) == topology.world_size and any(finding.kind == RUN for finding in findings):
        return True
    named = frozenset().union(*(named_ranks(finding, topology) for finding in findings))
    if any(finding.kind == STAGE for finding in findings):
        return named <= set(fault.ranks)
    return named == set(fault.ranks)


class Row(NamedTuple):
    """Summary of some runs. Ratios are None if there is nothing to divide by; `since_error_steps` and `delay_steps` are
    medians over the faults found, `right_*` shares of them; `false_per_million` is of healthy rank-steps.
    """

    runs: int
    faults: int
    recall: float | None
    precision: float | None
    right_rank: float | None
    right_cause: float | None
    right_pattern: float | None
    since_error_steps: float | None
    delay_steps: float | None
    findings_per_fault: float | None
    false_findings: int
    false_per_million: float


def summarize(judged: Sequence[Judged]) -> Row:
    """Return recall, precision and the other measures of some runs."""
    asked = [fault for one in judged for fault in one.faults]
    found = [fault for fault in asked if fault.found]
    false_findings = sum(one.false_findings for one in judged)
    named = sum(one.right_findings for one in judged) + false_findings
    return Row(
        runs=len(judged),
        faults=len(asked),
        recall=_mean(fault.found for fault in asked),
        precision=1 - false_findings / named if named else None,
        right_rank=_mean(fault.right_rank is True for fault in found),
        right_cause=_mean(fault.right_cause is True for fault in found),
        right_pattern=_mean(fault.right_pattern is True for fault in found),
        since_error_steps=_median(fault.since_error_steps for fault in found),
        delay_steps=_median(fault.delay_steps for fault in found),
        findings_per_fault=_mean(fault.findings for fault in found),
        false_findings=false_findings,
        false_per_million=1e6 * false_findings / max(1, sum(one.rank_steps for one in judged)),
    )


BOUND = 0.05
"""A bound is too low with this probability."""


def bound_count(count: int) -> float:
    """Return the largest expected number of events with which `count` or fewer are seen in 5 % of all cases (Poisson).

    >>> [round(bound_count(count), 2) for count in (0, 1, 5)]
    [3.0, 4.74, 10.51]
    """
    low, high = float(count), 10.0 * (count + 1)
    for _ in range(60):
        middle = (low + high) / 2
        terms = (math.exp(-middle + k * math.log(middle) - math.lgamma(k + 1)) for k in range(count + 1))
        low, high = (middle, high) if math.fsum(terms) > BOUND else (low, middle)
    return (low + high) / 2


def _mean(values: Iterable[float]) -> float | None:
    listed = list(values)
    return statistics.fmean(listed) if listed else None


def _median(values: Iterable[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
