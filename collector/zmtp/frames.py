"""Frames of ZMTP 3 (RFC 23): a byte of flags, the length of the body in one byte or in eight, the body. Pure."""

from collections.abc import Iterator
from typing import Final

from rankscope.collector.zmtp.rejection import BROKEN_PROTOCOL, TOO_LARGE, Rejected

MORE: Final = 0x01
"""Another part of the same message follows."""
LARGE: Final = 0x02
"""The length has eight bytes."""
COMMAND: Final = 0x04
"""For the protocol itself, and not for its user."""

_SHORT_MAX: Final = 255
_SHORT_HEAD, _LARGE_HEAD = 2, 9

Frame = tuple[int, bytes]
"""Flags and body."""


def build_frame(body: bytes, flags: int = 0) -> bytes:
    r"""The bytes of a frame.

    >>> build_frame(b"abc"), build_frame(b"abc", COMMAND)
    (b'\x00\x03abc', b'\x04\x03abc')
    >>> build_frame(bytes(256))[:10]
    b'\x02\x00\x00\x00\x00\x00\x00\x01\x00\x00'
    """
    size = len(body)
    if size <= _SHORT_MAX:
        return bytes((flags, size)) + body
    return bytes((flags | LARGE,)) + size.to_bytes(8, "big") + body


class FrameReader:
    """Cuts what comes on one connection, in whatever pieces, into frames of at most `body_bytes_max`, which may be
    changed between two of them. It holds no more than the frame that has begun.
    """

    __slots__ = ("_begun", "_missing", "body_bytes_max")

    def __init__(self, body_bytes_max: int) -> None:
        self.body_bytes_max = body_bytes_max
        self._begun: bytearray | None = None
        self._missing = 0  # at least so many bytes before the frame that has begun can be read

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are whole with these bytes; to be gone through to its end.

        Raises Rejected at a frame that is too large or is none; those before it have come then.
        """
        if self._begun is not None:
            self._begun += data
            self._missing -= len(data)
            if self._missing > 0:
                return
            data, self._begun = bytes(self._begun), None
        at, end = 0, len(data)
        while at < end:
            flags = data[at]
            body_at = at + (_LARGE_HEAD if flags & LARGE else _SHORT_HEAD)
            if flags > MORE | LARGE | COMMAND:
                raise Rejected(BROKEN_PROTOCOL)
            if body_at > end:
                self._hold(data[at:], body_at - end)
                return
            size = int.from_bytes(data[at + 1 : body_at], "big")
            if size > self.body_bytes_max:
                raise Rejected(TOO_LARGE)
            next_at = body_at + size
            if next_at > end:
                self._hold(data[at:], next_at - end)
                return
            yield flags, data[body_at:next_at]
            at = next_at

    def _hold(self, begun: bytes, missing: int) -> None:
        self._begun, self._missing = bytearray(begun), missing
