"""Find ranks that are behind or ahead of the other members of a process group by some collectives, step after step.

Backends pair the n-th collective of one member with the n-th of the others, so a rank that has left one out meets those
of another place from then on. Nothing that the group waits for can be matched in a step then. It looks the same where a
rank calls a collective in another step than the others. Where a group with all ranks is such a one, no rank can be
compared at all, and detection of stragglers abstains (`stragglers/detector.py`).

Ranks that meet others of another place wait where they had worked at the same time, so the steps may become longer
with the shift. Where they do, that is what it costs, and no slowdown of the run beside it.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from rankscope.collector.detect.finding import UNMATCHED, Finding
from rankscope.collector.detect.finding_memory import FindingMemory, recall, remember
from rankscope.collector.detect.run_rules.regressions import NO_CHANGE, find_lasting_rise
from rankscope.collector.detect.stragglers.cost import price
from rankscope.collector.detect.stragglers.persistent import Thresholds
from rankscope.collector.detect.suggestions import suggest
from rankscope.collector.detect.view import Candidate, RunView
from rankscope.collector.steps.step_series import Lag

FINDINGS_MAX: Final = 3


class UnmatchedCollectives:
    """The detector of process groups whose members have called different numbers of collectives."""

    kinds = frozenset({UNMATCHED})

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds

    def find(self, view: RunView, explained: Sequence[Finding]) -> Sequence[Candidate]:
        """Return a finding for each group in which that has been so for `steps_min` steps, at most FINDINGS_MAX."""
        steps = view.series.steps
        lags: dict[str, list[Lag]] = {}
        for lag in view.series.lags:
            if np.count_nonzero(steps >= lag.since_step) >= self._thresholds.steps_min:
                lags.setdefault(lag.group, []).append(lag)
        first = sorted(lags.values(), key=lambda found: (min(one.since_step for one in found), found[0].group))
        candidates = [_describe(found) for found in first[:FINDINGS_MAX]]
        priced = next((place for place, found in enumerate(first[:FINDINGS_MAX]) if _shifts_all(view, found)), None)
        if priced is not None:
            candidates[priced] = self._price(view, candidates[priced].finding, explained)
        return candidates

    def _price(self, view: RunView, finding: Finding, explained: Sequence[Finding]) -> Candidate:
        """Return the finding with what it costs: by how much the steps have become longer in its begin's range, at most
        as much as when that was found.
        """
        known = next((one for one in explained if one.kind == UNMATCHED and one.group == finding.group), None)
        known = known if recall(known).before_ns is not None else None
        others = [one for one in explained if one.kind not in NO_CHANGE and one.kind != UNMATCHED]
        found = find_lasting_rise(view, others, known, self._thresholds)
        first, last = finding.since_range or (finding.since_step or 0, finding.since_step or 0)
        if found is None:
            return Candidate(finding)
        change, steps_ns = found
        begin = change.since_range or (change.since_step, change.since_step)
        if known is None and (begin[1] < first or begin[0] > last):
            return Candidate(finding)
        memory = recall(known)
        before_ns = change.before_ns if memory.before_ns is None else memory.before_ns
        after_ns = change.after_ns if memory.after_ns is None else memory.after_ns
        since = view.series.steps >= (finding.since_step or 0)
        lost_ns = np.where(since, np.clip(steps_ns - before_ns, 0.0, after_ns - before_ns), 0.0)
        cost = price(lost_ns, view, max(finding.since_step or 0, change.level_from_step), is_over_level=True)
        figures = {"before_ns": before_ns, "after_ns": after_ns, "robust_z": change.robust_z}
        priced = msgspec.structs.replace(
            finding,
            run_slowdown_ratio=cost,
            severity="warning",
            evidence={**finding.evidence, **figures},
        )
        memory = FindingMemory(before_ns=before_ns, after_ns=after_ns, robust_z=change.robust_z)
        return Candidate(remember(priced, memory), lost_ns)

    def has_passed(self, view: RunView, finding: Finding, _explained: Sequence[Finding]) -> bool:
        """Return whether the collectives of its group are matched again."""
        return all(lag.group != finding.group for lag in view.series.lags)


def _shifts_all(view: RunView, lags: Sequence[Lag]) -> bool:
    """Return whether calls of a group with all ranks meet those of another place."""
    members = view.groups.get(lags[0].group, ())
    return len(members) == len(view.series.ranks) and not all(one.is_matched for one in lags)


def _describe(lags: Sequence[Lag]) -> Candidate:
    earliest = min(lags, key=lambda one: one.since_step)
    since_min = min(one.since_step_min for one in lags)
    finding = Finding(
        kind=UNMATCHED,
        ranks=tuple(sorted(one.rank for one in lags)),
        group=lags[0].group,
        since_step=earliest.since_step,
        since_step_min=since_min,
        since_step_max=earliest.since_step,
        cause=UNMATCHED,
        what=_write_what(lags),
        why=_write_why(lags),
        also=_write_effect(lags),
        suggestion=suggest(UNMATCHED, UNMATCHED),
        severity="info",
        evidence={f"collectives_behind/{one.rank}": float(one.behind) for one in lags},
    )
    return Candidate(finding)


def _write_what(lags: Sequence[Lag]) -> str:
    first = lags[0]
    if len(lags) > 1:
        return f"some collectives behind or ahead of most members of group {first.group}"
    return f"{first.distance}{'' if first.behind > 0 else ' of'} most members of group {first.group}"


def _write_why(lags: Sequence[Lag]) -> str:
    if all(one.is_matched for one in lags):
        return "only sequence numbers differ: the calls of a step still match, so the group's waits are known"
    fewer = "fewer or more" if len(lags) > 1 else "fewer" if lags[0].behind > 0 else "more"
    return f"{fewer} of them called, or one in another step"


def _write_effect(lags: Sequence[Lag]) -> tuple[str, ...]:
    if all(one.is_matched for one in lags):
        return ()
    return ("the group's waits cannot be matched, so its members are not compared by it",)
