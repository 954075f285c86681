"""How far the host runs ahead of each device over time: launch delays, and the length of the queue of launched work.

Times on the host and on the device are of one clock in a trace. Work that seems to start before its launch, where the
profiler's clocks disagree, has a delay of 0.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rankscope.collector.traces.report import QueueRow
from rankscope.measure import intervals
from rankscope.measure.intervals import Intervals
from rankscope.measure.kineto import NONE, Ints
from rankscope.measure.rank_view import RankView

QUEUE_FULL_MIN = 1_024
"""Launches that a stream holds at most, by HolisticTraceAnalysis; then the call that launches the next one waits."""
PARTS = 10
"""Parts of equal length into which a trace without steps is cut."""


class _Period(NamedTuple):
    start_ns: int
    end_ns: int
    step: int | None = None
    part: int | None = None


class _Levels:
    """A count over time: how many pieces of work have begun to wait, and have not ceased to. `times_ns` are the
    changes, `levels` the count from each one to the next.
    """

    def __init__(self, from_ns: Ints, until_ns: Ints, begin_ns: int) -> None:
        times_ns = np.concatenate(
            [np.array([begin_ns], dtype=np.int64), np.sort(from_ns, kind="stable"), np.sort(until_ns, kind="stable")]
        )
        change = np.concatenate([[0], np.ones(len(from_ns), np.int64), np.full(len(until_ns), -1)])
        order = np.argsort(times_ns, kind="stable")
        self.times_ns: Ints = times_ns[order]
        self.levels: Ints = np.cumsum(change[order])

    def within(self, period: _Period) -> tuple[Ints, Ints]:
        """Return the levels in a period that begins at the first change or later, and the ns of each, all above 0."""
        first = int(np.searchsorted(self.times_ns, period.start_ns, side="right")) - 1
        last = int(np.searchsorted(self.times_ns, period.end_ns, side="left"))
        edges_ns = np.append(self.times_ns[first:last], period.end_ns)
        edges_ns[0] = period.start_ns
        length_ns = np.diff(edges_ns)
        return self.levels[first:last][length_ns > 0], length_ns[length_ns > 0]


def sum_queues(view: RankView) -> list[QueueRow]:
    """Return for each device the whole of its steps, then each step; without steps of the trace and its parts. Empty on
    a CPU, and without launches.
    """
    if not view.has_device or not (view.launch != NONE).any():
        return []
    return [row for device in np.unique(view.work.device).tolist() for row in _sum_device(view, device)]


def _sum_device(view: RankView, device: int) -> Iterator[QueueRow]:
    work, places = view.work, np.flatnonzero(view.work.device == device)
    start_ns, end_ns, call = work.start_ns[places], work.end_ns[places], view.launch[places]
    called_ns = np.where(call == NONE, start_ns, np.minimum(view.events.start_ns[call], start_ns))
    periods = _find_periods(view, int(called_ns.min()), int(end_ns.max()))
    begin_ns = min(int(called_ns.min()), periods[0].start_ns)
    waiting, outstanding = _Levels(called_ns, start_ns, begin_ns), _Levels(called_ns, end_ns, begin_ns)
    full = _find_full(work.stream[places], called_ns, start_ns)
    launched = np.flatnonzero(call != NONE)
    launched = launched[np.argsort(called_ns[launched], kind="stable")]
    at_ns, delay_ns = called_ns[launched], (start_ns - called_ns)[launched]
    for period in periods:
        first, last = np.searchsorted(at_ns, [period.start_ns, period.end_ns], side="left")
        delays = np.sort(delay_ns[first:last])
        levels, length_ns = waiting.within(period)
        left, left_ns = outstanding.within(period)
        yield QueueRow(
            device=device if device != NONE else None,
            step=period.step,
            part=period.part,
            start_ns=period.start_ns - view.origin_ns,
            window_ns=period.end_ns - period.start_ns,
            launch_count=len(delays),
            delay_median_ns=_at_rank(delays, 50),
            delay_p99_ns=_at_rank(delays, 99),
            queue_median=_at_time_share(levels, length_ns, 50),
            queue_p99=_at_time_share(levels, length_ns, 99),
            queue_max=int(levels.max()) if len(levels) else None,
            empty_ns=int(length_ns[levels == 0].sum()),
            starved_ns=int(left_ns[left == 0].sum()),
            full_ns=intervals.total_ns(intervals.clip(full, period.start_ns, period.end_ns)),
        )


def _find_full(stream: Ints, called_ns: Ints, start_ns: Ints) -> Intervals:
    """Return when the queue of any stream was full."""
    found = [intervals.EMPTY]
    streams, counts = np.unique(stream, return_counts=True)
    for one in streams[counts >= QUEUE_FULL_MIN].tolist():
        mine = stream == one
        queue = _Levels(called_ns[mine], start_ns[mine], int(called_ns[mine].min()))
        full = np.flatnonzero(queue.levels[:-1] >= QUEUE_FULL_MIN)
        found.append(np.stack([queue.times_ns[full], queue.times_ns[full + 1]], axis=1))
    return intervals.union(np.concatenate(found))


def _find_periods(view: RankView, start_ns: int, end_ns: int) -> list[_Period]:
    if view.steps:
        steps = [_Period(step.start_ns, step.next_start_ns, step=step.number) for step in view.steps]
        return [_Period(steps[0].start_ns, steps[-1].end_ns), *steps]
    edges_ns = [start_ns + (end_ns - start_ns) * part // PARTS for part in range(PARTS + 1)]
    parts = [_Period(edges_ns[part], edges_ns[part + 1], part=part + 1) for part in range(PARTS)]
    return [_Period(start_ns, end_ns), *parts]


def _at_rank(values: Ints, percent: int) -> int | None:
    """Return the smallest of these values, ascending, that with those below it has this share of them; None without
    any.

    >>> _at_rank(np.array([1, 5, 7]), 50), _at_rank(np.array([3, 4]), 50), _at_rank(np.arange(200), 99)
    (5, 3, 197)
    """
    return int(values[-(-len(values) * percent // 100) - 1]) if len(values) else None


def _at_time_share(levels: Ints, length_ns: Ints, percent: int) -> int | None:
    """Return the smallest level that with those below it has this share of the time; None without any time.

    >>> _at_time_share(np.array([7, 0, 5]), np.array([1, 98, 1]), 99)
    5
    """
    if not len(levels):
        return None
    reached_ns = np.cumsum(np.bincount(levels, weights=length_ns))
    return int(np.searchsorted(reached_ns * 100, reached_ns[-1] * percent, side="left"))
