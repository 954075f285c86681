"""What the hooks cost the training thread, measured in place.

A bare loop would say 0.3 us for a moment that is only written down; amid training, where torch has pushed our code out
of the caches, it is a multiple of that (`tests/benchmarks/results/moments.md`) and differs between machines and loops,
so no constant is right. Going through the moments takes longer, and the thread's CPU clock is read before and after it.
"""

from collections import deque
from typing import Final

TIMED_KEPT: Final = 64
LONGEST_NS: Final = 20_000
"""A moment that seems to take longer to write down is not counted: the thread lost its core in it."""
UNSEEN_TIMES: Final = 3
"""Writing a moment down sees a part of what it costs: not the call before it reads the clock, nor that torch finds its
own code out of the caches afterwards. Loops with and without hooks differ by 2.6 times what the moments saw, bare and
in a training (`tests/benchmarks/moments.py`)."""
AFTERMATH_TIMES: Final = 2
"""As much again as going through the moments, or a look at the clock, takes is what torch loses by it: 1.2 to 2.1 times
what was measured, by the same comparison."""
ASSUMED_NS: Final = 4_000
"""Before the first was timed."""


class HookCostMeter:
    """Turns some timed moments into the cost of all, and adds what going through them took. The training thread notes,
    and another asks what was spent.

    >>> meter = HookCostMeter()
    >>> meter.spent_ns(10) == 10 * ASSUMED_NS
    True
    >>> meter.note_written(500)
    >>> meter.note_gone_through(30_000)
    >>> meter.spent_ns(20) - meter.spent_ns(20), meter.moment_ns
    (0, 1500)
    """

    def __init__(self) -> None:
        self._timed_ns: deque[int] = deque(maxlen=TIMED_KEPT)
        self._counted = 0
        self._written_ns = 0
        self._gone_through_ns = 0

    def note_written(self, seen_ns: int) -> None:
        """One moment has timed itself."""
        if seen_ns <= LONGEST_NS:
            self._timed_ns.append(seen_ns)

    def note_gone_through(self, took_ns: int) -> None:
        """Moments were gone through on the training thread, or the clock was read at one."""
        self._gone_through_ns += AFTERMATH_TIMES * max(0, took_ns)

    def spent_ns(self, moments: int) -> int:
        """The cost of all `moments` so far, each at the mean of the moments timed when it was first asked about."""
        self._written_ns += max(0, moments - self._counted) * self.moment_ns
        self._counted = max(moments, self._counted)
        return self._written_ns + self._gone_through_ns

    @property
    def moment_ns(self) -> int:
        """The mean cost of writing down one of the last moments."""
        timed_ns = list(self._timed_ns)
        return UNSEEN_TIMES * sum(timed_ns) // len(timed_ns) if timed_ns else ASSUMED_NS
