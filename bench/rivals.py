"""Apply the rules by which other tools call a rank slow to the same simulated steps, judged in the same way.

Rules that compare one time of every rank, its median over the last steps, with the same of all ranks:

    relative score     best median / own median < 0.75 (NVIDIA resiliency extension: its default threshold)
    2 MAD              own median > median + 2 x 1.4826 x MAD of all ranks' medians
    2 x median         own median > 2 x the median of all ranks' medians
    20 %, 10 %         own median > 1.2, 1.1 x the median of all ranks' medians

The input matters more than the rule. So each of them is applied to three inputs:

    step time      from a training loop's own log: one step of the rank, waiting for others included
    kernel time    from a tool that times the compute kernels of each rank (the resiliency extension does)
    own work       all work of the rank itself, host and data loader included: no tool has that in practice,
                   it is the truth of the simulation without any waiting and without the ranks' pauses

Rules on the host's phases, waits included, by their medians over the last steps:

    frontier           the furthest rank at each boundary of phases (StageFrontier, arXiv 2606.06751): where its lead
                       over the median rank grows the most, that rank, if the growth is 5 % of the step. The paper
                       ranks suspects without a threshold; the 5 % are ours, our own smallest effect
    worst phase        the rank with the longest data + step if it exceeds the median by 10 %, else the worst of the
                       phase with the largest skew, if that is 10 % and the phase 10 % of the step
                       (traceml 0ab06ac, diagnostics/step_time.py: its straggler and imbalance rules and thresholds)

Rules on the time in collectives: who is late waits least.

    least waiting      the rank that was in them for the shortest time, always one: what a table sorted by waiting says
    3 % late           that rank, if the median rank was in them for 3 % of the step longer
    change of waiting  a rank whose time in them, less the median rank's, has fallen between the last steps and those
                       before by 1 % of the step and five standard errors (a change-point test, one-sided)

The rules know no process groups: every rank is compared with all others. A rank is called slow from the first detection
pass at which its rule holds until the first at which it does not; each such time is one finding.
"""

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from rankscope.collector.config import CollectorConfig
from rankscope.collector.detect.finding import STRAGGLER, Finding
from rankscope.collector.runs.run_view import SKIP_STEPS
from tests.simulation.collector_end import Opened
from tests.simulation.engine import Floats
from tests.simulation.program import KERNEL
from tests.simulation.scoring import Judged, judge
from tests.simulation.world import REPORT_STEPS, Outcome

Flags = npt.NDArray[np.bool_]
Rule = Callable[[Floats], Flags]
Rival = Callable[[Outcome, slice], Flags]
"""Returns the ranks that are slow by the steps of the slice, shape (ranks,). It may look at earlier ones."""
MAD_TO_SIGMA = 1.4826
"""Of normal noise the median absolute deviation times this is the standard deviation."""
STAGES = ("data", "forward", "backward", "optimizer")
"""The phases in the order of a step."""
FRONTIER_SHARE_MIN = 0.05
SKEW_MIN, PHASE_SHARE_MIN = 0.10, 0.10
LATE_SHARE_MIN = 0.03
CHANGE_SHARE_MIN, CHANGE_ERRORS_MIN = 0.01, 5.0


def is_far_from_best(medians: Floats) -> Flags:
    """Return the resiliency extension's relative performance score."""
    return np.asarray(medians.min() / medians < 0.75)


def is_outside_mad(medians: Floats) -> Flags:
    """More than two robust deviations above the middle."""
    middle = np.median(medians)
    deviation = MAD_TO_SIGMA * np.median(np.abs(medians - middle))
    return np.asarray(medians > middle + 2 * deviation)


def is_above(ratio: float) -> Rule:
    """More than `ratio` times the middle."""

    def rule(medians: Floats) -> Flags:
        return np.asarray(medians > ratio * np.median(medians))

    return rule


RULES: Mapping[str, Rule] = {
    "relative score < 0.75": is_far_from_best,
    "median + 2 MAD": is_outside_mad,
    "> 2 x median": is_above(2.0),
    "> 1.2 x median": is_above(1.2),
    "> 1.1 x median": is_above(1.1),
}

SIGHTS: Mapping[str, Callable[[Outcome], Floats]] = {
    "step time": lambda outcome: outcome.step_ns,
    "kernel time": lambda outcome: outcome.worked_ns[KERNEL],
    "own work": lambda outcome: np.asarray(sum(outcome.worked_ns.values())),
}


def by_times(rule: Rule, see: Callable[[Outcome], Floats], outcome: Outcome, recent: slice) -> Flags:
    """Apply a rule on one time of every rank."""
    return rule(np.median(see(outcome)[recent], axis=0))


