"""A bounded hand-over from the training thread to the agent thread that never blocks either."""

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Ring(Generic[T]):
    """One thread appends, another drains. When it is full the oldest entry falls out and is counted.

    An entry may stand for several; all counts are of what entries stand for. deque's append and popleft are atomic in
    CPython, so no lock is held on the training thread.
    """

    def __init__(self, entries_max: int) -> None:
        self._entries: deque[tuple[int, T]] = deque()
        self._entries_max = entries_max
        self._drained = 0
        self.appended = 0
        """How many entries were ever appended."""
        self.overwritten = 0
        """How many of them fell out."""

    def __len__(self) -> int:
        """How many entries wait to be drained."""
        return max(0, self.appended - self.overwritten - self._drained)

    def append(self, entry: T, steps: int = 1) -> None:
        """Add an entry, at the cost of the oldest when the ring is full."""
        self.appended += steps
        self._entries.append((steps, entry))
        while len(self) > self._entries_max:
            try:
                lost, _ = self._entries.popleft()
            except IndexError:  # the other thread is draining it just now
                return
            self.overwritten += lost

    def drain(self) -> list[T]:
        """Take out everything that is there now, oldest first."""
        taken = []
        for _ in range(len(self._entries)):
            try:
                stood_for, entry = self._entries.popleft()
            except IndexError:
                break
            self._drained += stood_for
            taken.append(entry)
        return taken
