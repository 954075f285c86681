"""Add up the blocking calls of windows, and describe them for users. Their texts come from the job. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final

from rankscope.measure.records import (
    SYNCHRONISATIONS_MAX,
    Synchronisation,
    WindowSynchronisations,
    add_waits,
)
from rankscope.measure.text import to_line

TEXT_LENGTH_MAX: Final = 120
"""Characters of a line, an operator or a call in a sentence."""
_NUMBER_MAX: Final = 2**63 - 1


def add_synchronisations(windows: Sequence[WindowSynchronisations]) -> WindowSynchronisations | None:
    """Return several windows as one: those with the longest waits of their kinds, all of which count in the sums. None
    without a window.
    """
    if not windows:
        return None
    call_ns: dict[str, int] = {}
    for window in windows:
        for call, waits_ns in window.call_ns.items():
            add_waits(call_ns, call, waits_ns)
    return WindowSynchronisations(
        first_step=windows[0].first_step,
        step_count=_limit(sum(window.step_count for window in windows)),
        call_ns={call: _limit(waits_ns) for call, waits_ns in call_ns.items()},
        idle_ns=_limit(sum(window.idle_ns for window in windows)),
        kinds=_add_kinds(kind for window in windows for kind in window.kinds),
    )


def _add_kinds(kinds: Iterable[Synchronisation]) -> tuple[Synchronisation, ...]:
    same: dict[tuple[str, str | None, str | None], list[Synchronisation]] = {}
    for kind in kinds:
        same.setdefault((kind.call, kind.operator, kind.line), []).append(kind)
    added = [
        Synchronisation(
            call=call,
            operator=operator,
            line=line,
            count=_limit(sum(one.count for one in found)),
            waits_ns=_limit(sum(one.waits_ns for one in found)),
            longest_ns=max(one.longest_ns for one in found),
            idle_ns=_limit(sum(one.idle_ns for one in found)),
        )
        for (call, operator, line), found in same.items()
    ]
    return tuple(sorted(added, key=lambda one: -one.waits_ns)[:SYNCHRONISATIONS_MAX])


def _limit(value: int) -> int:
    """Return a sum within 64 bits, so that it can be encoded, whatever numbers a rank has sent."""
    return max(-_NUMBER_MAX, min(_NUMBER_MAX, value))


def find_costliest(windows: Sequence[WindowSynchronisations]) -> tuple[Synchronisation, float] | None:
    """Return the kind of call with the longest idle time after it, and its share of all such idle time in the windows.
    One whose line is known comes before all others. None without idle time.
    """
    added = add_synchronisations(windows)
    if added is None or added.idle_ns <= 0:
        return None
    worst = max(added.kinds, key=lambda one: (one.line is not None, one.idle_ns), default=None)
    return None if worst is None else (worst, worst.idle_ns / added.idle_ns)


def describe_kind(kind: Synchronisation) -> str:
    """Return a kind of call as text.

    >>> describe_kind(Synchronisation(call="cudaStreamSynchronize", operator="aten::item", line="train.py:24 (main)"))
    'train.py:24 (main) (aten::item, cudaStreamSynchronize)'
    """
    call = ", ".join(to_line(text, TEXT_LENGTH_MAX) for text in (kind.operator, kind.call) if text)
    return f"{to_line(kind.line, TEXT_LENGTH_MAX)} ({call})" if kind.line else call
