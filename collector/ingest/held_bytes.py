"""Measure and bound the memory that connections hold here for messages that are never completed.

libzmq allocates a frame when its size is known and fills it as bytes arrive, and keeps the parts of a message until the
last one, however many there are. It does not report how much that is. The kernel counts the bytes that have arrived on
a connection (TCP_INFO) and those still unread there, which it bounds itself (FIONREAD); the rest, less the messages
that were received, is held by libzmq.

Complete messages that wait to be read are held too, and are no fault: hundreds of honest ranks that send what a
collector missed hold more than the limit, as much as libzmq reads ahead of each. They differ from a message that never
ends in that further messages can be read: a connection counts only while no message of it arrives between two
measurements although there was time for one (connections.py), and only with what it held at the first of them.

A frame, the CURVE box around it and a heartbeat need bytes on the connection that are in no message. So a little more
than they need is subtracted for each message, and from the bytes between two measurements: the rest must not grow in a
connection that lasts for a year, nor shrink in a silent one.
"""

import contextlib
import fcntl
import socket
import struct
import termios
from typing import Final

from rankscope.measure.units import NS_PER_MS

HELD_BYTES_FREE: Final = 64 * 1024
"""Connections that hold less do not count: each of 16,384 may be amid a frame."""
HELD_BYTES_MAX: Final = 16 * 1024 * 1024
"""Most that all others may hold together: four of the largest honest frames."""
MEMORY_RATIO_MAX: Final = 32
"""Memory that a held byte costs at most: an empty part has two bytes on the connection, and 64 in libzmq."""
MEMORY_BYTES_MAX: Final = 64 * 1024 * 1024
"""Most memory that held bytes may cost together: four times that of the largest honest frames. Half a gigabyte, where
16 MiB of empty parts were allowed, is more than the collector of a thousand ranks takes itself."""

MEASURE_NS_MIN: Final = 50 * NS_PER_MS
MEASURE_NS_EACH: Final = NS_PER_MS // 4
"""Time between two measurements, for each connection: measuring one takes 3 us, a hundredth of a core."""

_OVERHEAD_BYTES: Final = 64
_HANDSHAKE_BYTES: Final = 1024

_TCP_INFO_BYTES: Final = 136
_BYTES_RECEIVED: Final = struct.Struct("=Q")
_BYTES_RECEIVED_AT: Final = 128
"""tcpi_bytes_received in struct tcp_info (linux/tcp.h, since Linux 4.1)."""
_WAITING: Final = struct.Struct("=i")


class ConnectionBytes:
    """The memory that one connection holds."""

    __slots__ = ("_read", "_received", "now_bytes")

    def __init__(self) -> None:
        self._read = 0
        self._received = _HANDSHAKE_BYTES
        self.now_bytes = 0
        """Bytes held at the last measurement, complete messages included."""

    def note_message(self, size_bytes: int) -> None:
        """Note that a message of this size was received."""
        self._received += size_bytes + _OVERHEAD_BYTES

    def measure(self, file: int) -> int:
        """Return how many bytes it has held since the last measurement in which no message was received.

        0 where the kernel does not count them, as for Unix sockets.
        """
        before, has_progressed = self.now_bytes, self._received > 0
        read = max(self._read, _count_bytes_read(file))
        grown = max(0, read - self._read - _OVERHEAD_BYTES)
        self.now_bytes = max(0, self.now_bytes + grown - self._received)
        self._read, self._received = read, 0
        return 0 if has_progressed else min(before, self.now_bytes)


class HeapGrowth:
    """How much memory held bytes cost, as far as the heap has grown with them: by their number for frames, by 32 times
    that for empty parts. Without bytes that are held it is 0.

    >>> memory = HeapGrowth()
    >>> [memory.update(held, heap) for held, heap in ((0, 500), (10, 510), (20, 900), (10, 900), (0, 900))]
    [0, 10, 330, 165, 0]
    """

    def __init__(self) -> None:
        self._held_bytes = self._heap_bytes = 0
        self._cost_bytes = 0

    def update(self, held_bytes: int, heap_bytes: int) -> int:
        """Return what all bytes cost that are held now, with the heap as it is now."""
        more_bytes = held_bytes - self._held_bytes
        if more_bytes > 0:
            self._cost_bytes += max(0, min(heap_bytes - self._heap_bytes, MEMORY_RATIO_MAX * more_bytes))
        elif more_bytes < 0:
            self._cost_bytes = self._cost_bytes * held_bytes // self._held_bytes
        self._held_bytes, self._heap_bytes = held_bytes, heap_bytes
        return self._cost_bytes


def _count_bytes_read(file: int) -> int:
    """Return how many bytes libzmq has read of a connection, or a little less while more arrive."""
    with contextlib.suppress(OSError, struct.error):  # it has just been closed, or is no TCP connection
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=file)
        try:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
            (waiting,) = _WAITING.unpack(fcntl.ioctl(file, termios.FIONREAD, bytes(_WAITING.size)))
            return int(_BYTES_RECEIVED.unpack_from(info, _BYTES_RECEIVED_AT)[0]) - int(waiting)
        finally:
            connection.detach()  # it is libzmq's to close
    return 0
