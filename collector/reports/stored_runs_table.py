"""Render the runs of a store as a table for a terminal."""

from typing import Final

from rankscope.collector.reports.incident_table import UNKNOWN, format_utc
from rankscope.collector.reports.trace_cells import align, printable
from rankscope.collector.storage.stored_runs import StoredRun, StoredRuns

HEADS: Final = ("run", "collector", "ranks", "attempts", "ended", "last heard (UTC)", "goodput", "findings")


def render_runs(found: StoredRuns) -> str:
    """Return the table, and what it leaves out."""
    if not found.runs:
        return "no run is in this store" if not found.rows_unreadable else _count(found)
    return "\n".join([*align([HEADS, *map(_build_cells, found.runs)]), _count(found)])


def _build_cells(run: StoredRun) -> tuple[str, ...]:
    return (
        printable(run.run_id),
        printable(run.collector) or UNKNOWN,
        str(run.world_size),
        str(run.attempts),
        "no" if run.end is None else printable(run.end),
        format_utc(run.changed_wall_s),
        UNKNOWN if run.goodput_ratio is None else f"{run.goodput_ratio:.3f}",
        str(run.findings_opened),
    )


def _count(found: StoredRuns) -> str:
    collectors = {run.collector for run in found.runs} - {""}
    parts = [f"{len(found.runs)} run{'s' * (len(found.runs) != 1)}"]
    parts += [f"of {len(collectors)} collectors"] if len(collectors) > 1 else []
    parts += [f"and {found.others} that changed earlier"] if found.others else []
    parts += [f"and {found.rows_unreadable} that cannot be read"] if found.rows_unreadable else []
    return " ".join(parts)
