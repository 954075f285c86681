"""Build all detectors with their thresholds, in the order in which they run: those that explain come first."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from rankscope.collector.config import CollectorConfig
from rankscope.collector.detect.finding import Abstain, Finding, match_open, state_faults, state_thresholds
from rankscope.collector.detect.hangs.detector import Hangs
from rankscope.collector.detect.links.detector import SlowLinks
from rankscope.collector.detect.memory.growth import MemoryGrowth
from rankscope.collector.detect.memory.out_of_memory import OutOfMemoryErrors
from rankscope.collector.detect.run_rules.batch_imbalance import BatchImbalance
from rankscope.collector.detect.run_rules.device_models import DeviceModels
from rankscope.collector.detect.run_rules.earlier_runs import EarlierRuns
from rankscope.collector.detect.run_rules.regressions import RunSlowdown, StageSlowdowns
from rankscope.collector.detect.run_rules.rules import RunRules
from rankscope.collector.detect.run_rules.run_stalls import RunStalls
from rankscope.collector.detect.run_rules.stage_imbalance import StageImbalance
from rankscope.collector.detect.run_rules.unmatched_collectives import UnmatchedCollectives
from rankscope.collector.detect.stragglers.detector import Stragglers
from rankscope.collector.detect.stragglers.more_work import MoreWork
from rankscope.collector.detect.stragglers.persistent import Thresholds
from rankscope.collector.detect.view import Candidate, Detected, Detector, DetectorResult, RunView

EVERY_STEP: Final = 0.9
"""Least share of the steps in which a group must have more work: in a few, something else may take even longer."""

BY_THRESHOLDS: Final = MoreWork.kinds | Stragglers.kinds | StageSlowdowns.kinds | RunSlowdown.kinds
"""Kinds of finding that open and close by `slowdown_ratio_min` and `detect_steps_min`."""


def build_detectors(config: CollectorConfig) -> tuple[Detector, ...]:
    """Return the detectors with the thresholds of the configuration."""
    thresholds = read_thresholds(config)
    return (
        Hangs(),
        OutOfMemoryErrors(),
        MemoryGrowth(),
        SlowLinks(read_link_thresholds(config)),
        MoreWork(thresholds),
        Stragglers(thresholds),
        UnmatchedCollectives(thresholds),
        DeviceModels(thresholds),
        StageSlowdowns(thresholds),
        StageImbalance(read_imbalance_thresholds(config)),
        RunSlowdown(thresholds),
        EarlierRuns(),
        BatchImbalance(config.uneven_work_ratio_min, thresholds),
        RunRules(config.detect_steps),
        RunStalls(),
    )


def detect(view: RunView, detectors: Sequence[Detector]) -> Detected:
    """Run all detectors over a view of a run. Pure.

    Each detector gets the findings that the run holds open, updated by the detectors before it.
    """
    if not view.is_stricter:
        return _detect(view, detectors)
    dropped = _find_dropped(view, detectors)
    kept = [one for one in view.open_findings if one.number not in dropped]
    found = _detect(replace(view, open_findings=kept), detectors)
    return found._replace(results=(*found.results, DetectorResult(frozenset(), dropped=dropped)))


def _find_dropped(view: RunView, detectors: Sequence[Detector]) -> tuple[int, ...]:
    """Return the open findings that the thresholds of now would not open, as far as that can be judged."""
    doubted = [one for one in view.open_findings if one.kind in BY_THRESHOLDS]
    others = [one for one in view.open_findings if one.kind not in BY_THRESHOLDS]
    anew = _detect(replace(view, open_findings=others), detectors)
    judged = {kind for result in anew.results if result.abstained is None for kind in result.kinds}
    found = [candidate.finding for result in anew.results for candidate in result.candidates]
    return tuple(
        one.number for one in doubted if one.kind in judged and not any(one.is_about_the_same(other) for other in found)
    )


def _detect(view: RunView, detectors: Sequence[Detector]) -> Detected:
    held = [_Held(finding) for finding in view.open_findings]
    results: list[DetectorResult] = []
    for detector in detectors:
        found = detector.find(view, [one.finding for one in held])
        if isinstance(found, Abstain):
            results.append(DetectorResult(detector.kinds, abstained=found.reason))
            continue
        unjudged_kinds = {one.kind: one.reason for one in found if isinstance(one, Abstain)}
        candidates = [one for one in found if not isinstance(one, Abstain)]
        candidates = [one._replace(finding=_add_run(one.finding, view)) for one in candidates]
        updated = {id(_update(held, candidate)) for candidate in candidates}
        known = [one.finding for one in held]
        judged = [
            (one, detector.has_passed(view, one.finding, known))
            for one in held
            if one.finding.kind in detector.kinds and id(one) not in updated
        ]
        passed = tuple(one.finding.number for one, answer in judged if answer is True)
        unjudged = tuple((one.finding.number, why.reason) for one, why in judged if isinstance(why, Abstain))
        gone = {id(one) for one, answer in judged if answer}
        held = [one for one in held if id(one) not in gone]
        kinds = detector.kinds - unjudged_kinds.keys()
        results.append(DetectorResult(kinds, tuple(candidates), passed, unjudged=unjudged))
        results += [DetectorResult(frozenset({kind}), abstained=why) for kind, why in unjudged_kinds.items()]
    return Detected(view, tuple(results))


@dataclass(slots=True, eq=False)
class _Held:
    """A finding that is open at this point of the pass; its number is 0 when this pass has opened it."""

    finding: Finding


def _update(held: list[_Held], candidate: Candidate) -> _Held:
    """Replace the finding that a candidate is about, or add it; others that it merges are removed."""
    kept, merged = match_open(held, candidate.finding)
    if kept is None:
        held.append(_Held(candidate.finding))
        return held[-1]
    held[:] = [one for one in held if one not in merged]
    kept.finding = msgspec.structs.replace(candidate.finding, number=kept.finding.number)
    return kept


def read_thresholds(config: CollectorConfig) -> Thresholds:
    """Return the thresholds of a slow rank."""
    return Thresholds(
        steps_min=config.detect_steps_min,
        slowdown_ratio_min=config.slowdown_ratio_min,
        slowdown_close_ratio=config.slowdown_close_ratio,
        robust_z_min=config.robust_z_min,
        persistence_ratio=config.persistence_ratio,
    )


def read_link_thresholds(config: CollectorConfig) -> Thresholds:
    """Return the thresholds of a slow link. It has recovered when half of the smallest effect is gone, as with
    ranks.
    """
    return _with_effect(read_thresholds(config), config.link_slowdown_ratio_min)


def _add_run(finding: Finding, view: RunView) -> Finding:
    """Return a finding with what its texts say of the run."""
    of_run = msgspec.structs.replace(finding, world_size=view.world_size)
    if view.thresholds and finding.kind in BY_THRESHOLDS:
        of_run = state_thresholds(of_run, view.thresholds, view.thresholds_said)
    return state_faults(of_run, view.injected_faults) if view.injected_faults else of_run


def read_imbalance_thresholds(config: CollectorConfig) -> Thresholds:
    """Return the thresholds of an imbalance: a group has more work than the others in all steps but a few."""
    thresholds = _with_effect(read_thresholds(config), config.imbalance_ratio_min)
    return replace(thresholds, persistence_ratio=max(EVERY_STEP, config.persistence_ratio))


def _with_effect(thresholds: Thresholds, ratio_min: float) -> Thresholds:
    return replace(thresholds, slowdown_ratio_min=ratio_min, slowdown_close_ratio=1 + (ratio_min - 1) / 2)
