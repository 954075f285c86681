"""When the frames of a node go to their collector, and what is kept until then. Pure: no socket, no clock.

    idle        a frame goes at once
    flowing     everything that has come goes together, an interval after the last time
    urgent      a Hello, a last word: with what else is there, URGENT_NS later at most

A frame that has no place is dropped and counted. That is no loss: its rank holds it until the collector has it, and
sends it again.
"""

from collections import deque
from typing import Final, NamedTuple

from rankscope.collector.ingest.relays import FULL, PEER_QUOTA
from rankscope.measure.messages import RELAYED_MAX, RelayedFrame
from rankscope.measure.units import NS_PER_MS, NS_PER_S

URGENT_NS: Final = 20 * NS_PER_MS
"""The ranks of a node begin and end together, within milliseconds: their Hellos go in one batch."""

BATCH_BYTES_MAX: Final = 48 * 1024
"""Frames of so many bytes go together. Below the smallest message_bytes_max that a collector may have, 64 KiB; a single
frame that is larger goes alone. Eight reports of a second have some 16 KiB."""

PEER_FRAMES_MAX: Final = 128
"""Frames kept of one rank: twice what it sends ahead of its acknowledgements, so that only one that does not keep to
the rules comes to it."""


class _Waiting(NamedTuple):
    """A frame and when it came."""

    peer: bytes
    frame: bytes
    key: str
    came_ns: int


class NodeBatch:
    """What has come from the ranks and is not sent yet: in order, at most `bytes_max` bytes, PEER_FRAMES_MAX frames of
    each rank.

    `interval_ns` is the shortest time between two batches in which nothing is urgent. All times are of one clock that
    never goes back.
    """

    def __init__(self, *, interval_ns: int = NS_PER_S, bytes_max: int) -> None:
        self._interval_ns = interval_ns
        self._bytes_max = bytes_max
        self._waiting: deque[_Waiting] = deque()
        self._of_peer: dict[bytes, int] = {}
        self._held_bytes = 0
        self._sent_ns: int | None = None
        self._due_ns: int | None = None
        self.dropped: dict[str, int] = {}
        """Frames that were not kept, by reason."""

    def __len__(self) -> int:
        """How many frames wait."""
        return len(self._waiting)

    @property
    def held_bytes(self) -> int:
        """Bytes of the frames that wait."""
        return self._held_bytes

    @property
    def due_ns(self) -> int | None:
        """When the next batch is due; None while nothing waits."""
        return self._due_ns

    def add(self, peer: bytes, frame: bytes, key: str, now_ns: int, *, urgent: bool = False) -> bool:
        """A frame has come; whether it is kept."""
        reason = None
        if self._of_peer.get(peer, 0) >= PEER_FRAMES_MAX:
            reason = PEER_QUOTA
        elif self._held_bytes + len(frame) > self._bytes_max and self._waiting:
            reason = FULL
        if reason is not None:
            self.dropped[reason] = self.dropped.get(reason, 0) + 1
            return False
        self._waiting.append(_Waiting(peer, frame, key, now_ns))
        self._of_peer[peer] = self._of_peer.get(peer, 0) + 1
        self._held_bytes += len(frame)
        if self._due_ns is None:
            self._due_ns = now_ns if self._sent_ns is None else max(now_ns, self._sent_ns + self._interval_ns)
        if urgent:
            self._due_ns = min(self._due_ns, now_ns + URGENT_NS)
        return True

    def build(self, now_ns: int) -> tuple[RelayedFrame, ...]:
        """What goes into the next batch: the oldest frames, at least one. They wait on until `sent`."""
        frames: list[RelayedFrame] = []
        size = 0
        for waiting in self._waiting:
            size += len(waiting.frame)
            if frames and (size > BATCH_BYTES_MAX or len(frames) >= RELAYED_MAX):
                break
            age_ns = max(0, now_ns - waiting.came_ns)
            frames.append(RelayedFrame(waiting.peer, waiting.frame, age_ns, waiting.key))
        return tuple(frames)

    def sent(self, count: int, now_ns: int) -> None:
        """So many of the oldest frames are on their way."""
        for _ in range(count):
            self._take_oldest()
        self._sent_ns = now_ns
        if not self._waiting:
            self._due_ns = None

    def drop(self, reason: str) -> None:
        """Let go of everything."""
        if self._waiting:
            self.dropped[reason] = self.dropped.get(reason, 0) + len(self._waiting)
        self._waiting.clear()
        self._of_peer.clear()
        self._held_bytes = 0
        self._due_ns = None

    def _take_oldest(self) -> None:
        oldest = self._waiting.popleft()
        self._held_bytes -= len(oldest.frame)
        left = self._of_peer[oldest.peer] - 1
        if left:
            self._of_peer[oldest.peer] = left
        else:
            del self._of_peer[oldest.peer]
