"""Who encloses whom among ranges of threads, for millions of ranges at once.

On one thread ranges nest: the one that encloses a range is the nearest before it (by start, at one start the longest
first) that ends no earlier. That is the "previous greater element" of the ends, found for all of them together by
jumping along the pointers found so far: everything between a range and its pointer ends before the range does, so when
the pointer is too short as well, what lies between the pointer and *its* pointer can be skipped. Siblings halve the way
in each round, so the rounds are few (about log2 of the longest row of siblings, per level).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

OUTSIDE = -1
"""No range encloses it."""


@dataclass(frozen=True, slots=True)
class Nesting:
    """Ranges with their parents, all indices into the columns given to `nest`.

    `order` sorts them by thread, start and length (the longest first); `parent` and `depth` are by index, OUTSIDE and 0
    for a range that no other encloses.
    """

    thread: npt.NDArray[np.int32]
    start_ns: Ints
    end_ns: Ints
    order: Ints
    parent: Ints
    depth: npt.NDArray[np.int32]

    def find_innermost(self, thread: npt.NDArray[np.int32], time_ns: Ints) -> Ints:
        """For each moment of a thread the index of the innermost range that is open then, else OUTSIDE.

        A range is open from its start to before its end.
        """
        if len(self.order) == 0 or len(time_ns) == 0:
            return np.full(len(time_ns), OUTSIDE, dtype=np.int64)
        found = self._last_started(thread, time_ns)
        while True:
            ended = (found != OUTSIDE) & (self.end_ns[found] <= time_ns)
            if not ended.any():
                return found
            found[ended] = self.parent[found[ended]]

    def sum_up(self, values: Ints) -> Ints:
        """For each range its own value and those of everything inside it."""
        total = values.astype(np.int64, copy=True)
        for level in range(int(self.depth.max(initial=0)), 0, -1):
            rows = np.flatnonzero(self.depth == level)
            np.add.at(total, self.parent[rows], total[rows])
        return total

    def self_ns(self) -> Ints:
        """The length of each range less that of the ranges directly inside it."""
        length = self.end_ns - self.start_ns
        inner = np.flatnonzero(self.parent != OUTSIDE)
        own = length.copy()
        np.subtract.at(own, self.parent[inner], length[inner])
        return own

    def _last_started(self, thread: npt.NDArray[np.int32], time_ns: Ints) -> Ints:
        """The last range of the thread that has started by then."""
        count = len(self.order)
        # Ranges and moments sorted together: ranges first where they start at the very moment.
        threads = np.concatenate([self.thread[self.order], thread])
        times = np.concatenate([self.start_ns[self.order], time_ns])
        is_moment = np.concatenate([np.zeros(count, dtype=np.int8), np.ones(len(time_ns), dtype=np.int8)])
        merged = np.lexsort((is_moment, times, threads))
        started = np.cumsum(is_moment[merged] == 0) - 1
        moments = merged[is_moment[merged] == 1] - count
        found = np.full(len(time_ns), OUTSIDE, dtype=np.int64)
        position = started[is_moment[merged] == 1]
        ranges = self.order[np.maximum(position, 0)]
        same = (position >= 0) & (self.thread[ranges] == thread[moments])
        found[moments] = np.where(same, ranges, OUTSIDE)
        return found


def nest(thread: npt.NDArray[np.int32], start_ns: Ints, end_ns: Ints) -> Nesting:
    """Find who encloses whom. Columns of equal length, in any order; ends not before starts.

    >>> found = nest(np.zeros(4, np.int32), np.array([0, 1, 5, 9]), np.array([8, 3, 8, 12]))
    >>> found.parent.tolist(), found.depth.tolist(), found.self_ns().tolist()
    ([-1, 0, 0, -1], [0, 1, 1, 0], [3, 2, 3, 3])
    """
    order = np.lexsort((-end_ns, start_ns, thread)).astype(np.int64)
    pointer = _previous_reaching(thread[order], end_ns[order])
    parent = np.full(len(order), OUTSIDE, dtype=np.int64)
    parent[order] = np.where(pointer == OUTSIDE, OUTSIDE, order[pointer])
    return Nesting(thread, start_ns, end_ns, order, parent, _depths(parent))


def _previous_reaching(thread: npt.NDArray[np.int32], end_ns: Ints) -> Ints:
    """For each position the nearest before it, on the same thread, that ends no earlier."""
    pointer = np.arange(-1, len(end_ns) - 1, dtype=np.int64)
    open_rows = np.arange(len(end_ns))
    while len(open_rows):
        target = pointer[open_rows]
        other = (target != OUTSIDE) & (thread[target] != thread[open_rows])
        pointer[open_rows[other]] = OUTSIDE
        short = (target != OUTSIDE) & ~other & (end_ns[target] < end_ns[open_rows])
        open_rows = open_rows[short]
        pointer[open_rows] = pointer[pointer[open_rows]]
    return pointer


def _depths(parent: Ints) -> npt.NDArray[np.int32]:
    depth = np.zeros(len(parent), dtype=np.int32)
    rows = np.flatnonzero(parent != OUTSIDE)
    above = parent[rows]
    while len(rows):
        depth[rows] += 1
        above = parent[above]
        inside = above != OUTSIDE
        rows, above = rows[inside], above[inside]
    return depth
