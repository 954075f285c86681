"""Build the tables of memory by operator, of a stretch of time, and of single allocations."""

from collections.abc import Iterable
from itertools import chain

from rankscope.collector.reports.trace_cells import Cell, Cells, Section, amount, columns_of, mib, ms, text_cell
from rankscope.collector.traces.report import AllocationRow, MemoryRow, TraceReport

NO_MEMORY = "No memory events: record with profile_memory=True."
_BY_OPERATOR = Section(
    "memory_operators", "Memory by operator",
    "Memory that each operator allocated itself, on all ranks, and the part that outlived it; in all is with what the "
    "operators inside it allocated.",
    columns_of("<operator, <where, allocations, allocated MiB, kept MiB, allocated in all MiB"), NO_MEMORY,
)  # fmt: skip
_STRETCH = Section(
    "memory_stretch", "Memory of a stretch of time",
    "What was held at the start of the stretch of --memory-between, at most, and at its end; what was allocated and "
    "freed in it. Times are from the start of each trace.",
    columns_of(
        "rank, <device, from ms, to ms, at start MiB, peak MiB, peak at ms, at end MiB, allocations, allocated MiB, "
        "frees, freed MiB"
    ), "No memory events, or nothing of the stretch is in the traces.",
)  # fmt: skip
_ALLOCATIONS = Section(
    "allocations", "Single allocations",
    "The largest first, by the operator and the module that made them. Memory without a time of allocation was there "
    "before the trace, or its allocation is lost. Held: still there at the end; unknown: its free is lost.",
    columns_of(
        "rank, <device, <operator, <module, step, bytes MiB, allocated ms, freed ms, lifetime ms, <end"
    ), "No memory events with addresses: record with profile_memory=True.",
)  # fmt: skip


def build_by_operator(report: TraceReport, top: int) -> Section:
    """Return the table of memory by operator, of all ranks together."""
    rows = ((one.device, row) for rank in report.ranks for one in rank.memory for row in one.operators)
    return _sum_rows(_BY_OPERATOR, rows, top)


def _sum_rows(section: Section, rows_of_devices: Iterable[tuple[int | None, MemoryRow]], top: int) -> Section:
    found: dict[tuple[str, str], tuple[int, ...]] = {}
    for device, row in rows_of_devices:
        key = (row.operator, "CPU" if device is None else "device")
        mine = (row.allocated_bytes, row.total_allocated_bytes, row.count, row.kept_bytes)
        found[key] = tuple(map(sum, zip(found.get(key, (0, 0, 0, 0)), mine, strict=True)))
    ordered = sorted(found.items(), key=lambda item: (-item[1][0], -item[1][1]))
    rows = [
        (*map(text_cell, key), amount(count), mib(size), mib(kept), mib(total))
        for key, (size, total, count, kept) in ordered
    ]
    return section.of(rows, top)


def build_stretch(report: TraceReport, top: int, rank_rows_max: int) -> list[Section]:
    """Return the tables of memory in a stretch of time, by rank and by operator; none if it was not asked for."""
    if all(rank.memory_stretch is None for rank in report.ranks):
        return []
    rows = [
        (text_cell(rank.rank), _device(row.device), ms(row.start_ns), ms(row.end_ns), mib(row.start_bytes),
         mib(row.peak_bytes), ms(row.peak_ns), mib(row.end_bytes), amount(row.allocated_count),
         mib(row.allocated_bytes), amount(row.freed_count), mib(row.freed_bytes))
        for rank in report.ranks for row in rank.memory_stretch or ()
    ]  # fmt: skip
    operators = chain.from_iterable(rank.memory_stretch_operators or () for rank in report.ranks)
    by_operator = _BY_OPERATOR._replace(
        key="memory_stretch_operators", title="Memory by operator, in that stretch", reason=_STRETCH.reason
    )
    return [
        _STRETCH.of(rows, rank_rows_max),
        _sum_rows(by_operator, ((row.device, row) for row in operators), top),
    ]


def build_allocations(report: TraceReport, top: int) -> list[Section]:
    """Return the table of the largest allocations of all ranks; no table if it was not asked for."""
    tables = [(rank.rank, rank.allocations) for rank in report.ranks if rank.allocations is not None]
    if not tables:
        return []
    found = [(rank, row) for rank, rows in tables for row in rows[:top]]
    found.sort(key=lambda item: -item[1].bytes)
    count = sum(len(rows) for _, rows in tables)
    return [_ALLOCATIONS.of([_cells(rank, row) for rank, row in found[:top]], top, count)]


def _cells(rank: int | None, row: AllocationRow) -> Cells:
    return (
        text_cell(rank), _device(row.device), text_cell(row.operator), text_cell(row.module), text_cell(row.step),
        mib(row.bytes), ms(row.allocated_ns), ms(row.freed_ns), ms(row.lifetime_ns), text_cell(row.end),
    )  # fmt: skip


def _device(device: int | None) -> Cell:
    return text_cell("CPU" if device is None else str(device))
