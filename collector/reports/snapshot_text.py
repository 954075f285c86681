"""Render the report of a memory snapshot for a terminal."""

from collections.abc import Iterable, Sequence

from rankscope.collector.memory.snapshot_report import (
    DeviceMemory,
    HistoryReport,
    RoomRow,
    SnapshotReport,
    StackRow,
)
from rankscope.collector.reports.trace_cells import (
    Cells,
    Section,
    amount,
    columns_of,
    mib,
    ms,
    percent,
    printable,
    text_cell,
)
from rankscope.collector.reports.trace_text import WIDTH, render_section

NO_STACKS = "(no stack recorded)"
NO_MODULE = "(in no module)"
NO_CATEGORIES = (
    "Categories are derived from Python stacks, and this snapshot has none: record them with "
    "torch.cuda.memory._record_memory_history(stacks='python', max_entries=100_000)"
)
_KINDS = Section(
    "kinds", "Segments by kind and pool",
    "Reserved from the driver; allocated of it; rounding is allocated beyond what was asked for; pending free waits "
    "for another stream; inactive split is free inside segments in use, empty is in segments not in use. "
    "Fragmentation is 1 - allocated / reserved.",
    columns_of(
        "<kind, <pool, segments, reserved MiB, allocated MiB, rounding MiB, pending free MiB, inactive split MiB, "
        "empty MiB, largest free MiB, fragmentation %"
    ), "No segments.",
)  # fmt: skip
_SEGMENTS = Section(
    "segments", "Segments in use with the most free in them",
    "What is free in them cannot go back to the driver, except whole pages of expandable segments. An allocation "
    "larger than the largest free block needs new memory from the driver.",
    columns_of("<address, <kind, <pool, stream, reserved MiB, allocated MiB, free MiB, free blocks, largest free MiB"),
    "No segment in use has anything free.",
)  # fmt: skip
_STACK_COLUMNS = columns_of("bytes MiB, blocks, largest MiB, <where")
_ALLOCATIONS = Section(
    "allocations", "Largest allocations, by stack",
    "What was allocated when the snapshot was made, with the allocator's rounding.", _STACK_COLUMNS,
    "Nothing was allocated.",
)  # fmt: skip
_MODULES = Section(
    "modules", "Largest allocations, by module",
    "The module of torch.nn in whose code they were made, and torch's own module within it.",
    columns_of("bytes MiB, blocks, largest MiB, <module"), "Not known: only the agent's snapshots name modules.",
)  # fmt: skip
_PEAK = Section(
    "peak", "Allocated at the peak, by stack",
    "As requested, without rounding; memory that is older than the first recorded event is not in it.", _STACK_COLUMNS,
    "All that was held at the peak is older than the first recorded event.",
)  # fmt: skip
_FAILED = Section(
    "out_of_memory", "Allocations that failed",
    "By time since the first recorded event. Held is as requested, reserved what the allocator had from the driver.",
    columns_of("at ms, asked MiB, free on the device MiB, held MiB, reserved MiB, <where"), "None was recorded.",
)  # fmt: skip


def render_snapshot(report: SnapshotReport, top: int) -> str:
    """Return the text: for each device a summary and tables of at most `top` rows."""
    if not report.devices:
        return f"{printable(report.file)}: nothing is reserved on any device, and no history was recorded"
    return "\n\n".join(part for one in report.devices for part in _render_device(one, top))


