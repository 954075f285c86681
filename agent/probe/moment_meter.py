"""What the hooks cost the training thread, measured in place: every TIMED_EVERY-th moment times itself.

A bare loop would say 2 us; amid training, where torch has pushed our code out of the caches, it is four times that
(`tests/benchmarks/results/moments.md`) and differs between machines and loops, so no constant is right. A moment reads
the clock anyway; timing it costs one more read, at its end.
"""

from collections import deque
from typing import Final

TIMED_EVERY: Final = 17
"""A prime: the moments of a step take turns (a step has 6 or 8), whereas every 16th would always be the same two."""
TIMED_KEPT: Final = 64
LONGEST_NS: Final = 100_000
"""A longer moment is not counted: in it a window began or ended, which is counted for itself, or the thread lost its
core. The longest of a hundred others took 25,000 ns."""
UNSEEN_TIMES: Final = 2
"""A moment sees half of what it costs: not the calls before it reads the clock first, nor that torch finds its own code
out of the caches afterwards. Loops with and without hooks cost 1.9 times what the moments saw when bare (1,840 ns to
1,000), and 1.9 to 2.4 times in a training (8,300 to 10,500 ns to 4,400; `tests/benchmarks/moments.py`)."""
ASSUMED_NS: Final = 8_500
"""Before the first was timed."""


class MomentMeter:
    """Turns some timed moments into the cost of all. `note` is called by the training thread, `spent_ns` by another.

    >>> meter = MomentMeter()
    >>> meter.spent_ns(10) == 10 * ASSUMED_NS
    True
    >>> meter.note(4_500)
    >>> meter.spent_ns(20) - meter.spent_ns(20), meter.moment_ns
    (0, 9000)
    """

    def __init__(self) -> None:
        self._timed_ns: deque[int] = deque(maxlen=TIMED_KEPT)
        self._counted = 0
        self._spent_ns = 0

    def note(self, duration_ns: int) -> None:
        """One moment timed itself."""
        if duration_ns <= LONGEST_NS:
            self._timed_ns.append(duration_ns)

    def spent_ns(self, moments: int) -> int:
        """The cost of all `moments` so far, each at the mean of the moments timed when it was first asked about."""
        self._spent_ns += max(0, moments - self._counted) * self.moment_ns
        self._counted = moments
        return self._spent_ns

    @property
    def moment_ns(self) -> int:
        """The mean cost of one of the last moments."""
        timed_ns = list(self._timed_ns)
        return UNSEEN_TIMES * sum(timed_ns) // len(timed_ns) if timed_ns else ASSUMED_NS
