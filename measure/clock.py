"""The clock as an argument, so that a test or a simulation can drive it."""

import time
from collections.abc import Callable
from typing import Final, Protocol

from rankscope.measure.units import NS_PER_US, HostNs, WallNs


class Clock(Protocol):
    """Source of time, passed in so that tests and the simulation can drive it."""

    def monotonic_ns(self) -> HostNs:
        """Return this machine's monotonic clock, which never goes back."""
        ...

    def wall_ns(self) -> WallNs:
        """Return this machine's wall clock since 1970, which may jump."""
        ...


class SystemClock:
    """The machine's own clocks. On Linux all processes of a machine read the same monotonic clock."""

    def monotonic_ns(self) -> HostNs:
        """Read CLOCK_MONOTONIC."""
        return HostNs(time.monotonic_ns())

    def wall_ns(self) -> WallNs:
        """Read the wall clock."""
        return WallNs(time.time_ns())


OFFSET_READINGS: Final = 5
OFFSET_ERROR_NS: Final = 10 * NS_PER_US
"""Error at which no further reading is made: two of the clocks take under 1 us where nothing comes between them."""


def read_wall_minus_host_ns(
    read_wall_ns: Callable[[], int] = time.time_ns, read_host_ns: Callable[[], int] = time.monotonic_ns
) -> int:
    """Return by how much the wall clock is ahead of the host clock.

    A thread that loses its core between the two readings would be wrong by all that time. So the wall clock is read
    between two readings of the host clock, up to OFFSET_READINGS times, and the closest pair counts: its error is half
    of its distance at most.

    >>> host_ns = iter([100, 9_000_100, 9_000_200, 9_000_300])  # 9 ms passed within the first pair
    >>> wall_ns = iter([5_000_000_000, 5_009_000_150])
    >>> read_wall_minus_host_ns(lambda: next(wall_ns), lambda: next(host_ns))
    4999999900
    """
    best_ns, offset_ns = None, 0
    for _ in range(OFFSET_READINGS):
        before_ns, wall_ns = read_host_ns(), read_wall_ns()
        distance_ns = read_host_ns() - before_ns
        if best_ns is None or distance_ns < best_ns:
            best_ns, offset_ns = distance_ns, wall_ns - before_ns - distance_ns // 2
        if best_ns <= 2 * OFFSET_ERROR_NS:
            break
    return offset_ns
