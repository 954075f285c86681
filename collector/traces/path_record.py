"""Reduce one trace to what its critical path is walked over: device work, what it may have waited for, and the host.

Times of a record are by the host's clock, as those of collectives. On a CPU the collectives of the backend stand for
device work, and the operators for the host.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rankscope.collector.traces.step_parts import COMMUNICATION, COMPUTE, COPY, find_last_started
from rankscope.collector.traces.user_ranges import find_user_ranges
from rankscope.collector.traces.windows import find_step_bounds, find_streams
from rankscope.measure import intervals
from rankscope.measure.blocking_calls import find_blocking_calls, find_launching_threads
from rankscope.measure.kineto import LAUNCHES, NONE, Ints
from rankscope.measure.rank_view import RankView
from rankscope.measure.traced_collectives import Collective, find_communication_rows
from rankscope.measure.units import NS_PER_US

RELEASE_NS_MAX = 20 * NS_PER_US
"""Longest gap between the end of work on one stream and the start of work on another that may have waited for it,
where only their order is known. The 14 such gaps of any length in tests/traces last 1 to 8 us."""
KINDS = (COMPUTE, COMMUNICATION, COPY)
POLL_NS_MIN = 100 * NS_PER_US
"""Least time in a range without any operator or call that is taken for polling: an operator's own work on the host
between two calls takes some 10 us."""
POLL_LATE_SHARE_MAX = 0.01
"""Of a time of polling, after the kernel's end: what the host does before it calls torch again."""
_QUERIES = re.compile(r"^(?:cuda|hip)(?:Event|Stream)Query")
_STREAM_WAITS = re.compile(r"^(?:cuda|hip)StreamWaitEvent")

Bools = npt.NDArray[np.bool_]


class Bounds(NamedTuple):
    """One step; `number` is None for the whole of a trace without steps."""

    number: int | None
    start_ns: int
    end_ns: int


class HostSegments(NamedTuple):
    """Disjoint stretches of time, ascending, with the name of the operator, range or call that the host was in."""

    start_ns: Ints
    end_ns: Ints
    name: Ints


class Waits(NamedTuple):
    """Calls of the host that waited for device work, by their return: `place` is the work whose end released them,
    `since_ns` when they began to wait.
    """

    return_ns: Ints
    place: Ints
    since_ns: Ints


class PathRecord(NamedTuple):
    """The device work of one trace by start, in columns; places count within them, NONE where there is none.

    `kind` indexes KINDS, `name` the `names`. `call_ns` is the start of the call that launched the work, `before` the
    work in front of it on its stream, `other` the work of another stream that it waited for: as recorded, or by order
    alone where `is_inferred`. `collective` is its place among the rank's collectives.
    """

    names: Sequence[str]
    start_ns: Ints
    end_ns: Ints
    kind: Ints
    name: Ints
    call_ns: Ints
    before: Ints
    other: Ints
    is_inferred: Bools
    collective: Ints
    waits: Waits
    host: HostSegments
    steps: Sequence[Bounds]


def record_path(view: RankView, collectives: Sequence[Collective], base_ns: int) -> PathRecord | None:
    """Return the record of a trace whose times count from `base_ns`; None without work that is known, and where the
    work of all its steps is lost.
    """
    if view.bounds_ns is None or (view.steps and not find_step_bounds(view)):
        return None
    find = _record_device if view.has_device else _record_cpu
    found = find(view, _name_collectives(collectives))
    steps = [Bounds(*step) for step in find_step_bounds(view)] or [Bounds(None, *view.bounds_ns)]
    found = found._replace(steps=steps)
    return _shift(found, base_ns)


def _shift(found: PathRecord, by_ns: int) -> PathRecord:
    """Return the record with all times later by so much."""
    return found._replace(
        start_ns=found.start_ns + by_ns,
        end_ns=found.end_ns + by_ns,
        call_ns=np.where(found.call_ns == NONE, NONE, found.call_ns + by_ns),
        waits=found.waits._replace(return_ns=found.waits.return_ns + by_ns, since_ns=found.waits.since_ns + by_ns),
        host=found.host._replace(start_ns=found.host.start_ns + by_ns, end_ns=found.host.end_ns + by_ns),
        steps=[Bounds(step.number, step.start_ns + by_ns, step.end_ns + by_ns) for step in found.steps],
    )


