"""Log the orders of captures that are refused: who asked, for what, and why.

Whoever reaches the port may send orders without end, with no token or a wrong one. So of each status there are at most
LINES_MAX lines a minute, and the first line of a later minute says how many were left out.
"""

import logging
import threading
from typing import Final

from rankscope.measure.clock import Clock
from rankscope.measure.text import to_line
from rankscope.measure.units import NS_PER_S

LOG = logging.getLogger("rankscope.collector")

MINUTE_NS: Final = 60 * NS_PER_S
LINES_MAX: Final = 5
TARGET_LENGTH_MAX: Final = 200
REASON_LENGTH_MAX: Final = 500


class RefusedOrders:
    """Lines of the log about refused orders, limited in rate. Any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._minutes: dict[int, tuple[int, int]] = {}
        """By status: when its minute began, and the orders refused since. Statuses are our own, and few."""

    def note(self, target: str, asked_by: str, status: int, reason: str) -> None:
        """Log that an order to the path `target`, sent from the address `asked_by`, was answered with this status."""
        unlogged = self._count(status)
        if unlogged is None:
            return
        others = f"; {unlogged} more with this status were not logged" if unlogged else ""
        target, reason = to_line(target, TARGET_LENGTH_MAX), to_line(reason, REASON_LENGTH_MAX)
        LOG.warning("refused POST %s by %s (%d): %s%s", target, asked_by, status, reason, others)

    def _count(self, status: int) -> int | None:
        """Return how many were not logged in the last minute if this one is to be logged, else None."""
        now_ns = self._clock.monotonic_ns()
        with self._lock:
            began_ns, count = self._minutes.get(status, (now_ns, 0))
            before = 0
            if now_ns - began_ns >= MINUTE_NS:
                began_ns, count, before = now_ns, 0, max(0, count - LINES_MAX)
            self._minutes[status] = began_ns, count + 1
            return before if count < LINES_MAX else None
