"""Say in a sentence what full windows, and torch's timing of collectives, have done to the steps of a run, for all who
show it (docs/cost.md). Pure.
"""

from collections.abc import Sequence
from statistics import median
from typing import Final, NamedTuple

from rankscope.collector.runs.ratio_basis import ENDED, FULL_WINDOWS, describe_change, read_change
from rankscope.collector.runs.run_ratios import RunRatios, choose_counted, find_run_ratios
from rankscope.collector.runs.snapshot import RankSnapshot, RunSnapshot
from rankscope.measure.records import AgentCost

KEPT = "kept"
ENDED_OUTCOME, PAUSED, CONTINUE, COMPARED, RAN = (
    "ended",
    "are paused",
    "continue",
    "are still being compared",
    "ran (outcome not reported)",
)
OUTCOMES: Final = {
    ENDED_OUTCOME: "ended", PAUSED: "were paused", CONTINUE: "continued", COMPARED: "were still being compared",
    RAN: RAN,
}  # fmt: skip
"""What became of the windows of ranks, and the same of a run that is over."""


SLOWER, UNKNOWN, NOT_TIMED = "slower", "unknown", "absent"
TIMINGS: Final = {
    SLOWER: "RANKSCOPE_NCCL_TIMING=off leaves the timing out of the next run",
    KEPT: "which does not count as a slowdown",
    "compared": "but the comparison goes on",
}
"""What follows from the change of the steps since collectives are timed, by the state of their comparison."""


class RunWindows(NamedTuple):
    """What the full windows of a run show, their effect on its steps, and that of torch's timing of collectives, None
    where none was measured.
    """

    ratios: RunRatios
    effect: str | None
    timing: str | None


def read_windows(run: RunSnapshot) -> RunWindows:
    """Return what the full windows of a run show. Of 16,384 ranks it takes 20 ms: once for each snapshot is enough."""
    return RunWindows(find_run_ratios(run.ranks), describe_window_effect(run.ranks), describe_timing_effect(run.ranks))


def describe_window_effect(ranks: Sequence[RankSnapshot]) -> str | None:
    """Return how much longer steps became with the windows of GPUs, on how many of the ranks that are up (of all once
    none is up), and what was done. Changes are medians over these ranks. None where nothing was measured.
    """
    counted = choose_counted(ranks)
    groups: dict[str, list[AgentCost]] = {}
    for rank in counted:
        if read_change(rank.cost.attached_ratio) is not None:
            groups.setdefault(_find_outcome(rank.cost), []).append(rank.cost)
    is_over = not any(rank.up for rank in counted)
    parts = [
        f"full windows {past if is_over else outcome} on {len(groups[outcome]):,} of {len(counted):,} ranks: "
        f"{_describe_steps(groups[outcome])}"
        for outcome, past in OUTCOMES.items()
        if outcome in groups
    ]
    return "; ".join(parts) or None


def _find_outcome(cost: AgentCost) -> str:
    """Return what became of the windows of a rank. An earlier agent does not say: it may have ended them."""
    if not cost.window_effect:
        return RAN
    if cost.window_effect == ENDED:
        return ENDED_OUTCOME
    if cost.dropped.get(FULL_WINDOWS):
        return PAUSED
    return CONTINUE if cost.window_effect == KEPT else COMPARED


def _describe_steps(costs: Sequence[AgentCost]) -> str:
    """Return the change of the steps between windows, and after CUPTI was detached."""
    attached = [change for cost in costs if (change := read_change(cost.attached_ratio)) is not None]
    text = f"between windows, steps took {describe_change(median(attached))} the first window"
    detached = [change for cost in costs if (change := read_change(cost.detached_ratio)) is not None]
    if detached:
        on = "" if len(detached) == len(costs) else f" on {len(detached):,} of these ranks"
        return f"{text}; after CUPTI was detached{on}, {describe_change(median(detached)).removesuffix(' than before')}"
    return text


def describe_timing_effect(ranks: Sequence[RankSnapshot]) -> str | None:
    """Return how much longer steps became since torch times the collectives of NCCL, on how many of the ranks that are
    up (of all once none is up), and what follows. None where `nccl_timing` is not `measured`, and before there is
    something to say.
    """
    counted = choose_counted(ranks)
    groups: dict[str, list[AgentCost]] = {}
    for rank in counted:
        groups.setdefault(rank.cost.timing_effect, []).append(rank.cost)
    verb = "are" if any(rank.up for rank in counted) else "were"
    parts = [
        f"NCCL's collectives {verb} timed on {len(groups[state]):,} of {len(counted):,} ranks: {found}"
        for state in (*TIMINGS, UNKNOWN)
        if state in groups and (found := _describe_timing(state, groups[state])) is not None
    ]
    if NOT_TIMED in groups:
        count = f"{len(groups[NOT_TIMED]):,} of {len(counted):,} ranks"
        parts.append(f"NCCL's collectives {verb} not timed on {count}: the log of a rank says why")
    return "; ".join(parts) or None


def _describe_timing(state: str, costs: Sequence[AgentCost]) -> str | None:
    if state == UNKNOWN:
        return "whether steps became longer is not known, the log of a rank says why"
    changes = [change for cost in costs if (change := read_change(cost.timing_ratio)) is not None]
    return f"since then steps took {describe_change(median(changes))}, {TIMINGS[state]}" if changes else None
