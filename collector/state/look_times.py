"""When detection looks at the runs. Pure: the time is an argument.

A look at 16,384 ranks takes 0.3 to 0.9 s, in which the state of the runs stands still: what comes meanwhile waits, and
so does whoever wants a picture. So one that is due is put off when a picture is about to be ordered, and comes right
after it. Seen at that size: each look made one of the pages older by a whole scrape.
"""

from typing import Final

from rankscope.collector.state.pace import Pace
from rankscope.measure.units import NS_PER_MS

ROOM: Final = 1.5
"""A look may take half as long again as the last one did."""
LATE_NS_MAX: Final = 300 * NS_PER_MS
"""So long after its time an order is waited for no more."""


class LookTimes:
    """Looks take no more than `share` of a core; `period_ns` is the time between two chances."""

    def __init__(self, share: float, period_ns: int) -> None:
        self._pace = Pace(share, period_ns)
        self._lasted_ns = 0
        self._put_off_until_ns: int | None = None

    def is_due(self, now_ns: int, order_ns: int | None) -> bool:
        """Whether to look now, where the next order for a picture is expected at `order_ns`."""
        if not self._pace.is_due(now_ns):
            return False
        if self._put_off_until_ns is None and order_ns is not None and 0 <= order_ns - now_ns < ROOM * self._lasted_ns:
            self._put_off_until_ns = order_ns + LATE_NS_MAX
        return self._put_off_until_ns is None or now_ns >= self._put_off_until_ns

    def note_picture(self, now_ns: int) -> bool:
        """A picture was made to order; whether a look has waited for that, which is due now."""
        if self._put_off_until_ns is None:
            return False
        self._put_off_until_ns = now_ns
        return True

    def take(self, began_ns: int, ended_ns: int, cpu_ns: int) -> None:
        """There was a look from then to then, and it has used so much of a core."""
        self._pace.take(began_ns, cpu_ns)
        self._lasted_ns = ended_ns - began_ns
        self._put_off_until_ns = None
