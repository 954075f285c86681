"""Find how much the counters of each machine have grown since a step. Pure.

Counters come as their machine counts them, so they may begin again at 0: a card was reset, a driver loaded, a number of
32 bits wrapped. What was counted between the last sample and that is not known. So a growth is the least that it was.

Of the samples only the first since the step and the last are read: a run of 16,384 ranks has those of 2,048 machines,
and a verdict needs a few of them.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from rankscope.measure.records import NodeSample

T = TypeVar("T")


class NodeCounts(NamedTuple):
    """A sample of a machine after `steps` steps of the rank that read it."""

    steps: int
    sample: NodeSample


class Machines(NamedTuple):
    """Each rank's machine, and the samples of each machine by its name, oldest first; those without one are missing."""

    nodes: Mapping[int, str]
    counts: Mapping[str, Sequence[NodeCounts]]


class Stretch(NamedTuple):
    """Two samples of one machine, and the steps between them, at least one."""

    first: NodeSample
    last: NodeSample
    steps: int


def find_machines(nodes: Mapping[int, str], read: Mapping[int, Sequence[NodeCounts]]) -> Machines:
    """Return the machines with their samples; of several ranks that have read one the lowest one's. `nodes` is each
    rank's machine, `read` what each rank has read.
    """
    found: dict[str, Sequence[NodeCounts]] = {}
    for rank in sorted(read):
        if read[rank] and rank in nodes:
            found.setdefault(nodes[rank], read[rank])
    return Machines(nodes, found)


def find_stretch(counts: Sequence[NodeCounts], from_step: int) -> Stretch | None:
    """Return the first sample from that step on and the last; None where they are not of two steps."""
    first = next((one for one in counts if one.steps >= from_step), None)
    if first is None or counts[-1].steps <= first.steps:
        return None
    return Stretch(first.sample, counts[-1].sample, counts[-1].steps - first.steps)


def find_growth(first: int | None, last: int | None) -> int | None:
    """Return by how much a counter has grown at least; None where one of its values is missing.

    >>> find_growth(5, 9), find_growth(9, 2), find_growth(None, 9)
    (4, 2, None)
    """
    if first is None or last is None:
        return None
    return last - first if last >= first else last


def spread(items: Sequence[T], most: int) -> Sequence[T]:
    """Return at most so many of the items, evenly spread.

    >>> spread("abcdefgh", 4), spread("abc", 4)
    (['a', 'c', 'e', 'g'], 'abc')
    """
    return items if len(items) <= most else [items[place * len(items) // most] for place in range(most)]
