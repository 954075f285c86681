"""The clock as an argument, so that a test or a simulation can drive it."""

import time
from typing import Protocol

from rankscope.measure.units import HostNs, WallNs


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
