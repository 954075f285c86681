"""Apply the rules by which other tools call a rank slow to the same simulated steps, judged in the same way.

Each rule compares one time of every rank, its median over the last steps, with the same of all ranks:

    relative score     best median / own median < 0.75 (NVIDIA resiliency extension: its default threshold)
    2 MAD              own median > median + 2 x 1.4826 x MAD of all ranks' medians
    2 x median         own median > 2 x the median of all ranks' medians
    20 %, 10 %         own median > 1.2, 1.1 x the median of all ranks' medians

The input matters more than the rule. So each rule is applied to three inputs:

    step time      from a training loop's own log: one step of the rank, waiting for others included
    kernel time    from a tool that times the compute kernels of each rank (the resiliency extension does)
    own work       all work of the rank itself, host and data loader included: no tool has that in practice,
                   it is the truth of the simulation without any waiting and without the ranks' pauses

The rules know no process groups: every rank is compared with all others. A rank is called slow from the first detection
pass at which its rule holds until the first at which it does not; each such time is one finding.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

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
MAD_TO_SIGMA = 1.4826
"""Of normal noise the median absolute deviation times this is the standard deviation."""


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


def find_slow(times_ns: Floats, rule: Rule, config: CollectorConfig) -> list[Opened]:
    """Return the findings of a rule over a whole run; `times_ns` has shape (steps, ranks)."""
    found: list[Opened] = []
    since: dict[int, int] = {}
    for step in range(REPORT_STEPS, len(times_ns) + 1, REPORT_STEPS):
        recent = times_ns[max(SKIP_STEPS, step - config.detect_steps) : step]
        if len(recent) < config.detect_steps_min:
            continue
        slow = set(np.flatnonzero(rule(np.median(recent, axis=0))).tolist())
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
    return {
        (name, seen): judge(replace(outcome, opened=find_slow(see(outcome), rule, config)))
        for seen, see in SIGHTS.items()
        for name, rule in RULES.items()
    }
