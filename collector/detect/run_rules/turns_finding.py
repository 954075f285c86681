"""Build the finding about ranks that are slow in turns (`stragglers/turns.py`): what that costs the run, and why."""

from typing import Final

import numpy as np

from rankscope.collector.detect.finding import Finding, name_ranks
from rankscope.collector.detect.finding_memory import FindingMemory, remember
from rankscope.collector.detect.stragglers.cost import price
from rankscope.collector.detect.stragglers.root_cause import CPU_PRESSURE, EXPLAINS
from rankscope.collector.detect.stragglers.turns import Turns
from rankscope.collector.detect.suggestions import UNATTRIBUTED, suggest
from rankscope.collector.detect.view import Candidate, RunView
from rankscope.measure.units import format_duration

DATA: Final = "data"
DATA_LOADING: Final = "data_loading"
TURNS: Final = "turns"
"""Evidence key: how many turns there were in the steps that are kept."""


def describe_turns(
    view: RunView, turns: Turns, kind: str, core_wait_ns: float | None, known: Finding | None
) -> Candidate:
    """Build the finding, of this kind; an open one keeps its begin."""
    begin: tuple[int, int | None, int | None] = turns.since_step, *(turns.since_range or (None, turns.since_step))
    if known is not None and known.since_step is not None:
        begin = known.since_step, known.since_step_min, known.since_step_max
    since_step, earliest, latest = begin
    cost = price(turns.lost_ns, view, since_step)
    share, mean_ns = find_turns_share(view, turns), float(np.mean(turns.excess_ns))
    cause, because = _find_cause(view, turns, core_wait_ns)
    count = 1 + int(np.count_nonzero(np.diff(turns.owners)))

    steps = view.series.steps[turns.rows]
    finding = Finding(
        kind=kind,
        since_step=since_step,
        since_step_min=earliest,
        since_step_max=latest,
        cause=cause,
        what=f"{name_ranks(turns.ranks)} slowest in turns, no single rank to blame",
        why=because,
        also=(
            f"{count} turns in steps {steps[0]}-{steps[-1]}",
            f"others waiting {format_duration(mean_ns)} in {len(turns.rows)} steps, {100 * share:.0f} % of the time",
        ),
        severity="info" if cause == UNATTRIBUTED else "warning",
        suggestion=suggest(kind, cause),
        run_slowdown_ratio=cost,
        evidence={TURNS: float(count), "gap_ns": mean_ns, "gap_step_ratio": share},
    )
    return Candidate(remember(finding, FindingMemory(holds_while_found=True)), turns.lost_ns)


def find_turns_share(view: RunView, turns: Turns) -> float:
    """Return the share of the time since the first slow step that the turns hold."""
    since = slice(int(turns.rows[0]), None)
    step_ns = view.longest_ns[since]
    return min(1.0, float(turns.excess_ns.sum()) / max(1.0, float(step_ns[~np.isnan(step_ns)].sum())))


def _find_cause(view: RunView, turns: Turns, core_wait_ns: float | None) -> tuple[str, str]:
    """Return the cause, and a clause that gives the reason: what holds half of the excess of all turns."""
    total_ns, longer_ns = float(turns.excess_ns.sum()), {}
    columns = view.series.columns_of(turns.owners.tolist())
    for name, values in view.series.phases_ns.items():
        rows_ns = values[turns.rows]
        own_ns = rows_ns[np.arange(len(columns)), columns]
        longer_ns[name] = float(np.nansum(own_ns - np.nanmin(rows_ns, axis=1)))
    if longer_ns.get(DATA, 0.0) >= EXPLAINS * total_ns:
        return DATA_LOADING, "the rank whose turn it is waiting for its data loader"
    if core_wait_ns is not None and core_wait_ns >= EXPLAINS * float(np.mean(turns.excess_ns)):
        return CPU_PRESSURE, "training threads waiting for a CPU core"
    part = max((name for name in longer_ns if name != "backward"), key=lambda name: longer_ns[name], default="")
    where = f", most of it in {part}" if part and longer_ns[part] >= EXPLAINS * total_ns else ""
    return UNATTRIBUTED, f"no known cause{where}"
