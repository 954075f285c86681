"""Find which ranges of threads enclose which, for millions of ranges at once.

On one thread ranges nest: the parent of a range is the nearest one before it (by start; at equal starts the longest
first) that ends no earlier. That is the "previous greater element" of the ends, found for all ranges together by
jumping along the pointers found so far: everything between a range and its pointer ends before the range does, so if
the pointer ends too early as well, everything between the pointer and *its* pointer can be skipped. Siblings halve the
distance in each round, so there are few rounds (about log2 of the longest row of siblings, per level).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Places = npt.NDArray[np.int32]
"""Indices of ranges. There are too many of them for twice the memory."""

OUTSIDE = -1
"""Index that stands for "no enclosing range"."""


@dataclass(frozen=True, slots=True)
class Nesting:
    """Ranges with their parents, all indices into the columns given to `nest`.

    `order` sorts them by thread, start and length (the longest first); `parent` and `depth` are by index, OUTSIDE and 0
    for a range that no other encloses.
    """

    thread: npt.NDArray[np.int32]
    start_ns: Ints
    end_ns: Ints
    order: Places
    parent: Places
    depth: npt.NDArray[np.int32]

    def find_innermost(self, thread: npt.NDArray[np.int32], time_ns: Ints) -> Ints:
        """Return for each time on a thread the index of the innermost range that is open then, else OUTSIDE.

        A range is open from its start (included) to its end (excluded).
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
        """Return for each range the sum of its own value and those of all ranges inside it."""
        total = values.astype(np.int64, copy=True)
        for rows in reversed(self.levels()[1:]):
            np.add.at(total, self.parent[rows], total[rows])
        return total

    def levels(self) -> list[Ints]:
        """Return the ranges of each depth, the outermost first: each is looked at once, however deep they are."""
        by_depth = np.argsort(self.depth, kind="stable")
        return np.split(by_depth, np.cumsum(np.bincount(self.depth))[:-1]) if len(by_depth) else []

    def self_ns(self) -> Ints:
        """Return the length of each range less that of the ranges directly inside it."""
        own = self.end_ns - self.start_ns
        inside = np.zeros(len(own) + 1, dtype=np.int64)
        np.add.at(inside, self.parent, own)  # of the outermost at the last place, OUTSIDE
        own -= inside[:-1]
        return own

    def _last_started(self, thread: npt.NDArray[np.int32], time_ns: Ints) -> Ints:
        """Return the last range of the thread that has started by then, by halving the ranges that may be it."""
        threads = self.thread[self.order]
        first, low, high = (np.searchsorted(threads, thread, side) for side in ("left", "left", "right"))
        while (undecided := low < high).any():
            middle = np.where(undecided, (low + high) // 2, 0)
            started = undecided & (self.start_ns[self.order[middle]] <= time_ns)
            low = np.where(started, middle + 1, low)
            high = np.where(undecided & ~started, middle, high)
        return np.where(low > first, self.order[low - 1].astype(np.int64), OUTSIDE)


def nest(thread: npt.NDArray[np.int32], start_ns: Ints, end_ns: Ints) -> Nesting:
    """Find the parent and depth of each range. Columns of equal length, in any order; ends not before starts.

    >>> found = nest(np.zeros(4, np.int32), np.array([0, 1, 5, 9]), np.array([8, 3, 8, 12]))
    >>> found.parent.tolist(), found.depth.tolist(), found.self_ns().tolist()
    ([-1, 0, 0, -1], [0, 1, 1, 0], [3, 2, 3, 3])
    """
    order = np.lexsort((-end_ns, start_ns, thread)).astype(np.int32)
    pointer = _previous_reaching(thread[order], end_ns[order])
    parent = np.full(len(order), OUTSIDE, dtype=np.int32)
    inside = pointer != OUTSIDE
    parent[order[inside]] = order[pointer[inside]]
    return Nesting(thread, start_ns, end_ns, order, parent, _depths(parent))


def _previous_reaching(thread: npt.NDArray[np.int32], end_ns: Ints) -> Places:
    """Return for each position the nearest one before it, on the same thread, that ends no earlier."""
    pointer = np.arange(-1, len(end_ns) - 1, dtype=np.int32)
    open_rows = np.arange(len(end_ns), dtype=np.int32)
    while len(open_rows):
        target = pointer[open_rows]
        other = (target != OUTSIDE) & (thread[target] != thread[open_rows])
        pointer[open_rows[other]] = OUTSIDE
        short = (target != OUTSIDE) & ~other & (end_ns[target] < end_ns[open_rows])
        open_rows = open_rows[short]
        pointer[open_rows] = pointer[pointer[open_rows]]
    return pointer


def _depths(parent: Places) -> npt.NDArray[np.int32]:
    """Return how many ranges each is in. Each round looks twice as far up: thousands of levels are a dozen rounds."""
    depth: npt.NDArray[np.int32] = (parent != OUTSIDE).astype(np.int32)
    above = parent.copy()
    rows = np.flatnonzero(above != OUTSIDE)
    while len(rows):
        further = above[rows]
        depth[rows] += depth[further]
        above[rows] = above[further]
        rows = rows[above[rows] != OUTSIDE]
    return depth