def _name_collectives(collectives: Sequence[Collective]) -> list[str]:
    return [f"{one.op}, {one.bytes:,} bytes" if one.bytes is not None else one.op for one in collectives]


# -- a device ---------------------------------------------------------------------------------------------------------


def _record_device(view: RankView, collective_names: Sequence[str]) -> PathRecord:
    work, events = view.work, view.events
    names = [*view.trace.names, *collective_names]
    name = work.name.astype(np.int64)
    communicating = np.flatnonzero(work.is_communication)
    collective = _nothing(len(work))
    collective[communicating] = np.arange(len(communicating))
    name[communicating] = len(view.trace.names) + collective[communicating]
    call_ns = np.where(view.launch == NONE, NONE, events.start_ns[view.launch])
    before = _nothing(len(work))
    for stream in find_streams(view):
        before[stream[1:]] = stream[:-1]
    other, is_inferred = _find_others(view, before, call_ns)
    return PathRecord(
        names=names,
        start_ns=work.start_ns,
        end_ns=work.end_ns,
        kind=np.where(work.is_communication, 1, np.where(work.is_kernel, 0, 2)),
        name=name,
        call_ns=call_ns,
        before=before,
        other=other,
        is_inferred=is_inferred,
        collective=collective,
        waits=_find_waits(view),
        host=_find_host(view),
        steps=(),
    )


def _nothing(count: int) -> Ints:
    return np.full(count, NONE, dtype=np.int64)


def _find_waits(view: RankView) -> Waits:
    """Return the calls of launching threads that returned when work ended, by their return, and the ends of polling."""
    work, events = view.work, view.events
    rows = find_blocking_calls(view)
    rows = rows[np.isin(events.thread[rows], find_launching_threads(view))]
    by_end = np.argsort(work.end_ns, kind="stable")
    ends_ns = work.end_ns[by_end]
    found = []
    for row, start_ns, end_ns in [*_bounds_of(view, rows), *_find_polls(view)]:
        last, first = np.searchsorted(ends_ns, [end_ns, start_ns], side="right").tolist()
        for place in by_end[first:last][::-1].tolist():
            call = int(view.launch[place])
            if call in {NONE, row} or events.start_ns[call] < start_ns:
                found.append((end_ns, place, start_ns))
                break
    found += _find_silent_polls(view, by_end, ends_ns)
    columns = np.array(sorted(found), dtype=np.int64).reshape(-1, 3)
    return Waits(*columns.T)


def _bounds_of(view: RankView, rows: Ints) -> list[tuple[int, int, int]]:
    """Return each row with its start and its end."""
    start_ns, end_ns = view.events.start_ns[rows].tolist(), view.events.end_ns[rows].tolist()
    return list(zip(rows.tolist(), start_ns, end_ns, strict=True))


def _find_polls(view: RankView) -> list[tuple[int, int, int]]:
    """Return the runs of two or more queries of an event or a stream on a launching thread, without a launch between
    them: the row of the last one, the start of the first, and the end of the last, with which the host went on.
    """
    calls, events = view.trace.rows(*LAUNCHES), view.events
    is_query = view.trace.names_like(_QUERIES.match)[events.name[calls]]
    found = []
    for thread in find_launching_threads(view).tolist():
        mine = np.flatnonzero(events.thread[calls] == thread)
        edges = np.flatnonzero(np.diff(is_query[mine])) + 1
        for run in np.split(mine, edges):
            if len(run) > 1 and is_query[run[0]]:
                first, last = int(calls[run[0]]), int(calls[run[-1]])
                found.append((last, int(events.start_ns[first]), int(events.end_ns[last])))
    return found


