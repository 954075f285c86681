"""Summarize the allocators of a trace recorded with `profile_memory`: peak, growth, and operators that allocate."""

from itertools import pairwise

import numpy as np

from rankscope.collector.traces.memory_timeline import OUTSIDE_OPERATORS, follow_memory
from rankscope.collector.traces.report import MemoryReport, MemoryRow
from rankscope.measure.kineto import NONE, Ints, MemoryEvents
from rankscope.measure.nesting import OUTSIDE
from rankscope.measure.rank_view import RankView

OPERATORS_MAX = 200


def summarize_memory(view: RankView, every: int = 0, *, with_flow: bool = False) -> list[MemoryReport]:
    """Return a report for each allocator of the trace, the CPU's first; empty without `profile_memory`. `every`: of so
    many operators one is a point of the curve; 0: its points are events. `with_flow` adds the chart.
    """
    return [_summarize(view, mine, device, every, with_flow=with_flow) for device, mine in view.allocators]


def _summarize(view: RankView, mine: Ints, device: int | None, every: int, *, with_flow: bool) -> MemoryReport:
    memory = view.trace.memory
    held = held_bytes(memory, mine)
    peak = int(np.argmax(held))
    times_ns = memory.time_ns[mine]
    reserved = memory.reserved_bytes[mine]
    ends_ns = np.array([step.next_start_ns for step in view.steps], dtype=np.int64)
    at_steps = held_at(memory, mine, held, ends_ns).tolist()
    growth = [after - before for before, after in pairwise(at_steps)]
    followed = follow_memory(view, mine, device, every=every, with_flow=with_flow)
    return MemoryReport(
        device=device,
        peak_bytes=int(held[peak]),
        peak_ns=int(times_ns[peak]) - view.origin_ns,
        reserved_peak_bytes=int(reserved.max()) if (reserved != NONE).any() else None,
        growth_bytes=sum(growth),
        growth_by_step_bytes=growth,
        operators=sum_operators(view, mine),
        timeline=followed.timeline if followed is not None else None,
        flow=followed.flow if followed is not None else None,
    )


def held_bytes(memory: MemoryEvents, mine: Ints) -> Ints:
    """Return the bytes allocated after each event: the allocator's total, else the sum of the trace's events, which
    lacks what was allocated before the trace.
    """
    totals = memory.allocated_bytes[mine]
    return totals if (totals != NONE).all() else np.cumsum(memory.bytes[mine])


def held_at(memory: MemoryEvents, mine: Ints, held: Ints, times_ns: Ints) -> Ints:
    """Return the bytes held just before each time; `held` are those after each of the events `mine`."""
    place = np.searchsorted(memory.time_ns[mine], times_ns, side="left") - 1
    before = max(int(held[0] - memory.bytes[mine[0]]), 0)
    return np.where(place >= 0, held[place], before)


def sum_operators(view: RankView, mine: Ints, between_ns: tuple[int, int] | None = None) -> list[MemoryRow]:
    """Return for each operator the bytes that it allocated itself in these events, those of them that it did not free,
    and both with the operators inside it; what was allocated outside of operators has a row, too. The calls are those
    that ran between two times, of all without these.
    """
    memory = view.trace.memory
    nesting, names = view.host.operators, view.events.name[view.host.operator_rows]
    inside = nesting.find_innermost(memory.thread[mine].astype(np.int32), memory.time_ns[mine])
    size = memory.bytes[mine]
    values = (size > 0, np.maximum(size, 0), size)
    known = inside != OUTSIDE
    own, total = [], []
    for value in values:
        of_call = np.zeros(len(names), dtype=np.int64)
        np.add.at(of_call, inside[known], value[known])
        own.append(of_call)
        total.append(nesting.sum_up(of_call))
    touched = np.flatnonzero(np.any(total, axis=0))
    codes, which = np.unique(names[touched], return_inverse=True)
    sums = []
    for of_call in (*own, *total):
        of_name = np.zeros(len(codes), dtype=np.int64)
        np.add.at(of_name, which, of_call[touched])
        sums.append(of_name.tolist())
    first_ns, end_ns = between_ns or (np.iinfo(np.int64).min, np.iinfo(np.int64).max)
    runs = (view.host.operators.start_ns < end_ns) & (view.host.operators.end_ns > first_ns)
    calls = np.bincount(names[runs], minlength=len(view.trace.names))
    rows = [
        MemoryRow(
            operator=view.trace.names[code], count=count, allocated_bytes=allocated, kept_bytes=kept,
            calls=int(calls[code]), total_count=total_count, total_allocated_bytes=total_allocated,
            total_kept_bytes=total_kept,
        )
        for code, count, allocated, kept, total_count, total_allocated, total_kept in zip(
            codes.tolist(), *sums, strict=True
        )
    ]  # fmt: skip
    if not known.all():
        count, allocated, kept = (int(value[~known].sum()) for value in values)
        rows.append(
            MemoryRow(
                operator=OUTSIDE_OPERATORS, count=count, allocated_bytes=allocated, kept_bytes=kept,
                total_count=count, total_allocated_bytes=allocated, total_kept_bytes=kept,
            )
        )  # fmt: skip
    return sorted(rows, key=lambda row: (-row.allocated_bytes, -row.total_allocated_bytes, row.operator))[
        :OPERATORS_MAX
    ]
