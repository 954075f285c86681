"""Build the table of the lines in which ranks block, for `status --rank`, the report and its page."""

from collections.abc import Iterable

from rankscope.collector.reports.trace_cells import Cell, Section, columns_of, ms, text_cell
from rankscope.collector.runs.blocked_lines import BlockingCalls


def build_blocked_lines(of_ranks: Iterable[tuple[int, Iterable[BlockingCalls]]], top: int) -> Section:
    """Return the table of these ranks, in their order, each with its longest waits first."""
    section = Section(
        "blocked", "Blocking lines",
        "Calls in which a rank's main thread waited for its GPU, in its last full profiler windows, mean of a step.",
        columns_of("rank, <line, <operator, <call, calls, waited ms, GPU idle around its end ms"), "None was seen.",
    )  # fmt: skip
    rows = [
        (text_cell(rank), text_cell(one.line or "line not known"), text_cell(one.operator or "not recorded"),
         text_cell(one.call), Cell(f"{one.count:,.1f}", one.count), ms(one.wait_ns), ms(one.idle_ns))
        for rank, calls in of_ranks
        for one in calls
    ]  # fmt: skip
    return section.of(rows, top)
