"""Provide a clock that the test moves."""

from typing import Final

from rankscope.measure.units import HostNs, WallNs, s_to_ns

WALL_S: Final = 1_800_000_000
"""Lead of the wall clock."""
START_S: Final = 1_000.0


class DrivenClock:
    """Both clocks, by `now_s`."""

    def __init__(self) -> None:
        self.now_s = START_S

    def monotonic_ns(self) -> HostNs:
        return HostNs(s_to_ns(self.now_s))

    def wall_ns(self) -> WallNs:
        return WallNs(s_to_ns(WALL_S + self.now_s))
