"""What a connection holds in memory here that is no message yet, or that nobody has read: measured, and bounded in sum.

libzmq allocates a frame when its size is known and fills it as it comes, and keeps the parts of a message until its
last one is there, however many there are. It tells nobody how much that is. The kernel counts the bytes that have come
on a connection (TCP_INFO); what is left of them when the messages that were received are taken off is held.

A frame, a box of CURVE around it and a heartbeat cost bytes on the wire that are in no message. So a little more than
they cost is taken off for each message and each measurement: the rest must not grow in a connection that lives for a
year.
"""

import contextlib
import socket
import struct
from typing import Final

from rankscope.measure.units import NS_PER_MS

HELD_BYTES_FREE: Final = 64 * 1024
"""Who holds less does not count: an agent with a backlog has so much on its way, and each of 16,384 may."""
HELD_BYTES_MAX: Final = 16 * 1024 * 1024
"""All that hold more than that may hold so much together: four of the largest honest frames. A message of endless empty
parts takes 32 times as much memory as bytes on the wire, 512 MiB then."""

MEASURE_NS_MIN: Final = 100 * NS_PER_MS
MEASURE_NS_EACH: Final = NS_PER_MS // 4
"""Time between two measurements: to measure one connection takes some 2.5 us, so that is a hundredth of a core."""

_OVERHEAD_BYTES: Final = 64
_HANDSHAKE_BYTES: Final = 1024

_TCP_INFO_BYTES: Final = 136
_BYTES_RECEIVED: Final = struct.Struct("=Q")
_BYTES_RECEIVED_AT: Final = 128
"""tcpi_bytes_received in struct tcp_info (linux/tcp.h, since Linux 4.1)."""


class HeldBytes:
    """What one connection holds."""

    __slots__ = ("_held", "_received", "_taken")

    def __init__(self) -> None:
        self._received = 0
        self._taken = _HANDSHAKE_BYTES
        self._held = 0

    def take(self, size_bytes: int) -> None:
        """A message of so many bytes has been received from it."""
        self._taken += size_bytes + _OVERHEAD_BYTES

    def measure(self, file: int) -> int:
        """Return how many bytes it holds now; 0 where the kernel does not count them, as on a path of this machine."""
        received = _read_bytes_received(file)
        self._held = max(0, self._held + received - self._received - self._taken - _OVERHEAD_BYTES)
        self._received, self._taken = received, 0
        return self._held


def _read_bytes_received(file: int) -> int:
    with contextlib.suppress(OSError, struct.error):  # it has just been closed, or is no TCP connection
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=file)
        try:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
            return int(_BYTES_RECEIVED.unpack_from(info, _BYTES_RECEIVED_AT)[0])
        finally:
            connection.detach()  # it is libzmq's to close
    return 0
