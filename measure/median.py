"""The median of a few numbers, for processes in which importing `statistics` would take 20 ms."""

from collections.abc import Iterable


def find_median(values: Iterable[float]) -> float:
    """Return the median of at least one value.

    >>> find_median([3, 1, 2]), find_median([4, 1, 2, 3])
    (2, 2.5)
    """
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
