"""Check what findings say against the truth of a run, as they were last known: since when, of whom, of what kind."""

import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from rankscope.collector.detect.finding import SLOW_MODEL, UNMATCHED, Finding
from rankscope.collector.detect.run_rules.batch_imbalance import UNEVEN_WORK
from tests.simulation.collector_end import Opened
from tests.simulation.cost_truth import CostTold, find_added_ranks, find_wrong_costs
from tests.simulation.faults import TRANSFER
from tests.simulation.program import HOST, READ
from tests.simulation.scoring import ACCUSING, BUSY, IMBALANCE, OWN_WORK, is_about
from tests.simulation.world import Outcome, Scenario
from tests.simulation.wrongs import UNCOUNTED, UNSAID, UNTRUE, Wrong

SINCE_TOLERANCE_STEPS: Final = 5
"""Steps by which a begin that is stated without a range may be off."""
SINCE_RANGE: Final = re.compile(r"(?:about step (\d+) \(|began at )(\d+)-(\d+)(?![\d-])")
"""A begin that is stated with its range: the true one must be in it."""
SKIPPED: Final = re.compile(r"rank (\d+) is 1 collective behind in group (\S+) since (?:about )?step (\d+)")
"""What the reason for no verdict says of a collective that was left out."""
JITTER_MIN: Final = 0.05
"""Standard deviation of the log of each rank's work from which the slowest rank changes at a cost."""

STALLS_MIN: Final = 0.5
"""Stalls of any rank a step from which the median step has one."""


def _is_uneven(scenario: Scenario) -> bool:
    noise, ranks = scenario.noise, scenario.topology.world_size
    stalls = noise.burst_probability * ranks >= STALLS_MIN
    return bool(noise.batch_jitter or noise.jitter >= JITTER_MIN or stalls or scenario.busy)


def _slows_all(*kinds: str) -> Callable[[Scenario], bool]:
    """Return whether a fault of all ranks makes them take longer for such work."""

    def find(scenario: Scenario) -> bool:
        everybody = scenario.topology.world_size
        return any(fault.effect.kind in kinds and len(fault.ranks) == everybody for fault in scenario.faults)

    return find


INFORMS: Final[Mapping[str, Callable[[Scenario], bool]]] = {
    UNEVEN_WORK: _is_uneven,
    SLOW_MODEL: lambda scenario: bool(scenario.hardware),
    UNMATCHED: lambda scenario: scenario.skip is not None,
    "data_bound": _slows_all(READ),
    "host_bound": _slows_all(HOST),
    "low_gpu_utilization": _slows_all(READ, HOST),
    "copy_bound": lambda scenario: (
        _slows_all(HOST)(scenario) and any(one.effect.copies_slowly for one in scenario.faults)
    ),
    "communication_bound": lambda scenario: any(fault.effect.kind == TRANSFER for fault in scenario.faults),
}
"""Whether a kind of finding that blames no rank is true of a run."""
JUDGED: Final = ACCUSING | {IMBALANCE, OWN_WORK, BUSY}
"""Kinds that `scoring.py` judges."""


def find_wrongs(outcome: Outcome, costs: Iterable[CostTold]) -> tuple[Wrong, ...]:
    """Return all that was wrong in a run: in its course, in its findings as they were last known, and their costs."""
    return (*outcome.violations, *find_false_claims(outcome), *find_wrong_costs(costs), *check_skip(outcome))


def check_skip(outcome: Outcome) -> list[Wrong]:
    """Check what the reason for no verdict and the findings say of a collective that was left out: by whom, in which
    group, and since which step, where one was; nothing of the kind where none was.
    """
    skip, reason = outcome.scenario.skip, SKIPPED.search(outcome.abstained or "")
    stated: list[tuple[tuple[int, ...], str, int]] = []
    if reason is not None:
        stated.append(((int(reason[1]),), reason[2], int(reason[3])))
    for opened in outcome.opened:
        one = opened.finding
        stated += [(one.ranks, one.group or "", one.since_step or 0)] if one.kind == UNMATCHED else []
    if skip is None:
        return [Wrong(UNTRUE, f"says that a collective was left out, and none was: {one}") for one in stated]
    if not stated:
        return [Wrong(UNSAID, f"rank {skip.rank} has left out a collective at step {skip.step}")]
    own_groups = {group.label for group in outcome.scenario.topology.describe_groups()[skip.rank]}
    return [
        Wrong(UNTRUE, f"says {ranks, group, step} of a collective that rank {skip.rank} left out at step {skip.step}")
        for ranks, group, step in stated
        if ranks != (skip.rank,) or group not in own_groups or abs(step - skip.step) > SINCE_TOLERANCE_STEPS
    ]


def find_false_claims(outcome: Outcome) -> list[Wrong]:
    """Return what is wrong in the findings of a run as they were last known."""
    found = []
    for opened in outcome.opened:
        finding, scenario = opened.finding, outcome.scenario
        checks = (_check_kind(finding, scenario), _check_begin(opened, scenario), _check_added(finding, scenario))
        subject = f"finding {finding.number} ({finding.kind}, {finding.subject})"
        found += [Wrong(kind, f"{subject} {text}") for kind, text in itertools.chain.from_iterable(checks)]
    return found


def _check_kind(finding: Finding, scenario: Scenario) -> list[tuple[str, str]]:
    if finding.kind in JUDGED:
        return []
    if finding.kind not in INFORMS:
        return [(UNCOUNTED, "is of a kind whose truth is not known")]
    return [] if INFORMS[finding.kind](scenario) else [(UNTRUE, "is not so in this run")]


def _check_begin(opened: Opened, scenario: Scenario) -> list[tuple[str, str]]:
    """Check the begin of a finding against the nearest one of the faults it is about."""
    whenever = opened._replace(opened_step=scenario.steps)
    begins = [fault.begin for fault in scenario.faults if is_about(whenever, fault, scenario.topology)]
    since = opened.finding.since_step
    if since is None or not begins:
        return []
    begin = min(begins, key=lambda step: abs(since - step))
    stated = SINCE_RANGE.search(opened.finding.sentence)
    if stated is None and abs(since - begin) <= SINCE_TOLERANCE_STEPS:
        return []
    if stated is not None and int(stated[2]) <= begin <= int(stated[3]):
        return []
    text = f"step {since}" if stated is None else stated[0]
    return [(UNTRUE, f"says since {text}, and it is since step {begin}")]


def find_begin_ranges(outcome: Outcome) -> tuple[int, ...]:
    """Return how many steps each begin that is stated with a range is uncertain by."""
    stated = [SINCE_RANGE.search(opened.finding.sentence) for opened in outcome.opened]
    return tuple(int(one[3]) - int(one[2]) for one in stated if one is not None)


def _check_added(finding: Finding, scenario: Scenario) -> list[tuple[str, str]]:
    """Check that ranks whose slowness is added to a cost are slow."""
    slow = {rank for fault in scenario.faults for rank in fault.ranks}
    healthy = sorted(find_added_ranks(finding) - slow)
    return [(UNTRUE, f"says that rank {healthy[0]} is slow")] if healthy else []
