"""Decide when the numbered messages of a peer are acknowledged. Pure: the time is an argument.

An acknowledgement covers every message up to its number. One for each report would cost the collector half as much as
the report itself, and wake the agent once more a second during training. So a peer gets one for every REPORTS_MAX
messages, or when the oldest of them has waited for AGE_INTERVALS of its reports or AGE_NS_MAX.
"""

import heapq
from typing import Final, NamedTuple

from rankscope.measure.units import NS_PER_MS

REPORTS_MAX: Final = 8
"""Messages after which an acknowledgement is sent at once. An agent may have 64 unacknowledged messages, so one with a
backlog never has to wait."""

AGE_INTERVALS: Final = 8
AGE_NS_MAX: Final = 8_000 * NS_PER_MS
"""An agent sends a Hello again after 10 s without an acknowledgement. At a report a second this is one acknowledgement
for eight reports, and 2 s are left for its delivery."""


class _Waiting(NamedTuple):
    """The next acknowledgement of a peer: up to which number, for how many messages, and when at the latest."""

    through: int
    messages: int
    due_ns: int


class Acknowledgements:
    """Pending acknowledgements by peer. From `wake_ns` on, `pop_due` may return some without another `note`."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, _Waiting] = {}
        self._ages: list[tuple[int, bytes]] = []
        """Heap of the latest time for each peer. The entry of one acknowledged earlier stays until then, without
        effect.
        """
        self._now: dict[bytes, int] = {}

    def note(self, peer: bytes, through: int, now_ns: int, *, interval_ns: int) -> None:
        """Note one more processed message or duplicate of a peer: all up to `through` are processed.

        The peer sends a report each `interval_ns`; 0 acknowledges at once.
        """
        waiting = self._waiting.get(peer)
        messages = 1 if waiting is None else waiting.messages + 1
        if not interval_ns or messages >= REPORTS_MAX or peer in self._now:  # one that is sent anyway covers all
            self._waiting.pop(peer, None)
            self._now[peer] = through
        elif waiting is None:
            due_ns = now_ns + min(AGE_INTERVALS * interval_ns, AGE_NS_MAX)
            heapq.heappush(self._ages, (due_ns, peer))
            self._waiting[peer] = _Waiting(through, messages, due_ns)
        else:
            self._waiting[peer] = _Waiting(through, messages, waiting.due_ns)

    def forget(self, peer: bytes) -> None:
        """Acknowledge nothing to this peer until another message of it is noted."""
        self._waiting.pop(peer, None)
        self._now.pop(peer, None)

    def pop_due(self, now_ns: int) -> dict[bytes, int]:
        """Return the numbers to acknowledge now, by peer, and remove them."""
        due, self._now = self._now, {}
        while self._ages and self._ages[0][0] <= now_ns:
            due_ns, peer = heapq.heappop(self._ages)
            waiting = self._waiting.get(peer)
            if waiting is not None and waiting.due_ns <= due_ns:
                due[peer] = self._waiting.pop(peer).through
        return due

    @property
    def wake_ns(self) -> int | None:
        """The next time at which a waiting acknowledgement may be due; None while none waits for its time."""
        return self._ages[0][0] if self._ages else None
