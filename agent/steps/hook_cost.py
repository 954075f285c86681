"""Measure what the hooks cost the training thread.

Writing an event costs 0.3 us in a bare loop and several times that during training, where torch has evicted our code
from the caches. The cost differs between machines and loops, so a constant would be wrong: some events time themselves.
Processing events takes longer; the thread's CPU clock is read before and after it.
"""

from collections import deque
from typing import Final

TIMED_EVENTS_MAX: Final = 64
WRITE_NS_MAX: Final = 20_000
"""Longer writes are not counted: the thread lost its core during them."""
WRITE_COST_FACTOR: Final = 3
"""A write sees only a part of its cost: neither the call before it reads the clock, nor that torch finds its own code
out of the caches afterwards. Loops with and without hooks differ by 2.6 times the timed writes
(`tests/benchmarks/moments.py`)."""
PROCESSING_COST_FACTOR: Final = 2
"""Processing events, or reading the clock, costs torch once more the time it takes: 1.2 to 2.1 times the measured time,
by the same comparison."""
EVENT_NS_ASSUMED: Final = 4_000
"""The cost of an event before the first was timed."""


class HookCostMeter:
    """Estimate the cost of all hook events from a few timed ones, and add the time of processing them.

    The training thread records; one other thread reads `spent_ns`.

    >>> meter = HookCostMeter()
    >>> meter.spent_ns(10) == 10 * EVENT_NS_ASSUMED
    True
    >>> meter.record_write(500)
    >>> meter.record_processing(30_000)
    >>> meter.spent_ns(20) - meter.spent_ns(20), meter.event_ns
    (0, 1500)
    """

    def __init__(self) -> None:
        self._timed_ns: deque[int] = deque(maxlen=TIMED_EVENTS_MAX)
        self._counted = 0
        self._written_ns = 0
        self._processed_ns = 0

    def record_write(self, took_ns: int) -> None:
        """Record the time of writing one event."""
        if took_ns <= WRITE_NS_MAX:
            self._timed_ns.append(took_ns)

    def record_processing(self, took_ns: int) -> None:
        """Record the time of processing events, or of reading the CPU clock, on the training thread."""
        self._processed_ns += PROCESSING_COST_FACTOR * max(0, took_ns)

    def spent_ns(self, events: int) -> int:
        """Return the cost of all `events` so far. New ones are counted at the present mean, and keep that cost."""
        self._written_ns += max(0, events - self._counted) * self.event_ns
        self._counted = max(events, self._counted)
        return self._written_ns + self._processed_ns

    @property
    def event_ns(self) -> int:
        """The mean cost of writing one of the last events."""
        timed_ns = list(self._timed_ns)
        return WRITE_COST_FACTOR * sum(timed_ns) // len(timed_ns) if timed_ns else EVENT_NS_ASSUMED
