"""A bounded hand-over from the training thread to the agent thread that never blocks either."""

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Ring(Generic[T]):
    """One thread appends, another drains. When it is full the oldest entry falls out and is counted.

    deque's append and popleft are atomic in CPython, so no lock is held on the training thread.
    """

    def __init__(self, entries_max: int) -> None:
        self._entries: deque[T] = deque()
        self._entries_max = entries_max
        self._appended = 0
        self.overwritten = 0

    @property
    def appended(self) -> int:
        """How many entries were ever appended."""
        return self._appended

    def __len__(self) -> int:
        """How many entries wait to be drained."""
        return len(self._entries)

    def append(self, entry: T) -> None:
        """Add an entry, at the cost of the oldest when the ring is full."""
        self._appended += 1
        self._entries.append(entry)
        if len(self._entries) > self._entries_max:
            try:
                self._entries.popleft()
            except IndexError:  # the other thread drained it in between
                return
            self.overwritten += 1

    def drain(self) -> list[T]:
        """Take out everything that is there now, oldest first."""
        taken = []
        for _ in range(len(self._entries)):
            try:
                taken.append(self._entries.popleft())
            except IndexError:
                break
        return taken
