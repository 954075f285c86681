"""What has been sent or will be, and is not acknowledged yet. Bounded; the oldest falls out first, and is counted."""

from collections import deque
from itertools import islice
from typing import NamedTuple


class HeldFrame(NamedTuple):
    """One numbered message as bytes, and how many step records are lost if it is dropped."""

    sequence: int
    frame: bytes
    step_count: int


class ResendBuffer:
    """Numbered frames, held until they are acknowledged.

    Every frame ever pushed is acknowledged, dropped or held: `last_sequence = acknowledged + reports_dropped + len()`.
    The newest frame is never dropped, so that one frame may stand alone above `bytes_max`.

    >>> buffer = ResendBuffer(frames_max=2, bytes_max=1000)
    >>> for sequence in (1, 2, 3):
    ...     buffer.push(sequence, b"four", step_count=5)
    >>> buffer.first_sequence, buffer.last_sequence, buffer.reports_dropped, buffer.steps_dropped
    (2, 3, 1, 5)
    """

    def __init__(self, frames_max: int, bytes_max: int) -> None:
        if frames_max < 1 or bytes_max < 1:
            text = f"frames_max is {frames_max} and bytes_max is {bytes_max}; the smallest allowed is 1 for both"
            raise ValueError(text)
        self._frames_max = frames_max
        self._bytes_max = bytes_max
        self._held: deque[HeldFrame] = deque()
        self._last_sequence = 0
        self._held_bytes = 0
        self.reports_dropped = 0
        """Frames that fell out before they were acknowledged. One that arrived, with its acknowledgement still
        under way, counts too."""
        self.steps_dropped = 0
        """Step records in the dropped frames."""

    def __len__(self) -> int:
        """How many frames are held."""
        return len(self._held)

    @property
    def first_sequence(self) -> int:
        """Number of the oldest frame held; of the next one to come when none is."""
        return self._last_sequence - len(self._held) + 1

    @property
    def last_sequence(self) -> int:
        """Number of the newest frame ever pushed, 0 before the first."""
        return self._last_sequence

    @property
    def held_bytes(self) -> int:
        """Bytes of all frames held."""
        return self._held_bytes

    def push(self, sequence: int, frame: bytes, step_count: int) -> None:
        """Hold one more frame; where a bound is passed, the oldest ones make room.

        Raises ValueError, and changes nothing, unless `sequence` is `last_sequence` + 1.
        """
        if sequence != self._last_sequence + 1:
            text = f"frame {sequence} was pushed after frame {self._last_sequence}; numbers must follow without a gap"
            raise ValueError(text)
        self._last_sequence = sequence
        self._held.append(HeldFrame(sequence, frame, step_count))
        self._held_bytes += len(frame)
        while len(self._held) > 1 and self._is_over_full():
            self.reports_dropped += 1
            self.steps_dropped += self._take_oldest().step_count

    def acknowledge(self, through: int) -> int:
        """Let go of every frame up to and with number `through`. Returns how many were held."""
        released = 0
        while self._held and self._held[0].sequence <= through:
            self._take_oldest()
            released += 1
        return released

    def frames_from(self, sequence: int, count_max: int) -> tuple[HeldFrame, ...]:
        """At most `count_max` held frames in order, from number `sequence` on, or from the oldest if that is gone."""
        skipped = max(0, sequence - self.first_sequence)
        return tuple(islice(self._held, skipped, skipped + max(0, count_max)))

    def _is_over_full(self) -> bool:
        return len(self._held) > self._frames_max or self._held_bytes > self._bytes_max

    def _take_oldest(self) -> HeldFrame:
        oldest = self._held.popleft()
        self._held_bytes -= len(oldest.frame)
        return oldest
