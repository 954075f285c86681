"""Pictures that large pages need of the moment at which they are begun: ordered by the thread that writes pages, made
by the thread of the state.

A picture of many ranks is not made for nothing, so at ticks there may be none for seconds, and a page would show what
was then. Who orders is told which moment is new enough, and waits as long as it can. It says when its page is written,
and when it is likely to order next, so that nothing long is begun meanwhile or just before.
"""

import math
import threading
from collections.abc import Callable
from typing import Final

from rankscope.collector.pacing import CpuShareLimiter
from rankscope.measure.clock import Clock
from rankscope.measure.units import NS_PER_MS, ns_to_s, s_to_ns

SHARE: Final = 0.3
"""Of a core at most, with what is saved of each: pages of a large run are written seldom. Nine pages of 16,384 ranks in
15 s take 0.05 core. With 0.2 a picture with which all lives of a run were saved, 0.26 s, left the next page without one
of its own."""
NEW_S: Final = 0.3
"""One so old is as good as a new one."""
PATIENCE_NS: Final = 300 * NS_PER_MS
"""So long an order waits for reports that have come already and are not in the state yet: after a look at 16,384 ranks
those of 0.3 to 0.9 s are, and a picture without them is that much older."""


class SnapshotRequests:
    """`wake` ends the wait of the thread that makes pictures."""

    def __init__(self, clock: Clock, wake: Callable[[], None]) -> None:
        self._clock = clock
        self._wake = wake
        self._pace = CpuShareLimiter(SHARE, 0)
        self._is_open = threading.Event()
        self._ordered_ns = 0
        self._made_wall_s = -math.inf
        self._next_ns: int | None = None
        self._is_writing = False

    # -- who writes pages ---------------------------------------------------------------------------------------------

    def order(self) -> float:
        """There is to be a picture of now, unless that would cost too much. Returns from which moment of the wall clock
        on one is new enough: where there is to be none, that of the last one, which may not be in the store yet.
        """
        self._is_writing = True
        from_wall_s = ns_to_s(self._clock.wall_ns()) - NEW_S
        if self._made_wall_s >= from_wall_s or not self._pace.is_due(self._clock.monotonic_ns()):
            return self._made_wall_s
        self._ordered_ns = self._clock.monotonic_ns()
        self._is_open.set()
        self._wake()
        return from_wall_s

    def note_written(self) -> None:
        """The page is written."""
        self._is_writing = False

    def announce(self, after_s: float | None) -> None:
        """The next order is likely to come after so long; None: none is expected."""
        self._next_ns = None if after_s is None else self._clock.monotonic_ns() + s_to_ns(after_s)

    # -- who makes them -----------------------------------------------------------------------------------------------

    @property
    def is_writing(self) -> bool:
        """Whether a page is being written whose picture was ordered."""
        return self._is_writing

    @property
    def next_ns(self) -> int | None:
        """When the next order is likely to come, or was; None: none is expected."""
        return self._next_ns

    def is_open(self, now_ns: int, *, is_behind: bool = False) -> bool:
        """Whether one is to be made now, while the state `is_behind` what has come or not."""
        if not self._is_open.is_set() or not self._pace.is_due(now_ns):
            return False
        return not is_behind or now_ns - self._ordered_ns >= PATIENCE_NS

    def close(self, wall_s: float) -> None:
        """One is made of this moment, whether it was ordered or not."""
        self._made_wall_s = wall_s
        self._is_open.clear()

    def take(self, now_ns: int, took_ns: int) -> None:
        """One that was begun then has taken so long."""
        self._pace.record(now_ns, took_ns)
