"""Find how much the counters of each machine have grown since a step. Pure.

Counters come as their machine counts them, so they may begin again at 0: a card was reset, a driver loaded, a number of
32 bits wrapped. What was counted between the last sample and that is not known. So a growth is the least that it was.
Times never begin again while the machine runs, so one that has become smaller is not known, nor one that has grown by
more than the time that has passed.

Of the samples only the first since the step and the last are read: a run of 16,384 ranks has those of 2,048 machines,
and a verdict needs a few of them.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from rankscope.measure.records import NodeSample
from rankscope.measure.units import NS_PER_S

T = TypeVar("T")

BEGUN_AGAIN_RATIO_MAX: Final = 0.1
"""Share of its last value up to which a smaller value is that of a counter that has begun again. Another decrease is a
reading that was wrong, or corrected: the counter would have to have counted as much anew between two samples."""
LATE_NS_MAX: Final = NS_PER_S
"""A sample is read within this time after its `host_ns`."""


class NodeCounts(NamedTuple):
    """A sample of a machine after `steps` steps of the rank that read it."""

    steps: int
    sample: NodeSample


class SampledStretch(NamedTuple):
    """Two samples of one machine, and the steps between them, at least one."""

    first: NodeSample
    last: NodeSample
    steps: int


class Machines:
    """The machines of a run in one detection pass: `nodes` is each rank's machine, `counts` the samples of each machine
    by its name, oldest first. Those without any are missing.
    """

    def __init__(self, nodes: Mapping[int, str], counts: Mapping[str, Sequence[NodeCounts]]) -> None:
        self.nodes = nodes
        self.counts = counts
        self._ranks: dict[str, list[int]] = {}
        for rank, node in nodes.items():
            self._ranks.setdefault(node, []).append(rank)
        self._stretches: dict[tuple[str, int], SampledStretch | None] = {}

    def ranks_on(self, node: str) -> Sequence[int]:
        """Return all ranks of a machine."""
        return self._ranks.get(node, ())

    def find_stretch(self, node: str, from_step: int) -> SampledStretch | None:
        """Return `find_stretch` of a machine; several findings of a pass ask for the same."""
        key = node, from_step
        if key not in self._stretches:
            self._stretches[key] = find_stretch(self.counts.get(node, ()), from_step)
        return self._stretches[key]


def find_machines(nodes: Mapping[int, str], read: Mapping[int, Sequence[NodeCounts]]) -> Machines:
    """Return the machines with their samples; of several ranks that have read one the lowest one's. `nodes` is each
    rank's machine, `read` what each rank has read.
    """
    found: dict[str, Sequence[NodeCounts]] = {}
    for rank in sorted(read):
        if read[rank] and rank in nodes:
            found.setdefault(nodes[rank], read[rank])
    return Machines(nodes, found)


def find_stretch(counts: Sequence[NodeCounts], from_step: int) -> SampledStretch | None:
    """Return the first sample from that step on and the last; None where they are not of two steps."""
    first = next((one for one in counts if one.steps >= from_step), None)
    if first is None or counts[-1].steps <= first.steps:
        return None
    return SampledStretch(first.sample, counts[-1].sample, counts[-1].steps - first.steps)


def find_stretch_before(counts: Sequence[NodeCounts], until_step: int) -> SampledStretch | None:
    """Return the first sample and the last up to that step; None where they are not of two steps."""
    before = [one for one in counts if one.steps <= until_step]
    if not before or before[-1].steps <= before[0].steps:
        return None
    return SampledStretch(before[0].sample, before[-1].sample, before[-1].steps - before[0].steps)


def find_growth(first: int | None, last: int | None) -> int | None:
    """Return by how much a counter has grown at least; None where one of its values is missing, or it has become
    smaller without having begun again (BEGUN_AGAIN_RATIO_MAX).

    >>> find_growth(5, 9), find_growth(90, 2), find_growth(90, 80), find_growth(None, 9)
    (4, 2, None, None)
    """
    if first is None or last is None:
        return None
    if last >= first:
        return last - first
    return last if last <= BEGUN_AGAIN_RATIO_MAX * first else None


def find_time_growth(first_ns: int | None, last_ns: int | None, elapsed_ns: int) -> int | None:
    """Return by how much a time in ns has grown within `elapsed_ns`; None where one of its values is missing, it has
    become smaller, or has grown by more than can have passed.

    >>> find_time_growth(5, 9, 10), find_time_growth(9, 5, 10), find_time_growth(0, 2 * NS_PER_S, 10)
    (4, None, None)
    """
    if first_ns is None or last_ns is None:
        return None
    growth_ns = last_ns - first_ns
    return growth_ns if 0 <= growth_ns <= elapsed_ns + LATE_NS_MAX else None


def spread(items: Sequence[T], most: int) -> Sequence[T]:
    """Return at most so many of the items, evenly spread.

    >>> spread("abcdefgh", 4), spread("abc", 4)
    (['a', 'c', 'e', 'g'], 'abc')
    """
    return items if len(items) <= most else [items[place * len(items) // most] for place in range(most)]
