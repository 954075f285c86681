"""Pass entries from the training thread to the agent thread through a bounded buffer that never blocks either."""

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Ring(Generic[T]):
    """A bounded buffer: one thread appends, another drains. When it is full the oldest entry is overwritten and
    counted.

    An entry may hold several steps; all counts are of steps. deque's append and popleft are atomic in CPython, so the
    training thread takes no lock.
    """

    def __init__(self, entries_max: int) -> None:
        self._entries: deque[tuple[int, T]] = deque()
        self._entries_max = entries_max
        self._drained = 0
        self.appended = 0
        """Steps appended so far."""
        self.overwritten = 0
        """Steps overwritten so far."""

    def __len__(self) -> int:
        """Return how many steps are not drained yet."""
        return max(0, self.appended - self.overwritten - self._drained)

    def append(self, entry: T, steps: int = 1) -> None:
        """Add an entry with this number of steps, in place of the oldest when the ring is full."""
        self.appended += steps
        self._entries.append((steps, entry))
        while len(self) > self._entries_max:
            try:
                lost, _ = self._entries.popleft()
            except IndexError:  # the other thread has just drained it
                return
            self.overwritten += lost

    def drain(self) -> list[T]:
        """Remove and return all present entries, oldest first."""
        drained = []
        for _ in range(len(self._entries)):
            try:
                steps, entry = self._entries.popleft()
            except IndexError:
                break
            self._drained += steps
            drained.append(entry)
        return drained
