"""When the numbered messages of a peer are acknowledged. Pure: the time is an argument.

An acknowledgement says "everything up to this number", so one does for many. One for each would cost the collector half
as much as the report itself, and wake the agent in the midst of training once more a second. So a peer gets one for
every REPORTS_MAX messages, or when the oldest of them has waited for AGE_INTERVALS of its reports or AGE_NS_MAX.
"""

import heapq
from typing import Final

from rankscope.measure.units import NS_PER_MS

REPORTS_MAX: Final = 8
"""Of the 64 that an agent sends ahead of their acknowledgement, so that a backlog never waits for one."""

AGE_INTERVALS: Final = 8
AGE_NS_MAX: Final = 8_000 * NS_PER_MS
"""An agent asks where the collector stands after 10 s without an acknowledgement. At a report a second this is one for
eight reports, and 2 s are left for the way."""


class Acknowledgements:
    """What is to be acknowledged to whom. `wake_ns` is when `take_due` has something without another `note`."""

    def __init__(self) -> None:
        self._through: dict[bytes, tuple[int, int]] = {}
        """By peer: the number up to which, and how many messages that acknowledges."""
        self._ages: list[tuple[int, bytes]] = []
        """When each peer's is due at the latest, a heap; an entry may have been overtaken."""
        self._now: dict[bytes, int] = {}

    def note(self, peer: bytes, through: int, count: int, now_ns: int, *, interval_ns: int) -> None:
        """So many more messages of that peer have been taken in, or were known: all up to `through` are. It makes one
        each `interval_ns`; 0 acknowledges them at once.
        """
        _, waiting = self._through.get(peer, (0, 0))
        if not interval_ns or waiting + count >= REPORTS_MAX:
            self._through.pop(peer, None)
            self._now[peer] = through
            return
        if not waiting:
            heapq.heappush(self._ages, (now_ns + min(AGE_INTERVALS * interval_ns, AGE_NS_MAX), peer))
        self._through[peer] = through, waiting + count

    def take_due(self, now_ns: int) -> dict[bytes, int]:
        """By peer the number to acknowledge now."""
        due, self._now = self._now, {}
        while self._ages and self._ages[0][0] <= now_ns:
            _, peer = heapq.heappop(self._ages)
            found = self._through.pop(peer, None)
            if found is not None:
                due[peer] = found[0]
        return due

    @property
    def wake_ns(self) -> int | None:
        """When something is due at the latest; None while nothing waits."""
        return self._ages[0][0] if self._ages else None
