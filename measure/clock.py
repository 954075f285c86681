"""The clock as an argument, so that a test or a simulation can drive it."""

import time
from typing import Protocol

from rankscope.measure.units import HostNs, WallNs


class Clock(Protocol):
    """What code that needs the time is given."""

    def monotonic_ns(self) -> HostNs:
        """This machine's monotonic clock, which never goes back."""
        ...

    def wall_ns(self) -> WallNs:
        """This machine's wall clock since 1970, which may jump."""
        ...


class SystemClock:
    """The machine's own clocks. On Linux all processes of a machine read the same monotonic clock."""

    def monotonic_ns(self) -> HostNs:
        """Read CLOCK_MONOTONIC."""
        return HostNs(time.monotonic_ns())

    def wall_ns(self) -> WallNs:
        """Read the wall clock."""
        return WallNs(time.time_ns())
