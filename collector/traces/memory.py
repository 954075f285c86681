"""Summarize the allocators of a trace recorded with `profile_memory`: peak, growth, and operators that allocate."""

from collections import defaultdict
from itertools import pairwise

import numpy as np

from rankscope.collector.traces.memory_timeline import CPU_TYPE, OUTSIDE_OPERATORS, follow_memory
from rankscope.collector.traces.report import MemoryReport, MemoryRow
from rankscope.measure.kineto import NONE, Ints, MemoryEvents
from rankscope.measure.nesting import OUTSIDE
from rankscope.measure.rank_view import RankView

OPERATORS_MAX = 200


def summarize_memory(view: RankView, every: int = 0, *, with_flow: bool = False) -> list[MemoryReport]:
    """Return a report for each allocator of the trace, the CPU's first; empty without `profile_memory`. `every`: of so
    many operators one is a point of the curve; 0: its points are events. `with_flow` adds the chart.
    """
    memory = view.trace.memory
    pairs = sorted(set(zip(memory.device_type.tolist(), memory.device.tolist(), strict=True)))
    return [
        _summarize(
            view,
            np.flatnonzero((memory.device_type == kind) & (memory.device == device)),
            None if kind == CPU_TYPE else device,
            every,
            with_flow=with_flow,
        )
        for kind, device in pairs
    ]


def _summarize(view: RankView, mine: Ints, device: int | None, every: int, *, with_flow: bool) -> MemoryReport:
    memory = view.trace.memory
    held = held_bytes(memory, mine)
    peak = int(np.argmax(held))
    times_ns = memory.time_ns[mine]
    reserved = memory.reserved_bytes[mine]
    at_steps = [_held_at(times_ns, held, step.next_start_ns) for step in view.steps]
    growth = [after - before for before, after in pairwise(at_steps)]
    followed = follow_memory(view, mine, device, every=every, with_flow=with_flow)
    return MemoryReport(
        device=device,
        peak_bytes=int(held[peak]),
        peak_ns=int(times_ns[peak]) - view.origin_ns,
        reserved_peak_bytes=int(reserved.max()) if (reserved != NONE).any() else None,
        growth_bytes=sum(growth),
        growth_by_step_bytes=growth,
        operators=_sum_operators(view, memory, mine),
        timeline=followed.timeline if followed is not None else None,
        flow=followed.flow if followed is not None else None,
    )


def held_bytes(memory: MemoryEvents, mine: Ints) -> Ints:
    """Return the bytes allocated after each event: the allocator's total, else the sum of the trace's events, which
    lacks what was allocated before the trace.
    """
    totals = memory.allocated_bytes[mine]
    return totals if (totals != NONE).all() else np.cumsum(memory.bytes[mine])


def _held_at(times_ns: Ints, held: Ints, time_ns: int) -> int:
    place = int(np.searchsorted(times_ns, time_ns, side="left")) - 1
    return int(held[place]) if place >= 0 else 0


def _sum_operators(view: RankView, memory: MemoryEvents, mine: Ints) -> list[MemoryRow]:
    """Return for each innermost operator the bytes that it allocated, and those of them that it did not free."""
    inside = view.host.operators.find_innermost(memory.thread[mine].astype(np.int32), memory.time_ns[mine])
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for place, size in zip(inside.tolist(), memory.bytes[mine].tolist(), strict=True):
        name = OUTSIDE_OPERATORS if place == OUTSIDE else view.trace.name(int(view.host.operator_rows[place]))
        row = found[name]
        row[0] += size > 0
        row[1] += max(size, 0)
        row[2] += size
    rows = [
        MemoryRow(operator=name, count=count, allocated_bytes=allocated, kept_bytes=kept)
        for name, (count, allocated, kept) in found.items()
    ]
    return sorted(rows, key=lambda row: (-row.allocated_bytes, row.operator))[:OPERATORS_MAX]
