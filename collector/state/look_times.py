"""When detection looks at the runs. Pure: the time is an argument.

A look at 16,384 ranks takes 0.3 to 0.9 s, in which the state of the runs stands still: what comes meanwhile waits, and
so does whoever wants a picture; and a page that is being written is written half as fast. So one that is due is put off
for a while when a page is being written, and for longer when a picture is about to be ordered. Seen at that size: each
look made one of the pages older by a whole scrape.
"""

from typing import Final

from rankscope.collector.state.pace import Pace
from rankscope.measure.units import NS_PER_S

WRITING_NS_MAX: Final = NS_PER_S
"""Where pages follow each other so soon that there is no gap a look comes right after a picture, and its page waits."""
PUT_OFF_NS_MAX: Final = 4 * NS_PER_S
"""Where even pictures do it comes at any time."""


class LookTimes:
    """Looks take no more than `share` of a core; `period_ns` is the time between two chances."""

    def __init__(self, share: float, period_ns: int) -> None:
        self._pace = Pace(share, period_ns)
        self._lasted_ns = 0
        self._put_off_ns: int | None = None

    def decide(self, now_ns: int, *, is_writing: bool, order_ns: int | None) -> bool:
        """Decide whether to look now, while a page `is_writing` or not, and the next order is expected at `order_ns`.
        A look that is due and does not come is put off from then on.
        """
        if not self._pace.is_due(now_ns):
            return False
        comes_amid = order_ns is not None and 0 <= order_ns - now_ns < self._lasted_ns
        if not is_writing and not comes_amid:
            return True
        if self._put_off_ns is None:
            self._put_off_ns = now_ns
        return now_ns - self._put_off_ns >= (PUT_OFF_NS_MAX if comes_amid else WRITING_NS_MAX)

    @property
    def is_put_off(self) -> bool:
        """Whether one has been due and did not come: it need not wait for the next chance."""
        return self._put_off_ns is not None

    def take(self, began_ns: int, ended_ns: int, cpu_ns: int) -> None:
        """There was a look from then to then, and it has used so much of a core."""
        self._pace.take(began_ns, cpu_ns)
        self._lasted_ns = ended_ns - began_ns
        self._put_off_ns = None