def leads_frontier(outcome: Outcome, recent: slice) -> Flags:
    """Return the rank with which the lead over the median rank grows the most."""
    stages_ns = np.array([np.median(outcome.phases_ns[stage][recent], axis=0) for stage in STAGES])
    reached_ns = np.cumsum(stages_ns, axis=0)
    lead_ns = reached_ns.max(axis=1) - np.median(reached_ns, axis=1)
    growth_ns = np.diff(lead_ns, prepend=0.0)
    stage = int(growth_ns.argmax())
    is_large = growth_ns[stage] >= FRONTIER_SHARE_MIN * np.median(outcome.step_ns[recent])
    return _only(int(reached_ns[stage].argmax()), reached_ns.shape[1], condition=bool(is_large))


def is_worst_of_phase(outcome: Outcome, recent: slice) -> Flags:
    """Return the worst rank of the step, else of the phase with the largest skew."""
    means_ns = {stage: np.mean(outcome.phases_ns[stage][recent], axis=0) for stage in STAGES}
    whole_ns = sum(means_ns.values(), np.zeros(outcome.step_ns.shape[1]))
    ranks = len(whole_ns)
    if _skew(whole_ns) >= SKEW_MIN:
        return _only(int(whole_ns.argmax()), ranks)
    step_ns = float(np.median(whole_ns - means_ns["data"]))
    of_compute = [means_ns[stage] for stage in STAGES[1:] if np.median(means_ns[stage]) > 0]
    worst_ns = max(of_compute, key=lambda values: (_skew(values), float(np.median(values))))
    is_large = _skew(worst_ns) >= SKEW_MIN and np.median(worst_ns) >= PHASE_SHARE_MIN * step_ns
    return _only(int(worst_ns.argmax()), ranks, condition=bool(is_large))


def waits_least(outcome: Outcome, recent: slice, share_min: float = 0.0) -> Flags:
    """Return the rank that was in collectives for the shortest time, if that is `share_min` of the step shorter than
    the median.
    """
    called_ns = outcome.called_ns[recent].sum(axis=0)
    late_ns = float(np.median(called_ns) - called_ns.min())
    is_late = late_ns >= share_min * float(np.median(outcome.step_ns[recent].sum(axis=0)))
    return _only(int(called_ns.argmin()), len(called_ns), condition=is_late)


def waits_less_than_before(outcome: Outcome, recent: slice) -> Flags:
    """Return the ranks whose time in collectives has fallen against the median rank's."""
    shares = (np.median(outcome.called_ns, axis=1)[:, np.newaxis] - outcome.called_ns) / outcome.step_ns
    now, before = shares[recent], shares[SKIP_STEPS : recent.start]
    if len(before) < len(now):
        return np.zeros(shares.shape[1], dtype=bool)
    error = np.sqrt(now.var(axis=0) / len(now) + before.var(axis=0) / len(before))
    rise = now.mean(axis=0) - before.mean(axis=0)
    return np.asarray((rise >= CHANGE_SHARE_MIN) & (rise >= CHANGE_ERRORS_MIN * error))


def _skew(values: Floats) -> float:
    middle = float(np.median(values))
    return float(values.max()) / middle - 1 if middle > 0 else math.inf if values.max() > 0 else 0.0


def _only(rank: int, ranks: int, *, condition: bool = True) -> Flags:
    return np.asarray(np.arange(ranks) == (rank if condition else -1))


RIVALS: Mapping[tuple[str, str], Rival] = {
    **{
        (name, seen): partial(by_times, rule, see)
        for (name, rule), (seen, see) in itertools.product(RULES.items(), SIGHTS.items())
    },
    ("frontier", "host phases"): leads_frontier,
    ("worst phase", "host phases"): is_worst_of_phase,
    ("least waiting", "time in collectives"): waits_least,
    ("3 % late", "time in collectives"): partial(waits_least, share_min=LATE_SHARE_MIN),
    ("change of waiting", "time in collectives"): waits_less_than_before,
}
"""The rules by name and input."""


def find_slow(outcome: Outcome, rival: Rival, config: CollectorConfig) -> list[Opened]:
    """Return the findings of a rule over a whole run."""
    found: list[Opened] = []
    since: dict[int, int] = {}
    for step in range(REPORT_STEPS, len(outcome.step_ns) + 1, REPORT_STEPS):
        recent = slice(max(SKIP_STEPS, step - config.detect_steps), step)
        if recent.stop - recent.start < config.detect_steps_min:
            continue
        slow = set(np.flatnonzero(rival(outcome, recent)).tolist())
        found += [_finding(rank, since.pop(rank), step) for rank in sorted(since.keys() - slow)]
        for rank in sorted(slow - since.keys()):
            since[rank] = step
    return found + [_finding(rank, opened, None) for rank, opened in sorted(since.items())]


def _finding(rank: int, opened_step: int, closed_step: int | None) -> Opened:
    finding = Finding(kind=STRAGGLER, ranks=(rank,), cause="unattributed", sentence="")
    return Opened(finding, opened_step, closed_step)


def judge_rivals(outcome: Outcome) -> dict[tuple[str, str], Judged]:
    """Return the judgement of every rule on every input for one run, by their names."""
    config = CollectorConfig()
    return {name: judge(replace(outcome, opened=find_slow(outcome, rival, config))) for name, rival in RIVALS.items()}
