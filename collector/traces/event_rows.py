"""Make a table of every event of a trace, with what it is in: for questions of one's own, in Python."""

from typing import Any

import numpy as np

from rankscope.collector.traces.column_table import (
    ColumnTable,
    Texts,
    number_column,
    text_column,
)
from rankscope.collector.traces.modules import find_module_names
from rankscope.collector.traces.report import EventRow
from rankscope.collector.traces.user_ranges import find_threads_of_calls, find_user_ranges, nest_ranges
from rankscope.measure.kineto import DEVICE_WORK, NONE, Category, Ints
from rankscope.measure.rank_view import RankView

CATEGORIES = tuple(one.name.lower() for one in Category)


def list_events(view: RankView) -> ColumnTable[EventRow]:
    """Return all events by start, of those that begin at once the longest first. The trace was read with the links of
    autograd and with how kernels were launched. Raises TraceError for modules that are nested too deep.
    """
    events, names = view.events, view.trace.names
    count = len(events)
    parent = _find_parents(view)
    caller = np.arange(count)  # of device work the row of the call that launched it, NONE where that is not known
    caller[view.work.row] = view.launch
    on_device = view.trace.rows(Category.GPU_ANNOTATION, Category.COUNTERS)
    caller[on_device] = NONE
    called = caller != NONE
    threads, times_ns = events.thread[caller], events.start_ns[caller]
    ranges = find_user_ranges(view)
    engine_threads = find_threads_of_calls(view)
    inside = nest_ranges(view, ranges, engine_threads).find_innermost(engine_threads[caller], times_ns)
    process, thread = zip(*view.trace.threads, strict=True) if view.trace.threads else ((), ())
    return ColumnTable(
        EventRow,
        {
            "event": np.arange(count),
            "name": text_column(events.name, names),
            "category": text_column(events.category, CATEGORIES),
            "start_ns": events.start_ns - view.origin_ns,
            "duration_ns": events.duration_ns,
            "step": number_column(np.where(called, view.number_steps(times_ns), NONE)),
            "process": text_column(events.thread, process),
            "thread": text_column(events.thread, thread),
            "device": number_column(_spread(view, view.work.device)),
            "stream": number_column(_spread(view, view.work.stream)),
            "parent": number_column(parent),
            "operator": number_column(_find_operators(view, caller)),
            "correlation": number_column(events.correlation),
            "module": find_module_names(view, threads, times_ns, called),
            "user_range": text_column(np.where(called, np.append(events.name[ranges], NONE)[inside], NONE), names),
            "bytes": number_column(_spread(view, view.trace.device_work.bytes)),
            **_read_launches(view),
        },
        links=("event", "parent", "operator"),
    )


def _spread(view: RankView, of_work: Ints) -> Ints:
    """Return a column of device work as one of all events."""
    found = np.full(len(view.events), NONE, dtype=np.int64)
    found[view.work.row] = of_work
    return found


def _find_parents(view: RankView) -> Ints:
    """Return the row of the range around each event on its thread, of device work the call that launched it; NONE where
    there is none. Around an event on a thread without Python frames, in no other range, is the frame that is open on
    the only thread with frames: so are backward operators in the call of backward().
    """
    events, frames = view.events, view.host.frame_rows
    rows = np.setdiff1d(
        np.arange(len(events)), view.trace.rows(*DEVICE_WORK, Category.GPU_ANNOTATION, Category.COUNTERS)
    )
    found = np.full(len(events), NONE, dtype=np.int64)
    above = view.host.nest_rows(rows).parent
    found[rows] = np.append(rows, NONE)[above]  # OUTSIDE, -1, is the last place
    with_frames = np.unique(events.thread[frames])
    if len(with_frames) == 1:
        alone = rows[(found[rows] == NONE) & (events.thread[rows] != with_frames[0])]
        inside = view.host.frames.find_innermost(np.full(len(alone), with_frames[0]), events.start_ns[alone])
        found[alone] = np.append(frames, NONE)[inside]
    found[view.work.row] = view.launch
    return found


def _find_operators(view: RankView, caller: Ints) -> Ints:
    """Return the row of the innermost operator around each caller, of an operator the one around it; NONE for none."""
    rows = view.host.operator_rows
    around = view.host.find_callers(caller)
    around[rows] = np.append(rows, NONE)[view.host.operators.parent]
    return around


def _read_launches(view: RankView) -> dict[str, Texts]:
    """Return grid and block of kernels as columns."""
    shapes = view.trace.launch_shapes
    rows = np.fromiter(shapes, dtype=np.int64, count=len(shapes))
    columns = {}
    for name in ("grid", "block"):
        codes: dict[str, int] = {}
        found = np.full(len(view.events), NONE, dtype=np.int32)
        texts = (getattr(shape, name) for shape in shapes.values())
        found[rows] = [NONE if text is None else codes.setdefault(text, len(codes)) for text in texts]
        columns[name] = Texts(found, list(codes))
    return columns


def find_call_stack(events: Any, event: int) -> Any:
    """Return the rows of what is around an event, from the outermost range to the event itself: of a kernel the call
    that launched it, the operators, ranges and Python frames. `events` is the table of events of `to_pandas()`, or some
    of its rows: what is not in it ends the stack. `event` is a label of its index. Raises KeyError where it is none.
    """
    found = [event]
    parents = events["parent"]
    above = parents.loc[event]
    while above in parents.index:
        found.append(above)
        above = parents.loc[above]
    return events.loc[found[::-1]]


def find_inside(events: Any, event: int) -> Any:
    """Return the rows of what is inside an event, without itself, by start: operators, calls, ranges and frames inside
    of it, and the device work that these launched. `events` and `event` are those of `find_call_stack`.
    """
    level, found = events.loc[[event]].index, events.index[:0]
    while len(level):
        level = events.index[events["parent"].isin(level)]
        found = found.union(level)
    return events.loc[found]
