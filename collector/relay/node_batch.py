"""Collect the frames of a node's ranks into batches for their collector. Pure: no socket, no clock.

    idle        a frame is sent at once
    flowing     all frames that have come are sent together, an interval after the last batch
    urgent      a Hello or the last message of a rank, or of a capture: with all others, within URGENT_NS

A frame without room is dropped and counted. Nothing is lost by it: its rank holds it until the collector acknowledges
it, and sends it again; what is said of a capture the collector asks for again.
"""

from collections import deque
from typing import Final, NamedTuple

from rankscope.collector.ingest.relays import FULL, PEER_QUOTA
from rankscope.measure.node_messages import RELAYED_MAX, RelayedFrame
from rankscope.measure.units import NS_PER_MS, NS_PER_S

URGENT_NS: Final = 20 * NS_PER_MS
"""The ranks of a node start and end within milliseconds of each other: their Hellos are sent in one batch."""

BATCH_BYTES_MAX: Final = 48 * 1024
"""Size of a batch. Below the smallest message_bytes_max that a collector may have, 64 KiB; a larger frame is sent
alone. Eight reports of a second have about 16 KiB."""

PEER_FRAMES_MAX: Final = 128
"""Frames kept of one rank: twice what it sends ahead of its acknowledgements, so that only a misbehaving one reaches
the limit."""


class _Waiting(NamedTuple):
    """A frame and when it arrived."""

    peer: bytes
    frame: bytes
    key: str
    came_ns: int


class NodeBatch:
    """Frames of ranks that are not sent yet: in order, at most `bytes_max` bytes, PEER_FRAMES_MAX frames of each rank.

    `interval_ns` is the shortest time between two batches without urgent frames. All times are of one monotonic clock.
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
        """Dropped frames, by reason."""

    def __len__(self) -> int:
        """Return how many frames wait."""
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
        """Queue a frame; return whether there was room for it."""
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
        """Return the frames of the next batch: the oldest ones, at least one. They stay queued until `sent`."""
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
        """Remove the `count` oldest frames, which were sent."""
        for _ in range(count):
            self._remove_oldest()
        self._sent_ns = now_ns
        if not self._waiting:
            self._due_ns = None

    def drop(self, reason: str) -> None:
        """Drop and count all frames."""
        if self._waiting:
            self.dropped[reason] = self.dropped.get(reason, 0) + len(self._waiting)
        self._waiting.clear()
        self._of_peer.clear()
        self._held_bytes = 0
        self._due_ns = None

    def _remove_oldest(self) -> None:
        oldest = self._waiting.popleft()
        self._held_bytes -= len(oldest.frame)
        left = self._of_peer[oldest.peer] - 1
        if left:
            self._of_peer[oldest.peer] = left
        else:
            del self._of_peer[oldest.peer]
