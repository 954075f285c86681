"""Sum the memory of a stretch of time that a user chooses, by steps or by milliseconds."""

import re
from typing import NamedTuple

import msgspec
import numpy as np

from rankscope.collector.traces.memory import held_at, held_bytes, sum_operators
from rankscope.collector.traces.report import MemoryStretchOperator, MemoryStretchRow
from rankscope.measure.errors import SettingError
from rankscope.measure.kineto import Ints
from rankscope.measure.rank_view import Bools, RankView
from rankscope.measure.units import NS_PER_MS

_STEPS = re.compile(r"(\d{1,18})?:(\d{1,18})?")
_TIMES = re.compile(r"(?:(\d{1,9}(?:\.\d*)?)ms)?:(?:(\d{1,9}(?:\.\d*)?)ms)?")


class MemoryStretch(NamedTuple):
    """Steps from the first up to, not including, the end, or ns from the trace's first event. None: an open end."""

    first: int | None
    end: int | None
    is_steps: bool


def parse_stretch(text: str | None) -> MemoryStretch | None:
    """Return the stretch of `3:5` (steps) or `120ms:450ms`; None for None. Raises SettingError.

    >>> parse_stretch("3:"), parse_stretch("1.5ms:2ms")
    (MemoryStretch(first=3, end=None, is_steps=True), MemoryStretch(first=1500000, end=2000000, is_steps=False))
    """
    if text is None:
        return None
    steps, times = _STEPS.fullmatch(text), _TIMES.fullmatch(text)
    if steps is not None and any(steps.groups()):
        first, end = (int(one) if one else None for one in steps.groups())
    elif times is not None and any(times.groups()):
        first, end = (round(float(one) * NS_PER_MS) if one else None for one in times.groups())
    else:
        raise SettingError(
            f"--memory-between is {text!r}; it is steps as 3:5, 3: or :5, or times from the start of the trace as "
            "120ms:450ms, 120ms: or :450ms"
        )
    if first is not None and end is not None and first >= end:
        raise SettingError(f"--memory-between is {text!r}; the end must come after the start, and is not included")
    return MemoryStretch(first, end, is_steps=steps is not None)


def find_bounds(view: RankView, stretch: MemoryStretch) -> tuple[int, int] | None:
    """Return the start and the end, which is not in it, of the stretch by the trace's clock, as far as it is in the
    trace; None where it is not.
    """
    first_ns = view.origin_ns
    end_ns = max(int(times.max(initial=first_ns)) for times in (view.events.end_ns, view.trace.memory.time_ns)) + 1
    first, end = stretch.first, stretch.end
    if not stretch.is_steps:
        # Memory may be recorded before the first event.
        begin_ns = int(view.trace.memory.time_ns.min(initial=first_ns)) if first is None else first_ns + first
        end_ns = end_ns if end is None else min(first_ns + end, end_ns)
        return (begin_ns, end_ns) if begin_ns < end_ns else None
    steps = view.find_steps(first, end)
    return (steps[0].start_ns, steps[-1].next_start_ns) if steps else None


def is_inside(times_ns: Ints, bounds: tuple[int, int]) -> Bools:
    """Return which times are in a stretch."""
    return (times_ns >= bounds[0]) & (times_ns < bounds[1])


def sum_stretch(view: RankView, stretch: MemoryStretch) -> tuple[list[MemoryStretchRow], list[MemoryStretchOperator]]:
    """Return the memory of each allocator in the stretch, the CPU's first, and by operator. Empty where the stretch is
    not in the trace.
    """
    bounds = find_bounds(view, stretch)
    if bounds is None:
        return [], []
    rows: list[MemoryStretchRow] = []
    operators: list[MemoryStretchOperator] = []
    for device, mine in view.allocators:
        rows.append(_sum_allocator(view, bounds, device, mine))
        inside = mine[is_inside(view.trace.memory.time_ns[mine], bounds)]
        operators += [
            MemoryStretchOperator(device=device, **msgspec.structs.asdict(row))
            for row in sum_operators(view, inside, bounds)
        ]
    return rows, operators


def _sum_allocator(view: RankView, bounds: tuple[int, int], device: int | None, mine: Ints) -> MemoryStretchRow:
    memory, (start_ns, end_ns) = view.trace.memory, bounds
    held = held_bytes(memory, mine)
    inside = is_inside(memory.time_ns[mine], bounds)
    size, times_ns = memory.bytes[mine][inside], memory.time_ns[mine][inside]
    start_bytes = int(held_at(memory, mine, held, np.array([start_ns]))[0])
    levels = np.append(start_bytes, held[inside])
    peak = int(np.argmax(levels))
    return MemoryStretchRow(
        device=device,
        start_ns=start_ns - view.origin_ns,
        end_ns=end_ns - view.origin_ns,
        start_bytes=start_bytes,
        end_bytes=int(levels[-1]),
        peak_bytes=int(levels[peak]),
        peak_ns=(int(times_ns[peak - 1]) if peak else start_ns) - view.origin_ns,
        allocated_count=int((size > 0).sum()),
        allocated_bytes=int(size[size > 0].sum()),
        freed_count=int((size < 0).sum()),
        freed_bytes=-int(size[size < 0].sum()),
    )