def _find_silent_polls(view: RankView, by_end: Ints, ends_ns: Ints) -> list[tuple[int, int, int]]:
    """Return the ends of times in a range or an operator in which the host did nothing that is recorded for POLL_NS_MIN
    or more, until shortly before its end a communicating kernel had ended that was launched inside that range: the host
    read a flag of that kernel until then. With each the place of the kernel, and when the host fell silent.
    """
    work, events = view.work, view.events
    threads = find_launching_threads(view)
    ranges = np.unique(np.concatenate([view.host.operator_rows, find_user_ranges(view)]))
    ranges = ranges[np.isin(events.thread[ranges], threads) & (events.duration_ns[ranges] >= POLL_NS_MIN)]
    inside = np.union1d(np.union1d(view.host.operator_rows, view.trace.rows(*LAUNCHES)), ranges)
    found = []
    for thread in threads.tolist():
        mine, around = inside[events.thread[inside] == thread], ranges[events.thread[ranges] == thread]
        marks_ns = np.unique(np.concatenate([events.start_ns[mine], events.end_ns[mine]]))
        silent = np.flatnonzero(np.diff(marks_ns) >= POLL_NS_MIN)
        for since_ns, end_ns in zip(marks_ns[silent].tolist(), marks_ns[silent + 1].tolist(), strict=True):
            covering = around[(events.start_ns[around] <= since_ns) & (events.end_ns[around] >= end_ns)]
            if not len(covering):
                continue
            from_ns = int(events.start_ns[covering].max())
            late_ns = max(RELEASE_NS_MAX, int(POLL_LATE_SHARE_MAX * (end_ns - since_ns)))
            first, last = np.searchsorted(ends_ns, [end_ns - late_ns, end_ns], side="right").tolist()
            for place in by_end[first:last][::-1].tolist():
                call = int(view.launch[place])
                if work.is_communication[place] and call != NONE and from_ns <= events.start_ns[call] < end_ns:
                    found.append((end_ns, place, since_ns))
                    break
    return found


def _find_host(view: RankView) -> HostSegments:
    """Return what the threads did that launch work: of what is open at a time, the last to start counts."""
    rows = np.concatenate([view.host.operator_rows, find_user_ranges(view), find_blocking_calls(view)])
    if view.has_device:
        rows = rows[np.isin(view.events.thread[rows], find_launching_threads(view))]
    else:
        rows = np.concatenate([view.host.compute_rows, find_user_ranges(view)])
    rows = np.unique(rows)
    segments, owner = find_last_started(view.intervals_of(rows)) if len(rows) else (np.empty((0, 2), np.int64), rows)
    return HostSegments(segments[:, 0], segments[:, 1], view.events.name[rows[owner]].astype(np.int64))


# -- streams that wait for others -------------------------------------------------------------------------------------


def _find_others(view: RankView, before: Ints, call_ns: Ints) -> tuple[Ints, Bools]:
    """Return for each piece of work the one of another stream that it waited for, and whether that is inferred."""
    recorded = _find_recorded(view, call_ns)
    if recorded is not None:
        return recorded, np.zeros(len(recorded), dtype=bool)
    inferred = _infer_others(view, before, call_ns)
    return inferred, inferred != NONE


def _infer_others(view: RankView, before: Ints, call_ns: Ints) -> Ints:
    """Return for each piece of work the last one to end before it on another stream of its device, within
    RELEASE_NS_MAX, if a wait for an event was enqueued after that was launched and before this was, but after the work
    in front of this: of which stream such a wait is, the call does not say.
    """
    work, found = view.work, _nothing(len(view.work))
    waits = view.trace.rows_named(view.trace.rows(*LAUNCHES), _STREAM_WAITS.match)
    waits_ns = view.events.start_ns[waits]
    front_call_ns = np.where(before == NONE, NONE, call_ns[before])
    last_wait = np.searchsorted(waits_ns, call_ns, side="left") - 1
    wait_ns = waits_ns[np.maximum(last_wait, 0)] if len(waits_ns) else _nothing(len(work))
    may_wait = (call_ns != NONE) & (last_wait >= 0) & (wait_ns > front_call_ns) if len(waits_ns) else call_ns < NONE
    since_ns = np.maximum(np.where(before == NONE, NONE, work.end_ns[before]), call_ns)
    since_ns = np.maximum(since_ns, work.start_ns - RELEASE_NS_MAX)
    by_end = np.argsort(work.end_ns, kind="stable")
    ends_ns = work.end_ns[by_end]
    first = np.searchsorted(ends_ns, since_ns, side="right")
    last = np.searchsorted(ends_ns, work.start_ns, side="right")
    for place in np.flatnonzero(may_wait & (last > first)).tolist():
        candidates = by_end[first[place] : last[place]]
        fits = (work.device[candidates] == work.device[place]) & (work.stream[candidates] != work.stream[place])
        fits &= call_ns[candidates] < wait_ns[place]
        if fits.any():
            found[place] = candidates[fits][-1]
    return found


