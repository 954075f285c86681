"""Find a run whose ranks all stop together again and again: for a save, an evaluation by hand, a new epoch's workers.

Nobody keeps the others waiting, so no rank is slow, the median step is as before, and only the mean shows it: a stop of
0.6 s every 60 steps of 60 ms takes a seventh of the time.

    stalls    long steps (`long_steps.py`) in which most ranks did the same, or of the only rank, of at least
              CLASS_RATIO of the size that holds half of their time; the last CLASS_MAX
    proof     STALLS_MIN of them, most at equal distances
    cost      COST_MIN of the time since one usual distance before the first of them
    now       the last one is no longer ago than QUIET_GAPS usual distances

Where loaders or garbage collectors are found to hold up the run, that says it already.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from rankscope.collector.detect.finding import RUN_STALLS, Finding
from rankscope.collector.detect.stragglers.doubt import START_STEPS
from rankscope.collector.detect.stragglers.intermittent import CLASS_RATIO, find_half_of_time, find_period
from rankscope.collector.detect.stragglers.recurring_stalls import (
    CLASS_MAX,
    STALLS_MIN,
    Recurring,
    count_periods,
    count_stalls,
    date_stalls,
    describe_place,
    find_pause,
    measure_stalls,
)
from rankscope.collector.detect.stragglers.root_cause import EXPLAINS
from rankscope.collector.detect.suggestions import suggest
from rankscope.collector.detect.view import Candidate, RunView
from rankscope.collector.steps.long_steps import EVERYBODY, UNKNOWN, LongStepsSeen
from rankscope.measure.records import CHECKPOINT
from rankscope.measure.units import format_duration

COST_MIN: Final = 0.05
CLOSE_SHARE: Final = 0.5
"""Share of COST_MIN down to which an open finding holds."""
WARNING_MIN: Final = 0.1
"""Share of the time from which it is a warning."""
PARTS: Final = {
    "data": "waiting for data loaders",
    "optimizer": "in the optimizer",
    "other": "between optimizer and next batch",
    CHECKPOINT: "saving checkpoints",
}
"""What ranks do in a phase; another one is named."""
EXPLAINED_BY: Final = {"data": "data_bound", "gc": "garbage_collection"}


class RunStalls:
    """The detector of runs that stop as a whole."""

    kinds = frozenset({RUN_STALLS})

    def find(self, view: RunView, explained: Sequence[Finding]) -> Sequence[Candidate]:
        """Return the run, if all of its ranks stop together now and then."""
        known = next((one for one in explained if one.kind == RUN_STALLS), None)
        share_min = COST_MIN * (1.0 if known is None else CLOSE_SHARE)
        found = find_run_stalls(view.long_steps, len(view.series.ranks), share_min)
        if found is None:
            return []
        part = "gc" if _is_of_collector(view, found) else found.part
        if EXPLAINED_BY.get(part) in {one.kind for one in explained}:
            return []
        return [_describe(view, found, part, known)]

    def has_passed(self, _view: RunView, _finding: Finding, _explained: Sequence[Finding]) -> bool:
        """Return True: else `find` had found it again."""
        return True


def find_run_stalls(seen: LongStepsSeen, ranks: int, share_min: float = COST_MIN) -> Recurring | None:
    """Return the stalls of all of so many ranks, if they are regular, take so much of the time, and are not over."""
    owner = EVERYBODY if ranks > 1 else UNKNOWN
    steps = [one for one in seen.steps if one.owner == owner and one.step >= START_STEPS][-CLASS_MAX:]
    if len(steps) < STALLS_MIN:
        return None
    size_ns = CLASS_RATIO * find_half_of_time([one.excess_ns for one in steps])
    stalls = [one._replace(owned_ns=one.excess_ns) for one in steps if one.excess_ns >= size_ns]
    if count_periods(stalls) < STALLS_MIN:
        return None
    period, is_regular = find_period(np.array([one.step for one in stalls]))
    if not is_regular:
        return None
    # A long step of the start-up is not the first of them.
    while len(stalls) > STALLS_MIN and 1 < (stalls[1].step - stalls[0].step) % period < period - 1:
        del stalls[0]
    found = measure_stalls(EVERYBODY, stalls, seen.total_ns)
    return found if found is not None and found.is_regular and found.share >= share_min else None


def _is_of_collector(view: RunView, found: Recurring) -> bool:
    """Return whether pauses of the garbage collector, as the lowest rank has them, hold half of the stalls."""
    pause_ns = find_pause(found, view.samples.gc_pauses.get(min(view.series.ranks, default=0), ()))
    return pause_ns is not None and pause_ns >= EXPLAINS * found.usual_stall_ns


def _describe(view: RunView, found: Recurring, part: str, known: Finding | None) -> Candidate:
    earliest, since = date_stalls(found, view.long_steps.first_step, known)
    why = "in Python's garbage collector" if part == "gc" else PARTS.get(part, f"in {part}" if part else "")
    who = "all ranks alike" if len(view.series.ranks) > 1 else ""
    finding = Finding(
        kind=RUN_STALLS,
        since_step=since,
        since_step_min=earliest,
        since_step_max=since,
        cause=RUN_STALLS,
        pattern="intermittent",
        severity="warning" if found.share >= WARNING_MIN else "info",
        who="whole run",
        what=f"stopped for {format_duration(found.usual_stall_ns)} every {found.period} steps",
        why=", ".join(filter(None, (who, why))),
        also=tuple(filter(None, (count_stalls(found), describe_place(found)))),
        suggestion=suggest(RUN_STALLS, RUN_STALLS),
        run_slowdown_ratio=found.run_slowdown_ratio,
        evidence=found.evidence,
    )
    return Candidate(finding, found.losses)
