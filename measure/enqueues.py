"""Define when a rank has enqueued some of its collectives, and which ones every rank of a group chooses.

A rank may enqueue thousands of collectives between two reports. Those that it reports are chosen by their sequence
number alone, so that all members of a group choose the same ones without asking each other: at level n the numbers
whose hash begins with n zero bits, about one of 2^n. Whatever is chosen at a higher level is at a lower one too, so
ranks at different levels have those of the higher level in common.

The hash is multiplication by 2^64 over the golden ratio (Knuth, The Art of Computer Programming, volume 3, section
6.4). Every 2^n-th number would be the same collective of each step, where a step has that many.
"""

from collections.abc import Collection, Sequence
from typing import Annotated, Final, NamedTuple

import msgspec

from rankscope.measure.bounds import GroupNames
from rankscope.measure.identity import Count
from rankscope.measure.table import Table

ENQUEUE_COLUMNS: Final = ("step", "group", "sequence", "enqueued_host_ns")
CHOSEN_MAX: Final = 64
"""Collectives that a rank reports at once: 2 KB."""
RANGES_MAX: Final = 4096
_BITS: Final = 64
_MULTIPLIER: Final = 0x9E3779B97F4A7C15


class Enqueue(NamedTuple):
    """A collective of a rank, number `sequence` of its group: its host enqueued it at `enqueued_host_ns`."""

    step: int
    group: str
    sequence: int
    enqueued_host_ns: int


class Enqueues(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The chosen collectives of whole steps, by the host clock: a table of ENQUEUE_COLUMNS, whose column `group`
    indexes `groups`. `steps` are ranges (first, last) of the steps whose chosen collectives are all in it. The times
    are off by up to `wall_error_ns`, since torch writes them by the wall clock.
    """

    groups: GroupNames = ()
    table: Table = Table()
    steps: Annotated[tuple[tuple[int, int], ...], msgspec.Meta(max_length=RANGES_MAX)] = ()
    wall_error_ns: Count = 0


def is_chosen(sequence: int, level: int) -> bool:
    """Return whether the collective with this number is among about one of 2^level, 0 <= level <= 64.

    >>> [number for number in range(1, 40) if is_chosen(number, 3)]
    [5, 13, 18, 26, 34, 39]
    """
    return (sequence * _MULTIPLIER) % (1 << _BITS) < 1 << (_BITS - level)


def choose(enqueues: Collection[Enqueue], chosen_max: int = CHOSEN_MAX) -> list[Enqueue]:
    """Return those of the lowest level at which they are at most `chosen_max`, in their order."""
    chosen = list(enqueues)
    for level in range(1, _BITS + 1):
        if len(chosen) <= chosen_max:
            break
        chosen = [one for one in chosen if is_chosen(one.sequence, level)]
    return chosen[:chosen_max]  # of one number there may be as many as groups


def pack_enqueues(enqueues: Sequence[Enqueue], steps: Sequence[tuple[int, int]], *, wall_error_ns: int = 0) -> Enqueues:
    """Return enqueues as a table."""
    groups = {name: index for index, name in enumerate(sorted({one.group for one in enqueues}))}
    rows = [(one.step, groups[one.group], one.sequence, one.enqueued_host_ns) for one in enqueues]
    return Enqueues(tuple(groups), Table.from_rows(ENQUEUE_COLUMNS, rows), tuple(steps), wall_error_ns)
