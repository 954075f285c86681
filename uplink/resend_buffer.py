"""Keeps unacknowledged frames. Bounded; the oldest is dropped first, and counted.

    memory            [ 7 8 9 ]     the newest, at most `frames_max` of them and `bytes_max` bytes
    spill   [ 3 4 5 6 7 8 9 ]       optional: every frame is written to it as it is pushed

With a spill a frame may leave memory once it is written, and is read back when it is sent. The held frames always have
consecutive numbers. So when the spill fails and memory is full, the frames on the disk are the oldest and are dropped
first.
"""

from collections import deque
from itertools import islice
from typing import NamedTuple, Protocol


class HeldFrame(NamedTuple):
    """One numbered message as bytes, with the number of step records in it."""

    sequence: int
    frame: bytes
    step_count: int


class SpillStore(Protocol):
    """A bounded log of frames with consecutive numbers. `spill.py` implements it on the disk."""

    @property
    def first_sequence(self) -> int:
        """Number of the oldest frame in it; above `last_sequence` if there is none."""
        ...

    @property
    def last_sequence(self) -> int:
        """Number of the newest frame in it."""
        ...

    def append(self, held: HeldFrame) -> bool:
        """Write a frame that follows the last one, or the first of an empty log; the oldest may be dropped for it."""
        ...

    def read(self, sequence: int, count_max: int) -> tuple[HeldFrame, ...]:
        """Return at most `count_max` frames in order from that number on; stop at an unreadable one."""
        ...

    def release(self, through: int) -> None:
        """Release the frames up to that number, which are acknowledged."""
        ...

    def drop_oldest(self) -> None:
        """Drop at least the oldest frame."""
        ...

    def drop_unreadable(self, sequence: int) -> None:
        """Drop that unreadable frame, all before it, and unreadable ones right after it."""
        ...


class ResendBuffer:
    """A buffer of numbered frames until they are acknowledged.

    Every frame ever pushed is acknowledged, dropped or held: `last_sequence = acknowledged + reports_dropped + len()`.
    The newest frame is never dropped, so a single frame may exceed `bytes_max`.

    >>> buffer = ResendBuffer(frames_max=2, bytes_max=1000)
    >>> for sequence in (1, 2, 3):
    ...     buffer.push(sequence, b"four", step_count=5)
    >>> buffer.first_sequence, buffer.last_sequence, buffer.reports_dropped, buffer.steps_dropped
    (2, 3, 1, 5)
    """

    def __init__(self, frames_max: int, bytes_max: int, spill: SpillStore | None = None, *, after: int = 0) -> None:
        if frames_max < 1 or bytes_max < 1:
            text = f"frames_max is {frames_max} and bytes_max is {bytes_max}; the smallest allowed is 1 for both"
            raise ValueError(text)
        self._frames_max = frames_max
        self._bytes_max = bytes_max
        self._spill = spill
        self._step_counts: deque[int] = deque()  # of every frame held
        self._in_memory: deque[HeldFrame] = deque()  # the newest of them
        self._last_sequence = after
        self._held_bytes = 0
        self.reports_dropped = 0
        """Number of frames dropped before they were acknowledged, including those that arrived meanwhile."""
        self.steps_dropped = 0
        """Number of step records in the dropped frames."""

    def __len__(self) -> int:
        """Return the number of frames held."""
        return len(self._step_counts)

    @property
    def first_sequence(self) -> int:
        """Number of the oldest frame held; that of the next frame if none is."""
        return self._last_sequence - len(self._step_counts) + 1

    @property
    def last_sequence(self) -> int:
        """Number of the newest frame ever pushed; before the first push `after`, which is 0 except for parts of
        orphaned reports.
        """
        return self._last_sequence

    @property
    def held_bytes(self) -> int:
        """Bytes of all frames held in memory."""
        return self._held_bytes

    def push(self, sequence: int, frame: bytes, step_count: int) -> None:
        """Add a frame, dropping the oldest ones if a bound is exceeded.

        Raise ValueError, and change nothing, unless `sequence` is `last_sequence` + 1.
        """
        if sequence != self._last_sequence + 1:
            text = f"frame {sequence} was pushed after frame {self._last_sequence}; numbers must follow without a gap"
            raise ValueError(text)
        self._last_sequence = sequence
        self._step_counts.append(step_count)
        self._in_memory.append(HeldFrame(sequence, frame, step_count))
        self._held_bytes += len(frame)
        self._write_to_spill()
        while len(self._in_memory) > 1 and self._is_over_full():
            self._make_room()

    def acknowledge(self, through: int) -> int:
        """Release every frame up to and including number `through`; return the number released."""
        released = 0
        while self._step_counts and self.first_sequence <= through:
            self._pop_oldest()
            released += 1
        if released and self._spill is not None:
            self._spill.release(through)
        return released

    def frames_from(self, sequence: int, count_max: int) -> tuple[HeldFrame, ...]:
        """Return at most `count_max` held frames in order from `sequence` on, or from the oldest if that is gone.

        If a frame in the spill is unreadable, it and older ones are dropped, and none are returned.
        """
        first = max(sequence, self.first_sequence)
        first_in_memory = self._first_in_memory()
        count = max(0, min(count_max, self._last_sequence - first + 1))
        in_spill = max(0, min(count, first_in_memory - first))
        found: tuple[HeldFrame, ...] = ()
        if in_spill and self._spill is not None:
            found = self._spill.read(first, in_spill)
            if not found:
                self._spill.drop_unreadable(first)
                self._sync_with_spill()
            if len(found) < in_spill:
                return found
        skipped = max(0, first - first_in_memory)
        return found + tuple(islice(self._in_memory, skipped, skipped + count - in_spill))

    def _first_in_memory(self) -> int:
        return self._last_sequence - len(self._in_memory) + 1

    def _is_over_full(self) -> bool:
        return len(self._in_memory) > self._frames_max or self._held_bytes > self._bytes_max

    def _write_to_spill(self) -> None:
        """Write all frames in memory that are not written yet; the spill may drop its oldest for them."""
        if self._spill is None:
            return
        written_through = max(self._spill.last_sequence, self._first_in_memory() - 1)
        for held in islice(self._in_memory, written_through + 1 - self._first_in_memory(), None):
            if not self._spill.append(held):
                break
        self._sync_with_spill()

    def _make_room(self) -> None:
        oldest = self._in_memory[0].sequence
        if self._spill is not None and self._spill.first_sequence <= oldest <= self._spill.last_sequence:
            self._forget_oldest_in_memory()
        elif self._spill is not None and self.first_sequence < oldest:
            self._spill.drop_oldest()
            self._sync_with_spill()
            self._write_to_spill()
        else:
            self._drop_before(oldest + 1)

    def _sync_with_spill(self) -> None:
        """Drop the frames that the spill has dropped."""
        if self._spill is not None:
            is_empty = self._spill.first_sequence > self._spill.last_sequence
            on_disk = self._first_in_memory() if is_empty else self._spill.first_sequence
            self._drop_before(min(on_disk, self._first_in_memory()))

    def _drop_before(self, sequence: int) -> None:
        while self._step_counts and self.first_sequence < sequence:
            self.reports_dropped += 1
            self.steps_dropped += self._pop_oldest()

    def _pop_oldest(self) -> int:
        """Remove the oldest frame, in memory or spill; return the number of its step records."""
        if len(self._in_memory) == len(self._step_counts):
            self._forget_oldest_in_memory()
        return self._step_counts.popleft()

    def _forget_oldest_in_memory(self) -> None:
        self._held_bytes -= len(self._in_memory.popleft().frame)
