"""Split the idle time of each device, and of each of its streams, by what the next work waited for.

A gap between two pieces of work is a whole of one kind, by the call that launched the work after it: made in the gap,
the work waited for the host; made before, the work waited on the device, for another stream, a dependency or its own
start; not in the trace, the kind is not known.
"""

import numpy as np

from rankscope.collector.traces.report import IdleRow
from rankscope.collector.traces.windows import find_streams
from rankscope.measure.kineto import NONE, Ints
from rankscope.measure.rank_view import RankView


def sum_idle(view: RankView) -> list[IdleRow]:
    """Return for each device its idle time, then that of each of its streams; empty on a CPU."""
    if not view.has_device:
        return []
    rows, work = [], view.work
    streams = find_streams(view)
    for device in np.unique(work.device).tolist():
        mine = [lane for lane in streams if work.device[lane[0]] == device]
        whole = mine[0] if len(mine) == 1 else np.flatnonzero(work.device == device)
        rows.append(_sum_lane(view, whole, None, is_device=True))
        rows += [_sum_lane(view, lane, _known(int(work.stream[lane[0]])), is_device=False) for lane in mine]
    return rows


def _known(number: int) -> int | None:
    return number if number != NONE else None


def _sum_lane(view: RankView, places: Ints, stream: int | None, *, is_device: bool) -> IdleRow:
    """Return the gaps between the pieces of work at these places, ascending by start."""
    work = view.work
    start_ns, reached_ns = work.start_ns[places], np.maximum.accumulate(work.end_ns[places])
    before = np.flatnonzero(start_ns[1:] > reached_ns[:-1])
    idle_since_ns = reached_ns[before]
    length_ns = start_ns[before + 1] - idle_since_ns
    call = view.launch[places[before + 1]]
    is_known = call != NONE
    by_host = is_known & (view.events.start_ns[call] >= idle_since_ns)
    return IdleRow(
        device=_known(int(work.device[places[0]])),
        stream=stream,
        is_device=is_device,
        window_ns=int(reached_ns[-1] - start_ns[0]),
        gap_count=len(before),
        idle_ns=int(length_ns.sum()),
        longest_ns=int(length_ns.max()) if len(before) else 0,
        host_wait_ns=int(length_ns[by_host].sum()),
        kernel_wait_ns=int(length_ns[is_known & ~by_host].sum()),
        other_ns=int(length_ns[~is_known].sum()),
    )
