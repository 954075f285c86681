"""When the numbered messages of a peer are acknowledged. Pure: the time is an argument.

An acknowledgement says "everything up to this number", so one does for many. One for each would cost the collector half
as much as the report itself, and wake the agent in the midst of training once more a second. So a peer gets one for
every REPORTS_MAX messages, or when the oldest of them has waited for AGE_INTERVALS of its reports or AGE_NS_MAX.
"""

import heapq
from typing import Final, NamedTuple

from rankscope.measure.units import NS_PER_MS

REPORTS_MAX: Final = 8
"""Of the 64 that an agent sends ahead of their acknowledgement, so that a backlog never waits for one."""

AGE_INTERVALS: Final = 8
AGE_NS_MAX: Final = 8_000 * NS_PER_MS
"""An agent asks where the collector stands after 10 s without an acknowledgement. At a report a second this is one for
eight reports, and 2 s are left for the way."""


class _Waiting(NamedTuple):
    """What a peer's next acknowledgement is to say: the number up to which, of how many messages, and when at the
    latest.
    """

    through: int
    messages: int
    due_ns: int


class Acknowledgements:
    """What is to be acknowledged to whom. `wake_ns` is when `pop_due` has something without another `note`."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, _Waiting] = {}
        self._ages: list[tuple[int, bytes]] = []
        """When each peer's is due at the latest, a heap. Of one that was acknowledged before, the entry stays until its
        time has come, and says nothing then.
        """
        self._now: dict[bytes, int] = {}

    def note(self, peer: bytes, through: int, now_ns: int, *, interval_ns: int) -> None:
        """One more message of that peer has been taken in, or was known: all up to `through` are. It makes one each
        `interval_ns`; 0 acknowledges them at once.
        """
        waiting = self._waiting.get(peer)
        messages = 1 if waiting is None else waiting.messages + 1
        if not interval_ns or messages >= REPORTS_MAX or peer in self._now:  # what goes out anyway says all
            self._waiting.pop(peer, None)
            self._now[peer] = through
        elif waiting is None:
            due_ns = now_ns + min(AGE_INTERVALS * interval_ns, AGE_NS_MAX)
            heapq.heappush(self._ages, (due_ns, peer))
            self._waiting[peer] = _Waiting(through, messages, due_ns)
        else:
            self._waiting[peer] = _Waiting(through, messages, waiting.due_ns)

    def forget(self, peer: bytes) -> None:
        """Acknowledge nothing to this peer until something new of it is noted."""
        self._waiting.pop(peer, None)
        self._now.pop(peer, None)

    def pop_due(self, now_ns: int) -> dict[bytes, int]:
        """By peer the number to acknowledge now."""
        due, self._now = self._now, {}
        while self._ages and self._ages[0][0] <= now_ns:
            due_ns, peer = heapq.heappop(self._ages)
            waiting = self._waiting.get(peer)
            if waiting is not None and waiting.due_ns <= due_ns:
                due[peer] = self._waiting.pop(peer).through
        return due

    @property
    def wake_ns(self) -> int | None:
        """When something may be due at the latest; None while nothing waits."""
        return self._ages[0][0] if self._ages else None
