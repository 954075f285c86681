"""Say in a sentence what full windows have done to the steps of a run (docs/cost.md), for all who show it. Pure."""

from collections.abc import Sequence
from statistics import median

from rankscope.collector.runs.ratio_basis import ENDED, describe_change
from rankscope.collector.runs.snapshot import RankSnapshot
from rankscope.measure.records import AgentCost

KEPT = "kept"


def describe_window_effect(ranks: Sequence[RankSnapshot]) -> str | None:
    """Return how much longer steps became with the windows of GPUs, on how many ranks, and what was done. Changes are
    medians over these ranks. None where nothing was measured.
    """
    costs = [rank.cost for rank in ranks if rank.cost.attached_ratio is not None]
    ended = [cost for cost in costs if cost.window_effect == ENDED]
    kept = [cost for cost in costs if cost.window_effect == KEPT]
    compared = [cost for cost in costs if cost.window_effect not in {ENDED, KEPT}]
    parts = [
        f"full windows {what} on {len(those):,} of {len(ranks):,} ranks: {_describe_steps(those)}"
        for those, what in ((ended, "ended"), (kept, "go on"), (compared, "are still being compared"))
        if those
    ]
    return "; ".join(parts) or None


def _describe_steps(costs: Sequence[AgentCost]) -> str:
    """Return the change of the steps between windows, and after CUPTI was detached."""
    attached = median(cost.attached_ratio for cost in costs if cost.attached_ratio is not None)
    text = f"steps between them were {describe_change(attached)} the first one"
    detached = [cost.detached_ratio for cost in costs if cost.detached_ratio is not None]
    if detached:
        on = "" if len(detached) == len(costs) else f", on {len(detached):,} of these ranks"
        return f"{text}, {describe_change(median(detached))} it after CUPTI was detached{on}"
    return text
