"""Read what span of time and which steps a trace has: its head does not say so, so the file is read whole."""

from typing import NamedTuple

from rankscope.collector.traces.origin import read_origin
from rankscope.collector.traces.parallel_reading import read_file
from rankscope.measure.errors import RankscopeError, TraceError
from rankscope.measure.rank_view import RankView
from rankscope.measure.units import NS_PER_S

WALL_CLOCK_FROM_NS = 946_684_800 * NS_PER_S
"""The year 2000. Times before it count from the start of the machine, or of the profiler."""


class Span(NamedTuple):
    """First start and last end of the events with possible times, in ns of the host's clock: since 1970 if
    `is_wall_clock`, else since an unknown time. `steps` are the profiler's step numbers, by start.
    """

    start_ns: int
    end_ns: int
    is_wall_clock: bool
    steps: tuple[int, ...]


def read_span(path: str, workers: int = 1) -> Span | str:
    """Return the span of a trace, decoded by up to `workers` processes; the reason where it cannot be read.

    A file without events has none.
    """
    try:
        trace = read_file(path, workers)
        if len(trace.events) == 0:
            raise TraceError("none of its events has a time and a duration")
        base_ns = read_origin(trace.head, path).base_ns
    except RankscopeError as error:
        return str(error)
    except MemoryError:
        return "not enough memory to read it"
    start_ns = int(trace.events.start_ns.min()) + base_ns
    return Span(
        start_ns=start_ns,
        end_ns=int(trace.events.end_ns.max()) + base_ns,
        is_wall_clock=start_ns >= WALL_CLOCK_FROM_NS,
        steps=tuple(step.number for step in RankView(trace).steps),
    )
