"""Define when a rank has enqueued some of its collectives, and which ones every rank of a group chooses.

A rank may enqueue thousands of collectives between two reports. Those that it reports are chosen by numbers that all
ranks share, so that the members of a group choose the same ones without asking each other: whole steps, in the order of
a hash of their number, as many as there is room for. Of a step that is too large by itself the collectives are chosen
likewise, by their sequence numbers. Ranks that choose from different steps have those in common that both have, mostly.

A step is chosen as a whole because a host that waits in its collectives is late in the first one after what delays it
only. The hash is multiplication by 2^64 over the golden ratio (Knuth, The Art of Computer Programming, volume 3,
section 6.4): every n-th number would be the same step of a repeating pattern.
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import Annotated, Final, NamedTuple

import msgspec

from rankscope.measure.bounds import GroupNames
from rankscope.measure.identity import Count
from rankscope.measure.table import Table

ENQUEUE_COLUMNS: Final = ("step", "group", "sequence", "enqueued_host_ns")
CHOSEN_MAX: Final = 256
"""Collectives that a rank reports at once: 8 KB."""
CHOSEN_MIN: Final = 16
ALL_CHOSEN_MAX: Final = 2**18
"""Collectives that all ranks report at once: of more than 1,024 ranks each reports fewer."""
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


def find_order(number: int) -> int:
    """Return the place of a number in the order in which all ranks choose.

    >>> sorted(range(10), key=find_order)
    [0, 5, 2, 7, 4, 9, 1, 6, 3, 8]
    """
    return (number * _MULTIPLIER) % (1 << _BITS)


def choose(enqueues: Iterable[Enqueue], chosen_max: int = CHOSEN_MAX) -> list[Enqueue]:
    """Return at most `chosen_max` of these, whose steps ascend, in the order of their steps."""
    by_step = {step: list(of_step) for step, of_step in itertools.groupby(enqueues, key=lambda one: one.step)}
    order = sorted(by_step, key=find_order)
    counts = itertools.accumulate(len(by_step[step]) for step in order)
    chosen = [step for step, count in zip(order, counts, strict=True) if count <= chosen_max]
    if not chosen and order:
        return sorted(by_step[order[0]], key=lambda one: find_order(one.sequence))[:chosen_max]
    return [one for step in sorted(chosen) for one in by_step[step]]


def find_chosen_max(ranks: int) -> int:
    """Return how many collectives each of so many ranks reports at once.

    >>> [find_chosen_max(ranks) for ranks in (2, 1_024, 4_096, 16_384, 100_000)]
    [256, 256, 64, 16, 16]
    """
    return max(CHOSEN_MIN, min(CHOSEN_MAX, ALL_CHOSEN_MAX // max(1, ranks)))


def pack_enqueues(enqueues: Sequence[Enqueue], steps: Sequence[tuple[int, int]], *, wall_error_ns: int = 0) -> Enqueues:
    """Return enqueues as a table."""
    groups = {name: index for index, name in enumerate(sorted({one.group for one in enqueues}))}
    rows = [(one.step, groups[one.group], one.sequence, one.enqueued_host_ns) for one in enqueues]
    return Enqueues(tuple(groups), Table.from_rows(ENQUEUE_COLUMNS, rows), tuple(steps), wall_error_ns)
