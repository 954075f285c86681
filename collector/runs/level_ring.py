"""Keep how the memory of a process has changed since its begin, in at most 32 blocks of time. Pure.

A block has the least memory that any of its samples had: what comes and goes within a block, such as batches and caches
that are emptied, leaves no trace. Where there is no room for another block, each two neighbors become one, twice as
long: so the whole history is kept, for minutes in blocks of five seconds, for days in blocks of hours.
"""

from array import array
from typing import Final

from rankscope.collector.detect.view import MemoryLevel
from rankscope.collector.invariants import require
from rankscope.measure.units import NS_PER_S

BLOCKS_MAX: Final = 32
"""Three numbers of 8 bytes each: 0.8 KB a rank."""
FIELDS: Final = 3
FIRST_SPAN_NS: Final = 5 * NS_PER_S
"""Two or three samples of an agent."""


class LevelRing:
    """The levels of one process. Samples come in the order of time; one that is earlier than the last is ignored."""

    def __init__(self) -> None:
        #: Length of each block, in ns; doubles.
        self.span_ns = FIRST_SPAN_NS
        #: Steps so far, host ns and least bytes of each block, alternately. The last block is still open.
        self._numbers = array("q")

    def append(self, steps: int, host_ns: int, held_bytes: int) -> None:
        """Add a sample of the process after `steps` steps."""
        numbers = self._numbers
        if numbers and host_ns < numbers[-2]:
            return
        if numbers and host_ns - numbers[-2] < self.span_ns:
            numbers[-1] = min(numbers[-1], held_bytes)
            return
        if len(numbers) == FIELDS * BLOCKS_MAX:
            self._merge()
        numbers = self._numbers
        if numbers and host_ns - numbers[-2] < self.span_ns:
            numbers[-1] = min(numbers[-1], held_bytes)
        else:
            numbers.extend((steps, host_ns, held_bytes))

    def _merge(self) -> None:
        """Make one block of each two; the first of the two says when it began."""
        numbers, merged = self._numbers, array("q")
        for place in range(0, len(numbers), 2 * FIELDS):
            steps, host_ns, held_bytes = numbers[place : place + FIELDS]
            merged.extend((steps, host_ns, min(held_bytes, numbers[place + 5])))
        self._numbers = merged
        self.span_ns *= 2

    @property
    def rise_bytes(self) -> int:
        """By how much the last complete block is above that after the first third; 0 where there is none."""
        blocks = len(self._numbers) // FIELDS - 1
        if blocks < 1:
            return 0
        return self._numbers[FIELDS * blocks - 1] - self._numbers[FIELDS * (blocks // 3) + 2]

    def read(self) -> tuple[MemoryLevel, ...]:
        """Return the complete blocks, oldest first."""
        numbers = self._numbers.tolist()[:-FIELDS]
        return tuple(MemoryLevel(*numbers[place : place + FIELDS]) for place in range(0, len(numbers), FIELDS))

    def validate(self) -> None:
        """Raise InvariantError where an invariant does not hold; tests call it after events."""
        begins_ns = self._numbers[1::FIELDS].tolist()
        require(len(begins_ns) <= BLOCKS_MAX, "too many levels of memory are kept")
        require(begins_ns == sorted(set(begins_ns)), "levels of memory are out of order")
