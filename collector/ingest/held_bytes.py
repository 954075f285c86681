"""What a connection holds in memory here that does not become a message: measured, and bounded in sum.

libzmq allocates a frame when its size is known and fills it as it comes, and keeps the parts of a message until its
last one is there, however many there are. It tells nobody how much that is. The kernel counts the bytes that have come
on a connection (TCP_INFO), and those that nobody has read there yet, which it bounds by itself (FIONREAD); what is left
when these and the messages that were received are taken off is held.

Whole messages that wait to be read are held too, and are no fault: hundreds of honest ranks that send what a collector
missed hold more than the limit, as much as libzmq reads ahead of each. What never becomes a message can be told from
them, since nothing behind it can be read: a connection counts only while no message of it comes between two
measurements although there was time for one (connections.py), and only with what it held at the first of them.

A frame, a box of CURVE around it and a heartbeat cost bytes on the wire that are in no message. So a little more than
they cost is taken off for each message, and from what has come between two measurements: the rest must not grow in a
connection that lives for a year, nor shrink in one that is silent.
"""

import contextlib
import fcntl
import socket
import struct
import termios
from typing import Final

from rankscope.measure.units import NS_PER_MS

HELD_BYTES_FREE: Final = 64 * 1024
"""Who holds less does not count: each of 16,384 may be amid a frame."""
HELD_BYTES_MAX: Final = 16 * 1024 * 1024
"""All that hold more than that may hold so much together: four of the largest honest frames. A message of endless empty
parts takes 32 times as much memory as bytes on the wire, 512 MiB then."""

MEASURE_NS_MIN: Final = 50 * NS_PER_MS
MEASURE_NS_EACH: Final = NS_PER_MS // 4
"""Time between two measurements: to measure one connection takes some 3 us, so that is a hundredth of a core."""

_OVERHEAD_BYTES: Final = 64
_HANDSHAKE_BYTES: Final = 1024

_TCP_INFO_BYTES: Final = 136
_BYTES_RECEIVED: Final = struct.Struct("=Q")
_BYTES_RECEIVED_AT: Final = 128
"""tcpi_bytes_received in struct tcp_info (linux/tcp.h, since Linux 4.1)."""
_WAITING: Final = struct.Struct("=i")


class HeldBytes:
    """What one connection holds."""

    __slots__ = ("_read", "_taken", "now_bytes")

    def __init__(self) -> None:
        self._read = 0
        self._taken = _HANDSHAKE_BYTES
        self.now_bytes = 0
        """What it held when it was last measured, whole messages included."""

    def take(self, size_bytes: int) -> None:
        """A message of so many bytes has been received from it."""
        self._taken += size_bytes + _OVERHEAD_BYTES

    def measure(self, file: int) -> int:
        """Return how many bytes it has held since the last measurement without a message having come of it.

        0 where the kernel does not count them, as on a path of this machine.
        """
        before, has_progressed = self.now_bytes, self._taken > 0
        read = max(self._read, _count_bytes_read(file))
        grown = max(0, read - self._read - _OVERHEAD_BYTES)
        self.now_bytes = max(0, self.now_bytes + grown - self._taken)
        self._read, self._taken = read, 0
        return 0 if has_progressed else min(before, self.now_bytes)


def _count_bytes_read(file: int) -> int:
    """Return how many bytes libzmq has read of a connection, or a little less when more come at this moment."""
    with contextlib.suppress(OSError, struct.error):  # it has just been closed, or is no TCP connection
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=file)
        try:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
            (waiting,) = _WAITING.unpack(fcntl.ioctl(file, termios.FIONREAD, bytes(_WAITING.size)))
            return int(_BYTES_RECEIVED.unpack_from(info, _BYTES_RECEIVED_AT)[0]) - int(waiting)
        finally:
            connection.detach()  # it is libzmq's to close
    return 0
