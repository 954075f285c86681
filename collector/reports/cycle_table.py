"""Build the table of the cycles of a profiler's schedule, for the terminal and the page. Pure."""

from collections.abc import Sequence

from rankscope.collector.reports.trace_cells import Cells, Section, columns_of, ms, percent, text_cell
from rankscope.collector.traces.report import CycleRow

_CYCLES = Section(
    "cycles", "Cycles of the schedule",
    "The mean step of each rank in each cycle, and its difference from the rank's cycle before; compute is computing "
    "alone, exposed communication alone. Slow is whether the ranks' comparison names it. All other tables are of the "
    "last cycle.",
    columns_of(
        "cycle, rank, <steps, step ms, difference ms, difference %, compute ms, overlap ms, exposed ms, copy ms, "
        "idle ms, <slow"
    ), "No cycle has steps.",
)  # fmt: skip
_SLOW = {True: "slow", False: "no", None: None}


def build_cycle_sections(rows: Sequence[CycleRow], top: int) -> list[Section]:
    """Return the table of the cycles; none where they were not asked for."""
    return [_CYCLES.of([_cells_of(row) for row in rows], top)] if rows else []


def _cells_of(row: CycleRow) -> Cells:
    steps = f"{row.first_step}-{row.last_step}" if row.step_count else None
    alone_ns = row.compute_ns - row.overlap_ns if row.compute_ns is not None and row.overlap_ns is not None else None
    return (
        text_cell(row.cycle),
        text_cell(row.rank),
        text_cell(steps),
        ms(row.step_ns),
        ms(row.difference_ns),
        percent(row.difference_ratio),
        ms(alone_ns),
        ms(row.overlap_ns),
        ms(row.exposed_communication_ns),
        ms(row.copy_ns),
        ms(row.idle_ns),
        text_cell(_SLOW[row.is_slow]),
    )
