"""Build the tables that a report has only when they are asked for: critical path, all-to-alls, roofline.

Pure: parts of a TraceReport -> sections.
"""

from collections.abc import Sequence

from rankscope.collector.reports.trace_cells import (
    Cells,
    Section,
    amount,
    columns_of,
    ms,
    percent,
    rank_list,
    rate,
    share_of,
    text_cell,
    us,
)
from rankscope.collector.traces.report import (
    AllToAllCall,
    AllToAllRank,
    AllToAlls,
    CriticalPart,
    CriticalPath,
    CriticalStep,
    RankReport,
    RooflineRow,
    ShortenedPath,
)

# -- critical path -----------------------------------------------------------------------------------------------------

_PATH_STEPS = Section(
    "critical_path", "Critical path of the steps",
    "The chain of work that makes each step as long as it is, followed back from its end on the rank that ends it "
    "last; the parts sum to its length. Launch is the time from a launching call to the start of its work; "
    "unexplained: work waited, and nothing in the trace says for what. Moves between ranks are to the one that entered "
    "a collective last, or sent late; inferred moves between streams rest on the order of their work alone.",
    columns_of(
        "step, end rank, <share of ranks, length ms, host ms, launch ms, compute ms, comm. ms, copy ms, "
        "unexplained ms, moves between ranks, inferred"
    ), "No trace has work that is recognized.",
)  # fmt: skip
_PATH_PARTS = Section(
    "critical_parts", "What is on the critical path",
    "Operators of the host, kernels, collectives and copies on the paths of all steps, by rank; unexplained time and "
    "launches under the work that waited.",
    columns_of("<kind, <name, rank, times on path, total ms, share %"), "Nothing is on the path.",
)  # fmt: skip
_PATH_NOTES = Section(
    "critical_notes", "Limits of the critical path", "What the traces do not show.", columns_of("<note"),
    "Nothing is missing.", is_prose=True,
)  # fmt: skip
_SHORTENED_STEPS = Section(
    "shortened_steps", "Steps if something were shorter",
    "Simulated: the record is played again with less time for what has such a name. The figures are estimates: only "
    "waits and launches that were recorded count, and time that the trace does not explain stays as it was.",
    columns_of("<shorter, step, end rank, length ms, then ms, saved ms, saved %"),
    "No step has a path.",
)  # fmt: skip
_SHORTENED_PARTS = _PATH_PARTS._replace(
    key="shortened_parts", title="What would then be on the critical path",
    explanation="The parts of the longest paths of the simulated steps.",
)  # fmt: skip
RANKS_SHOWN_MAX = 4


def build_critical_sections(path: CriticalPath | None, top: int) -> list[Section]:
    """Return the tables of the critical path; none where it was not asked for."""
    if path is None:
        return []
    then = path.shortened
    told = [*path.notes, *(f"Simulated: {note}" for note in (then.notes if then is not None else ()))]
    notes = [_PATH_NOTES._replace(rows=tuple((text_cell(note),) for note in told))] if told else []
    parts = [_cells_of_part(one) for one in path.parts]
    return [
        _PATH_STEPS.of([_cells_of_step(one) for one in path.steps], top),
        _PATH_PARTS.of(parts, top),
        *(_build_shortened(then, top) if then is not None else ()),
        *notes,
    ]


def _build_shortened(then: ShortenedPath, top: int) -> list[Section]:
    what = ", ".join(f"{pattern} to {percent(share).text} %" for pattern, share in then.shares.items())
    rows = [(text_cell(one.step), text_cell(one.rank), one.before_ns, one.after_ns) for one in then.steps]
    if len(rows) > 1:
        rows.insert(0, (text_cell("all"), text_cell(None), then.before_ns, then.after_ns))
    cells = [
        (text_cell(what), step, rank, ms(before_ns), ms(after_ns), ms(before_ns - after_ns),
         percent(share_of(before_ns - after_ns, before_ns)))
        for step, rank, before_ns, after_ns in rows
    ]  # fmt: skip
    return [_SHORTENED_STEPS.of(cells, top), _SHORTENED_PARTS.of([_cells_of_part(one) for one in then.parts], top)]


def _cells_of_step(one: CriticalStep) -> Cells:
    return (
        text_cell(one.step),
        text_cell(one.rank),
        text_cell(_describe_ranks(one)),
        *map(ms, (one.window_ns, one.host_ns, one.launch_ns, one.compute_ns, one.communication_ns, one.copy_ns)),
        ms(one.unexplained_ns),
        amount(one.rank_change_count),
        amount(one.inferred_count),
    )


def _describe_ranks(one: CriticalStep) -> str:
    """Return the ranks with their shares of the path, the most first."""
    found = sorted(one.rank_ns.items(), key=lambda item: (-item[1], int(item[0])))
    shown = [f"{rank}: {percent(share_of(ns, one.window_ns)).text} %" for rank, ns in found[:RANKS_SHOWN_MAX]]
    left = [int(rank) for rank, _ in found[RANKS_SHOWN_MAX:]]
    return ", ".join([*shown, *([f"also {rank_list(left).text}"] if left else [])])


def _cells_of_part(one: CriticalPart) -> Cells:
    return (
        text_cell(one.kind),
        text_cell(one.name),
        text_cell(one.rank),
        amount(one.count),
        ms(one.total_ns),
        percent(one.ratio),
    )


# -- all-to-alls -------------------------------------------------------------------------------------------------------

