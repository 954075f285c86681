"""Summarize a memory snapshot: what is held and by whom, fragmentation, the peak, allocations that failed.

Pure: Snapshot -> SnapshotReport.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import numpy as np

from rankscope.collector.memory.snapshot_categories import StackOrigin, categorize_by_origin
from rankscope.collector.memory.snapshot_events import (
    ALLOCATED,
    INACTIVE,
    NO_STACK,
    EventHistory,
    Frame,
    MemoryBlock,
    MemorySnapshot,
    Segment,
)
from rankscope.measure.memory_flow import FlowLabels, MemoryFlow, build_flow
from rankscope.measure.memory_timeline import (
    CATEGORIES,
    Categorized,
    HeldBytes,
    Ints,
    Lifetimes,
    MemoryCategory,
    PairedEvents,
    find_peak,
    hold_by_events,
    pair_events,
    split_held,
    sum_by_key,
)

SCHEMA: Final = 1
ROWS_MAX: Final = 200
"""Rows of each list of a report."""
FRAMES_SHOWN: Final = 20
DEFAULT_POOL: Final = "default"
SMALL_BYTES_MAX: Final = 1 << 20
"""Allocations up to this size come from segments of their own (kSmallSize of torch's allocator)."""
DEVICES_MAX: Final = 16
NO_HISTORY: Final = (
    "no history was recorded: call torch.cuda.memory._record_memory_history(stacks='python', max_entries=100_000) "
    "before the allocations"
)
_TORCH: Final = re.compile(r"/torch/|^<|\.(?:cpp|cu|cc|h)$|^\?\?$")
"""Files whose frames are not the user's: torch's own, generated code, native code."""


class StackRow(msgspec.Struct, frozen=True, kw_only=True):
    """Allocations with the same stack. `place` is the innermost frame outside of torch, None where there is none;
    `stack` has the innermost frame first, and is empty where stacks were not recorded. `module` is whose code of
    torch.nn it is in, `Linear in Attention`; None where the snapshot does not tell.
    """

    bytes: int
    count: int
    largest_bytes: int
    place: str | None
    stack: list[str]
    module: str | None = None


class ModuleBytesRow(msgspec.Struct, frozen=True, kw_only=True):
    """Allocations in the code of one module of torch.nn, by its class; an empty name: in that of none."""

    module: str
    bytes: int
    count: int
    largest_bytes: int


class RoomRow(msgspec.Struct, frozen=True, kw_only=True):
    """What there was for the allocation that failed, where that was the last event: bytes asked for, free on the
    device, and unused in segments of that kind in the default pool: in all, in how many pieces, the largest. At most
    `fits_bytes` would have fitted: the larger of that piece and what the device had; together, where segments expand.
    """

    asked_bytes: int
    device_free_bytes: int
    unused_bytes: int
    unused_count: int
    largest_unused_bytes: int
    fits_bytes: int


class SegmentKindRow(msgspec.Struct, frozen=True, kw_only=True):
    """Segments of one kind, whether they can expand, and one pool (`default`, or that of a CUDA graph or a user).
    `rounding_bytes` is what allocations take beyond what was asked for; `inactive_split_bytes` is free in segments in
    which something is allocated, `empty_bytes` in segments in which nothing is. `fragmentation` is 1 - allocated /
    reserved.
    """

    kind: str
    is_expandable: bool
    pool: str
    count: int
    reserved_bytes: int
    allocated_bytes: int
    rounding_bytes: int
    pending_free_bytes: int
    inactive_split_bytes: int
    empty_bytes: int
    largest_free_bytes: int
    fragmentation: float | None


class SegmentRow(msgspec.Struct, frozen=True, kw_only=True):
    """One segment with something allocated in it and something free. `address` is hexadecimal."""

    address: str
    stream: int
    kind: str
    pool: str
    reserved_bytes: int
    allocated_bytes: int
    free_bytes: int
    largest_free_bytes: int
    free_block_count: int


class OutOfMemoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """An allocation that failed: bytes asked for, those that were free on the device, and what was held then, as
    requested. `time_ns` is since the first event, None where events have no times.
    """

    time_ns: int | None
    asked_bytes: int
    device_free_bytes: int
    held_bytes: int
    reserved_bytes: int
    place: str | None
    stack: list[str]


class HistoryReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the recorded events of a device say. Bytes are as requested, without the allocator's rounding.
    `peak_older_bytes` were allocated before the first event: nothing else is known of them. `lost_free_count` counts
    allocations at addresses whose free is not in the history. `span_ns` and `peak_ns` are None where events have no
    times. `peak_by_category` sums to `peak_bytes`; None where no stacks were recorded, by which alone categories are
    known.
    """

    event_count: int
    span_ns: int | None
    peak_bytes: int
    peak_ns: int | None
    peak_event: int
    peak_older_bytes: int
    peak_reserved_bytes: int
    peak_by_category: dict[str, int] | None
    lost_free_count: int
    at_peak: list[StackRow]
    out_of_memory: list[OutOfMemoryRow]


class DeviceMemory(msgspec.Struct, frozen=True, kw_only=True):
    """One device when the snapshot was made. `history` is None where nothing was recorded, `history_problem` says so.
    `rows_left_out` counts stacks and segments beyond those listed. `modules` is empty, and `room` None, where the
    snapshot does not tell.
    """

    device: int
    reserved_bytes: int
    allocated_bytes: int
    rounding_bytes: int
    pending_free_bytes: int
    inactive_split_bytes: int
    empty_bytes: int
    fragmentation: float | None
    segment_count: int
    block_count: int
    kinds: list[SegmentKindRow]
    segments: list[SegmentRow]
    allocations: list[StackRow]
    history: HistoryReport | None
    history_problem: str | None
    rows_left_out: int
    modules: list[ModuleBytesRow] = []
    room: RoomRow | None = None


class SnapshotReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of one snapshot; devices in which nothing is reserved and of which nothing was recorded are left
    out.
    """

    schema: int
    file: str
    devices: list[DeviceMemory]


class SnapshotResult(msgspec.Struct, frozen=True):
    """The report, and for each device with times of its events the chart of its memory flow."""

    report: SnapshotReport
    flows: list[MemoryFlow]


def build_report(snapshot: MemorySnapshot, file: str, *, with_flow: bool) -> SnapshotResult:
    """Return the report of a snapshot; `with_flow` adds the charts."""
    by_device: dict[int, list[Segment]] = defaultdict(list)
    for segment in snapshot.segments:
        by_device[segment.device].append(segment)
    recorded = {place for place, history in enumerate(snapshot.history) if history.event_count}
    devices, flows = [], []
    for device in sorted(recorded | by_device.keys())[:DEVICES_MAX]:
        segments = by_device[device]
        followed = _follow(snapshot.history[device], segments, snapshot.origins) if device in recorded else None
        history = followed.report(snapshot) if followed is not None else None
        room = find_room(snapshot.history[device], segments) if device in recorded else None
        devices.append(_summarize(device, segments, snapshot, history, room))
        flow = followed.draw(snapshot.stacks, device) if followed is not None and with_flow else None
        if flow is not None:
            flows.append(flow)
    return SnapshotResult(SnapshotReport(schema=SCHEMA, file=file, devices=devices), flows)


def _summarize(
    device: int,
    segments: Sequence[Segment],
    snapshot: MemorySnapshot,
    history: HistoryReport | None,
    room: RoomRow | None,
) -> DeviceMemory:
    groups: dict[tuple[str, bool, str], list[Segment]] = defaultdict(list)
    for one in segments:
        groups[one.kind, one.is_expandable, one.pool].append(one)
    kinds = sorted((_sum_kind(key, mine) for key, mine in groups.items()), key=lambda row: -row.reserved_bytes)
    blocks = [block for one in segments for block in one.blocks]
    allocated = [block for block in blocks if block.state == ALLOCATED]
    by_stack = sum_by_key(
        np.arange(len(allocated)), [block.stack for block in allocated], np.array([block.size for block in allocated])
    )
    partly = [_to_row(one) for one in segments if any(b.state != INACTIVE for b in one.blocks)]
    partly = sorted((row for row in partly if row.free_bytes), key=lambda row: (-row.free_bytes, row.address))
    whole = _sum_kind(("", False, ""), segments)
    return DeviceMemory(
        device=device,
        reserved_bytes=whole.reserved_bytes,
        allocated_bytes=whole.allocated_bytes,
        rounding_bytes=whole.rounding_bytes,
        pending_free_bytes=whole.pending_free_bytes,
        inactive_split_bytes=whole.inactive_split_bytes,
        empty_bytes=whole.empty_bytes,
        fragmentation=whole.fragmentation,
        segment_count=whole.count,
        block_count=len(blocks),
        kinds=kinds[:ROWS_MAX],
        segments=partly[:ROWS_MAX],
        allocations=[_to_stack_row(item, snapshot) for item in by_stack[:ROWS_MAX]],
        history=history,
        history_problem=NO_HISTORY if history is None else None,
        rows_left_out=sum(max(0, len(rows) - ROWS_MAX) for rows in (kinds, partly, by_stack)),
        modules=_sum_by_module(by_stack, snapshot.modules)[:ROWS_MAX],
        room=room,
    )


def _sum_by_module(by_stack: Iterable[tuple[int, int, int, int]], modules: Sequence[str]) -> list[ModuleBytesRow]:
    """Return what the code of each module has allocated, largest first; nothing where no stack is in one's."""
    sums: dict[str, list[int]] = {}
    for key, total, count, largest in by_stack:
        row = sums.setdefault(modules[key], [0, 0, 0])
        row[:] = row[0] + total, row[1] + count, max(row[2], largest)
    if not any(sums):
        return []
    rows = (ModuleBytesRow(module=name, bytes=row[0], count=row[1], largest_bytes=row[2]) for name, row in sums.items())
    return sorted(rows, key=lambda row: -row.bytes)


def find_room(history: EventHistory, segments: Sequence[Segment]) -> RoomRow | None:
    """Return what there was for the allocation that failed; None where something has happened since."""
    failed = history.out_of_memory[-1] if history.out_of_memory else None
    if failed is None or failed.event != history.event_count - 1:
        return None
    kind = "small" if failed.size <= SMALL_BYTES_MAX else "large"
    usable = [one for one in segments if one.pool == DEFAULT_POOL and one.kind == kind]
    unused = [block.size for one in usable for block in one.blocks if block.state == INACTIVE]
    largest = max(unused, default=0)
    joined = any(one.is_expandable for one in usable)
    return RoomRow(
        asked_bytes=failed.size,
        device_free_bytes=failed.device_free,
        unused_bytes=sum(unused),
        unused_count=len(unused),
        largest_unused_bytes=largest,
        fits_bytes=largest + failed.device_free if joined else max(largest, failed.device_free),
    )


def _sum_kind(key: tuple[str, bool, str], segments: Sequence[Segment]) -> SegmentKindRow:
    reserved = sum(one.size for one in segments)
    blocks = [block for one in segments for block in one.blocks]
    allocated = [block for block in blocks if block.state == ALLOCATED]
    free = [block.size for block in blocks if block.state == INACTIVE]
    empty = sum(one.size for one in segments if all(block.state == INACTIVE for block in one.blocks))
    allocated_bytes = sum(block.size for block in allocated)
    return SegmentKindRow(
        kind=key[0],
        is_expandable=key[1],
        pool=key[2],
        count=len(segments),
        reserved_bytes=reserved,
        allocated_bytes=allocated_bytes,
        rounding_bytes=allocated_bytes - sum(block.requested for block in allocated),
        pending_free_bytes=sum(block.size for block in blocks if block.state not in {ALLOCATED, INACTIVE}),
        inactive_split_bytes=sum(free) - empty,
        empty_bytes=empty,
        largest_free_bytes=max(free, default=0),
        fragmentation=1 - allocated_bytes / reserved if reserved else None,
    )


def _to_row(segment: Segment) -> SegmentRow:
    free = [block.size for block in segment.blocks if block.state == INACTIVE]
    return SegmentRow(
        address=f"{segment.address:#x}",
        stream=segment.stream,
        kind=segment.kind,
        pool=segment.pool,
        reserved_bytes=segment.size,
        allocated_bytes=sum(block.size for block in segment.blocks if block.state == ALLOCATED),
        free_bytes=sum(free),
        largest_free_bytes=max(free, default=0),
        free_block_count=len(free),
    )


# -- the history ------------------------------------------------------------------------------------------------------


class _Followed:
    """The history of one device with its events paired."""

    def __init__(
        self, history: EventHistory, paired: PairedEvents, held: HeldBytes, kinds: Ints | None, reserved_at_end: int
    ) -> None:
        self._history = history
        self._kinds = kinds
        self._paired = paired
        self._held = held
        self._reserved = reserved_at_end - int(history.reserved.sum()) + np.cumsum(history.reserved)

    def report(self, snapshot: MemorySnapshot) -> HistoryReport:
        """Return what the history says."""
        stacks = snapshot.stacks
        peak = find_peak(self._held.held)
        lives, history = self._paired.lifetimes, self._history
        keys = history.stack[lives.allocated].tolist()
        at_peak = sum_by_key(lives.alive_at(peak), keys, lives.bytes)
        failed = history.out_of_memory
        return HistoryReport(
            event_count=history.event_count,
            span_ns=self._since_first(history.event_count - 1),
            peak_bytes=int(self._held.held[peak]),
            peak_ns=self._since_first(peak),
            peak_event=peak,
            peak_older_bytes=int(self._held.older[peak]),
            peak_reserved_bytes=int(self._reserved.max()),
            peak_by_category=self._split(peak),
            lost_free_count=self._paired.replaced_count,
            at_peak=[_to_stack_row(item, snapshot) for item in at_peak[:ROWS_MAX]],
            out_of_memory=[
                OutOfMemoryRow(
                    time_ns=self._since_first(one.event),
                    asked_bytes=one.size,
                    device_free_bytes=one.device_free,
                    held_bytes=int(self._held.held[one.event]),
                    reserved_bytes=int(self._reserved[one.event]),
                    place=find_place(stacks[one.stack]),
                    stack=_format_stack(stacks[one.stack]),
                )
                for one in failed[-ROWS_MAX:]
            ],
        )

    def draw(self, stacks: Sequence[tuple[Frame, ...]], device: int) -> MemoryFlow | None:
        """Return the chart of the events; None where they have no times."""
        time_ns = self._history.time_ns
        if time_ns is None:
            return None
        lives = self._paired.lifetimes
        shared: dict[str, str] = {}
        names = [shared.setdefault(name, name) for name in (find_place(stack) or "" for stack in stacks)]
        kinds = (
            np.full(len(lives.bytes), MemoryCategory.UNKNOWN, dtype=np.int64) if self._kinds is None else self._kinds
        )
        name_of = self._history.stack[lives.allocated]
        return build_flow(self._paired, self._held, time_ns, FlowLabels(kinds, names, name_of), device=device)

    def _split(self, event: int) -> dict[str, int] | None:
        if self._kinds is None:
            return None
        split = split_held(self._paired, self._held, Categorized(self._kinds, {}))
        return dict(zip(CATEGORIES, split[:, event].tolist(), strict=True))

    def _since_first(self, event: int) -> int | None:
        time_ns = self._history.time_ns
        return None if time_ns is None else int(time_ns[event] - time_ns[0])


def _follow(history: EventHistory, segments: Sequence[Segment], origins: Sequence[StackOrigin]) -> _Followed:
    """Return the history with its events paired. A block that is allocated and has no allocation in the history is
    older than its first event.
    """
    paired = _pair(history)
    lives = paired.lifetimes
    known = set(lives.address[lives.freed == paired.event_count].tolist())
    blocks: Iterable[MemoryBlock] = (block for one in segments for block in one.blocks if block.state == ALLOCATED)
    older = sum(block.requested for block in blocks if block.address not in known)
    has_stacks = any(origins[place] > StackOrigin.BACKWARD for place in np.unique(history.stack).tolist())
    kinds = categorize_by_origin(paired, history.size, history.stack, origins) if has_stacks else None
    held, reserved_at_end = hold_by_events(paired, older), sum(one.size for one in segments)
    return _Followed(history, paired, held, kinds, reserved_at_end)


def _pair(history: EventHistory) -> PairedEvents:
    """Return the lifetimes, by numbers of events of the whole history: events that move no memory stay in it."""
    moving = np.flatnonzero(history.size)
    paired = pair_events(history.address[moving], history.size[moving])
    numbers = np.append(moving, history.event_count)
    lives = paired.lifetimes
    return PairedEvents(
        event_count=history.event_count,
        lifetimes=Lifetimes(numbers[lives.allocated], numbers[lives.freed], lives.address, lives.bytes),
        older_event=numbers[paired.older_event],
        older_address=paired.older_address,
        older_bytes=paired.older_bytes,
        replaced_count=paired.replaced_count,
    )


# -- stacks -----------------------------------------------------------------------------------------------------------


def find_place(stack: Sequence[Frame]) -> str | None:
    """Return the innermost frame outside of torch.

    >>> find_place([Frame("/x/torch/nn/linear.py", 5, "forward"), Frame("/home/a/model.py", 12, "forward")])
    '/home/a/model.py:12 forward'
    """
    for one in stack:
        if one.file and not _TORCH.search(one.file):
            return _format(one)
    return None


def _format(frame: Frame) -> str:
    return f"{frame.file}:{frame.line} {frame.function}"


def _format_stack(stack: Sequence[Frame]) -> list[str]:
    return [_format(one) for one in stack[:FRAMES_SHOWN]]


def _to_stack_row(item: tuple[int, int, int, int], snapshot: MemorySnapshot) -> StackRow:
    key, total, count, largest = item
    stack = snapshot.stacks[key] if key != NO_STACK else ()
    return StackRow(
        bytes=total,
        count=count,
        largest_bytes=largest,
        place=find_place(stack),
        stack=_format_stack(stack),
        module=snapshot.modules[key] or None,
    )
