"""Add up the blocking calls of windows, and describe them for users. Their texts come from the job. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Final

from rankscope.measure.bounds import to_count
from rankscope.measure.records import (
    SYNCHRONIZATIONS_MAX,
    Synchronization,
    WindowSynchronizations,
    add_waits,
)
from rankscope.measure.text import to_line

TEXT_LENGTH_MAX: Final = 120
"""Characters of a line, an operator or a call in a sentence."""
LINE_SHARE_MIN: Final = 0.5
"""Idle time of a line over that of the same call without a line, from which on the line stands for the call: a sampler
misses most calls of less than 10 ms, and one that it has met by chance says nothing of the others."""

_Kind = tuple[str, str | None, str | None]
"""Call, operator, line."""


def add_synchronizations(windows: Sequence[WindowSynchronizations]) -> WindowSynchronizations | None:
    """Return several windows as one: those with the longest waits of their kinds, all of which count in the sums. None
    without a window.
    """
    if not windows:
        return None
    call_ns: dict[str, int] = {}
    for window in windows:
        for call, waits_ns in window.call_ns.items():
            add_waits(call_ns, call, waits_ns)
    return WindowSynchronizations(
        first_step=windows[0].first_step,
        step_count=to_count(sum(window.step_count for window in windows)),
        call_ns={call: to_count(waits_ns) for call, waits_ns in call_ns.items()},
        idle_ns=to_count(sum(window.idle_ns for window in windows)),
        kinds=_add_kinds(kind for window in windows for kind in window.kinds),
    )


def _add_kinds(kinds: Iterable[Synchronization]) -> tuple[Synchronization, ...]:
    same: dict[_Kind, list[Synchronization]] = {}
    for kind in kinds:
        same.setdefault(_key(kind), []).append(kind)
    added = [
        Synchronization(
            call=call,
            operator=operator,
            line=line,
            count=to_count(sum(one.count for one in found)),
            waits_ns=to_count(sum(one.waits_ns for one in found)),
            longest_ns=to_count(max(one.longest_ns for one in found)),
            idle_ns=to_count(sum(one.idle_ns for one in found)),
        )
        for (call, operator, line), found in same.items()
    ]
    return tuple(sorted(added, key=lambda one: -one.waits_ns)[:SYNCHRONIZATIONS_MAX])


def _key(kind: Synchronization) -> _Kind:
    return kind.call, kind.operator, kind.line


def find_costliest(windows: Sequence[WindowSynchronizations]) -> tuple[Synchronization, float] | None:
    """Return the kind of call with the longest idle time around its end, and its share of all such idle time in the
    windows, 0 to 1. If its line is not known, the line of the same call with most idle time stands for it, from
    LINE_SHARE_MIN of its idle time on. None without idle time.
    """
    added = add_synchronizations(windows)
    if added is None or added.idle_ns <= 0 or not added.kinds:
        return None
    worst = max(added.kinds, key=lambda one: (one.idle_ns, one.line is not None))
    if worst.line is None:
        alike = [one for one in added.kinds if _key(one)[:2] == _key(worst)[:2] and one is not worst]
        of_line = max(alike, key=lambda one: one.idle_ns, default=None)
        if of_line is not None and of_line.idle_ns >= LINE_SHARE_MIN * worst.idle_ns:
            worst = of_line
    return worst, min(1.0, worst.idle_ns / added.idle_ns)


def find_excess(
    windows: Sequence[WindowSynchronizations], peers: Sequence[Sequence[WindowSynchronizations]], least_ns: float
) -> tuple[Synchronization, float] | None:
    """Return the line whose idle time a step, in ns, is furthest above the median of the peers', and by how much; if no
    line's is by `least_ns`, the call and operator of which that holds over all lines; else None. There is a peer.

    A peer's calls without a line may be at any of its lines. So a line is compared with what it has at most.
    """
    mine, theirs = _add_idle(windows), [_add_idle(one) for one in peers]
    calls: list[_Kind] = [(call, operator, None) for call, operator, _ in mine]
    own_ns = {**mine, **{kind: _read_most(mine, kind) for kind in calls}}
    above_ns = {kind: idle_ns - median(_read_most(one, kind) for one in theirs) for kind, idle_ns in own_ns.items()}
    found = [kind for kind, value_ns in above_ns.items() if value_ns >= least_ns]
    if not found:
        return None
    call, operator, line = best = max(found, key=lambda kind: (kind[2] is not None, above_ns[kind]))
    return Synchronization(call=call, operator=operator, line=line), above_ns[best]


def _add_idle(windows: Sequence[WindowSynchronizations]) -> Mapping[_Kind, float]:
    """Return the idle time a step of each kind, in ns."""
    steps = sum(window.step_count for window in windows)
    idle_ns: dict[_Kind, float] = {}
    for kind in (kind for window in windows for kind in window.kinds):
        idle_ns[_key(kind)] = idle_ns.get(_key(kind), 0.0) + max(0, kind.idle_ns) / steps
    return idle_ns


def _read_most(idle_ns: Mapping[_Kind, float], kind: _Kind) -> float:
    """Return the idle time of a kind with that of the same call without a line; without a line that of all lines."""
    call, operator, line = kind
    if line is not None:
        return idle_ns.get(kind, 0.0) + idle_ns.get((call, operator, None), 0.0)
    return sum(found for (its, inside, _), found in idle_ns.items() if (its, inside) == (call, operator))


def describe_kind(kind: Synchronization) -> str:
    """Return a kind of call as text.

    >>> describe_kind(Synchronization(call="cudaStreamSynchronize", operator="aten::item", line="train.py:24 (main)"))
    'train.py:24 (main) (aten::item, cudaStreamSynchronize)'
    """
    call = ", ".join(to_line(text, TEXT_LENGTH_MAX) for text in (kind.operator, kind.call) if text)
    return f"{to_line(kind.line, TEXT_LENGTH_MAX)} ({call})" if kind.line else call
