"""Build the tables of a comparison with other traces, for the terminal and the page. Pure: Comparison -> sections."""

from rankscope.collector.reports.trace_cells import (
    Cells,
    Section,
    amount,
    columns_of,
    ms,
    percent,
    rank_list,
    share_of,
    text_cell,
)
from rankscope.collector.traces.call_matching import ADDED, MATCHED, REMOVED
from rankscope.collector.traces.report import CallMatching, CallRow, Comparison, DifferenceRow, DifferenceTable

_COMPARISON = Section(
    "comparison", "Difference of the steps",
    "Mean length of a step over all steps of all ranks compared, in these traces and in those they are compared with.",
    columns_of("<traces, <ranks, steps, step ms, difference ms, difference %"), "Not compared.",
)  # fmt: skip
_NOTES = Section(
    "comparison_notes", "What else differs", "What makes the two sides less alike than the tables assume.",
    columns_of("<note"), "Nothing that is known: device, backend, number of ranks and ranks are the same.",
)  # fmt: skip
_TITLES = {
    "kernels": "kernel", "collectives": "collective", "operators": "operator", "modules": "module",
    "ranges": "user range",
}  # fmt: skip
_COLUMNS = "here ms, against ms, difference ms, share %, count here, count against"
_EXPLAINED = (
    "Time of a step in which this counted, shared out as in the breakdown: computing, else communicating, else "
    "copying, else idle. The differences sum to that of the steps but for {remainder} ns of rounding; a share is of "
    "that sum, and below 0 where a part moved the other way."
)

_CALLS = {
    MATCHED: "The calls of one step of each rank, that of the median difference, matched one by one in their order: "
    "the largest differences on host or device first, without the calls inside. Differences are these traces minus "
    "those of --against.",
    ADDED: "Calls that only these traces have, with the calls inside them.",
    REMOVED: "Calls that only the traces of --against have, with the calls inside them.",
}
_CALL_COLUMNS = "<call, rank, step, calls, host ms, host diff. ms, device ms, device diff. ms"
"""Times are those of the traces that have the call, differences those here less those of the others."""


def build_difference_sections(comparison: Comparison | None, top: int) -> list[Section]:
    """Return the tables of a comparison; none where none was asked for."""
    if comparison is None:
        return []
    if comparison.refused is not None:
        return [_COMPARISON._replace(reason=f"Not compared: {comparison.refused}.")]
    notes = _NOTES._replace(rows=tuple((text_cell(note),) for note in comparison.notes))
    tables = [_build_table(table, top) for table in comparison.tables]
    return [_summary(comparison), notes, *tables, *_build_calls(comparison.calls, top)]


def _build_calls(calls: CallMatching | None, top: int) -> list[Section]:
    """Return a table for each kind of call; none where calls were not asked for."""
    if calls is None:
        return []
    counts = (calls.matched_count, calls.added_count, calls.removed_count)
    told = {MATCHED: "".join(f" {note[0].upper()}{note[1:]}." for note in calls.notes)}
    found = []
    for (kind, explanation), count in zip(_CALLS.items(), counts, strict=True):
        section = Section(
            f"calls_{kind}",
            f"Calls, {kind}",
            explanation + told.get(kind, ""),
            columns_of(_CALL_COLUMNS),
            f"No calls are {kind}.",
        )
        rows = [_cells_of_call(row) for row in calls.rows if row.kind == kind]
        found.append(section.of(rows, top, count))
    return found


def _cells_of_call(row: CallRow) -> Cells:
    is_gone = row.kind == REMOVED
    return (
        text_cell(row.path),
        text_cell(row.rank),
        text_cell(row.step if row.step == row.against_step else f"{row.step}, {row.against_step}"),
        amount(row.call_count),
        ms(row.against_host_ns if is_gone else row.host_ns),
        ms(row.host_difference_ns),
        ms(row.against_device_ns if is_gone else row.device_ns),
        ms(row.device_difference_ns),
    )


def _summary(comparison: Comparison) -> Section:
    clock = f" Steps are cut by the {comparison.clock}'s clock on both sides."
    difference_ns, against_ns = comparison.difference_ns, comparison.against_step_ns
    here = (
        text_cell("these"),
        rank_list(comparison.ranks),
        amount(comparison.steps),
        ms(comparison.step_ns),
        ms(difference_ns),
        percent(share_of(difference_ns, against_ns)),
    )
    there = (
        text_cell("against"),
        rank_list(comparison.against_ranks),
        amount(comparison.against_steps),
        ms(against_ns),
        text_cell(None),
        text_cell(None),
    )
    return _COMPARISON._replace(explanation=_COMPARISON.explanation + clock, rows=(here, there))


def _build_table(table: DifferenceTable, top: int) -> Section:
    what = _TITLES[table.key]
    section = Section(
        f"difference_{table.key}",
        f"Difference by {what}",
        _EXPLAINED.format(remainder=table.remainder_ns),
        columns_of(f"<kind, <{what}, {_COLUMNS}"),
        "No steps.",
    )
    return section.of([_cells_of(row) for row in table.rows], top)


def _cells_of(row: DifferenceRow) -> Cells:
    return (
        text_cell(row.kind),
        text_cell(row.name),
        ms(row.step_ns),
        ms(row.against_step_ns),
        ms(row.difference_ns),
        percent(row.share_ratio),
        amount(row.step_count, decimals=1),
        amount(row.against_step_count, decimals=1),
    )
