"""Find ranks that are behind or ahead of the other members of a process group by some collectives, step after step.

Backends pair the n-th collective of one member with the n-th of the others, so a rank that has left one out meets those
of another place from then on. Nothing that the group waits for can be matched in a step then. It looks the same where a
rank calls a collective in another step than the others. Where a group with all ranks is such a one, no rank can be
compared at all, and detection of stragglers abstains (`stragglers/detector.py`).
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from rankscope.collector.detect.finding import UNMATCHED, Finding, describe_begin, name_ranks
from rankscope.collector.detect.past import WHEN
from rankscope.collector.detect.suggestions import suggest
from rankscope.collector.detect.view import Candidate, RunView
from rankscope.collector.steps.step_series import Lag

FINDINGS_MAX: Final = 3


class UnmatchedCollectives:
    """The detector of process groups whose members have called different numbers of collectives."""

    kinds = frozenset({UNMATCHED})

    def __init__(self, steps_min: int) -> None:
        self._steps_min = steps_min

    def find(self, view: RunView, _explained: Sequence[Finding]) -> Sequence[Candidate]:
        """Return a finding for each group in which that has been so for `steps_min` steps, at most FINDINGS_MAX."""
        steps = view.series.steps
        lags: dict[str, list[Lag]] = {}
        for lag in view.series.lags:
            if np.count_nonzero(steps >= lag.since_step) >= self._steps_min:
                lags.setdefault(lag.group, []).append(lag)
        first = sorted(lags.values(), key=lambda found: (min(one.since_step for one in found), found[0].group))
        return [_describe(found) for found in first[:FINDINGS_MAX]]

    def has_passed(self, view: RunView, finding: Finding, _explained: Sequence[Finding]) -> bool:
        """Return whether the collectives of its group are matched again."""
        return all(lag.group != finding.group for lag in view.series.lags)


def _describe(lags: Sequence[Lag]) -> Candidate:
    earliest = min(lags, key=lambda one: one.since_step)
    since_min = min(one.since_step_min for one in lags)
    begin = describe_begin(earliest.since_step, (since_min, earliest.since_step), is_gradual=False)
    finding = Finding(
        kind=UNMATCHED,
        ranks=tuple(sorted(one.rank for one in lags)),
        group=lags[0].group,
        since_step=earliest.since_step,
        since_step_min=since_min,
        since_step_max=earliest.since_step,
        cause=UNMATCHED,
        sentence=_write_sentence(lags, begin),
        past=_write_sentence(lags, begin, is_over=True),
        suggestion=suggest(UNMATCHED, UNMATCHED),
        severity="info",
        evidence={f"collectives_behind/{one.rank}": float(one.behind) for one in lags},
    )
    return Candidate(finding)


def _write_sentence(lags: Sequence[Lag], begin: str, *, is_over: bool = False) -> str:
    first = lags[0]
    if len(lags) == 1:
        of = "" if first.behind > 0 else " of"
        who = f"rank {first.rank} {'was' if is_over else 'is'} {first.distance}{of} most members"
        called = f"it {'had' if is_over else 'has'} called {'fewer' if first.behind > 0 else 'more'} of them"
    else:
        ranks = name_ranks(one.rank for one in lags)
        who = f"{ranks} {'were' if is_over else 'are'} behind or ahead of most members by some collectives"
        called = f"they {'had' if is_over else 'have'} called fewer or more of them"
    where = f"In group {first.group} {who}{WHEN if is_over else f' since {begin}'}"
    if all(one.is_matched for one in lags):
        differ, left, showed, match, are = (
            ("differed", "left", "showed", "matched", "were")
            if is_over
            else ("differ", "leave", "show", "match", "are")
        )
        return (
            f"{where}: only {'its' if len(lags) == 1 else 'their'} sequence numbers {differ}. All members {left} a "
            f"collective together, and the ends of the calls {showed} that those of a step still {match}: the group's "
            f"waits {are} known."
        )
    waits, could, are = ("waited", "could not", "were") if is_over else ("waits", "cannot", "are")
    return (
        f"{where}: {called}, or one of them in another step. What the group {waits} for {could} be matched, so that "
        f"its members {are} not compared by it."
    )
