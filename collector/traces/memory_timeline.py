"""Follow the memory of one allocator of a trace: held bytes by category over time, and what was there at the peak."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from rankscope.collector.traces.report import MemoryCurve, MemoryPeakRow, MemoryTimeline
from rankscope.collector.traces.sources import find_sources
from rankscope.collector.traces.stages import find_host_backward
from rankscope.measure.capture_limits import MEMORY_KEY
from rankscope.measure.kineto import NONE, Ints, MemoryEvents
from rankscope.measure.memory_flow import FlowLabels, MemoryFlow, build_flow
from rankscope.measure.memory_timeline import (
    CATEGORIES,
    HeldBytes,
    MemoryCategory,
    ModelMark,
    PairedEvents,
    categorize,
    find_peak,
    hold_by_events,
    hold_by_totals,
    pair_events,
    raise_to_known,
    split_held,
    sum_by_key,
)
from rankscope.measure.nesting import OUTSIDE
from rankscope.measure.rank_view import RankView

OUTSIDE_OPERATORS: Final = "(outside of operators)"
CURVE_POINTS: Final = 500
"""Points of a curve at events of the allocator."""
CURVE_POINTS_MAX: Final = 10_000
"""Points of a curve by operators: about 1 MB of JSON."""
AT_PEAK_MAX: Final = 200


class Followed(NamedTuple):
    """The timeline, and the chart of the memory flow where it was asked for."""

    timeline: MemoryTimeline
    flow: MemoryFlow | None


class _Following(NamedTuple):
    """The events of one allocator, and what follows from them."""

    time_ns: Ints
    thread: Ints
    paired: PairedEvents
    held: HeldBytes
    kind: Ints
    split: Ints
    has_totals: bool
    has_model: bool


def follow_memory(
    view: RankView, mine: Ints, device: int | None, *, every: int = 0, with_flow: bool = False
) -> Followed | None:
    """Return what the events `mine` of one allocator say, None where they have no addresses. `every`: of so many
    operators one is a point of the curve; 0: its points are events of the allocator.
    """
    if not has_addresses(view, mine):
        return None
    memory = view.trace.memory
    following = _follow(view, memory, mine, device)
    peak = find_peak(following.held.held)
    operators = view.host.operators.find_innermost(following.thread.astype(np.int32), following.time_ns)
    lives = following.paired.lifetimes
    places = operators[lives.allocated]
    reserved = int(memory.reserved_bytes[mine][peak])
    allocated = int(memory.allocated_bytes[mine][peak])
    timeline = MemoryTimeline(
        has_totals=following.has_totals,
        has_model=following.has_model,
        lifetime_count=len(lives.bytes),
        lost_free_count=following.paired.replaced_count,
        older_bytes=int(following.held.older[0]),
        peak_bytes=int(following.held.held[peak]),
        peak_ns=int(following.time_ns[peak]) - view.origin_ns,
        peak_by_category=dict(zip(CATEGORIES, following.split[:, peak].tolist(), strict=True)),
        fragmentation=1 - allocated / reserved if reserved > 0 and allocated != NONE else None,
        at_peak=_sum_at_peak(view, following, peak, places),
        curve=_draw_curve(view, following, peak, every),
    )
    return Followed(timeline, _draw_flow(view, following, places, device) if with_flow else None)


def has_addresses(view: RankView, mine: Ints) -> bool:
    """Return whether all of these events of an allocator have an address."""
    return bool((view.trace.memory.address[mine] != NONE).all())


def _follow(view: RankView, memory: MemoryEvents, mine: Ints, device: int | None) -> _Following:
    time_ns, totals = memory.time_ns[mine], memory.allocated_bytes[mine]
    paired = pair_events(memory.address[mine], memory.bytes[mine])
    has_totals = bool((totals != NONE).all())
    # Those of the steps that prepare a capture are of memory that may be gone.
    marks = [one for one in read_marks(view.trace.head, device) if one.time_ns >= time_ns[0]]
    found = categorize(paired, time_ns, find_host_backward(view), marks)
    held = hold_by_totals(paired, totals) if has_totals else hold_by_events(paired)
    held = raise_to_known(held, found)
    split = split_held(paired, held, found)
    return _Following(time_ns, memory.thread[mine], paired, held, found.kind, split, has_totals, bool(marks))


def _sum_at_peak(view: RankView, following: _Following, peak: int, places: Ints) -> list[MemoryPeakRow]:
    """Return what was held at the peak by operator, line and category; `places` are the operators of lifetimes."""
    lives = following.paired.lifetimes
    alive = lives.alive_at(peak)
    rows = view.host.operator_rows
    inside = np.unique(places[alive][places[alive] != OUTSIDE])
    sources = dict(zip(inside.tolist(), find_sources(view, rows[inside], rows[inside].tolist()), strict=True))
    keys: dict[tuple[str, str | None, int], int] = {}
    key_of = [0] * len(lives.bytes)
    for row in alive.tolist():
        place = int(places[row])
        name = OUTSIDE_OPERATORS if place == OUTSIDE else view.trace.name(int(rows[place]))
        key_of[row] = keys.setdefault((name, sources.get(place), int(following.kind[row])), len(keys))
    names = list(keys)
    return [
        MemoryPeakRow(
            operator=names[key][0],
            source=names[key][1],
            category=CATEGORIES[names[key][2]],
            bytes=total,
            count=count,
            largest_bytes=largest,
        )
        for key, total, count, largest in sum_by_key(alive, key_of, lives.bytes)[:AT_PEAK_MAX]
    ]


def _draw_curve(view: RankView, following: _Following, peak: int, every: int) -> MemoryCurve:
    """Return the curve at events of the allocator, evenly and with the peak; or at the ends of operators."""
    names = None
    if every:
        rows = view.host.operator_rows
        every = max(every, -(-len(rows) // CURVE_POINTS_MAX))
        ends_ns = view.events.start_ns[rows] + view.events.duration_ns[rows]
        order = np.argsort(ends_ns, kind="stable")[every - 1 :: every]
        points = np.searchsorted(following.time_ns, ends_ns[order], side="right") - 1
        order, points = order[points >= 0], points[points >= 0]  # before its first event the total is not known
        names, times_ns = [view.trace.name(int(row)) for row in rows[order]], ends_ns[order]
    else:
        count = len(following.time_ns)
        points = np.unique(np.append(np.linspace(0, count - 1, min(count, CURVE_POINTS)).astype(np.int64), peak))
        times_ns = following.time_ns[points]
    return MemoryCurve(
        times_ns=(times_ns - view.origin_ns).tolist(),
        bytes={name: following.split[place][points].tolist() for place, name in enumerate(CATEGORIES)},
        operators=names,
        every_operators=every or None,
    )


def _draw_flow(view: RankView, following: _Following, places: Ints, device: int | None) -> MemoryFlow:
    rows = view.host.operator_rows
    used, name = np.unique(places, return_inverse=True)
    names = [OUTSIDE_OPERATORS if one == OUTSIDE else view.trace.name(int(rows[one])) for one in used.tolist()]
    labels = FlowLabels(following.kind, names, name)
    return build_flow(following.paired, following.held, following.time_ns, labels, device=device)


# -- what a capture says of the model ---------------------------------------------------------------------------------


class _Mark(msgspec.Struct):
    """Storages as (address, bytes, device), -1 the CPU; None: as at the mark before."""

    time_ns: int
    parameters: list[tuple[int, int, int]] | None = None
    gradients: list[tuple[int, int, int]] | None = None
    optimizer_state: list[tuple[int, int, int]] | None = None


class _Marks(msgspec.Struct):
    marks: list[_Mark] = []


def read_marks(head: Any, device: int | None) -> list[ModelMark]:
    """Return where the model's memory on a device was, as a capture has written it into the head of its trace; empty
    where it has not, or where that cannot be read.
    """
    try:
        found = msgspec.convert(head.get(MEMORY_KEY, {}), _Marks, strict=False)
    except msgspec.ValidationError:
        return []
    base_ns = head.get("baseTimeNanoseconds")
    base_ns = base_ns if isinstance(base_ns, int) else 0
    wanted = NONE if device is None else device
    before: dict[MemoryCategory, Sequence[tuple[int, int, int]]] = {}
    marks = []
    for mark in found.marks:
        for category in (MemoryCategory.PARAMETERS, MemoryCategory.GRADIENTS, MemoryCategory.OPTIMIZER_STATE):
            rows = getattr(mark, category.name.lower())
            if rows is not None:
                before[category] = rows
        storages = {
            category: [(address, size) for address, size, of in rows if of == wanted]
            for category, rows in before.items()
        }
        marks.append(ModelMark(mark.time_ns - base_ns, storages))
    return marks
