"""Sum the blocking calls of a device's window by kind, each with the source line that was waiting.

The profiler knows when a call waited, and nothing of Python. So while the window is on, another thread notes the line
at which the training thread is (`line_sampler.py`), and a call of that thread belongs to the line of the first sample
within it. Calls of other threads that launch work have a line only while the training thread was in torch's backward,
which launches by threads of its own.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from rankscope.agent.profiler.line_samples import LineSamples
from rankscope.measure.blocking_calls import (
    find_blocking_calls,
    find_launching_threads,
    find_waits_and_idle_ns,
)
from rankscope.measure.bounds import NAME_LENGTH_MAX
from rankscope.measure.kineto import NONE, Ints
from rankscope.measure.rank_view import RankView
from rankscope.measure.records import SYNCHRONIZATIONS_MAX, Synchronization, WindowSynchronizations, add_waits


def sum_synchronizations(
    view: RankView, steps: Sequence[tuple[int, int, int]], samples: LineSamples
) -> WindowSynchronizations:
    """Return the blocking calls that began within these steps: number, start and end by the host clock, at least one.
    The view, of the same clock, has a device.
    """
    rows = find_blocking_calls(view)
    rows = rows[np.isin(view.events.thread[rows], find_launching_threads(view))]
    starts_ns = view.events.start_ns[rows]
    inside = [slice(*np.searchsorted(starts_ns, [start_ns, end_ns])) for _, start_ns, end_ns in steps]
    rows = np.concatenate([rows[part] for part in inside])
    waits_ns, idle_ns = find_waits_and_idle_ns(view, rows)
    names = [view.trace.name(row)[:NAME_LENGTH_MAX] for row in rows.tolist()]
    kinds: dict[tuple[str, str | None, str | None], list[tuple[int, int]]] = {}
    times = zip(waits_ns.tolist(), idle_ns.tolist(), strict=True)
    for kind, waited in zip(_find_kinds(view, rows, names, samples), times, strict=True):
        kinds.setdefault(kind, []).append(waited)
    call_ns: dict[str, int] = {}
    for name, waited_ns in zip(names, waits_ns.tolist(), strict=True):
        add_waits(call_ns, name, waited_ns)
    found = [_sum_kind(*kind, waits) for kind, waits in kinds.items()]
    found.sort(key=lambda one: (-one.waits_ns, one.call, one.operator or "", one.line or ""))
    return WindowSynchronizations(
        first_step=steps[0][0],
        step_count=len(steps),
        call_ns=call_ns,
        idle_ns=int(idle_ns.sum()),
        kinds=tuple(found[:SYNCHRONIZATIONS_MAX]),
    )


_WAITS_INSIDE: Final = {"aten::item": "aten::_local_scalar_dense"}
"""Operators that wait in another one only. The begins of calls and of operators are of two clocks, which differ by
some us: a call that begins with its operator may seem to begin before it.
"""


def _find_kinds(
    view: RankView, rows: Ints, names: Sequence[str], samples: LineSamples
) -> list[tuple[str, str | None, str | None]]:
    # Most windows know only the innermost operator, so one with shapes, which has those around it too, names the same.
    around = view.host.find_operators(view.events.thread[rows], view.events.start_ns[rows])
    operators = [
        _WAITS_INSIDE.get(name, name)[:NAME_LENGTH_MAX]
        for name in (view.trace.name(row) if row != NONE else "" for row in around.tolist())
    ]
    return list(zip(names, (one or None for one in operators), _find_lines(view, rows, samples), strict=True))


def _find_lines(view: RankView, rows: Ints, samples: LineSamples) -> list[str | None]:
    """Return the line of the first sample within each call; None where there is none, or it had no line, or the call is
    of another thread than the one sampled and not of its backward.
    """
    times_host_ns, places = np.frombuffer(samples.times_host_ns, np.int64), np.frombuffer(samples.places, np.int32)
    first = np.searchsorted(times_host_ns, view.events.start_ns[rows], side="left").tolist()
    after = np.searchsorted(times_host_ns, view.events.end_ns[rows], side="left").tolist()
    is_own = np.isin(view.events.thread[rows], _find_codes(view, samples.threads)).tolist()
    found: list[str | None] = []
    for start, end, own in zip(first, after, is_own, strict=True):
        place = int(places[start]) if start < end else NONE
        found.append(samples.lines[place] if place != NONE and (own or samples.in_backward[place]) else None)
    return found


def _find_codes(view: RankView, threads: Sequence[int]) -> list[int]:
    """Return the codes in the view of threads with these numbers. Of a saved file a thread is process and thread."""
    wanted = {str(number) for number in threads}
    return [code for code, (first, second) in enumerate(view.trace.threads) if (second or first) in wanted]


def _sum_kind(call: str, operator: str | None, line: str | None, times: Sequence[tuple[int, int]]) -> Synchronization:
    waits_ns = [waited for waited, _ in times]
    return Synchronization(
        call=call,
        operator=operator,
        line=line,
        count=len(times),
        waits_ns=sum(waits_ns),
        longest_ns=max(waits_ns),
        idle_ns=sum(idle for _, idle in times),
    )
