"""Pass entries from the training thread to the agent thread through a bounded buffer that never blocks either."""

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Ring(Generic[T]):
    """A bounded buffer: one thread appends, another drains. When it is full the oldest entry is overwritten and
    counted.

    deque's append and popleft are atomic in CPython, so the training thread takes no lock.
    """

    def __init__(self, entries_max: int) -> None:
        self._entries: deque[T] = deque()
        self._entries_max = entries_max
        self.appended = 0
        """Entries appended so far."""
        self.overwritten = 0
        """Entries overwritten so far."""

    def __len__(self) -> int:
        """Return how many entries are not drained yet."""
        return len(self._entries)

    def append(self, entry: T) -> None:
        """Add an entry, in place of the oldest when the ring is full."""
        self.appended += 1
        self._entries.append(entry)
        while len(self._entries) > self._entries_max:
            try:
                self._entries.popleft()
            except IndexError:  # the other thread has just drained it
                return
            self.overwritten += 1

    def drain(self) -> list[T]:
        """Remove and return all present entries, oldest first."""
        drained = []
        for _ in range(len(self._entries)):
            try:
                drained.append(self._entries.popleft())
            except IndexError:  # the other thread has just overwritten it
                break
        return drained