def _render_device(device: DeviceMemory, top: int) -> Iterable[str]:
    yield _summarize(device)
    kinds: list[Cells] = [
        (text_cell(row.kind + (", expandable" if row.is_expandable else "")), text_cell(row.pool), amount(row.count),
         mib(row.reserved_bytes), mib(row.allocated_bytes), mib(row.rounding_bytes), mib(row.pending_free_bytes),
         mib(row.inactive_split_bytes), mib(row.empty_bytes), mib(row.largest_free_bytes), percent(row.fragmentation))
        for row in device.kinds
    ]  # fmt: skip
    yield _table(_KINDS.of(kinds, top))
    segments: list[Cells] = [
        (text_cell(row.address), text_cell(row.kind), text_cell(row.pool), amount(row.stream), mib(row.reserved_bytes),
         mib(row.allocated_bytes), mib(row.free_bytes), amount(row.free_block_count), mib(row.largest_free_bytes))
        for row in device.segments
    ]  # fmt: skip
    yield _table(_SEGMENTS.of(segments, top))
    yield _table(_ALLOCATIONS.of(_stack_rows(device.allocations), top))
    if device.modules:
        modules: list[Cells] = [
            (mib(row.bytes), amount(row.count), mib(row.largest_bytes), text_cell(row.module or NO_MODULE))
            for row in device.modules
        ]
        yield _table(_MODULES.of(modules, top))
    if device.history is None:
        yield f"HISTORY\n  {device.history_problem}"
        return
    yield _table(_PEAK.of(_stack_rows(device.history.at_peak), top))
    failed: list[Cells] = [
        (ms(row.time_ns), mib(row.asked_bytes), mib(row.device_free_bytes), mib(row.held_bytes),
         mib(row.reserved_bytes), text_cell(row.place or NO_STACKS))
        for row in device.history.out_of_memory
    ]  # fmt: skip
    yield _table(_FAILED.of(failed, top))


def _table(section: Section) -> str:
    return "\n".join(render_section(section, WIDTH))


def _stack_rows(rows: Sequence[StackRow]) -> list[Cells]:
    return [
        (mib(row.bytes), amount(row.count), mib(row.largest_bytes),
         text_cell(row.place or (row.stack[0] if row.stack else NO_STACKS)))
        for row in rows
    ]  # fmt: skip


def _summarize(device: DeviceMemory) -> str:
    """Return the sentences about a device."""
    reserved, allocated = mib(device.reserved_bytes).text, mib(device.allocated_bytes).text
    split, empty = mib(device.inactive_split_bytes).text, mib(device.empty_bytes).text
    lines = [
        f"device {device.device}: {allocated} MiB allocated of {reserved} MiB in {device.segment_count:,} segments",
        f"  free inside segments in use (inactive split): {split} MiB; in empty segments: {empty} MiB",
    ]
    room = [] if device.room is None else [_describe_room(device.room)]
    return "\n".join([*lines, *room, *([] if device.history is None else _describe_history(device.history))])


def _describe_room(room: RoomRow) -> str:
    of_pieces = f"{room.unused_count:,} piece{'' if room.unused_count == 1 else 's'}"
    pieces = f"{mib(room.unused_bytes).text} MiB unused in {of_pieces}, the largest"
    return (
        f"  the allocation that failed asked for {mib(room.asked_bytes).text} MiB; at most "
        f"{mib(room.fits_bytes).text} MiB would have fitted: {mib(room.device_free_bytes).text} MiB free on the "
        f"device, {pieces} {mib(room.largest_unused_bytes).text} MiB"
    )


def _describe_history(history: HistoryReport) -> list[str]:
    span = "" if history.span_ns is None else f" over {ms(history.span_ns).text} ms"
    at = "" if history.peak_ns is None else f" after {ms(history.peak_ns).text} ms"
    peak, older = mib(history.peak_bytes).text, mib(history.peak_older_bytes).text
    lines = [
        f"  {history.event_count:,} recorded events{span}; peak {peak} MiB{at}, {older} MiB of it from before them"
    ]
    if history.peak_by_category is None:
        lines.append(f"  the peak by category: not known. {NO_CATEGORIES}")
    else:
        shares = (f"{name.replace('_', ' ')} {mib(size).text}" for name, size in history.peak_by_category.items())
        lines.append(f"  the peak by category, MiB: {', '.join(shares)}")
    if history.lost_free_count:
        lines.append(f"  {history.lost_free_count:,} frees are missing in the history: more may be shown than was held")
    return lines