def _find_recorded(view: RankView, call_ns: Ints) -> Ints | None:
    """Return for each piece of work the last to end of those that recorded waits of its stream name; None without such
    records. A wait of a stream is for the last work launched on the other one before the event was recorded.
    """
    if not view.trace.stream_waits:
        return None
    work, events, found = view.work, view.events, _nothing(len(view.work))
    calls = view.trace.rows(*LAUNCHES)
    call_of = dict(zip(events.correlation[calls].tolist(), events.start_ns[calls].tolist(), strict=True))
    lanes = {int(work.stream[lane[0]]): lane[np.argsort(call_ns[lane], kind="stable")] for lane in find_streams(view)}
    for row, wait in view.trace.stream_waits.items():
        wait_ns = call_of.get(int(events.correlation[row]), int(events.start_ns[row]))
        record_ns, waiting, awaited = call_of.get(wait.record_correlation), *map(lanes.get, (wait.stream, wait.awaited))
        if record_ns is None or waiting is None or awaited is None:
            continue
        following = int(np.searchsorted(call_ns[waiting], wait_ns, side="right"))
        last = int(np.searchsorted(call_ns[awaited], record_ns, side="left")) - 1
        if following < len(waiting) and last >= 0:
            place, other = int(waiting[following]), int(awaited[last])
            is_later = found[place] == NONE or work.end_ns[other] > work.end_ns[found[place]]
            if is_later and work.end_ns[other] <= work.start_ns[place]:
                found[place] = other
    return found


# -- a CPU ------------------------------------------------------------------------------------------------------------


def _record_cpu(view: RankView, collective_names: Sequence[str]) -> PathRecord:
    """Return the record of a trace without a device: a collective that ends while nothing computes was waited for."""
    rows = find_communication_rows(view)
    start_ns, end_ns = view.events.start_ns[rows], view.events.end_ns[rows]
    computing = intervals.union(view.compute)
    open_at = np.searchsorted(computing[:, 0], end_ns, side="left") - 1
    is_open = (open_at >= 0) & (computing[np.maximum(open_at, 0), 1] >= end_ns) if len(computing) else end_ns < NONE
    waited = np.flatnonzero(~is_open)
    waited = waited[np.argsort(end_ns[waited], kind="stable")]
    computed = np.searchsorted(computing[:, 1], end_ns[waited], side="right") - 1
    idle_ns = computing[np.maximum(computed, 0), 1] if len(computing) else start_ns[waited]
    since_ns = np.maximum(start_ns[waited], np.where(computed >= 0, idle_ns, start_ns[waited]))
    return PathRecord(
        names=[*view.trace.names, *collective_names],
        start_ns=start_ns,
        end_ns=end_ns,
        kind=np.ones(len(rows), dtype=np.int64),
        name=len(view.trace.names) + np.arange(len(rows)),
        call_ns=start_ns,
        before=_nothing(len(rows)),
        other=_nothing(len(rows)),
        is_inferred=np.zeros(len(rows), dtype=bool),
        collective=np.arange(len(rows)),
        waits=Waits(end_ns[waited], waited, since_ns),
        host=_find_host(view),
        steps=(),
    )
