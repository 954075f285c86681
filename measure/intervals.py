"""Compute with sets of time as arrays of half-open intervals: int64, shape (n, 2), columns start and end, in ns.

A *set* here is a result of `union`: sorted by start, disjoint, not touching, no empty interval. The other functions
accept and return sets. Everything is exact in integers and costs O(n log n).
"""

import numpy as np
import numpy.typing as npt

Intervals = npt.NDArray[np.int64]

EMPTY: Intervals = np.empty((0, 2), dtype=np.int64)


def from_starts(starts: npt.ArrayLike, durations: npt.ArrayLike) -> Intervals:
    """Return raw intervals, shape (n, 2), from starts and durations (ns); not yet a set."""
    start = np.asarray(starts, dtype=np.int64)
    return np.stack([start, start + np.asarray(durations, dtype=np.int64)], axis=1)


def union(intervals: Intervals) -> Intervals:
    """Return the set covered by any intervals, in any order; those of zero or negative length cover nothing.

    >>> union(np.array([[5, 9], [0, 3], [2, 4], [4, 5], [7, 7]])).tolist()
    [[0, 9]]
    """
    raw = intervals[intervals[:, 1] > intervals[:, 0]]
    if len(raw) == 0:
        return EMPTY
    raw = raw[np.argsort(raw[:, 0], kind="stable")]
    reached = np.maximum.accumulate(raw[:, 1])
    first = np.concatenate([[True], raw[1:, 0] > reached[:-1]])
    last = np.concatenate([first[1:], [True]])
    return np.stack([raw[first, 0], reached[last]], axis=1)


def intersect(left: Intervals, right: Intervals) -> Intervals:
    """Return the intersection of two sets.

    >>> intersect(np.array([[0, 10], [20, 30]]), np.array([[5, 25]])).tolist()
    [[5, 10], [20, 25]]
    """
    if len(left) == 0 or len(right) == 0:
        return EMPTY
    edges = np.concatenate([left.ravel(), right.ravel()])
    change = np.concatenate([np.tile([1, -1], len(left)), np.tile([1, -1], len(right))])
    # At equal times ends sort before starts, so that touching intervals share nothing.
    order = np.lexsort((change, edges))
    depth = np.cumsum(change[order])
    opens = np.flatnonzero(depth == 2)  # noqa: PLR2004 - one of each set
    return np.stack([edges[order][opens], edges[order][opens + 1]], axis=1)


def subtract(left: Intervals, right: Intervals) -> Intervals:
    """Return the difference of two sets, left minus right.

    >>> subtract(np.array([[0, 10]]), np.array([[2, 3], [8, 20]])).tolist()
    [[0, 2], [3, 8]]
    """
    if len(left) == 0 or len(right) == 0:
        return left
    low = min(int(left[0, 0]), int(right[0, 0]))
    high = max(int(left[-1, 1]), int(right[-1, 1]))
    gaps = np.stack([np.concatenate([[low], right[:, 1]]), np.concatenate([right[:, 0], [high]])], axis=1)
    return intersect(left, gaps[gaps[:, 1] > gaps[:, 0]])


def clip(intervals: Intervals, start_ns: int, end_ns: int) -> Intervals:
    """Return the part of the intervals inside [start_ns, end_ns)."""
    clipped = np.clip(intervals, start_ns, end_ns)
    return clipped[clipped[:, 1] > clipped[:, 0]]


def touching(found: Intervals, start_ns: int, end_ns: int) -> Intervals:
    """Return the intervals of a set that share time with [start_ns, end_ns), unclipped, by binary search.

    >>> touching(np.array([[0, 2], [3, 5], [6, 9]]), 4, 6).tolist()
    [[3, 5]]
    """
    first = np.searchsorted(found[:, 1], start_ns, side="right")
    last = np.searchsorted(found[:, 0], end_ns, side="left")
    return found[first:last]


def total_ns(intervals: Intervals) -> int:
    """Return the length of a set."""
    return int((intervals[:, 1] - intervals[:, 0]).sum())


def contains(found: Intervals, moments_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return for each time whether the set covers it.

    >>> contains(np.array([[2, 5]]), np.array([1, 2, 5])).tolist()
    [False, True, False]
    """
    if len(found) == 0:
        return np.zeros(len(moments_ns), dtype=bool)
    place = np.searchsorted(found[:, 0], moments_ns, side="right") - 1
    covered: npt.NDArray[np.bool_] = (place >= 0) & (moments_ns < found[np.maximum(place, 0), 1])
    return covered


def covered_before(found: Intervals, moments_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return for each time how many ns of the set lie before it.

    >>> covered_before(np.array([[2, 5], [7, 8]]), np.array([1, 3, 9])).tolist()
    [0, 1, 4]
    """
    if len(found) == 0:
        return np.zeros(len(moments_ns), dtype=np.int64)
    before = np.concatenate([[0], np.cumsum(found[:, 1] - found[:, 0])])
    place = np.searchsorted(found[:, 0], moments_ns, side="right")
    beyond = np.where(place > 0, np.maximum(found[place - 1, 1] - moments_ns, 0), 0)
    return before[place] - beyond