_ALL_TO_ALL_RANKS = Section(
    "all_to_all_ranks", "All-to-alls, by rank",
    "What each rank sent and received, also in units of the median rank, and the member to which it sent the most, in "
    "units of the median member (x: times); the time includes waiting for others.",
    columns_of(
        "<group, rank, calls, sent bytes, sent / median x, received bytes, received / median x, <top receiver, "
        "bytes to it, to it / median x, time ms"
    ), "No all-to-all whose sizes are in the traces.",
)  # fmt: skip
_ALL_TO_ALL_CALLS = Section(
    "all_to_all_calls", "All-to-alls, by call",
    "The most that one rank received and sent, beside the median rank; those first in which one received the most "
    "above the median. Durations include waiting for later ranks.",
    columns_of(
        "<group, call no., ranks, most received bytes, median received bytes, received / median x, <receiver, "
        "most sent bytes, median sent bytes, sent / median x, <sender, shortest us, longest us"
    ), "No all-to-all of known size on several ranks.",
)  # fmt: skip


def build_all_to_all_sections(found: AllToAlls | None, top: int, rank_rows_max: int) -> list[Section]:
    """Return the tables of the all-to-alls; none where they were not asked for."""
    if found is None:
        return []
    calls = (
        _ALL_TO_ALL_CALLS
        if found.refused is None
        else _ALL_TO_ALL_CALLS._replace(reason=f"Calls are not compared: {found.refused}.")
    )
    return [
        _ALL_TO_ALL_RANKS.of([_cells_of_rank(one) for one in found.ranks], rank_rows_max),
        calls.of([_cells_of_call(one) for one in found.calls], top, len(found.calls) + found.left_out_count),
    ]


def _cells_of_rank(one: AllToAllRank) -> Cells:
    return (
        text_cell(one.group),
        text_cell(one.rank),
        amount(one.count),
        amount(one.sent_bytes),
        amount(one.sent_ratio, decimals=2),
        amount(one.received_bytes),
        amount(one.received_ratio, decimals=2),
        text_cell(one.peer_rank),
        amount(one.peer_bytes),
        amount(one.peer_ratio, decimals=2),
        ms(one.total_ns),
    )


def _cells_of_call(one: AllToAllCall) -> Cells:
    return (
        text_cell(one.group),
        text_cell(one.sequence),
        amount(one.rank_count),
        amount(one.received_most_bytes),
        amount(one.received_median_bytes),
        amount(one.received_ratio, decimals=2),
        text_cell(one.received_most_rank),
        amount(one.sent_most_bytes),
        amount(one.sent_median_bytes),
        amount(one.sent_ratio, decimals=2),
        text_cell(one.sent_most_rank),
        us(one.shortest_ns),
        us(one.longest_ns),
    )


# -- roofline ----------------------------------------------------------------------------------------------------------

_ROOFLINE = Section(
    "roofline", "Roofline: operators against the peaks of the device",
    "Operators by the shapes of their inputs, with the time of the computing kernels they launched. FLOP: of matrix "
    "products, convolutions and attention. GB/s: the least bytes (each input read once, each output written once) over "
    "kernel time. Bound: whether memory or compute limits the operator at its FLOP/byte; of limit: its rate over that "
    "limit, above 100 % where caches spared memory traffic, or attention left out what is masked.",
    columns_of(
        "rank, <operator, <inputs, <longest kernel, calls, device ms, TFLOP/s, FLOP/byte, least GB/s, <bound, "
        "of limit %"
    ), "No computing kernels on a device: no roofline.",
)  # fmt: skip
_ROOFLINE_UNKNOWN = Section(
    "roofline_unknown", "Operators that are not in the roofline",
    "With the time of the kernels they launched. Shapes are recorded with record_shapes=True.",
    columns_of("rank, <operator, <longest kernel, calls, device ms, <reason"), "Every operator is in the roofline.",
)  # fmt: skip
_NONE_KNOWN = "No operator of which enough is known: the next table has the reasons."
TERA = 10**12


def build_roofline_sections(ranks: Sequence[RankReport], top: int) -> list[Section]:
    """Return the tables of the roofline, the most device time first; none where it was not asked for. Without any
    operator the first has the reason, and there is no second.
    """
    if all(rank.roofline is None for rank in ranks):
        return []
    found = [(rank.rank, row) for rank in ranks for row in rank.roofline or ()]
    if not found:
        return [_ROOFLINE]
    found.sort(key=lambda item: -item[1].device_ns)
    known = [item for item in found if item[1].reason is None]
    unknown = [item for item in found if item[1].reason is not None]
    return [
        _ROOFLINE._replace(reason=_NONE_KNOWN).of([_cells_of_known(*item) for item in known[:top]], top, len(known)),
        _ROOFLINE_UNKNOWN.of([_cells_of_unknown(*item) for item in unknown[:top]], top, len(unknown)),
    ]


def _cells_of_known(rank: int | None, row: RooflineRow) -> Cells:
    return (
        text_cell(rank),
        text_cell(row.operator),
        text_cell(row.shapes),
        text_cell(row.kernel),
        amount(row.count),
        ms(row.device_ns),
        amount(row.flops_per_s, TERA, 2),
        amount(row.intensity, decimals=1),
        rate(row.bytes_per_s),
        text_cell(row.bound),
        percent(row.roof_ratio),
    )


def _cells_of_unknown(rank: int | None, row: RooflineRow) -> Cells:
    return (
        text_cell(rank),
        text_cell(row.operator),
        text_cell(row.kernel),
        amount(row.count),
        ms(row.device_ns),
        text_cell(row.reason),
    )
